//! Buffers that are allocated uninitialized and written once.

use crate::math::{LANES, tree_sum};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// An uninitialized slice.
pub type Uninit = [MaybeUninit<f32>];

/// Fills a buffer of `n` elements in pieces of `size`, on all threads. `write` gets the index of a piece's first element
/// and the uninitialized piece, and returns that piece initialized. The slice returned proves that the piece was written.
///
/// # Panics
/// If `write` returns another slice.
pub fn written(n: usize, size: usize, write: impl Fn(usize, &mut Uninit) -> &mut [f32] + Sync) -> Vec<f32> {
    let (mut values, size) = (Vec::with_capacity(n), size.max(1));
    let pieces = values.spare_capacity_mut()[..n].par_chunks_mut(size);
    pieces.enumerate().for_each(|(i, out)| assert_written(out, |out| write(i * size, out)));
    // SAFETY: the capacity is at least n, and `assert_written` has checked each piece of the first n elements.
    #[allow(unsafe_code)]
    unsafe {
        values.set_len(n);
    }
    values
}

/// Fills two buffers as [`written`] does; each pair is a number of elements and a size of pieces.
///
/// # Panics
/// If the buffers have different numbers of pieces, or if `write` returns other slices.
pub fn written_pair(
    [(n, size), (m, other)]: [(usize, usize); 2],
    write: impl for<'a> Fn(usize, &'a mut Uninit, &'a mut Uninit) -> (&'a mut [f32], &'a mut [f32]) + Sync,
) -> (Vec<f32>, Vec<f32>) {
    let (mut first, mut second) = (Vec::with_capacity(n), Vec::with_capacity(m));
    let (size, other) = (size.max(1), other.max(1));
    assert!(n.div_ceil(size) == m.div_ceil(other), "buffers of different numbers of pieces");
    let outs = first.spare_capacity_mut()[..n].par_chunks_mut(size);
    let outs = outs.zip(second.spare_capacity_mut()[..m].par_chunks_mut(other));
    outs.enumerate().for_each(|(i, (a, b))| {
        let expected = [(a.as_ptr().cast::<f32>(), a.len()), (b.as_ptr().cast(), b.len())];
        let (a, b) = write(i * size, a, b);
        assert!(expected == [(a.as_ptr(), a.len()), (b.as_ptr(), b.len())], "another slice than the one given");
    });
    // SAFETY: the capacities are at least n and m, both have as many pieces, and each piece was checked to be written.
    #[allow(unsafe_code)]
    unsafe {
        first.set_len(n);
        second.set_len(m);
    }
    (first, second)
}

fn assert_written(out: &mut Uninit, write: impl FnOnce(&mut Uninit) -> &mut [f32]) {
    let expected = (out.as_ptr().cast::<f32>(), out.len());
    let written = write(out);
    assert!(expected == (written.as_ptr(), written.len()), "another slice than the one given");
}

/// Writes `f(x[i])` to `out[i]`.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub fn map<'a>(out: &'a mut Uninit, x: &[f32], f: impl Fn(f32) -> f32) -> &'a mut [f32] {
    assert!(out.len() == x.len(), "input and output differ in length");
    for (place, x) in out.iter_mut().zip(x) {
        place.write(f(*x));
    }
    // SAFETY: the loop has written every element, as the lengths are equal.
    #[allow(unsafe_code)]
    unsafe {
        out.assume_init_mut()
    }
}

/// [`map`], with the sum of the values written.
#[inline(always)]
pub fn map_and_sum<'a>(out: &'a mut Uninit, x: &[f32], f: impl Fn(f32) -> f32) -> (&'a mut [f32], f32) {
    assert!(out.len() == x.len(), "input and output differ in length");
    let mut lanes = [0f32; LANES];
    let (places, last_places) = out.as_chunks_mut::<LANES>();
    let (chunks, last) = x.as_chunks::<LANES>();
    for (place, chunk) in places.iter_mut().zip(chunks) {
        for i in 0..LANES {
            lanes[i] += *place[i].write(f(chunk[i]));
        }
    }
    let mut total = tree_sum(lanes);
    for (place, x) in last_places.iter_mut().zip(last) {
        total += *place.write(f(*x));
    }
    // SAFETY: the loops have written every element, as the lengths and so those of the chunks are equal.
    #[allow(unsafe_code)]
    (unsafe { out.assume_init_mut() }, total)
}

/// Writes `value(i)` to `out[i]`.
#[inline(always)]
pub fn fill(out: &mut Uninit, mut value: impl FnMut(usize) -> f32) -> &mut [f32] {
    for (i, place) in out.iter_mut().enumerate() {
        place.write(value(i));
    }
    // SAFETY: the loop has written every element.
    #[allow(unsafe_code)]
    unsafe {
        out.assume_init_mut()
    }
}

/// Writes one row. A method and not a closure, because only a method can be inlined by attribute, and so be compiled for
/// the instruction set of its caller.
pub trait WriteRow {
    /// Writes the row of this index to `out` and returns `out` initialized, as in [`written`].
    fn write<'a>(&mut self, row: usize, out: &'a mut Uninit) -> &'a mut [f32];
}

/// Writes `out` row by row.
///
/// # Panics
/// If the writer returns another slice than a row, or if `out` is not whole rows of `width`.
#[inline(always)]
pub fn rows<'a>(out: &'a mut Uninit, width: usize, writer: &mut impl WriteRow) -> &'a mut [f32] {
    assert!(out.len().is_multiple_of(width), "a slice of broken rows");
    for (i, row) in out.chunks_exact_mut(width).enumerate() {
        let expected = (row.as_ptr().cast::<f32>(), row.len());
        let written = writer.write(i, row);
        assert!(expected == (written.as_ptr(), written.len()), "another slice than the one given");
    }
    // SAFETY: the rows cover `out`, and each was checked to be written.
    #[allow(unsafe_code)]
    unsafe {
        out.assume_init_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_written_where_it_belongs() {
        for (n, size) in [(0, 4), (1, 4), (10, 3), (1000, 64), (5, 0)] {
            let values = written(n, size, |first, out| fill(out, |i| (first + i) as f32));
            assert!(values.iter().enumerate().all(|(i, v)| *v == i as f32) && values.len() == n);
            let (a, b) = written_pair([(n, size); 2], |first, a, b| {
                (fill(a, |i| (first + i) as f32), fill(b, |i| -((first + i) as f32)))
            });
            assert!(a == values && b.iter().zip(&a).all(|(b, a)| *b == -*a));
        }
    }

    /// Writes consecutive numbers from the given one.
    struct Count(usize);

    impl WriteRow for Count {
        fn write<'a>(&mut self, row: usize, out: &'a mut Uninit) -> &'a mut [f32] {
            let first = self.0 + row * out.len();
            fill(out, |i| (first + i) as f32)
        }
    }

    #[test]
    fn several_threads_write_what_one_does() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        pool.install(|| {
            for (n, size) in [(1, 1), (7, 2), (100, 33), (1001, 100)] {
                let values = written(n, size, |first, out| fill(out, |i| (first + i) as f32));
                let (a, b) = written_pair([(n, size), (2 * n, 2 * size)], |first, a, b| {
                    (fill(a, |i| (first + i) as f32), fill(b, |i| (2 * first + i) as f32))
                });
                assert!(values.iter().enumerate().all(|(i, v)| *v == i as f32) && values.len() == n && a == values);
                assert!(b.iter().enumerate().all(|(i, v)| *v == i as f32) && b.len() == 2 * n);
            }
        });
    }

    #[test]
    fn one_that_panics_leaves_nothing_unwritten_to_be_read() {
        let half = std::panic::catch_unwind(|| {
            written(100, 10, |first, out| match first {
                50 => panic!("half way"),
                _ => fill(out, |i| i as f32),
            })
        });
        assert!(half.is_err());
    }

    #[test]
    fn a_map_is_summed() {
        for n in [0, 1, 31, 32, 33, 100] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let twice: Vec<f32> = x.iter().map(|x| x * 2.0).collect();
            let mut out = Vec::with_capacity(n);
            assert_eq!(map(&mut out.spare_capacity_mut()[..n], &x, |x| x * 2.0), twice);
            let mut out = Vec::with_capacity(n);
            let (values, sum) = map_and_sum(&mut out.spare_capacity_mut()[..n], &x, |x| x * 2.0);
            assert!(values == twice && sum == twice.iter().sum::<f32>());
        }
    }

    #[test]
    fn buffers_of_a_pair_have_their_own_sizes_and_rows() {
        let (a, b) =
            written_pair([(12, 6), (4, 2)], |first, a, b| (rows(a, 3, &mut Count(first)), fill(b, |i| i as f32)));
        assert!(a.iter().enumerate().all(|(i, v)| *v == i as f32) && b == [0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    #[should_panic(expected = "numbers of pieces")]
    fn a_pair_has_as_many_pieces_of_both() {
        written_pair([(12, 6), (4, 4)], |_, a, b| (fill(a, |_| 0.0), fill(b, |_| 0.0)));
    }

    #[test]
    #[should_panic(expected = "broken rows")]
    fn rows_are_whole() {
        written(4, 4, |first, out| rows(out, 3, &mut Count(first)));
    }

    #[test]
    #[should_panic(expected = "another slice")]
    fn another_slice_is_no_proof() {
        written(4, 4, |_, out| &mut fill(out, |_| 0.0)[1..]);
    }
}
