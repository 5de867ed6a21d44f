use crate::attention::{Attention, KeysValues};
use crate::mlp::Mlp;
use crate::precision::Precision;
use burn::module::{Module, Param};
use burn::nn::Dropout;
use burn::tensor::Tensor;
use unitgain_residual::{Residual, Stream};

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
    /// The stream behind the block, whose branches compute in `precision`.
    pub(crate) fn forward(
        &self,
        stream: Stream,
        start: usize,
        cache: Option<&mut Option<KeysValues>>,
        precision: Precision,
    ) -> Stream {
        let sequences = stream.sequences;
        let written = |y: Tensor<2>| {
            let y = self.dropout.forward(precision.leave(y));
            match &self.shared_scale {
                Some(alpha) => y * alpha.val().unsqueeze(),
                None => y,
            }
        };
        let attention = |x| written(self.attention.forward(precision.enter(x), sequences, start, cache));
        let mlp = |x| written(self.mlp.forward(precision.enter(x), sequences));
        if self.around_attention.placement().is_parallel() {
            return self.around_attention.forward_parallel(stream, attention, &self.around_mlp, mlp);
        }
        let stream = self.around_attention.forward(stream, attention);
        self.around_mlp.forward(stream, mlp)
    }
}
