#[cfg(feature = "flex")]
use super::fused;
use super::precision::like;
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

/// `(sin, cos)` table of shape `[context, width]`: sines in the even columns, cosines in the odd.
pub fn sinusoids(context: usize, width: usize, device: &Device) -> Tensor<2> {
    let value = |t: usize, i: usize| {
        let angle = t as f64 / 10_000f64.powf((i - i % 2) as f64 / width as f64);
        if i.is_multiple_of(2) { angle.sin() } else { angle.cos() }
    };
    let table: Vec<f32> = (0..context * width).map(|k| value(k / width, k % width) as f32).collect();
    Tensor::from_data(TensorData::new(table, [context, width]), device)
}

/// Rotary embedding, with cosines and sines of every position, each `[context, pairs]`.
#[derive(Module, Debug)]
pub struct Rotary {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl Rotary {
    /// The tables of `context` positions for pairs of these frequencies
    /// ([`Position::frequencies`](crate::Position::frequencies)), at least one: `t f` is the angle at position t
    /// (arXiv:2104.09864, eq. 15).
    pub fn new(context: usize, frequencies: &[f64], device: &Device) -> Self {
        let pairs = frequencies.len();
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> =
                (0..context * pairs).map(|k| f((k / pairs) as f64 * frequencies[k % pairs]) as f32).collect();
            Tensor::from_data(TensorData::new(values, [context, pairs]), device)
        };
        Self { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Turns the pairs (i, i + pairs) of `x`, `[sequences, time, heads, head_dim]`, whose first position is `start`; the
    /// entries of a head from `2 pairs` on are unchanged.
    ///
    /// # Panics
    /// If a position is beyond the context, or there are more pairs than a head has.
    pub fn forward(&self, x: Tensor<4>, start: usize) -> Tensor<4> {
        #[cfg(feature = "flex")]
        if let Some(y) = fused::rotary(&x, &self.cos, &self.sin, start) {
            return y;
        }
        let [_, time, _, head_dim] = x.dims();
        let pairs = self.cos.dims()[1];
        let table = |table: &Tensor<2>| like(table.clone(), &x).narrow(0, start, time).reshape([1, time, 1, pairs]);
        let (cos, sin) = (table(&self.cos), table(&self.sin));
        let first = x.clone().narrow(3, 0, pairs);
        let second = x.clone().narrow(3, pairs, pairs);
        let mut parts = vec![first.clone() * cos.clone() - second.clone() * sin.clone(), second * cos + first * sin];
        if head_dim > 2 * pairs {
            parts.push(x.narrow(3, 2 * pairs, head_dim - 2 * pairs));
        }
        Tensor::cat(parts, 3)
    }
}
