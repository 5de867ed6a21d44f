use burn::tensor::Tensor;
use rayon::prelude::*;
use unitgain_kernels::threads::piece;
use unitgain_kernels::{FlexTensor, Fused, Native, contiguous, run, shape, simd, slice, tensor, zeros};

/// Rotates `x`, `[sequences, time, heads, head_dim]`, whose first position is `start`, by the angles with these cosines and
/// sines, `[positions, pairs]`.
pub(crate) fn rotary(x: &Tensor<4>, cos: &Tensor<2>, sin: &Tensor<2>, start: usize) -> Option<Tensor<4>> {
    let (cos, sin) = (Native::of(cos)?.values(), Native::of(sin)?.values());
    Some(run(Rotary { cos, sin, start }, [Native::of(x)?]))
}

#[derive(Clone, Debug)]
struct Rotary {
    cos: FlexTensor,
    sin: FlexTensor,
    start: usize,
}

impl Rotary {
    /// Rotates by the angles times `sign`.
    fn rotate(&self, x: FlexTensor, sign: f32) -> FlexTensor {
        let x = contiguous(x);
        let sizes = shape(&x);
        let [_, time, heads, head_dim] = sizes[..] else { unreachable!("four axes") };
        let (row, pairs) = (heads * head_dim, shape(&self.cos)[1]);
        assert!(2 * pairs <= head_dim, "{pairs} pairs in a head of {head_dim} entries");
        let mut y = zeros(slice(&x).len());
        let n = piece(y.len(), row, 2);
        y.par_chunks_mut(n).zip(slice(&x).par_chunks(n)).enumerate().for_each(|(i, (y, x))| {
            let first = i * (n / row);
            for (r, (y, x)) in y.chunks_exact_mut(row).zip(x.chunks_exact(row)).enumerate() {
                let at = (self.start + (first + r) % time) * pairs;
                let (cos, sin) = (&slice(&self.cos)[at..at + pairs], &slice(&self.sin)[at..at + pairs]);
                rotate_row(head_dim, sign, x, cos, sin, y);
            }
        });
        tensor(y, &sizes)
    }
}

simd! {
    fn rotate_row(head_dim: usize, sign: f32, x: &[f32], cos: &[f32], sin: &[f32], y: &mut [f32]) = rotate_row_body
}

#[inline(always)]
fn rotate_row_body<const F: bool>(head_dim: usize, sign: f32, x: &[f32], cos: &[f32], sin: &[f32], y: &mut [f32]) {
    let pairs = cos.len();
    for (x, y) in x.chunks_exact(head_dim).zip(y.chunks_exact_mut(head_dim)) {
        let ((x, rest), (y, y_rest)) = (x.split_at(2 * pairs), y.split_at_mut(2 * pairs));
        let ((a, b), (ya, yb)) = (x.split_at(pairs), y.split_at_mut(pairs));
        for i in 0..pairs {
            let s = sin[i] * sign;
            ya[i] = a[i] * cos[i] - b[i] * s;
            yb[i] = b[i] * cos[i] + a[i] * s;
        }
        y_rest.copy_from_slice(rest);
    }
}

impl Fused<1> for Rotary {
    type State = ();

    fn forward(&self, [x]: [FlexTensor; 1], _: bool) -> (FlexTensor, Option<()>) {
        (self.rotate(x, 1.0), Some(()))
    }

    fn backward(&self, (): (), dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.rotate(dy, -1.0))]
    }
}
