use super::activation::{apply_in_place, product};
use crate::mlp::Activation;
use burn::tensor::Tensor;
use rayon::prelude::*;
use unitgain_kernels::{
    FlexTensor, Fused, Matrix, Native, column_sums, contiguous, empty, matrix, multiply, multiply_rows, run, shape,
    slice, tensor,
};

/// `phi(x W + b)`, of `x` `[rows, fan_in]` and W `[fan_in, fan_out]` in any layout.
pub(crate) fn linear(
    x: &Tensor<2>,
    w: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    activation: Option<Activation>,
) -> Option<Tensor<2>> {
    let (x, w) = (Native::of(x)?, Native::of(w)?);
    let linear = Linear { activation };
    match bias {
        Some(bias) => Some(run(linear, [x, w, Native::of(bias)?])),
        None => Some(run(linear, [x, w])),
    }
}

#[derive(Clone, Debug)]
struct Linear {
    activation: Option<Activation>,
}

/// x, W, and the derivative of the activation.
type State = (FlexTensor, FlexTensor, Option<FlexTensor>);

/// Rows that a thread finishes, with bias and activation, while they are in its cache.
const BLOCK: usize = 128;
/// Work below which one thread is faster.
const SMALL: usize = 128 * 1024;

impl Linear {
    fn apply(&self, x: FlexTensor, w: FlexTensor, bias: Option<FlexTensor>, keep: bool) -> (FlexTensor, Option<State>) {
        let (x, bias) = (contiguous(x), bias.map(contiguous));
        // A negative stride is the one layout that `matrix` does not see.
        let w = if matrix(&w).is_some() { w } else { w.to_contiguous() };
        let (rows, fan_in, fan_out) = (shape(&x)[0], shape(&x)[1], shape(&w)[1]);
        let mut y = empty(rows * fan_out);
        let mut slopes = empty(if self.activation.is_some() { rows * fan_out } else { 0 });
        if let Some(w) = matrix(&w) {
            let sizes = (rows, fan_out, fan_in);
            self.blocks(Matrix::new(slice(&x), fan_in, 1), w, bias.as_ref().map(slice), sizes, &mut y, &mut slopes);
        }
        let slopes = self.activation.map(|_| tensor(slopes, &[rows, fan_out]));
        (tensor(y, &[rows, fan_out]), keep.then_some((x, w, slopes)))
    }

    fn blocks(
        &self,
        x: Matrix<'_>,
        w: Matrix<'_>,
        bias: Option<&[f32]>,
        (m, n, k): (usize, usize, usize),
        y: &mut [f32],
        slopes: &mut [f32],
    ) {
        if n == 0 {
            return;
        }
        let threads = if m * n * k < SMALL { 1 } else { rayon::current_num_threads() };
        let share = m.div_ceil(threads).max(1).next_multiple_of(8);
        let step = if bias.is_some() || self.activation.is_some() { BLOCK } else { share };
        let run = |first: usize, y: &mut [f32], slopes: &mut [f32]| {
            let mut slopes = slopes.chunks_mut(step * n);
            for (i, y) in y.chunks_mut(step * n).enumerate() {
                if let Some(bias) = bias {
                    for y in y.chunks_exact_mut(n) {
                        y.copy_from_slice(bias);
                    }
                }
                multiply(y, n, (y.len() / n, n, k), x.from_row(first + i * step), w, bias.is_some());
                if let (Some(activation), Some(slopes)) = (self.activation, slopes.next()) {
                    apply_in_place(activation, y, slopes);
                }
            }
        };
        if threads == 1 {
            run(0, y, slopes);
        } else if self.activation.is_some() {
            y.par_chunks_mut(share * n)
                .zip(slopes.par_chunks_mut(share * n))
                .enumerate()
                .for_each(|(i, (y, slopes))| run(i * share, y, slopes));
        } else {
            y.par_chunks_mut(share * n).enumerate().for_each(|(i, y)| run(i * share, y, &mut []));
        }
    }

    /// Gradients of x, W and the bias.
    fn gradients(&self, (x, w, slopes): State, dy: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let dz = match slopes {
            Some(slopes) => product(&dy, &slopes),
            None => dy,
        };
        let (rows, fan_in, fan_out) = (shape(&x)[0], shape(&x)[1], shape(&w)[1]);
        let g = Matrix::new(slice(&dz), fan_out, 1);
        let dx = wanted[0].then(|| {
            let mut dx = empty(rows * fan_in);
            if let Some(w) = matrix(&w) {
                multiply_rows(&mut dx, (rows, fan_in, fan_out), g, w.transposed(), false);
            }
            tensor(dx, &[rows, fan_in])
        });
        let dw = wanted[1].then(|| {
            let x = Matrix::new(slice(&x), fan_in, 1);
            let mut dw = empty(fan_in * fan_out);
            if w.is_contiguous() {
                multiply_rows(&mut dw, (fan_in, fan_out, rows), x.transposed(), g, false);
                tensor(dw, &[fan_in, fan_out])
            } else {
                // A transposed weight, as the tied head's: the gradient in the order in which it is stored.
                multiply_rows(&mut dw, (fan_out, fan_in, rows), g.transposed(), x, false);
                tensor(dw, &[fan_out, fan_in]).transpose(0, 1)
            }
        });
        let dbias = wanted[2].then(|| tensor(column_sums(slice(&dz), fan_out), &[fan_out]));
        [dx, dw, dbias]
    }
}

impl Fused<2> for Linear {
    type State = State;

    fn forward(&self, [x, w]: [FlexTensor; 2], keep: bool) -> (FlexTensor, Option<State>) {
        self.apply(x, w, None, keep)
    }

    fn backward(&self, state: State, dy: FlexTensor, [x, w]: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let [dx, dw, _] = self.gradients(state, dy, [x, w, false]);
        [dx, dw]
    }
}

impl Fused<3> for Linear {
    type State = State;

    fn forward(&self, [x, w, bias]: [FlexTensor; 3], keep: bool) -> (FlexTensor, Option<State>) {
        self.apply(x, w, Some(bias), keep)
    }

    fn backward(&self, state: State, dy: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        self.gradients(state, dy, wanted)
    }
}
