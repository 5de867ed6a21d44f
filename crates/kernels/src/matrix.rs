use crate::simd;
use crate::uninit::{Uninit, fill, written};

/// A strided matrix in a slice: entry (r, c) is `data[r * rows + c * columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    /// Distance between rows.
    rows: usize,
    /// Distance between columns.
    columns: usize,
}

impl<'a> Matrix<'a> {
    /// The matrix whose rows are `rows` elements apart, and whose columns are `columns` elements apart.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self { data, rows, columns }
    }

    /// The transposed matrix.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, ..self }
    }

    /// The rows from `first` on.
    #[must_use]
    pub fn from_row(self, first: usize) -> Self {
        Self { data: &self.data[first * self.rows..], ..self }
    }
}

/// `out = a b`, or `out += a b` with `add`, on the calling thread. Sizes are (rows, columns, inner); the rows of `out` are
/// `stride` elements apart.
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
    // SAFETY: the three ranges accessed lie within their slices, as was just checked; `out` is initialized and, borrowed
    // mutably, overlaps neither input.
    #[allow(unsafe_code)]
    unsafe {
        call(out.as_mut_ptr(), stride, (m, n, k), a, b, add);
    }
}

/// Writes `a b`, of m x n contiguous entries, to `out`, on the calling thread.
///
/// # Panics
/// If `out` has another length, or a matrix reaches beyond its slice.
pub fn product_into<'a>(
    out: &'a mut Uninit,
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
) -> &'a mut [f32] {
    assert_eq!(Some(out.len()), m.checked_mul(n), "the product does not fit");
    if out.is_empty() || k == 0 {
        return fill(out, |_| 0.0);
    }
    check((m, n, k), a, b);
    // SAFETY: the ranges of the inputs lie within their slices, as was just checked; `out` has exactly m n elements and
    // overlaps neither input; gemm, told not to read it, writes each of them.
    #[allow(unsafe_code)]
    unsafe {
        call(out.as_mut_ptr().cast(), n, (m, n, k), a, b, false);
        out.assume_init_mut()
    }
}

/// Number of elements from the first to the last of a matrix; `usize::MAX`, which no slice has, on overflow.
fn reach(r: usize, c: usize, rows: usize, columns: usize) -> usize {
    if r == 0 || c == 0 {
        return 0;
    }
    (r - 1).saturating_mul(rows).saturating_add((c - 1).saturating_mul(columns)).saturating_add(1)
}

fn check((m, n, k): (usize, usize, usize), a: Matrix<'_>, b: Matrix<'_>) {
    assert!(reach(m, k, a.rows, a.columns) <= a.data.len(), "the left matrix reaches beyond its slice");
    assert!(reach(k, n, b.rows, b.columns) <= b.data.len(), "the right matrix reaches beyond its slice");
}

/// # Safety
/// The matrices lie within their slices; `out` is the only access to m rows of n elements, `stride` apart, which are
/// initialized if `add`.
#[allow(unsafe_code)]
unsafe fn call(
    out: *mut f32,
    stride: usize,
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    add: bool,
) {
    // SAFETY: the caller guarantees what gemm requires.
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

/// `a b` on all threads, one block of rows each, so that they synchronize once.
///
/// # Panics
/// If a matrix reaches beyond its slice, or the product has more elements than there are addresses.
pub fn product((m, n, k): (usize, usize, usize), a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    let rows = rows_of_a_thread((m, n, k));
    let Some(elements) = m.checked_mul(n) else { panic!("a product of {m} by {n} elements") };
    written(elements, rows * n, |first, out| {
        let rows = out.len() / n;
        product_into(out, (rows, n, k), a.from_row(first / n), b)
    })
}

/// Number of rows of an (m, n, k) product that one thread computes; m where one thread is faster.
pub fn rows_of_a_thread((m, n, k): (usize, usize, usize)) -> usize {
    let threads = rayon::current_num_threads();
    match threads == 1 || m * n * k < SMALL || m < 16 {
        true => m,
        false => m.div_ceil(threads).next_multiple_of(8),
    }
}

/// Multiply-adds below which one thread is faster.
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

/// The sums of the `n` columns of contiguous rows.
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
        // Miri takes minutes for the largest.
        let sizes = [(1, 1, 1), (3, 5, 7), (2, 3, 0), (64, 33, 17), (130, 70, 65)];
        for (m, n, k) in sizes.into_iter().take(if cfg!(miri) { 3 } else { 5 }) {
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
        }
    }

    #[test]
    fn a_product_leaves_what_is_between_its_rows() {
        for (m, n, k, stride) in [(1, 1, 1, 1), (2, 3, 0, 5), (5, 7, 3, 7), (5, 7, 3, 9), (17, 33, 20, 40)] {
            let (a, b) = (vec![2.0; m * k], vec![0.5; k * n]);
            // No element longer than needed.
            let mut out = vec![7.0; (m - 1) * stride + n];
            multiply(&mut out, stride, (m, n, k), Matrix::new(&a, k, 1), Matrix::new(&b, n, 1), false);
            let want = |i: usize| if i % stride < n { k as f32 } else { 7.0 };
            assert!(out.iter().enumerate().all(|(i, x)| *x == want(i)), "{m} {n} {k} {stride}: {out:?}");
        }
    }

    #[test]
    fn nothing_has_no_product() {
        let none = Matrix::new(&[], 1, 1);
        multiply(&mut [], 1, (0, 1, 0), none, none, false);
        assert_eq!(product((3, 2, 0), none, none), [0.0; 6]);
    }

    #[test]
    fn products_on_several_threads_are_those_on_one() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let (m, n, k) = (50, 67, 43);
        let numbers = |n: usize| -> Vec<f32> { (0..n).map(|i| ((i * 37) % 23) as f32 - 11.0).collect() };
        let (a, b) = (numbers(m * k), numbers(k * n));
        let (a, b) = (Matrix::new(&a, k, 1), Matrix::new(&b, n, 1));
        let mut one = vec![0.0; m * n];
        multiply(&mut one, n, (m, n, k), a, b, false);
        pool.install(|| {
            assert!(rows_of_a_thread((m, n, k)) < m, "several threads");
            assert_eq!(product((m, n, k), a, b), one);
        });
    }

    #[test]
    fn columns_are_summed() {
        for n in [1, 3, 15, 16, 17, 32, 33, 64, 100] {
            for m in [0, 1, 2, 5] {
                let x: Vec<f32> = (0..m * n).map(|i| (i % 29) as f32).collect();
                let want: Vec<f32> = (0..n).map(|c| (0..m).map(|r| x[r * n + c]).sum()).collect();
                assert_eq!(column_sums(&x, n), want);
            }
        }
    }

    #[test]
    fn distances_that_overflow_are_refused() {
        let far = |(m, n, k): (usize, usize, usize), a: (usize, usize), b: (usize, usize), stride: usize| {
            let product = || {
                let (a, b) = (Matrix::new(&[0.0; 4], a.0, a.1), Matrix::new(&[0.0; 4], b.0, b.1));
                multiply(&mut [0.0; 4], stride, (m, n, k), a, b, false);
            };
            assert!(std::panic::catch_unwind(product).is_err(), "{m} {n} {k} {a:?} {b:?} {stride}");
        };
        let half = 1 << (usize::BITS - 1);
        far((3, 1, 1), (half, 1), (1, 1), 1);
        far((1, 1, 3), (1, half), (1, 1), 1);
        far((1, 1, 3), (1, 1), (half, 1), 1);
        far((3, 1, 1), (1, 1), (1, 1), half);
        // m n overflows to the length of the buffer.
        let much = std::panic::catch_unwind(|| {
            let none = Matrix::new(&[0.0; 4], 0, 0);
            written(2, 2, |_, room| product_into(room, (half + 1, 2, 1), none, none))
        });
        assert!(much.is_err());
    }

    #[test]
    #[should_panic(expected = "beyond its slice")]
    fn a_matrix_beyond_its_slice_is_refused() {
        multiply(&mut [0.0; 4], 2, (2, 2, 2), Matrix::new(&[0.0; 3], 2, 1), Matrix::new(&[0.0; 4], 2, 1), false);
    }
}
