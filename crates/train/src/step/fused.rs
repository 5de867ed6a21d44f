//! Adam's update, sums of gradients and their sums of squares on the CPU backend, each in one pass over memory. `None`
//! means: use the composed operations.

use burn::backend::Flex;
use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;
use unitgain_kernels::math::{self, fma};
use unitgain_kernels::threads::piece;
use unitgain_kernels::{FlexTensor, Native, contiguous, simd, slice, tensor};

/// Whether work on all weights can be divided among the threads of the CPU: these are tensors of the CPU backend.
pub(crate) fn are_on_host<'a>(mut tensors: impl Iterator<Item = &'a Tensor<1>>) -> bool {
    tensors.next().is_some_and(takes)
}

/// The results of work on all weights, of `elements` numbers: divided among the threads, unless it takes less time than to
/// wake them.
pub(crate) fn on_each<T: Send, R: Send>(elements: usize, all: Vec<T>, work: impl Fn(T) -> R + Sync + Send) -> Vec<R> {
    const FEW: usize = 1 << 17;
    if elements < FEW { all.into_iter().map(work).collect() } else { all.into_par_iter().map(work).collect() }
}

fn elements<'a>(all: impl Iterator<Item = &'a Option<Tensor<1>>>) -> usize {
    all.flatten().map(|gradient| gradient.dims()[0]).sum()
}

/// The sums of two gradients of each weight, in the buffers of the first. A weight without one has the other.
pub(crate) fn sums(a: Vec<Option<Tensor<1>>>, b: Vec<Option<Tensor<1>>>) -> Vec<Option<Tensor<1>>> {
    let sum = |pair| match pair {
        (Some(a), Some(b)) => Some(sum(a, b)),
        (a, b) => a.or(b),
    };
    on_each(elements(a.iter()), a.into_iter().zip(b).collect(), sum)
}

fn sum(a: Tensor<1>, b: Tensor<1>) -> Tensor<1> {
    let (mut a, b) = (own(a), own(b));
    let size = piece(slice(&b).len(), 64, 1);
    let parts = a.storage_mut::<f32>().par_chunks_mut(size).zip(slice(&b).par_chunks(size));
    parts.for_each(|(a, b)| add(a, b));
    Tensor::from_primitive::<Flex>(a)
}

simd! {
    fn add(a: &mut [f32], b: &[f32]) = add_body
}

#[inline(always)]
fn add_body<const F: bool>(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

/// Sum of squares of each gradient; 0 for a weight without one.
pub(crate) fn squares(gradients: &[Option<Tensor<1>>], device: &Device) -> Option<Tensor<1>> {
    if !are_on_host(gradients.iter().flatten()) {
        return None;
    }
    let square = |gradient: &Option<Tensor<1>>| match gradient {
        Some(gradient) => Some(square(slice(&Native::of(gradient)?.values())) as f32),
        None => Some(0.0),
    };
    let all = on_each(elements(gradients.iter()), gradients.iter().collect(), square);
    let all: Vec<f32> = all.into_iter().collect::<Option<_>>()?;
    let n = all.len();
    Some(Tensor::from_data(TensorData::new(all, [n]), device))
}

fn square(x: &[f32]) -> f64 {
    let n = piece(x.len(), CHUNK, 1);
    if n >= x.len() {
        return squares_of(x);
    }
    // Collected in order, so that the sum is reproducible for a given number of threads.
    x.par_chunks(n).map(squares_of).collect::<Vec<f64>>().iter().sum()
}

/// Number of elements summed in f32.
const CHUNK: usize = 4096;

simd! {
    fn squares_of(x: &[f32]) -> f64 = squares_body
}

#[inline(always)]
fn squares_body<const F: bool>(x: &[f32]) -> f64 {
    let mut sum = 0f64;
    for chunk in x.chunks(CHUNK) {
        sum += f64::from(math::dot::<F>(chunk, chunk));
    }
    sum
}

/// Settings of Adam's update of one weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adam {
    pub(crate) betas: [f64; 2],
    pub(crate) lr: f64,
    /// Decoupled decay: subtracted from the weight as `lr decay w`.
    pub(crate) decay: f64,
    /// L2 decay: added to the gradient as `l2 w`.
    pub(crate) l2: f64,
    pub(crate) eps: f64,
    /// Number of this update, from 1.
    pub(crate) time: i32,
}

/// Whether [`adam`] supports a weight with this gradient.
pub(crate) fn takes(g: &Tensor<1>) -> bool {
    matches!(Native::of(g), Some(Native::Plain(_)))
}

/// Updates a flat weight with a flat gradient times `factor`, and the two averages. Buffers are reused unless they are
/// shared.
pub(crate) fn adam(
    adam: Adam,
    w: Tensor<1>,
    g: Tensor<1>,
    factor: f32,
    states: Vec<Tensor<1>>,
) -> (Tensor<1>, Vec<Tensor<1>>) {
    let n = w.dims()[0];
    let mut states = states.into_iter().map(own);
    let mut next = || states.next().unwrap_or_else(|| tensor(vec![0.0; n], &[n]));
    let (first, second) = (next(), next());
    let (mut w, mut first, mut second) = (own(w), first, second);
    let g = own(g);
    let rates = Rates::new(adam, factor);
    let size = piece(n, 64, 2);
    w.storage_mut::<f32>()
        .par_chunks_mut(size)
        .zip(first.storage_mut::<f32>().par_chunks_mut(size))
        .zip(second.storage_mut::<f32>().par_chunks_mut(size))
        .zip(slice(&g).par_chunks(size))
        .for_each(|(((w, first), second), g)| update(&rates, w, first, second, g));
    let [w, first, second] = [w, first, second].map(Tensor::from_primitive::<Flex>);
    (w, vec![first, second])
}

/// The tensor with a buffer of exactly its elements.
fn own(x: Tensor<1>) -> FlexTensor {
    let n = x.dims()[0];
    let x = match x.try_into_primitive::<Flex>() {
        Ok(x) => contiguous(x),
        Err(e) => unreachable!("`takes` was asked: {e:?}"),
    };
    let is_whole = x.layout().start_offset() == 0 && x.storage::<f32>().len() == n;
    if is_whole { x } else { tensor(slice(&x).to_vec(), &[n]) }
}

/// Settings of the loop, in f32.
struct Rates {
    factor: f32,
    keep: f32,
    l2: f32,
    betas: [f32; 2],
    rest: [f32; 2],
    step: f32,
    /// 1 / sqrt(1 - b2^t).
    correction: f32,
    eps: f32,
}

impl Rates {
    fn new(adam: Adam, factor: f32) -> Self {
        let [b1, b2] = adam.betas;
        let (c1, c2) = (1.0 - b1.powi(adam.time), 1.0 - b2.powi(adam.time));
        Self {
            factor,
            keep: (1.0 - adam.lr * adam.decay) as f32,
            l2: adam.l2 as f32,
            betas: [b1 as f32, b2 as f32],
            rest: [(1.0 - b1) as f32, (1.0 - b2) as f32],
            step: (adam.lr / c1) as f32,
            correction: c2.powf(-0.5) as f32,
            eps: adam.eps as f32,
        }
    }
}

simd! {
    fn update(rates: &Rates, w: &mut [f32], first: &mut [f32], second: &mut [f32], g: &[f32]) = update_body
}

#[inline(always)]
fn update_body<const F: bool>(rates: &Rates, w: &mut [f32], first: &mut [f32], second: &mut [f32], g: &[f32]) {
    for (((w, first), second), g) in w.iter_mut().zip(first).zip(second).zip(g) {
        let g = fma::<F>(rates.l2, *w, g * rates.factor);
        *first = fma::<F>(rates.betas[0], *first, rates.rest[0] * g);
        *second = fma::<F>(rates.betas[1], *second, rates.rest[1] * g * g);
        let size = fma::<F>(second.sqrt(), rates.correction, rates.eps);
        *w = *w * rates.keep - rates.step * *first / size;
    }
}
