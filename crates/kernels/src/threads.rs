//! Cutting work into one piece a thread.

/// Below this many elements a thread, a second thread costs more than it gives.
const GRAIN: usize = 16 * 1024;

/// Number of elements of a piece, a multiple of `unit`, that cuts `n` elements into one piece a thread. `weight`
/// is the work on an element, 1 for a plain pass.
pub fn piece(n: usize, unit: usize, weight: usize) -> usize {
    let parts = rayon::current_num_threads().min(n * weight / GRAIN).max(1);
    (n / unit).div_ceil(parts).max(1) * unit
}
