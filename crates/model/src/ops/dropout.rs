//! Dropout with masks that do not depend on how a batch is split.

#[cfg(feature = "flex")]
use super::fused;
use burn::nn::DropoutConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::cell::Cell;

thread_local! {
    static MASKS: Cell<Option<Masks>> = const { Cell::new(None) };
}

/// The masks of a forward pass.
#[derive(Clone, Copy)]
struct Masks {
    seed: u64,
    /// Number of the first sequence.
    first: usize,
    /// Number of masks taken so far.
    taken: u64,
}

/// Calls `f`, in which each mask of [`dropout`] on this thread is a function of `seed`, the number of the call, the number of
/// the sequence, counted from `first`, and the place in the sequence: a batch has the same masks whole and in shards.
pub fn with_masks<R>(seed: u64, first: usize, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Masks>);
    impl Drop for Restore {
        fn drop(&mut self) {
            MASKS.set(self.0);
        }
    }
    let _restore = Restore(MASKS.replace(Some(Masks { seed, first, taken: 0 })));
    f()
}

/// Dropout (arXiv:1207.0580): each entry of `x`, `[sequences * time, width]`, is 0 with this probability, below 1, and the
/// others are divided by 1 - probability. On a plain device `x` is unchanged. Outside [`with_masks`], masks come from the
/// generator of the device.
pub fn dropout(x: Tensor<2>, probability: f64, sequences: usize) -> Tensor<2> {
    if probability == 0.0 || !x.device().is_autodiff() {
        return x;
    }
    let Some(masks) = MASKS.take() else { return DropoutConfig::new(probability).init().forward(x) };
    MASKS.set(Some(Masks { taken: masks.taken + 1, ..masks }));
    let keys: Vec<Key> = (masks.first..masks.first + sequences).map(|sequence| masks.key(sequence)).collect();
    let threshold = (probability * f64::from(1u32 << 31)) as u32;
    let scale = (1.0 - probability).recip();
    #[cfg(feature = "flex")]
    if let Some(y) = fused::dropout(&x, &keys, threshold, scale as f32) {
        return y;
    }
    let sizes = x.dims();
    let mask = hashes(&keys, sizes[0] / sequences * sizes[1], &x.device()).greater_equal_elem(threshold);
    x * mask.float().reshape(sizes) * scale
}

/// What makes the mask of one sequence its own: two numbers of 31 bits.
pub(crate) type Key = [u32; 2];

impl Masks {
    fn key(self, sequence: usize) -> Key {
        let of_call = mixed(mixed(self.seed).wrapping_add(self.taken));
        let key = mixed(of_call.wrapping_add(sequence as u64));
        [key as u32 & LOW, (key >> 32) as u32 & LOW]
    }
}

/// SplitMix64 (doi:10.1145/2660193.2660195).
fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The bits that are computed with: 31, for which the integers of every backend, of 32 or 64 bits, agree.
const LOW: u32 = (1 << 31) - 1;
/// The multipliers and shifts of the hash.
const ROUNDS: [(u32, u32); 3] = [(0x2c1b_3c6d, 15), (0x297a_2d39, 12), (0x5bd1_e995, 15)];

/// A hash of 31 bits of the place in a sequence.
#[cfg(any(feature = "flex", test))]
#[inline(always)]
pub(crate) fn hash(place: u32, [first, last]: Key) -> u32 {
    let [a, b, c] = ROUNDS;
    let h = place.wrapping_mul(a.0).wrapping_add(first) & LOW;
    let h = (h ^ (h >> a.1)).wrapping_mul(b.0) & LOW;
    let h = (h ^ (h >> b.1)).wrapping_add(last).wrapping_mul(c.0) & LOW;
    h ^ (h >> c.1)
}

/// [`hash`] of the first `places` places of each sequence, `[sequences, places]`, on the device.
fn hashes(keys: &[Key], places: usize, device: &Device) -> Tensor<2, Int> {
    let key = |i: usize| {
        let of: Vec<i32> = keys.iter().map(|key| key[i] as i32).collect();
        Tensor::<2, Int>::from_data(TensorData::new(of, [keys.len(), 1]), device)
    };
    let low = |h: Tensor<2, Int>| h.bitwise_and_scalar(LOW);
    let folded = |h: Tensor<2, Int>, shift: u32| h.clone().bitwise_xor(h.bitwise_right_shift_scalar(shift));
    let [a, b, c] = ROUNDS;
    let place = Tensor::<1, Int>::arange(0..places as i64, device).reshape([1, places]);
    let h = low(place * a.0 + key(0));
    let h = low(folded(h, a.1) * b.0);
    let h = low((folded(h, b.1) + key(1)) * c.0);
    folded(h, c.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(seed: u64, taken: u64, sequence: usize, n: u32) -> Vec<bool> {
        let key = Masks { seed, first: 0, taken }.key(sequence);
        (0..n).map(|place| hash(place, key) >= 1 << 30).collect()
    }

    #[test]
    fn masks_are_random_and_independent() {
        let n = 1 << 16;
        // Five standard deviations of a mean of n fair coins.
        let is_half = |hits: usize| (hits as f64 / f64::from(n) - 0.5).abs() < 2.5 / f64::from(n).sqrt();
        let masks: Vec<Vec<bool>> = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1), (7, 3, 2)]
            .into_iter()
            .map(|(seed, taken, sequence)| kept(seed, taken, sequence, n))
            .collect();
        for (i, a) in masks.iter().enumerate() {
            assert!(is_half(a.iter().filter(|kept| **kept).count()), "mask {i}");
            for shift in [1, 2, 32, 64, 4096] {
                let alike = (0..a.len() - shift).filter(|&at| a[at] == a[at + shift]).count();
                assert!(is_half(alike + shift / 2), "mask {i} repeats after {shift}");
            }
            for b in &masks[..i] {
                assert!(is_half(a.iter().zip(b).filter(|(a, b)| a == b).count()), "mask {i} is like another");
            }
        }
    }
}
