//! Loops of the CPU backend: one pass over the rows forward, one backward.

use crate::SCALE;
use burn::tensor::Tensor;
use unitgain_kernels::math::{self, fma};
use unitgain_kernels::threads::piece;
use unitgain_kernels::uninit::{Uninit, WriteRow, fill, map, map_and_sum, rows, written_pair};
use unitgain_kernels::{FlexTensor, Fused, Native, contiguous, run, shape, simd, slice, tensor};

/// The norm as one operation; None on another backend or for another type than f32.
pub(super) fn norm<const D: usize>(
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
    /// eps of scaled rows.
    eps: f32,
    centred: bool,
}

/// Input, gamma, and the [`STATISTICS`] of each row.
type State = (FlexTensor, FlexTensor, Vec<f32>);

/// Number of statistics of a scaled row: its mean, the rounding error of the mean, and 1 / std.
const STATISTICS: usize = 3;

impl Norm {
    fn apply(
        &self,
        x: FlexTensor,
        gamma: FlexTensor,
        beta: Option<FlexTensor>,
        keep: bool,
    ) -> (FlexTensor, Option<State>) {
        let (x, gamma, beta) = (contiguous(x), contiguous(gamma), beta.map(contiguous));
        let (n, width) = (slice(&x).len(), slice(&gamma).len());
        let size = piece(n, width, 1);
        let sizes = [(n, size), (n / width * STATISTICS, size / width * STATISTICS)];
        let (y, statistics) = written_pair(sizes, |first, y, statistics| {
            let statistics = fill(statistics, |_| 0.0);
            let x = &slice(&x)[first..first + y.len()];
            (forward(self.centred, self.eps, x, slice(&gamma), beta.as_ref().map(slice), y, statistics), statistics)
        });
        let y = tensor(y, &shape(&x));
        (y, keep.then_some((x, gamma, statistics)))
    }

    /// Gradients of x, gamma and beta.
    fn gradients(&self, (x, gamma, statistics): &State, dy: &FlexTensor) -> [FlexTensor; 3] {
        let (dy, x_values, gamma_values) = (slice(dy), slice(x), slice(gamma));
        let width = gamma_values.len();
        let n = x_values.len();
        let size = piece(n, width, 2);
        // Each piece has its own gradients of gamma and beta.
        let sizes = [(n, size), (n.div_ceil(size) * 2 * width, 2 * width)];
        let (dx, parts) = written_pair(sizes, |first, dx, sums| {
            let sums = fill(sums, |_| 0.0);
            let (dgamma, dbeta) = sums.split_at_mut(width);
            let (x, dy) = (&x_values[first..first + dx.len()], &dy[first..first + dx.len()]);
            let statistics = &statistics[first / width * STATISTICS..];
            (backward(self.centred, x, gamma_values, statistics, dy, dx, dgamma, dbeta), sums)
        });
        // In the order of the rows, so that sums depend on the number of threads alone.
        let mut sums = [vec![0.0; width], vec![0.0; width]];
        for (i, part) in parts.chunks_exact(width).enumerate() {
            for (sum, part) in sums[i % 2].iter_mut().zip(part) {
                *sum += part;
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
    fn forward<'a>(centred: bool, eps: f32, x: &[f32], gamma: &[f32], beta: Option<&[f32]>, y: &'a mut Uninit, statistics: &mut [f32]) -> &'a mut [f32] = forward_body
}
simd! {
    fn backward<'a>(centred: bool, x: &[f32], gamma: &[f32], statistics: &[f32], dy: &[f32], dx: &'a mut Uninit, dgamma: &mut [f32], dbeta: &mut [f32]) -> &'a mut [f32] = backward_body
}

#[inline(always)]
fn forward_body<'a, const F: bool>(
    centred: bool,
    eps: f32,
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    y: &'a mut Uninit,
    statistics: &mut [f32],
) -> &'a mut [f32] {
    rows(y, gamma.len(), &mut Forward::<F> { centred, eps, x, gamma, beta, statistics })
}

struct Forward<'a, const F: bool> {
    centred: bool,
    eps: f32,
    x: &'a [f32],
    gamma: &'a [f32],
    beta: Option<&'a [f32]>,
    statistics: &'a mut [f32],
}

impl<const F: bool> WriteRow for Forward<'_, F> {
    #[inline(always)]
    fn write<'a>(&mut self, row: usize, out: &'a mut Uninit) -> &'a mut [f32] {
        let width = out.len();
        let share = 1.0 / width as f32;
        let x = &self.x[row * width..][..width];
        let (y, mean, rest, squares) = if self.centred {
            let mean = math::sum_of(x, |x| x * SCALE_F32) * share;
            let (y, rest) = map_and_sum(out, x, |x| x * SCALE_F32 - mean);
            let rest = rest * share;
            let squares = math::subtract_and_square::<F>(y, rest);
            (y, mean, rest, squares)
        } else {
            let y = map(out, x, |x| x * SCALE_F32);
            let squares = math::dot::<F>(y, y);
            (y, 0.0, 0.0, squares)
        };
        let inverse = 1.0 / (squares * share + self.eps).sqrt();
        match self.beta {
            Some(beta) => {
                for ((y, gamma), beta) in y.iter_mut().zip(self.gamma).zip(beta) {
                    *y = fma::<F>(*y * inverse, *gamma, *beta);
                }
            }
            None => {
                for (y, gamma) in y.iter_mut().zip(self.gamma) {
                    *y = *y * inverse * gamma;
                }
            }
        }
        self.statistics[STATISTICS * row..][..STATISTICS].copy_from_slice(&[mean, rest, inverse]);
        y
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn backward_body<'a, const F: bool>(
    centred: bool,
    x: &[f32],
    gamma: &[f32],
    statistics: &[f32],
    dy: &[f32],
    dx: &'a mut Uninit,
    dgamma: &mut [f32],
    dbeta: &mut [f32],
) -> &'a mut [f32] {
    let h = vec![0.0; gamma.len()];
    rows(dx, gamma.len(), &mut Backward::<F> { centred, x, gamma, statistics, dy, dgamma, dbeta, h })
}

/// With h the normalized row and g = gamma dy: `dx = (g - mean(g) - h mean(g h)) / std`, `dgamma += dy h`,
/// `dbeta += dy`.
struct Backward<'a, const F: bool> {
    centred: bool,
    x: &'a [f32],
    gamma: &'a [f32],
    statistics: &'a [f32],
    dy: &'a [f32],
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
    h: Vec<f32>,
}

impl<const F: bool> WriteRow for Backward<'_, F> {
    #[inline(always)]
    fn write<'a>(&mut self, row: usize, out: &'a mut Uninit) -> &'a mut [f32] {
        let width = out.len();
        let share = 1.0 / width as f32;
        let (x, dy) = (&self.x[row * width..][..width], &self.dy[row * width..][..width]);
        let [mean, rest, inverse] = [0, 1, 2].map(|i| self.statistics[STATISTICS * row + i]);
        for (h, x) in self.h.iter_mut().zip(x) {
            *h = fma::<F>(x * SCALE_F32 - mean, inverse, -rest * inverse);
        }
        for (((dgamma, dbeta), dy), h) in self.dgamma.iter_mut().zip(self.dbeta.iter_mut()).zip(dy).zip(&self.h) {
            *dgamma = fma::<F>(*dy, *h, *dgamma);
            *dbeta += dy;
        }
        let dx = map(out, dy, |dy| dy);
        for (dx, gamma) in dx.iter_mut().zip(self.gamma) {
            *dx *= gamma;
        }
        let of_mean = if self.centred { math::sum(dx) * share } else { 0.0 };
        let of_size = math::dot::<F>(dx, &self.h) * share;
        let inverse = inverse * SCALE_F32;
        for (dx, h) in dx.iter_mut().zip(&self.h) {
            *dx = inverse * (*dx - fma::<F>(*h, of_size, of_mean));
        }
        dx
    }
}
