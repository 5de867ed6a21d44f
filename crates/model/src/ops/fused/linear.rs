use super::activation::{apply_in_place, product as elementwise};
use crate::config::Activation;
use burn::tensor::Tensor;
use unitgain_kernels::uninit::{Uninit, fill, written, written_pair};
use unitgain_kernels::{
    FlexTensor, Fused, Matrix, Native, column_sums, contiguous, matrix, multiply, product, product_into,
    rows_of_a_thread, run, shape, slice, tensor,
};

/// `phi(x W + b)` for `x`, `[rows, fan_in]`, and W, `[fan_in, fan_out]`, in any layout.
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

/// Number of rows that a thread computes, with bias and activation, while they are in its cache.
const BLOCK: usize = 128;

impl Linear {
    fn apply(&self, x: FlexTensor, w: FlexTensor, bias: Option<FlexTensor>, keep: bool) -> (FlexTensor, Option<State>) {
        let (x, bias) = (contiguous(x), bias.map(contiguous));
        // `matrix` supports all layouts but negative strides.
        let w = if matrix(&w).is_some() { w } else { w.to_contiguous() };
        let (rows, fan_in, fan_out) = (shape(&x)[0], shape(&x)[1], shape(&w)[1]);
        let sizes = (rows, fan_out, fan_in);
        let (y, slopes) = match matrix(&w) {
            Some(w) => self.blocks(Matrix::new(slice(&x), fan_in, 1), w, bias.as_ref().map(slice), sizes),
            None => unreachable!("a contiguous matrix has no negative stride"),
        };
        let slopes = slopes.map(|slopes| tensor(slopes, &[rows, fan_out]));
        (tensor(y, &[rows, fan_out]), keep.then_some((x, w, slopes)))
    }

    /// The result, and the derivative of the activation.
    fn blocks(
        &self,
        x: Matrix<'_>,
        w: Matrix<'_>,
        bias: Option<&[f32]>,
        (m, n, k): (usize, usize, usize),
    ) -> (Vec<f32>, Option<Vec<f32>>) {
        let share = rows_of_a_thread((m, n, k));
        let rows = if bias.is_some() || self.activation.is_some() { share.min(BLOCK) } else { share };
        let product = Product { x, w, bias, n, k };
        match self.activation {
            Some(activation) => {
                let (y, slopes) = written_pair([(m * n, rows * n); 2], |first, y, slopes| {
                    let y = product.write(first, y);
                    let slopes = apply_in_place(activation, y, slopes);
                    (y, slopes)
                });
                (y, Some(slopes))
            }
            None => (written(m * n, rows * n, |first, y| product.write(first, y)), None),
        }
    }

    /// Gradients of x, W and the bias.
    fn gradients(&self, (x, w, slopes): State, dy: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let dz = match slopes {
            Some(slopes) => elementwise(&dy, &slopes),
            None => dy,
        };
        let (rows, fan_in, fan_out) = (shape(&x)[0], shape(&x)[1], shape(&w)[1]);
        let g = Matrix::new(slice(&dz), fan_out, 1);
        let dx = wanted[0].then(|| {
            let dx = matrix(&w).map(|w| product((rows, fan_in, fan_out), g, w.transposed()));
            tensor(dx.unwrap_or_default(), &[rows, fan_in])
        });
        let dw = wanted[1].then(|| {
            let x = Matrix::new(slice(&x), fan_in, 1);
            if w.is_contiguous() {
                tensor(product((fan_in, fan_out, rows), x.transposed(), g), &[fan_in, fan_out])
            } else {
                // For a transposed weight, as of a tied head, the gradient has the order in which the weight is stored.
                tensor(product((fan_out, fan_in, rows), g.transposed(), x), &[fan_out, fan_in]).transpose(0, 1)
            }
        });
        let dbias = wanted[2].then(|| tensor(column_sums(slice(&dz), fan_out), &[fan_out]));
        [dx, dw, dbias]
    }
}

/// `x W + b`, a block of rows at a time.
struct Product<'a> {
    x: Matrix<'a>,
    w: Matrix<'a>,
    bias: Option<&'a [f32]>,
    n: usize,
    k: usize,
}

impl Product<'_> {
    /// Computes the rows from element `first` on.
    fn write<'o>(&self, first: usize, out: &'o mut Uninit) -> &'o mut [f32] {
        let sizes = (out.len() / self.n, self.n, self.k);
        let x = self.x.from_row(first / self.n);
        match self.bias {
            Some(bias) => {
                let y = fill(out, |i| bias[i % self.n]);
                multiply(y, self.n, sizes, x, self.w, true);
                y
            }
            None => product_into(out, sizes, x, self.w),
        }
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
