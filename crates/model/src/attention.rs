use crate::block::Pass;
use crate::fused;
use crate::linear::{Linear, ScalarBiases};
use crate::position::Rotary;
use crate::precision::{cast, like};
use crate::qk_norm::{QkNorm, heads};
use burn::module::{Module, Param};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Tensor, activation, module};
use unitgain_norms::Norm;
use unitgain_residual::times;

/// Keys and values of the tokens a model has seen, for generation.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    pub(crate) blocks: Vec<Option<KeysValues>>,
    pub(crate) length: usize,
}

/// `[batch, seen, kv_heads, head_dim]` each.
pub(crate) type KeysValues = (Tensor<4>, Tensor<4>);

impl Cache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of tokens seen.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no token was seen.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Causal self-attention: `softmax(scale q k^T) v` per head, grouped queries (arXiv:2305.13245) where
/// there are fewer key/value heads than query heads.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) out: Linear,
    pub(crate) qk_norm: QkNorm,
    pub(crate) value_norm: Norm,
    /// Learned factor of each head's output, `[heads]`.
    pub(crate) head_scale: Option<Param<Tensor<1>>>,
    /// Before the output projection.
    pub(crate) inner_norm: Norm,
    /// Before the projections, and before the output projection.
    pub(crate) biases: ScalarBiases,
    pub(crate) rotary: Option<Rotary>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// 0 is none.
    pub(crate) softcap: f64,
    /// What its average of values is multiplied by (1 but for u-muP).
    pub(crate) output_scale: f64,
}

impl Attention {
    /// `x` is `[batch * time, width]`. With a cache, `x` holds the tokens after those in it.
    pub(crate) fn forward(
        &self,
        x: Tensor<2>,
        batch: usize,
        pass: Pass<'_>,
        cache: Option<&mut Option<KeysValues>>,
    ) -> Tensor<2> {
        let Pass { start, layer, probe, .. } = pass;
        let rows = x.dims()[0];
        let x = self.biases.add(0, x);
        let turn = |y: Tensor<4>| match &self.rotary {
            Some(rotary) => rotary.forward(y, start),
            None => y,
        };
        let q = turn(self.qk_norm.query(self.query.forward(x.clone(), probe), batch, self.heads));
        let k = turn(self.qk_norm.key(self.key.forward(x.clone(), probe), batch, self.kv_heads));
        let v = self.value_norm.forward(heads(self.value.forward(x, probe), batch, self.kv_heads));
        let (k, v) = match cache {
            Some(cache) => {
                let (k, v) = match cache.take() {
                    Some((old_k, old_v)) => (Tensor::cat(vec![old_k, k], 1), Tensor::cat(vec![old_v, v], 1)),
                    None => (k, v),
                };
                cache.insert((k, v)).clone()
            }
            None => (k, v),
        };
        probe.attention(layer, &q, &k, self.qk_norm.scale());
        let y = times(self.attend(q, k, v), self.output_scale);
        let y = match &self.head_scale {
            Some(scale) => {
                let scale = like(scale.val(), &y);
                y * scale.reshape([1, 1, self.heads, 1])
            }
            None => y,
        };
        let width = self.heads * y.dims()[3];
        let y = self.inner_norm.forward_rows(y.reshape([rows, width]), batch);
        self.out.forward(self.biases.add(1, y), probe)
    }

    /// `softmax(scale q k^T) v` of `[batch, time, heads, head_dim]`, in the same layout. Queries are the last of
    /// the times that the keys have.
    fn attend(&self, q: Tensor<4>, k: Tensor<4>, v: Tensor<4>) -> Tensor<4> {
        let scale = self.qk_norm.scale();
        if let Some(y) = fused::attention(&q, &k, &v, scale, self.softcap) {
            return y;
        }
        let options = AttentionModuleOptions {
            scale: Some(scale),
            softcap: (self.softcap > 0.0).then_some(self.softcap),
            is_causal: true,
        };
        let [q, k, v] = [q, k, v].map(|x| x.swap_dims(1, 2));
        let (k, v) = (self.per_query(k), self.per_query(v));
        if q.dtype() == DType::F32 {
            return module::attention(q, k, v, None, None, options).swap_dims(1, 2);
        }
        // The softmax of a low precision, which burn's own attention takes in that precision, is taken in f32.
        let ([.., queries, _], [.., keys, _]) = (q.dims(), k.dims());
        let logits = cast(q.clone().matmul(k.transpose()), DType::F32) * scale;
        let logits = match options.softcap {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        };
        let later = Tensor::<2, Bool>::tril_mask([queries, keys], (keys - queries) as i64, &q.device());
        let weights = activation::softmax(logits.mask_fill(later.unsqueeze(), f32::NEG_INFINITY), 3);
        like(weights, &q).matmul(v).swap_dims(1, 2)
    }

    /// Repeats each key/value head for the queries of its group.
    fn per_query(&self, x: Tensor<4>) -> Tensor<4> {
        if self.heads == self.kv_heads {
            return x;
        }
        let [batch, kv_heads, time, head_dim] = x.dims();
        let group = self.heads / kv_heads;
        x.unsqueeze_dim::<5>(2)
            .expand([batch, kv_heads, group, time, head_dim])
            .reshape([batch, self.heads, time, head_dim])
    }
}
