//! Splitting work into one piece for each thread.

/// Least number of elements for each thread, below which a further thread costs more than it saves.
const GRAIN: usize = 16 * 1024;

/// Number of elements of a piece, a multiple of `unit`, that splits `n` elements into one piece for each thread. `weight`
/// is the work on an element, 1 for a plain pass.
pub fn piece(n: usize, unit: usize, weight: usize) -> usize {
    let parts = rayon::current_num_threads().min(n * weight / GRAIN).max(1);
    (n / unit).div_ceil(parts).max(1) * unit
}
