use crate::attention::{Attention, KeysValues};
use crate::mlp::Mlp;
use crate::precision::Precision;
use crate::probe::Probe;
use burn::module::{Module, Param};
use burn::nn::Dropout;
use burn::tensor::Tensor;
use unitgain_residual::{Residual, Stream};

/// What a forward pass is, for the block that it is in.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    /// Position of the first token.
    pub(crate) start: usize,
    /// Index of the block.
    pub(crate) layer: usize,
    pub(crate) precision: Precision,
    pub(crate) probe: &'a dyn Probe,
}

/// Attention and MLP, each joined to the stream by its residual connection.
#[derive(Module, Debug)]
pub(crate) struct Block {
    pub(crate) around_attention: Residual,
    pub(crate) attention: Attention,
    pub(crate) around_mlp: Residual,
    pub(crate) mlp: Mlp,
    /// What both branches are multiplied by, where they share it.
    pub(crate) shared_scale: Option<Param<Tensor<1>>>,
    pub(crate) dropout: Dropout,
}

impl Block {
    /// The stream behind the block.
    pub(crate) fn forward(&self, stream: Stream, pass: Pass<'_>, cache: Option<&mut Option<KeysValues>>) -> Stream {
        let Pass { layer, precision, probe, .. } = pass;
        let sequences = stream.sequences;
        let written = |y: Tensor<2>| {
            let y = self.dropout.forward(precision.leave(y));
            match &self.shared_scale {
                Some(alpha) => y * alpha.val().unsqueeze(),
                None => y,
            }
        };
        let attention = |x| written(self.attention.forward(precision.enter(x), sequences, pass, cache));
        let mlp = |x| written(self.mlp.forward(precision.enter(x), sequences, probe));
        let seen = |branch, y| probe.branch(layer, branch, y);
        if self.around_attention.placement().is_parallel() {
            return self.around_attention.forward_parallel(stream, attention, &self.around_mlp, mlp, &seen);
        }
        let stream = self.around_attention.forward_seen(stream, attention, &seen);
        self.around_mlp.forward_seen(stream, mlp, &seen)
    }
}
