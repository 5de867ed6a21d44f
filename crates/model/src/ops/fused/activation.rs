use crate::config::Activation;
use burn::tensor::Tensor;
use rayon::prelude::*;
use unitgain_kernels::math::{self, fma};
use unitgain_kernels::threads::piece;
use unitgain_kernels::uninit::{Uninit, fill};
use unitgain_kernels::{FlexTensor, Fused, Native, contiguous, run, shape, simd, slice, tensor, zeros};

/// `phi(x)`.
pub(crate) fn activation<const D: usize>(x: &Tensor<D>, kind: Activation) -> Option<Tensor<D>> {
    if kind.is_watched() {
        return None;
    }
    Some(run(Phi(kind), [Native::of(x)?]))
}

/// `phi(gate) * up`.
pub(crate) fn gated<const D: usize>(gate: &Tensor<D>, up: &Tensor<D>, kind: Activation) -> Option<Tensor<D>> {
    if kind.is_watched() {
        return None;
    }
    Some(run(Gated(kind), [Native::of(gate)?, Native::of(up)?]))
}

/// A function and its derivative at a point.
trait Function {
    fn at<const F: bool>(x: f32) -> (f32, f32);
}

struct Relu;
struct ReluSquared;
struct Gelu;
struct GeluTanh;
struct Silu;

impl Function for Relu {
    #[inline(always)]
    fn at<const F: bool>(x: f32) -> (f32, f32) {
        // NaN stays NaN.
        (if x < 0.0 { 0.0 } else { x }, if x > 0.0 { 1.0 } else { 0.0 })
    }
}

impl Function for ReluSquared {
    #[inline(always)]
    fn at<const F: bool>(x: f32) -> (f32, f32) {
        let y = if x < 0.0 { 0.0 } else { x };
        (y * y, 2.0 * y)
    }
}

impl Function for Gelu {
    #[inline(always)]
    fn at<const F: bool>(x: f32) -> (f32, f32) {
        let (distribution, density) = math::normal::<F>(x);
        (x * distribution, fma::<F>(x, density, distribution))
    }
}

impl Function for GeluTanh {
    #[inline(always)]
    fn at<const F: bool>(x: f32) -> (f32, f32) {
        // x/2 (1 + tanh u) is x sigmoid(2 u).
        const A: f32 = 1.595_769;
        const B: f32 = 0.044_715;
        let square = x * x;
        let (s, rest) = math::sigmoid::<F>(A * x * fma::<F>(B, square, 1.0));
        let slope = A * fma::<F>(3.0 * B, square, 1.0);
        (x * s, fma::<F>(x * slope, s * rest, s))
    }
}

impl Function for Silu {
    #[inline(always)]
    fn at<const F: bool>(x: f32) -> (f32, f32) {
        let (s, rest) = math::sigmoid::<F>(x);
        (x * s, fma::<F>(x, s * rest, s))
    }
}

/// Calls a function that is generic over [`Function`] with the function of an activation.
macro_rules! by_kind {
    ($kind:expr, $f:ident($($argument:expr),*)) => {
        match $kind {
            Activation::Relu => $f::<Relu>($($argument),*),
            Activation::ReluSquared => $f::<ReluSquared>($($argument),*),
            Activation::Gelu | Activation::GeGlu => $f::<Gelu>($($argument),*),
            Activation::GeluTanh | Activation::GeGluTanh => $f::<GeluTanh>($($argument),*),
            Activation::Silu | Activation::SwiGlu => $f::<Silu>($($argument),*),
        }
    };
}

simd! {
    fn values[A: Function](x: &[f32], y: &mut [f32]) = values_body
}
simd! {
    fn with_slopes[A: Function](x: &[f32], y: &mut [f32], slopes: &mut [f32]) = with_slopes_body
}
simd! {
    fn in_place[A: Function]<'a>(x: &mut [f32], slopes: &'a mut Uninit) -> &'a mut [f32] = in_place_body
}
simd! {
    fn products(out: &mut [f32], a: &[f32], b: &[f32]) = products_body
}
simd! {
    fn gated_values[A: Function](gate: &[f32], up: &[f32], y: &mut [f32]) = gated_values_body
}
simd! {
    fn gated_gradients[A: Function](gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) = gated_gradients_body
}

#[inline(always)]
fn values_body<A: Function, const F: bool>(x: &[f32], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = A::at::<F>(*x).0;
    }
}

#[inline(always)]
fn with_slopes_body<A: Function, const F: bool>(x: &[f32], y: &mut [f32], slopes: &mut [f32]) {
    for ((x, y), slope) in x.iter().zip(y).zip(slopes) {
        (*y, *slope) = A::at::<F>(*x);
    }
}

#[inline(always)]
fn in_place_body<'a, A: Function, const F: bool>(x: &mut [f32], slopes: &'a mut Uninit) -> &'a mut [f32] {
    fill(slopes, |i| {
        let slope;
        (x[i], slope) = A::at::<F>(x[i]);
        slope
    })
}

#[inline(always)]
fn products_body<const F: bool>(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a * b;
    }
}

#[inline(always)]
fn gated_values_body<A: Function, const F: bool>(gate: &[f32], up: &[f32], y: &mut [f32]) {
    for ((gate, up), y) in gate.iter().zip(up).zip(y) {
        *y = A::at::<F>(*gate).0 * up;
    }
}

#[inline(always)]
fn gated_gradients_body<A: Function, const F: bool>(
    gate: &[f32],
    up: &[f32],
    dy: &[f32],
    dgate: &mut [f32],
    dup: &mut [f32],
) {
    for ((((gate, up), dy), dgate), dup) in gate.iter().zip(up).zip(dy).zip(dgate).zip(dup) {
        let (value, slope) = A::at::<F>(*gate);
        (*dgate, *dup) = (dy * up * slope, dy * value);
    }
}

/// Replaces `x` by `phi(x)` and writes `phi'(x)` to `slopes`.
pub(super) fn apply_in_place<'a>(kind: Activation, x: &mut [f32], slopes: &'a mut Uninit) -> &'a mut [f32] {
    by_kind!(kind, in_place(x, slopes))
}

/// Elementwise product.
pub(super) fn product(a: &FlexTensor, b: &FlexTensor) -> FlexTensor {
    let (a_values, b_values) = (slice(a), slice(b));
    let mut out = zeros(a_values.len());
    let n = piece(out.len(), 64, 1);
    out.par_chunks_mut(n)
        .zip(a_values.par_chunks(n))
        .zip(b_values.par_chunks(n))
        .for_each(|((out, a), b)| products(out, a, b));
    tensor(out, &shape(a))
}

#[derive(Clone, Debug)]
struct Phi(Activation);

impl Fused<1> for Phi {
    /// The derivative at the input.
    type State = FlexTensor;

    fn forward(&self, [x]: [FlexTensor; 1], keep: bool) -> (FlexTensor, Option<FlexTensor>) {
        let x = contiguous(x);
        let (sizes, x) = (shape(&x), slice(&x));
        let mut y = zeros(x.len());
        let n = piece(x.len(), 64, 4);
        if !keep {
            y.par_chunks_mut(n).zip(x.par_chunks(n)).for_each(|(y, x)| by_kind!(self.0, values(x, y)));
            return (tensor(y, &sizes), None);
        }
        let mut slopes = zeros(x.len());
        y.par_chunks_mut(n)
            .zip(slopes.par_chunks_mut(n))
            .zip(x.par_chunks(n))
            .for_each(|((y, slopes), x)| by_kind!(self.0, with_slopes(x, y, slopes)));
        (tensor(y, &sizes), Some(tensor(slopes, &sizes)))
    }

    fn backward(&self, slopes: FlexTensor, dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(product(&dy, &slopes))]
    }
}

#[derive(Clone, Debug)]
struct Gated(Activation);

impl Fused<2> for Gated {
    type State = (FlexTensor, FlexTensor);

    fn forward(&self, [gate, up]: [FlexTensor; 2], keep: bool) -> (FlexTensor, Option<Self::State>) {
        let (gate, up) = (contiguous(gate), contiguous(up));
        let mut y = zeros(slice(&gate).len());
        let n = piece(y.len(), 64, 4);
        y.par_chunks_mut(n)
            .zip(slice(&gate).par_chunks(n))
            .zip(slice(&up).par_chunks(n))
            .for_each(|((y, gate), up)| by_kind!(self.0, gated_values(gate, up, y)));
        (tensor(y, &shape(&gate)), keep.then_some((gate, up)))
    }

    fn backward(&self, (gate, up): Self::State, dy: FlexTensor, _: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let len = slice(&gate).len();
        let (mut dgate, mut dup) = (zeros(len), zeros(len));
        let n = piece(len, 64, 4);
        dgate
            .par_chunks_mut(n)
            .zip(dup.par_chunks_mut(n))
            .zip(slice(&gate).par_chunks(n))
            .zip(slice(&up).par_chunks(n))
            .zip(slice(&dy).par_chunks(n))
            .for_each(|((((dgate, dup), gate), up), dy)| {
                by_kind!(self.0, gated_gradients(gate, up, dy, dgate, dup));
            });
        [Some(tensor(dgate, &shape(&gate))), Some(tensor(dup, &shape(&up)))]
    }
}
