use crate::fused;
use crate::precision::like;
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

/// How the model knows the position of a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Position {
    /// A learned table, added to the token embedding.
    Learned {},
    /// `sin(t / 10000^(2i/d))`, `cos(t / 10000^(2i/d))`, added to the token embedding
    /// (arXiv:1706.03762, section 3.5).
    Sinusoidal {},
    /// Rotation of queries and keys by `t theta^(-2i/head_dim)` (arXiv:2104.09864, eq. 34), in the
    /// half-split layout of LLaMA: entry i turns with entry i + head_dim/2.
    Rope {
        /// Base of the frequencies. Default 10000.
        #[serde(default = "default_theta")]
        theta: f64,
    },
    /// The causal mask alone.
    None {},
}

fn default_theta() -> f64 {
    10_000.0
}

impl Position {
    /// One value of each kind, with its defaults.
    pub fn all() -> Vec<Self> {
        vec![Self::Learned {}, Self::Sinusoidal {}, Self::Rope { theta: default_theta() }, Self::None {}]
    }

    /// Name, formula and source.
    pub fn about(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Learned {} => ("learned", "x + P[t], P learned", "arXiv:1706.03762"),
            Self::Sinusoidal {} => ("sinusoidal", "x + (sin, cos)(t / 10000^(2i/d))", "arXiv:1706.03762 section 3.5"),
            Self::Rope { .. } => {
                ("rope", "q, k turned by t theta^(-2i/head_dim), half-split layout", "arXiv:2104.09864 eq. 34")
            }
            Self::None {} => ("none", "x", "arXiv:2203.16634"),
        }
    }
}

/// `(sin, cos)` table of shape `[context, width]`: sines in the even columns, cosines in the odd.
pub(crate) fn sinusoids(context: usize, width: usize, device: &Device) -> Tensor<2> {
    let value = |t: usize, i: usize| {
        let angle = t as f64 / 10_000f64.powf((i - i % 2) as f64 / width as f64);
        if i.is_multiple_of(2) { angle.sin() } else { angle.cos() }
    };
    let table: Vec<f32> = (0..context * width).map(|k| value(k / width, k % width) as f32).collect();
    Tensor::from_data(TensorData::new(table, [context, width]), device)
}

/// Rotary embedding: cosines and sines of every position, each `[context, head_dim / 2]`.
#[derive(Module, Debug)]
pub(crate) struct Rotary {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl Rotary {
    pub(crate) fn new(context: usize, head_dim: usize, theta: f64, device: &Device) -> Self {
        let half = head_dim / 2;
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = (0..context * half)
                .map(|k| f((k / half) as f64 * theta.powf(-((k % half) as f64) / half as f64)) as f32)
                .collect();
            Tensor::from_data(TensorData::new(values, [context, half]), device)
        };
        Self { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Turns `x`, `[batch, time, heads, head_dim]`, whose first position is `start`.
    pub(crate) fn forward(&self, x: Tensor<4>, start: usize) -> Tensor<4> {
        if let Some(y) = fused::rotary(&x, &self.cos, &self.sin, start) {
            return y;
        }
        let [_, time, _, head_dim] = x.dims();
        let half = head_dim / 2;
        let table = |table: &Tensor<2>| like(table.clone(), &x).narrow(0, start, time).reshape([1, time, 1, half]);
        let (cos, sin) = (table(&self.cos), table(&self.sin));
        let first = x.clone().narrow(3, 0, half);
        let second = x.narrow(3, half, half);
        Tensor::cat(vec![first.clone() * cos.clone() - second.clone() * sin.clone(), second * cos + first * sin], 3)
    }
}
