use burn::tensor::Tensor;
use rayon::prelude::*;
use unitgain_kernels::math::{self, fma};
use unitgain_kernels::{
    FlexTensor, Fused, Matrix, Native, contiguous, multiply, run, shape, simd, slice, tensor, zeros,
};

/// Causal attention `softmax(cap(scale q k^T)) v`: `q` and the result are `[sequences, time, heads, head_dim]`, `k` and `v`
/// `[sequences, time, kv_heads, head_dim]`; a query sees the last `window` keys up to its own. None if there are more keys than
/// queries.
pub(crate) fn attention(
    q: &Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    scale: f64,
    softcap: f64,
    window: Option<usize>,
) -> Option<Tensor<4>> {
    if q.dims()[1] != k.dims()[1] {
        return None;
    }
    let window = window.unwrap_or(usize::MAX);
    let attention = Attention { scale: scale as f32, softcap: softcap as f32, window };
    Some(run(attention, [Native::of(q)?, Native::of(k)?, Native::of(v)?]))
}

#[derive(Clone, Debug)]
struct Attention {
    scale: f32,
    /// Softcap of the logits; 0 for none.
    softcap: f32,
    /// Number of keys that a query sees at most.
    window: usize,
}

/// Number of query rows whose logits are computed together.
const BLOCK: usize = 64;

/// Sizes of one sequence.
#[derive(Clone, Copy)]
struct Sizes {
    time: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Sizes {
    fn of(q: &FlexTensor, k: &FlexTensor) -> Self {
        let (q, k) = (shape(q), shape(k));
        Self { time: q[1], heads: q[2], kv_heads: k[2], head_dim: q[3] }
    }

    /// Distances between rows of queries, and between rows of keys and values.
    fn strides(self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }

    /// Offset in a row of the key and value head of a query head.
    fn kv_start(self, head: usize) -> usize {
        head / (self.heads / self.kv_heads) * self.head_dim
    }
}

/// Queries, keys, values, the result, and the log-sum-exp of each row of logits.
type State = ([FlexTensor; 4], Vec<f32>);

impl Fused<3> for Attention {
    type State = State;

    fn forward(&self, inputs: [FlexTensor; 3], keep: bool) -> (FlexTensor, Option<State>) {
        let [q, k, v] = inputs.map(contiguous);
        let sizes = Sizes::of(&q, &k);
        let (stride, kv_stride) = sizes.strides();
        let time = sizes.time;
        let mut out = zeros(slice(&q).len());
        let mut sums = zeros(slice(&q).len() / sizes.head_dim);
        out.par_chunks_mut(time * stride)
            .zip(sums.par_chunks_mut(sizes.heads * time))
            .zip(slice(&q).par_chunks(time * stride))
            .zip(slice(&k).par_chunks(time * kv_stride))
            .zip(slice(&v).par_chunks(time * kv_stride))
            .for_each(|((((out, sums), q), k), v)| self.sequence(sizes, q, k, v, out, sums));
        let out = tensor(out, &shape(&q));
        let state = keep.then(|| ([q, k, v, out.clone()], sums));
        (out, state)
    }

    fn backward(&self, ([q, k, v, out], sums): State, dout: FlexTensor, _: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let sizes = Sizes::of(&q, &k);
        let (stride, kv_stride) = sizes.strides();
        let time = sizes.time;
        let (mut dq, mut dk, mut dv) = (zeros(slice(&q).len()), zeros(slice(&k).len()), zeros(slice(&v).len()));
        dq.par_chunks_mut(time * stride)
            .zip(dk.par_chunks_mut(time * kv_stride))
            .zip(dv.par_chunks_mut(time * kv_stride))
            .zip(slice(&q).par_chunks(time * stride))
            .zip(slice(&k).par_chunks(time * kv_stride))
            .zip(slice(&v).par_chunks(time * kv_stride))
            .zip(slice(&out).par_chunks(time * stride))
            .zip(slice(&dout).par_chunks(time * stride))
            .zip(sums.par_chunks(sizes.heads * time))
            .for_each(|((((((((dq, dk), dv), q), k), v), out), dout), sums)| {
                self.sequence_backward(sizes, [q, k, v, out, dout], sums, [dq, dk, dv]);
            });
        [tensor(dq, &shape(&q)), tensor(dk, &shape(&k)), tensor(dv, &shape(&v))].map(Some)
    }
}

impl Attention {
    /// The first key that a block of queries from `first` on sees.
    fn start(&self, first: usize) -> usize {
        (first + 1).saturating_sub(self.window)
    }

    /// The forward pass of one sequence: head by head, blocks of queries against the keys visible to them.
    fn sequence(&self, sizes: Sizes, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32], sums: &mut [f32]) {
        let Sizes { time, heads, head_dim, .. } = sizes;
        let (stride, kv_stride) = sizes.strides();
        let mut logits = zeros(BLOCK.min(time) * time);
        for head in 0..heads {
            let (at, kv) = (head * head_dim, sizes.kv_start(head));
            let q = Matrix::new(&q[at..], stride, 1);
            let (k, v) = (Matrix::new(&k[kv..], kv_stride, 1), Matrix::new(&v[kv..], kv_stride, 1));
            for first in (0..time).step_by(BLOCK) {
                let rows = BLOCK.min(time - first);
                let start = self.start(first);
                let keys = first + rows - start;
                let (k, v) = (k.from_row(start), v.from_row(start));
                let logits = &mut logits[..rows * keys];
                multiply(logits, keys, (rows, keys, head_dim), q.from_row(first), k.transposed(), false);
                if self.softcap > 0.0 {
                    cap(self.scale / self.softcap, self.softcap, logits);
                }
                let scale = if self.softcap > 0.0 { 1.0 } else { self.scale };
                let sums = &mut sums[head * time + first..][..rows];
                softmax(scale, first - start, self.window, keys, logits, sums);
                let out = &mut out[first * stride + at..];
                multiply(out, stride, (rows, head_dim, keys), Matrix::new(logits, keys, 1), v, false);
            }
        }
    }

    /// The backward pass of one sequence, which recomputes the weights from `sums`. `inputs` are q, k, v, the result and its
    /// gradient; `gradients`, of q, k and v, start at 0.
    fn sequence_backward(&self, sizes: Sizes, inputs: [&[f32]; 5], sums: &[f32], gradients: [&mut [f32]; 3]) {
        let [q, k, v, out, dout] = inputs;
        let [dq, dk, dv] = gradients;
        let Sizes { time, heads, head_dim, .. } = sizes;
        let (stride, kv_stride) = sizes.strides();
        let n = BLOCK.min(time) * time;
        let (mut weights, mut dlogits) = (zeros(n), zeros(n));
        let mut slopes = zeros(if self.softcap > 0.0 { n } else { 0 });
        let mut inner = zeros(BLOCK);
        for head in 0..heads {
            let (at, kv) = (head * head_dim, sizes.kv_start(head));
            let q = Matrix::new(&q[at..], stride, 1);
            let (k, v) = (Matrix::new(&k[kv..], kv_stride, 1), Matrix::new(&v[kv..], kv_stride, 1));
            for first in (0..time).step_by(BLOCK) {
                let rows = BLOCK.min(time - first);
                let start = self.start(first);
                let keys = first + rows - start;
                let (k, v, kv) = (k.from_row(start), v.from_row(start), kv + start * kv_stride);
                let (weights, dlogits) = (&mut weights[..rows * keys], &mut dlogits[..rows * keys]);
                let inner = &mut inner[..rows];
                let g = Matrix::new(&dout[first * stride + at..], stride, 1);
                multiply(weights, keys, (rows, keys, head_dim), q.from_row(first), k.transposed(), false);
                let mut scale = self.scale;
                if self.softcap > 0.0 {
                    cap_with_slopes(self.scale / self.softcap, self.softcap, weights, &mut slopes[..rows * keys]);
                    scale = 1.0;
                }
                let sums = &sums[head * time + first..][..rows];
                recompute(scale, first - start, self.window, keys, weights, sums);
                // Gradients of the query heads of a group add up.
                let weights_matrix = Matrix::new(weights, keys, 1);
                multiply(&mut dv[kv..], kv_stride, (keys, head_dim, rows), weights_matrix.transposed(), g, true);
                multiply(dlogits, keys, (rows, keys, head_dim), g, v.transposed(), false);
                row_products(&dout[first * stride + at..], &out[first * stride + at..], stride, head_dim, inner);
                softmax_gradient(self.scale, keys, weights, inner, dlogits);
                if self.softcap > 0.0 {
                    times(dlogits, &slopes[..rows * keys]);
                }
                let d = Matrix::new(dlogits, keys, 1);
                multiply(&mut dq[first * stride + at..], stride, (rows, head_dim, keys), d, k, false);
                multiply(&mut dk[kv..], kv_stride, (keys, head_dim, rows), d.transposed(), q.from_row(first), true);
            }
        }
    }
}

simd! {
    fn cap(factor: f32, softcap: f32, logits: &mut [f32]) = cap_body
}
simd! {
    fn cap_with_slopes(factor: f32, softcap: f32, logits: &mut [f32], slopes: &mut [f32]) = cap_with_slopes_body
}
simd! {
    fn softmax(scale: f32, first: usize, window: usize, keys: usize, logits: &mut [f32], sums: &mut [f32]) = softmax_body
}
simd! {
    fn recompute(scale: f32, first: usize, window: usize, keys: usize, logits: &mut [f32], sums: &[f32]) = recompute_body
}
simd! {
    fn softmax_gradient(scale: f32, keys: usize, weights: &[f32], inner: &[f32], d: &mut [f32]) = softmax_gradient_body
}
simd! {
    fn row_products(a: &[f32], b: &[f32], stride: usize, n: usize, out: &mut [f32]) = row_products_body
}
simd! {
    fn times(x: &mut [f32], y: &[f32]) = times_body
}

/// `softcap tanh(factor z)`.
#[inline(always)]
fn cap_body<const F: bool>(factor: f32, softcap: f32, logits: &mut [f32]) {
    for z in logits {
        *z = softcap * math::tanh::<F>(*z * factor);
    }
}

/// [`cap_body`], with the derivative by the scaled logit.
#[inline(always)]
fn cap_with_slopes_body<const F: bool>(factor: f32, softcap: f32, logits: &mut [f32], slopes: &mut [f32]) {
    for (z, slope) in logits.iter_mut().zip(slopes) {
        let t = math::tanh::<F>(*z * factor);
        (*z, *slope) = (softcap * t, 1.0 - t * t);
    }
}

/// The softmax of row r over the last `window` keys up to `first + r`.
#[inline(always)]
fn softmax_body<const F: bool>(
    scale: f32,
    first: usize,
    window: usize,
    keys: usize,
    logits: &mut [f32],
    sums: &mut [f32],
) {
    for (r, (row, sum)) in logits.chunks_exact_mut(keys).zip(sums).enumerate() {
        let row = seen(row, first + r + 1, window);
        let largest = math::max(row);
        for z in row.iter_mut() {
            *z = math::exp::<F>((*z - largest) * scale);
        }
        let total = math::sum(row);
        let share = 1.0 / total;
        for z in row.iter_mut() {
            *z *= share;
        }
        *sum = largest * scale + total.ln();
    }
}

/// The last `window` entries before `end` of a row; the others become 0.
#[inline(always)]
fn seen(row: &mut [f32], end: usize, window: usize) -> &mut [f32] {
    let (row, later) = row.split_at_mut(end);
    later.fill(0.0);
    let (earlier, row) = row.split_at_mut(end.saturating_sub(window));
    earlier.fill(0.0);
    row
}

#[inline(always)]
fn recompute_body<const F: bool>(
    scale: f32,
    first: usize,
    window: usize,
    keys: usize,
    logits: &mut [f32],
    sums: &[f32],
) {
    for (r, (row, sum)) in logits.chunks_exact_mut(keys).zip(sums).enumerate() {
        for z in seen(row, first + r + 1, window) {
            *z = math::exp::<F>(fma::<F>(*z, scale, -*sum));
        }
    }
}

/// `d = w (d - inner) scale`.
#[inline(always)]
fn softmax_gradient_body<const F: bool>(scale: f32, keys: usize, weights: &[f32], inner: &[f32], d: &mut [f32]) {
    for ((w, d), inner) in weights.chunks_exact(keys).zip(d.chunks_exact_mut(keys)).zip(inner) {
        for (w, d) in w.iter().zip(d) {
            *d = w * (*d - inner) * scale;
        }
    }
}

#[inline(always)]
fn row_products_body<const F: bool>(a: &[f32], b: &[f32], stride: usize, n: usize, out: &mut [f32]) {
    for (r, out) in out.iter_mut().enumerate() {
        *out = math::dot::<F>(&a[r * stride..r * stride + n], &b[r * stride..r * stride + n]);
    }
}

#[inline(always)]
fn times_body<const F: bool>(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x *= y;
    }
}
