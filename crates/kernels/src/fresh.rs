//! Buffers that are written once, without being set to 0 first.

use rayon::prelude::*;
use std::mem::MaybeUninit;

/// What is still to be written.
pub type Room = [MaybeUninit<f32>];

/// `n` elements, in pieces of `size` on all threads. `write` gets the index of the first element of a piece and its
/// room, and has to return that room as written: as there is no other way to have such a slice, it is the proof.
///
/// # Panics
/// If it returns another slice.
pub fn written(n: usize, size: usize, write: impl Fn(usize, &mut Room) -> &mut [f32] + Sync) -> Vec<f32> {
    let (mut values, size) = (Vec::with_capacity(n), size.max(1));
    let pieces = values.spare_capacity_mut()[..n].par_chunks_mut(size);
    pieces.enumerate().for_each(|(i, room)| prove(room, |room| write(i * size, room)));
    // SAFETY: the capacity is at least n, and `prove` has seen each piece of the first n elements as written.
    #[allow(unsafe_code)]
    unsafe {
        values.set_len(n);
    }
    values
}

/// Two buffers of `n` elements each, as [`written`].
///
/// # Panics
/// If `write` returns other slices.
pub fn written_pair(
    n: usize,
    size: usize,
    write: impl for<'a> Fn(usize, &'a mut Room, &'a mut Room) -> (&'a mut [f32], &'a mut [f32]) + Sync,
) -> (Vec<f32>, Vec<f32>) {
    let (mut first, mut second) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let size = size.max(1);
    let rooms = first.spare_capacity_mut()[..n].par_chunks_mut(size);
    let rooms = rooms.zip(second.spare_capacity_mut()[..n].par_chunks_mut(size));
    rooms.enumerate().for_each(|(i, (a, b))| {
        let expected = [(a.as_ptr().cast::<f32>(), a.len()), (b.as_ptr().cast(), b.len())];
        let (a, b) = write(i * size, a, b);
        assert!(expected == [(a.as_ptr(), a.len()), (b.as_ptr(), b.len())], "another slice than the room");
    });
    // SAFETY: both capacities are at least n, and each piece of the first n elements was just seen as written.
    #[allow(unsafe_code)]
    unsafe {
        first.set_len(n);
        second.set_len(n);
    }
    (first, second)
}

fn prove(room: &mut Room, write: impl FnOnce(&mut Room) -> &mut [f32]) {
    let expected = (room.as_ptr().cast::<f32>(), room.len());
    let written = write(room);
    assert!(expected == (written.as_ptr(), written.len()), "another slice than the room");
}

/// The room with `value` of each index written.
#[inline(always)]
pub fn fill(room: &mut Room, mut value: impl FnMut(usize) -> f32) -> &mut [f32] {
    for (i, place) in room.iter_mut().enumerate() {
        place.write(value(i));
    }
    // SAFETY: the loop has written every element.
    #[allow(unsafe_code)]
    unsafe {
        room.assume_init_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_written_where_it_belongs() {
        for (n, size) in [(0, 4), (1, 4), (10, 3), (1000, 64), (5, 0)] {
            let values = written(n, size, |first, room| fill(room, |i| (first + i) as f32));
            assert!(values.iter().enumerate().all(|(i, v)| *v == i as f32) && values.len() == n);
            let (a, b) = written_pair(n, size, |first, a, b| {
                (fill(a, |i| (first + i) as f32), fill(b, |i| -((first + i) as f32)))
            });
            assert!(a == values && b.iter().zip(&a).all(|(b, a)| *b == -*a));
        }
    }

    #[test]
    #[should_panic(expected = "another slice")]
    fn another_slice_is_no_proof() {
        written(4, 4, |_, room| &mut fill(room, |_| 0.0)[1..]);
    }
}
