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

/// Rotary embedding, with cosines and sines of every position, each `[context, head_dim / 2]`.
#[derive(Module, Debug)]
pub struct Rotary {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl Rotary {
    /// The tables of `context` positions, with angles `t theta^(-2i / head_dim)` (arXiv:2104.09864, eq. 15).
    pub fn new(context: usize, head_dim: usize, theta: f64, device: &Device) -> Self {
        let half = head_dim / 2;
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = (0..context * half)
                .map(|k| f((k / half) as f64 * theta.powf(-((k % half) as f64) / half as f64)) as f32)
                .collect();
            Tensor::from_data(TensorData::new(values, [context, half]), device)
        };
        Self { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Rotates the pairs (i, i + head_dim / 2) of `x`, `[sequences, time, heads, head_dim]`, whose first position is `start`.
    ///
    /// # Panics
    /// If a position is beyond the context.
    pub fn forward(&self, x: Tensor<4>, start: usize) -> Tensor<4> {
        #[cfg(feature = "flex")]
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
