use crate::config::QkNormOver;
use crate::ops::like;
use crate::plan::{AttentionPlan, LogitScale};
use crate::weights::Builder;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use unitgain_init::Role;
use unitgain_norms::Norm;

/// The norms of queries and keys and the factor of their product.
#[derive(Module, Debug)]
pub struct QkNorm {
    query: Norm,
    key: Norm,
    /// Learned factor of the product, `[1]`, or `[heads]` if each query head has its own.
    logit_scale: Option<Param<Tensor<1>>>,
    /// Fixed factor of the product.
    scale: f64,
    #[module(skip)]
    over: QkNormOver,
}

impl QkNorm {
    /// Builds the norms and the learned scale of a plan.
    pub fn new(plan: &AttentionPlan, builder: &mut Builder<'_>) -> Self {
        // A gain over all heads grows with the width.
        let (role, count) = match plan.qk_norm_over {
            QkNormOver::Head => (Role::QkNorm, [1, 1]),
            QkNormOver::Width => (Role::Norm, [plan.heads, plan.kv_heads]),
        };
        let [query, key] = count.map(|count| builder.norm(&plan.qk_norm, count * plan.head_dim, role));
        let (scale, logit_scale) = match plan.logit_scale {
            LogitScale::HeadDim(scale) | LogitScale::Constant(scale) => (scale, None),
            LogitScale::Learned { start, per_head: true } => {
                (1.0, Some(builder.constant(start, plan.heads, Role::HeadScale)))
            }
            LogitScale::Learned { start, per_head: false } => (1.0, Some(builder.constant(start, 1, Role::QkNorm))),
        };
        Self { query, key, logit_scale, scale, over: plan.qk_norm_over }
    }

    /// Queries, `[sequences * time, heads * head_dim]`, normalized and times the learned scale, as
    /// `[sequences, time, heads, head_dim]`.
    pub fn query(&self, q: Tensor<2>, sequences: usize, heads: usize) -> Tensor<4> {
        let q = self.normalized(&self.query, q, sequences, heads);
        match &self.logit_scale {
            Some(g) => {
                let g = like(g.val(), &q);
                let count = g.dims()[0];
                q * g.reshape([1, 1, count, 1])
            }
            None => q,
        }
    }

    /// Keys, normalized, as [`QkNorm::query`] without the scale.
    pub fn key(&self, k: Tensor<2>, sequences: usize, heads: usize) -> Tensor<4> {
        self.normalized(&self.key, k, sequences, heads)
    }

    /// The fixed factor of the product of a query and a key.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    fn normalized(&self, norm: &Norm, x: Tensor<2>, sequences: usize, count: usize) -> Tensor<4> {
        match self.over {
            QkNormOver::Head => norm.forward(heads(x, sequences, count)),
            QkNormOver::Width => heads(norm.forward_rows(x, sequences), sequences, count),
        }
    }
}

/// Reshapes `[sequences * time, heads * head_dim]` to `[sequences, time, heads, head_dim]`.
pub(crate) fn heads(x: Tensor<2>, sequences: usize, heads: usize) -> Tensor<4> {
    let [rows, width] = x.dims();
    x.reshape([sequences, rows / sequences, heads, width / heads])
}
