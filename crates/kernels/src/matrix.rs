use crate::fresh::{Room, fill, written};
use crate::simd;

/// A matrix inside a slice: entry (r, c) is `data[r * rows + c * columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    /// Distance between rows.
    rows: usize,
    /// Distance between columns.
    columns: usize,
}

impl<'a> Matrix<'a> {
    /// With the distances between rows and between columns.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self { data, rows, columns }
    }

    /// The transposed matrix.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, ..self }
    }

    /// From row `first` on.
    #[must_use]
    pub fn from_row(self, first: usize) -> Self {
        Self { data: &self.data[first * self.rows..], ..self }
    }
}

/// `out = a b`, with `add` `out += a b`, on the calling thread. The sizes are (rows, columns, inner); the rows of
/// `out` are `stride` apart.
///
/// # Panics
/// If a matrix reaches beyond its slice.
pub fn multiply(
    out: &mut [f32],
    stride: usize,
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    add: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(n <= stride && reach(m, n, stride, 1) <= out.len(), "the product does not fit");
    check((m, n, k), a, b);
    // SAFETY: the three ranges that are touched were just compared with their slices, and `out`, being borrowed
    // mutably, overlaps neither input and is written.
    #[allow(unsafe_code)]
    unsafe {
        call(out.as_mut_ptr(), stride, (m, n, k), a, b, add);
    }
}

/// `a b` into room for exactly its contiguous rows, on the calling thread.
///
/// # Panics
/// If the room is another, or a matrix reaches beyond its slice.
pub fn product_into<'a>(
    out: &'a mut Room,
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
) -> &'a mut [f32] {
    assert_eq!(out.len(), m * n, "the product does not fit");
    if m * n == 0 || k == 0 {
        return fill(out, |_| 0.0);
    }
    check((m, n, k), a, b);
    // SAFETY: the ranges of the inputs were just compared with their slices, `out` has exactly m n elements and
    // overlaps neither; gemm, which is told not to read it, writes each of them.
    #[allow(unsafe_code)]
    unsafe {
        call(out.as_mut_ptr().cast(), n, (m, n, k), a, b, false);
        out.assume_init_mut()
    }
}

/// Number of elements up to the last that a matrix has.
fn reach(r: usize, c: usize, rows: usize, columns: usize) -> usize {
    if r == 0 || c == 0 { 0 } else { (r - 1) * rows + (c - 1) * columns + 1 }
}

fn check((m, n, k): (usize, usize, usize), a: Matrix<'_>, b: Matrix<'_>) {
    assert!(reach(m, k, a.rows, a.columns) <= a.data.len(), "the left matrix reaches beyond its slice");
    assert!(reach(k, n, b.rows, b.columns) <= b.data.len(), "the right matrix reaches beyond its slice");
}

/// # Safety
/// The matrices reach no further than their slices; `out` is the only access to m rows of n elements, `stride` apart,
/// and with `add` they are written.
#[allow(unsafe_code)]
unsafe fn call(
    out: *mut f32,
    stride: usize,
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    add: bool,
) {
    // SAFETY: as this function asks for.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out,
            1,
            stride as isize,
            add,
            a.data.as_ptr(),
            a.columns as isize,
            a.rows as isize,
            b.data.as_ptr(),
            b.columns as isize,
            b.rows as isize,
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// `a b` on all threads: one block of rows each, so that there is one point where they meet.
pub fn product((m, n, k): (usize, usize, usize), a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    let rows = rows_of_a_thread((m, n, k));
    written(m * n, rows * n, |first, out| {
        let rows = out.len() / n;
        product_into(out, (rows, n, k), a.from_row(first / n), b)
    })
}

/// Number of rows of a product of these sizes that one thread computes: all of them where that is faster.
pub fn rows_of_a_thread((m, n, k): (usize, usize, usize)) -> usize {
    let threads = rayon::current_num_threads();
    match threads == 1 || m * n * k < SMALL || m < 16 {
        true => m,
        false => m.div_ceil(threads).next_multiple_of(8),
    }
}

/// The work below which one thread is faster.
const SMALL: usize = 128 * 1024;

simd! {
    fn add_rows(x: &[f32], sums: &mut [f32]) = add_rows_body
}

#[inline(always)]
fn add_rows_body<const F: bool>(x: &[f32], sums: &mut [f32]) {
    for row in x.chunks_exact(sums.len()) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += x;
        }
    }
}

/// Sum of each of the `n` columns of contiguous rows.
pub fn column_sums(x: &[f32], n: usize) -> Vec<f32> {
    let mut sums = vec![0f32; n];
    add_rows(x, &mut sums);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_definition_for_every_layout() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (64, 33, 17), (130, 70, 65), (2, 3, 0)] {
            let numbers = |n: usize, salt: usize| -> Vec<f32> {
                (0..n).map(|i| ((i * 37 + salt) % 23) as f32 / 11.0 - 1.0).collect()
            };
            let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
            let want =
                |r: usize, c: usize, start: f32| start + (0..k).map(|i| a[r * k + i] * b[i * n + c]).sum::<f32>();
            let turned: Vec<f32> = (0..k * n).map(|i| b[(i % k.max(1)) * n + i / k.max(1)]).collect();
            for add in [false, true] {
                let start = numbers(m * n, 3);
                for (data, rows, columns) in [(&b, n, 1), (&turned, 1, k)] {
                    let right = Matrix::new(data, rows, columns);
                    let mut out = start.clone();
                    multiply(&mut out, n, (m, n, k), Matrix::new(&a, k, 1), right, add);
                    if !add {
                        // On all threads.
                        out = product((m, n, k), Matrix::new(&a, k, 1), right);
                    }
                    for (i, out) in out.iter().enumerate() {
                        let want = want(i / n, i % n, if add { start[i] } else { 0.0 });
                        assert!((out - want).abs() < 1e-4, "{m} {n} {k} {add}");
                    }
                }
            }
            assert_eq!(column_sums(&b, n).len(), n);
        }
    }

    #[test]
    #[should_panic(expected = "beyond its slice")]
    fn a_matrix_beyond_its_slice_is_refused() {
        multiply(&mut [0.0; 4], 2, (2, 2, 2), Matrix::new(&[0.0; 3], 2, 1), Matrix::new(&[0.0; 4], 2, 1), false);
    }
}
