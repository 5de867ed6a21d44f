use crate::ops::dropout::{Key, hash};
use burn::tensor::Tensor;
use rayon::prelude::*;
use unitgain_kernels::threads::piece;
use unitgain_kernels::{FlexTensor, Fused, Native, contiguous, run, shape, simd, slice, tensor};

/// `x`, `[rows, width]`, with each entry 0 whose hash is below `threshold`, and the others times `scale`. The rows are those
/// of the sequences of these keys.
pub(crate) fn dropout(x: &Tensor<2>, keys: &[Key], threshold: u32, scale: f32) -> Option<Tensor<2>> {
    Some(run(Dropout { keys: keys.to_vec(), threshold, scale }, [Native::of(x)?]))
}

#[derive(Clone, Debug)]
struct Dropout {
    keys: Vec<Key>,
    threshold: u32,
    scale: f32,
}

impl Dropout {
    fn apply(&self, x: FlexTensor) -> FlexTensor {
        let x = contiguous(x);
        let (sizes, mut y) = (shape(&x), slice(&x).to_vec());
        let each = y.len() / self.keys.len();
        let size = piece(each, 64, 1);
        y.par_chunks_mut(each.max(1)).zip(&self.keys).for_each(|(y, key)| {
            y.par_chunks_mut(size).enumerate().for_each(|(i, y)| {
                mask((i * size) as u32, *key, self.threshold, self.scale, y);
            });
        });
        tensor(y, &sizes)
    }
}

simd! {
    fn mask(first: u32, key: Key, threshold: u32, scale: f32, y: &mut [f32]) = mask_body
}

#[inline(always)]
fn mask_body<const F: bool>(first: u32, key: Key, threshold: u32, scale: f32, y: &mut [f32]) {
    for (i, y) in y.iter_mut().enumerate() {
        *y = if hash(first.wrapping_add(i as u32), key) >= threshold { *y * scale } else { 0.0 };
    }
}

impl Fused<1> for Dropout {
    type State = ();

    fn forward(&self, [x]: [FlexTensor; 1], _: bool) -> (FlexTensor, Option<()>) {
        (self.apply(x), Some(()))
    }

    fn backward(&self, (): (), dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.apply(dy))]
    }
}
