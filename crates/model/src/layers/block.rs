use super::attention::Attention;
use super::mlp::Mlp;
use super::pass::{BlockCache, Pass};
use crate::ops;
use crate::plan::BlockPlan;
use crate::weights::Builder;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use unitgain_residual::{Residual, Stream};

/// Attention and MLP, each joined to the stream by its residual connection.
#[derive(Module, Debug)]
pub struct Block {
    around_attention: Residual,
    attention: Attention,
    around_mlp: Residual,
    mlp: Mlp,
    /// Learned factor shared by both branches.
    shared_scale: Option<Param<Tensor<1>>>,
    /// Probability of dropout of the output of each branch.
    dropout: f64,
}

impl Block {
    /// Builds the block of a plan; called within [`Builder::within_block`](crate::weights::Builder::within_block).
    pub fn new(plan: &BlockPlan, builder: &mut Builder<'_>) -> Self {
        Self {
            around_attention: builder.residual(&plan.attention.branch),
            attention: builder.within("attention", |builder| Attention::new(&plan.attention, builder)),
            around_mlp: builder.residual(&plan.mlp.branch),
            mlp: builder.within("mlp", |builder| Mlp::new(&plan.mlp, builder)),
            shared_scale: plan.shares_scale.then(|| builder.scalar(0.0, 1.0)),
            dropout: plan.dropout,
        }
    }

    /// Sets the probability of dropout of the branches.
    pub(crate) fn set_dropout(&mut self, dropout: f64) {
        self.dropout = dropout;
    }

    /// The stream after the block. With a cache, the stream holds the tokens after the cached ones.
    pub fn forward(&self, stream: Stream, pass: Pass<'_>, cache: Option<&mut BlockCache>) -> Stream {
        let Pass { block, precision, probe, .. } = pass;
        let sequences = stream.sequences;
        let written = |y: Tensor<2>| {
            let y = ops::dropout(precision.leave(y), self.dropout, sequences);
            match &self.shared_scale {
                Some(alpha) => y * alpha.val().unsqueeze(),
                None => y,
            }
        };
        let attention = |x| written(self.attention.forward(precision.enter(x), sequences, pass, cache));
        let mlp = |x| written(self.mlp.forward(precision.enter(x), sequences, probe));
        let observe = |branch, y| probe.branch(block, branch, y);
        if self.around_attention.placement().is_parallel() {
            return self.around_attention.forward_parallel(stream, attention, &self.around_mlp, mlp, &observe);
        }
        let stream = self.around_attention.forward_observed(stream, attention, &observe);
        self.around_mlp.forward_observed(stream, mlp, &observe)
    }
}
