//! What happens to queries and keys before their product.

use crate::precision::like;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use unitgain_norms::{Norm, NormConfig, NormSite};
use unitgain_residual::{FACTOR, is_factor};

/// What `qk_norm` normalizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNormOver {
    /// Each head on its own (arXiv:2302.05442, Qwen 3, Gemma 3).
    #[default]
    Head,
    /// All heads of a token together, before they are split (arXiv:2501.00656).
    Width,
}

/// What the attention logits `q.k` are multiplied by.
///
/// ```toml
/// attention_scale = { kind = "learned", init = 10.0 }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AttentionScale {
    /// `1 / sqrt(head_dim)` (arXiv:1706.03762, eq. 1), or what the parametrization has in its place.
    HeadDim {},
    /// A number. A number alone stands for it.
    Constant {
        /// Required.
        value: f64,
    },
    /// A learned scalar g of each block, the inverse of a temperature (arXiv:2010.04245, eq. 4), or one of each of its
    /// query heads (arXiv:2111.09883, section 3.2).
    Learned {
        /// Its first value. Default with `l2_norm` `log2(T^2 - T)`, T the context, as the authors start for
        /// sequences of that length; with others what `head_dim` is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        init: Option<f64>,
        /// Whether each query head has its own. Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        per_head: bool,
    },
}

impl From<f64> for AttentionScale {
    fn from(value: f64) -> Self {
        Self::Constant { value }
    }
}

impl AttentionScale {
    /// The default that goes with a norm of queries and keys.
    pub(crate) fn of(qk_norm: &NormConfig) -> Self {
        match qk_norm {
            NormConfig::L2Norm { .. } => Self::Learned { init: None, per_head: false },
            _ => Self::HeadDim {},
        }
    }

    /// Writes out the default of a learned scale.
    pub(crate) fn resolved(self, qk_norm: &NormConfig, context: usize, per_head_dim: f64) -> Self {
        // Below 3 tokens the logarithm is not above 1.
        let t = context.max(3) as f64;
        let start = match qk_norm {
            NormConfig::L2Norm { .. } => (t * t - t).log2(),
            _ => per_head_dim,
        };
        match self {
            Self::Learned { init, per_head } => Self::Learned { init: Some(init.unwrap_or(start)), per_head },
            Self::HeadDim {} | Self::Constant { .. } => self,
        }
    }

    /// What is wrong with the settings, if anything.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            Self::Constant { value } if !(value > 0.0 && is_factor(value)) => {
                Err(format!("value = {value} must be {FACTOR} and positive"))
            }
            Self::Learned { init: Some(init), .. } if !(init > 0.0 && is_factor(init)) => {
                Err(format!("init = {init} must be {FACTOR} and positive"))
            }
            Self::HeadDim {} | Self::Constant { .. } | Self::Learned { .. } => Ok(()),
        }
    }
}

/// The norms of queries and keys and the factor of their product.
#[derive(Module, Debug)]
pub struct QkNorm {
    query: Norm,
    key: Norm,
    /// Learned factor of the product, `[1]`, or `[heads]` where each query head has its own.
    logit_scale: Option<Param<Tensor<1>>>,
    /// Fixed factor of the product.
    scale: f64,
    #[module(skip)]
    over: QkNormOver,
    /// Whether each query head has a learned factor of its own.
    #[module(skip)]
    per_head: bool,
}

impl QkNorm {
    /// For `heads` query and `kv_heads` key heads of `head_dim` entries beside a stream of width `stream`. `per_head_dim` is what
    /// [`AttentionScale::HeadDim`] stands for; a learned scale without a first value starts at 1.
    pub fn new(
        norm: &NormConfig,
        over: QkNormOver,
        scale: AttentionScale,
        [heads, kv_heads, head_dim, stream]: [usize; 4],
        per_head_dim: f64,
        device: &Device,
    ) -> Self {
        let width = |heads| match over {
            QkNormOver::Head => head_dim,
            QkNormOver::Width => heads * head_dim,
        };
        Self {
            query: norm.build(NormSite::inside(width(heads), stream), device),
            key: norm.build(NormSite::inside(width(kv_heads), stream), device),
            logit_scale: match scale {
                AttentionScale::Learned { init, per_head } => {
                    let count = if per_head { heads } else { 1 };
                    Some(Param::from_tensor(Tensor::full([count], init.unwrap_or(1.0), device)))
                }
                AttentionScale::HeadDim {} | AttentionScale::Constant { .. } => None,
            },
            scale: match scale {
                AttentionScale::HeadDim {} => per_head_dim,
                AttentionScale::Constant { value } => value,
                AttentionScale::Learned { .. } => 1.0,
            },
            over,
            per_head: matches!(scale, AttentionScale::Learned { per_head: true, .. }),
        }
    }

    /// Queries `[rows, heads * head_dim]` of `sequences` sequences, as `[sequences, time, heads, head_dim]`,
    /// normalized and times the learned scale.
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

    /// Keys, as [`QkNorm::query`] without the scale.
    pub fn key(&self, k: Tensor<2>, sequences: usize, heads: usize) -> Tensor<4> {
        self.normalized(&self.key, k, sequences, heads)
    }

    /// The fixed factor of the product of a query and a key.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Whether each query head has a learned factor of its own.
    pub(crate) fn scales_each_head(&self) -> bool {
        self.per_head
    }

    /// Both norms.
    pub(crate) fn norms(&self) -> [&Norm; 2] {
        [&self.query, &self.key]
    }

    fn normalized(&self, norm: &Norm, x: Tensor<2>, sequences: usize, count: usize) -> Tensor<4> {
        match self.over {
            QkNormOver::Head => norm.forward(heads(x, sequences, count)),
            QkNormOver::Width => heads(norm.forward_rows(x, sequences), sequences, count),
        }
    }
}

/// `[rows, heads * head_dim]` as `[sequences, time, heads, head_dim]`.
pub(crate) fn heads(x: Tensor<2>, sequences: usize, heads: usize) -> Tensor<4> {
    let [rows, width] = x.dims();
    x.reshape([sequences, rows / sequences, heads, width / heads])
}
