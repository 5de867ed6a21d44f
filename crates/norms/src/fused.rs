//! LayerNorm and RMSNorm as one operation: one pass forward, one backward.

use crate::SCALE;
use burn::tensor::Tensor;
use unitgain_kernels::math::{self, fma};
use unitgain_kernels::threads::piece;
use unitgain_kernels::{FlexTensor, Fused, Native, contiguous, empty, run, shape, simd, slice, tensor};

use rayon::prelude::*;

/// `gamma * (x - mean) / sqrt(var + eps) + beta`, or without the mean, over the last axis. None where it has to be
/// composed.
pub(crate) fn norm<const D: usize>(
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    beta: Option<&Tensor<1>>,
    eps: f64,
    centred: bool,
) -> Option<Tensor<D>> {
    let norm = Norm { eps: crate::scaled_eps(eps) as f32, centred };
    let (x, gamma) = (Native::of(x)?, Native::of(gamma)?);
    match beta {
        Some(beta) => Some(run(norm, [x, gamma, Native::of(beta)?])),
        None => Some(run(norm, [x, gamma])),
    }
}

#[derive(Clone, Debug)]
struct Norm {
    /// For scaled rows.
    eps: f32,
    centred: bool,
}

/// Input, gamma, and (mean of the scaled row, 1 / std of the scaled row) of each row.
type State = (FlexTensor, FlexTensor, Vec<f32>);

impl Norm {
    fn apply(
        &self,
        x: FlexTensor,
        gamma: FlexTensor,
        beta: Option<FlexTensor>,
        keep: bool,
    ) -> (FlexTensor, Option<State>) {
        let (x, gamma, beta) = (contiguous(x), contiguous(gamma), beta.map(contiguous));
        let mut y = empty(slice(&x).len());
        let width = slice(&gamma).len();
        let mut statistics = empty(slice(&x).len() / width * 2);
        let rows = piece(y.len(), width, 1);
        y.par_chunks_mut(rows)
            .zip(statistics.par_chunks_mut(rows / width * 2))
            .zip(slice(&x).par_chunks(rows))
            .for_each(|((y, statistics), x)| {
                forward(self.centred, self.eps, x, slice(&gamma), beta.as_ref().map(slice), y, statistics);
            });
        let y = tensor(y, &shape(&x));
        (y, keep.then_some((x, gamma, statistics)))
    }

    /// Gradients of x, gamma and beta.
    fn gradients(&self, (x, gamma, statistics): &State, dy: &FlexTensor) -> [FlexTensor; 3] {
        let (dy, x_values, gamma_values) = (slice(dy), slice(x), slice(gamma));
        let width = gamma_values.len();
        let mut dx = empty(x_values.len());
        let rows = piece(dx.len(), width, 2);
        // In the order of the rows: the same sums for the same number of threads.
        let parts: Vec<[Vec<f32>; 2]> = dx
            .par_chunks_mut(rows)
            .zip(statistics.par_chunks(rows / width * 2))
            .zip(x_values.par_chunks(rows))
            .zip(dy.par_chunks(rows))
            .map(|(((dx, statistics), x), dy)| {
                let (mut dgamma, mut dbeta) = (empty(width), empty(width));
                backward(self.centred, x, gamma_values, statistics, dy, dx, &mut dgamma, &mut dbeta);
                [dgamma, dbeta]
            })
            .collect();
        let mut sums = [empty(width), empty(width)];
        for part in parts {
            for (sum, part) in sums.iter_mut().zip(part) {
                for (sum, part) in sum.iter_mut().zip(part) {
                    *sum += part;
                }
            }
        }
        let [dgamma, dbeta] = sums.map(|sum| tensor(sum, &[width]));
        [tensor(dx, &shape(x)), dgamma, dbeta]
    }
}

impl Fused<2> for Norm {
    type State = State;

    fn forward(&self, [x, gamma]: [FlexTensor; 2], keep: bool) -> (FlexTensor, Option<State>) {
        self.apply(x, gamma, None, keep)
    }

    fn backward(&self, state: State, dy: FlexTensor, _: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let [dx, dgamma, _] = self.gradients(&state, &dy);
        [Some(dx), Some(dgamma)]
    }
}

impl Fused<3> for Norm {
    type State = State;

    fn forward(&self, [x, gamma, beta]: [FlexTensor; 3], keep: bool) -> (FlexTensor, Option<State>) {
        self.apply(x, gamma, Some(beta), keep)
    }

    fn backward(&self, state: State, dy: FlexTensor, _: [bool; 3]) -> [Option<FlexTensor>; 3] {
        self.gradients(&state, &dy).map(Some)
    }
}

const SCALE_F32: f32 = SCALE as f32;

simd! {
    fn forward(centred: bool, eps: f32, x: &[f32], gamma: &[f32], beta: Option<&[f32]>, y: &mut [f32], statistics: &mut [f32]) = forward_body
}
simd! {
    fn backward(centred: bool, x: &[f32], gamma: &[f32], statistics: &[f32], dy: &[f32], dx: &mut [f32], dgamma: &mut [f32], dbeta: &mut [f32]) = backward_body
}

#[inline(always)]
fn forward_body<const F: bool>(
    centred: bool,
    eps: f32,
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    y: &mut [f32],
    statistics: &mut [f32],
) {
    let width = gamma.len();
    let share = 1.0 / width as f32;
    for ((x, y), statistics) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(statistics.chunks_exact_mut(2))
    {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x * SCALE_F32;
        }
        let mean = if centred { math::sum(y) * share } else { 0.0 };
        if centred {
            for y in y.iter_mut() {
                *y -= mean;
            }
        }
        let inverse = 1.0 / (math::dot::<F>(y, y) * share + eps).sqrt();
        match beta {
            Some(beta) => {
                for ((y, gamma), beta) in y.iter_mut().zip(gamma).zip(beta) {
                    *y = fma::<F>(*y * inverse, *gamma, *beta);
                }
            }
            None => {
                for (y, gamma) in y.iter_mut().zip(gamma) {
                    *y = *y * inverse * gamma;
                }
            }
        }
        (statistics[0], statistics[1]) = (mean, inverse);
    }
}

/// With h the normalized row and g = gamma dy: `dx = (g - mean(g) - h mean(g h)) / std`, `dgamma += dy h`,
/// `dbeta += dy`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn backward_body<const F: bool>(
    centred: bool,
    x: &[f32],
    gamma: &[f32],
    statistics: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    dgamma: &mut [f32],
    dbeta: &mut [f32],
) {
    let width = gamma.len();
    let share = 1.0 / width as f32;
    let mut h = vec![0f32; width];
    let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
    for (((x, dy), dx), statistics) in rows.zip(statistics.chunks_exact(2)) {
        let (mean, inverse) = (statistics[0], statistics[1]);
        for i in 0..width {
            h[i] = (x[i] * SCALE_F32 - mean) * inverse;
            dx[i] = dy[i] * gamma[i];
            dgamma[i] = fma::<F>(dy[i], h[i], dgamma[i]);
            dbeta[i] += dy[i];
        }
        let of_mean = if centred { math::sum(dx) * share } else { 0.0 };
        let of_size = math::dot::<F>(dx, &h) * share;
        let inverse = inverse * SCALE_F32;
        for (dx, h) in dx.iter_mut().zip(&h) {
            *dx = inverse * (*dx - fma::<F>(*h, of_size, of_mean));
        }
    }
}
