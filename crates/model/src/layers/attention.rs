use super::pass::{BlockCache, Pass};
use super::qk_norm::{QkNorm, heads};
use super::scalar_biases::ScalarBiases;
use crate::config::Position;
use crate::linear::Linear;
use crate::ops::{self, Rotary, like};
use crate::plan::{AttentionPlan, BranchPlan};
use crate::weights::{Builder, Start};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use unitgain_init::Role;
use unitgain_norms::Norm;
use unitgain_residual::times;

/// Causal self-attention: `softmax(scale q k^T) v` per head, with grouped queries (arXiv:2305.13245) if there are fewer
/// key/value heads than query heads.
#[derive(Module, Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    qk_norm: QkNorm,
    value_norm: Norm,
    /// Learned factor of each head's output, `[heads]`.
    head_scale: Option<Param<Tensor<1>>>,
    /// Norm before the output projection.
    inner_norm: Norm,
    /// Scalar biases before the projections and before the output projection.
    biases: ScalarBiases,
    rotary: Option<Rotary>,
    heads: usize,
    kv_heads: usize,
    /// Softcap of the logits; 0 for none.
    softcap: f64,
    /// Number of tokens that a token attends to; None for all.
    window: Option<usize>,
    /// Factor of the weighted average of values (1 except for u-muP).
    output_factor: f64,
}

impl Attention {
    /// Builds the attention of a plan.
    pub fn new(plan: &AttentionPlan, builder: &mut Builder<'_>) -> Self {
        let BranchPlan { site, gain, writer_gain, weight_norm, .. } = plan.branch;
        let (d, [queries, keys]) = (site.width, plan.widths());
        let mut linear = |name, role, fans, bias, gain| {
            builder.linear(name, role, fans, Start { bias, gain, norm: weight_norm, ..Start::default() })
        };
        let query = linear("query", Role::Query, [d, queries], plan.qkv_bias, plan.query_gain);
        let key = linear("key", Role::Key, [d, keys], plan.qkv_bias, 1.0);
        let value = linear("value", Role::Value, [d, keys], plan.qkv_bias, gain);
        let out = linear("out", Role::AttentionOutput, [queries, d], plan.bias, writer_gain);
        Self {
            query,
            key,
            value,
            out,
            qk_norm: QkNorm::new(plan, builder),
            value_norm: builder.norm(&plan.value_norm, plan.head_dim, Role::QkNorm),
            head_scale: plan.head_scale.then(|| builder.constant(1.0, plan.heads, Role::HeadScale)),
            inner_norm: builder.norm(&plan.branch.inner_norm(), queries, Role::Norm),
            biases: ScalarBiases::new(&plan.branch, 2, builder),
            rotary: matches!(plan.position, Position::Rope { .. })
                .then(|| Rotary::new(plan.context, &plan.position.frequencies(plan.head_dim), builder.device())),
            heads: plan.heads,
            kv_heads: plan.kv_heads,
            softcap: plan.softcap,
            window: plan.window,
            output_factor: plan.output_factor,
        }
    }

    /// The output for the input `x`, both `[sequences * time, width]`. With a cache, `x` holds the tokens after the cached ones.
    ///
    /// # Panics
    /// If `x` has another width.
    pub fn forward(&self, x: Tensor<2>, sequences: usize, pass: Pass<'_>, cache: Option<&mut BlockCache>) -> Tensor<2> {
        let Pass { start, block, probe, .. } = pass;
        let rows = x.dims()[0];
        let x = self.biases.add(0, x);
        let rotate = |y: Tensor<4>| match &self.rotary {
            Some(rotary) => rotary.forward(y, start),
            None => y,
        };
        let q = rotate(self.qk_norm.query(self.query.forward(x.clone(), probe), sequences, self.heads));
        let k = rotate(self.qk_norm.key(self.key.forward(x.clone(), probe), sequences, self.kv_heads));
        let v = self.value_norm.forward(heads(self.value.forward(x, probe), sequences, self.kv_heads));
        let (k, v) = match cache {
            Some(cache) => cache.extended(k, v),
            None => (k, v),
        };
        probe.attention(block, &q, &k, self.qk_norm.scale(), self.window);
        let y = ops::attention(q, k, v, self.qk_norm.scale(), self.softcap, self.window);
        let y = times(y, self.output_factor);
        let y = match &self.head_scale {
            Some(scale) => {
                let scale = like(scale.val(), &y);
                y * scale.reshape([1, 1, self.heads, 1])
            }
            None => y,
        };
        let width = self.heads * y.dims()[3];
        let y = self.inner_norm.forward_rows(y.reshape([rows, width]), sequences);
        self.out.forward(self.biases.add(1, y), probe)
    }
}
