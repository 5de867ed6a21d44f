//! Matrices whose entries are not independent. All are `[rows, columns]`, row by row, and computed in f64.

use crate::sample;
use nalgebra::DMatrix;

/// The semi-orthogonal factor of a matrix: Q of the QR decomposition of `a`, or of its transpose if it is wide, with columns
/// multiplied by `gain` and the signs of R's diagonal. `Q^T Q = gain^2 I` if rows >= columns, else `Q Q^T = gain^2 I`. For a
/// Gaussian matrix it is Haar-distributed because of the signs (arXiv:math-ph/0609050).
pub fn orthogonal_factor(a: &[f32], rows: usize, columns: usize, gain: f64) -> Vec<f32> {
    let a = DMatrix::from_row_iterator(rows, columns, a.iter().map(|x| f64::from(*x)));
    let is_wide = rows < columns;
    let (mut q, r) = if is_wide { a.transpose().qr().unpack() } else { a.qr().unpack() };
    for (mut column, diagonal) in q.column_iter_mut().zip(r.diagonal().iter()) {
        column *= gain.copysign(*diagonal);
    }
    let q = if is_wide { q.transpose() } else { q };
    rows_of(&q)
}

/// A random semi-orthogonal matrix times `gain` (arXiv:1312.6120; sqrt(2) for ReLU), from the stream of (`seed`, `path`). The
/// weight of a convolution is read as `[out, rest]`.
pub fn orthogonal(seed: u64, path: &str, rows: usize, columns: usize, gain: f64) -> Vec<f32> {
    orthogonal_factor(&sample::normal(seed, path, rows * columns, 1.0), rows, columns, gain)
}

/// `gain` on the diagonal, 0 elsewhere: the recurrent weight of IRNN (arXiv:1504.00941), a partial identity if not square.
pub fn identity(rows: usize, columns: usize, gain: f64) -> Vec<f32> {
    let mut values = vec![0.0; rows * columns];
    for i in 0..rows.min(columns) {
        values[i * columns + i] = gain as f32;
    }
    values
}

/// The weight `[out, in / groups, kernel ..]` of a convolution that copies: 1 at the centre tap from input i to output i of
/// each group, 0 elsewhere.
pub fn dirac(outputs: usize, inputs_of_a_group: usize, kernel: &[usize], groups: usize) -> Vec<f32> {
    let taps: usize = kernel.iter().product();
    let mut values = vec![0.0; outputs * inputs_of_a_group * taps];
    let outputs_of_a_group = outputs / groups;
    for group in 0..groups {
        for i in 0..outputs_of_a_group.min(inputs_of_a_group) {
            values[((group * outputs_of_a_group + i) * inputs_of_a_group + i) * taps + centre(kernel)] = 1.0;
        }
    }
    values
}

/// Index of the centre tap.
fn centre(kernel: &[usize]) -> usize {
    kernel.iter().fold(0, |index, size| index * size + size / 2)
}

/// The weight `[out, in, kernel ..]` of a convolution with `matrix`, `[out, in]`, at the centre tap and 0 elsewhere.
pub fn at_centre(matrix: &[f32], kernel: &[usize]) -> Vec<f32> {
    let taps: usize = kernel.iter().product();
    let mut values = vec![0.0; matrix.len() * taps];
    for (i, value) in matrix.iter().enumerate() {
        values[i * taps + centre(kernel)] = *value;
    }
    values
}

/// Delta-orthogonal init (arXiv:1806.05393): the centre tap of a convolution is `gain` times a matrix with orthonormal
/// columns, `[out, in]`, and the other taps are 0. None unless out >= in.
pub fn delta_orthogonal(
    seed: u64,
    path: &str,
    outputs: usize,
    inputs: usize,
    kernel: &[usize],
    gain: f64,
) -> Option<Vec<f32>> {
    (outputs >= inputs).then(|| at_centre(&orthogonal(seed, path, outputs, inputs, gain), kernel))
}

/// An entry, +-1, of Sylvester's Hadamard matrices: `H_0 = [1]`, `H_m = [[H, H], [H, -H]]`, `H_m H_m^T = 2^m I`. It does not
/// depend on m.
pub fn hadamard(row: usize, column: usize) -> f32 {
    if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// The constant c of ZerO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroConstant {
    /// 2^(-m/2), as in the authors' code: the padded product preserves lengths.
    #[default]
    Orthonormal,
    /// 2^(-(m-1)/2), as the paper prints it: sqrt(2) larger.
    Paper,
}

/// ZerO (arXiv:2110.12661, algorithm 1) for a matrix `[out, in]`: the partial identity if out <= in, else `c I H_m I` with
/// m = ceil(log2 out), I partial identities and H_m the Hadamard matrix. It is deterministic.
pub fn zero(outputs: usize, inputs: usize, constant: ZeroConstant) -> Vec<f32> {
    if outputs <= inputs {
        return identity(outputs, inputs, 1.0);
    }
    let m = outputs.next_power_of_two().ilog2();
    let c = match constant {
        ZeroConstant::Orthonormal => 2f64.powf(-f64::from(m) / 2.0),
        ZeroConstant::Paper => 2f64.powf(-(f64::from(m) - 1.0) / 2.0),
    } as f32;
    (0..outputs * inputs).map(|k| c * hadamard(k / inputs, k % inputs)).collect()
}

/// L and R, each `[n, k]`, of a factorization `L R^T`.
pub type Factors = [Vec<f32>; 2];

/// Mimetic init of attention (arXiv:2305.09828): `L R^T` is the best approximation of rank k of `noise Z + diagonal I`, Z of
/// shape `[n, n]`; L = U sqrt(S) and R = V sqrt(S) of the singular value decomposition. NaN if an entry is not finite.
pub fn mimetic_factors(z: &[f32], n: usize, k: usize, noise: f64, diagonal: f64) -> Factors {
    let target = DMatrix::from_row_iterator(n, n, z.iter().map(|x| noise * f64::from(*x)))
        + DMatrix::from_diagonal_element(n, n, diagonal);
    if !target.iter().all(|x| x.is_finite()) {
        return [vec![f32::NAN; n * k], vec![f32::NAN; n * k]];
    }
    let svd = target.svd(true, true);
    let (Some(u), Some(vt)) = (svd.u, svd.v_t) else { unreachable!("both were asked for") };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| svd.singular_values[*b].total_cmp(&svd.singular_values[*a]));
    let entry = |of: &dyn Fn(usize, usize) -> f64| {
        (0..n * k).map(|i| (of(i / k, order[i % k]) * svd.singular_values[order[i % k]].sqrt()) as f32).collect()
    };
    [entry(&|row, j| u[(row, j)]), entry(&|row, j| vt[(j, row)])]
}

/// Singular values of a matrix in descending order; NaN if an entry is not finite.
pub fn singular_values(a: &[f32], rows: usize, columns: usize) -> Vec<f64> {
    if !a.iter().all(|x| x.is_finite()) {
        return vec![f64::NAN; rows.min(columns)];
    }
    let a = DMatrix::from_row_iterator(rows, columns, a.iter().map(|x| f64::from(*x)));
    let mut values: Vec<f64> = a.singular_values().iter().copied().collect();
    values.sort_by(|a, b| b.total_cmp(a));
    values
}

fn rows_of(a: &DMatrix<f64>) -> Vec<f32> {
    a.row_iter().flat_map(|row| row.iter().map(|x| *x as f32).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest distance of `A^T A` (tall) or `A A^T` (wide) from `gain^2 I`.
    fn distance(a: &[f32], rows: usize, columns: usize, gain: f64) -> f64 {
        let a = DMatrix::from_row_iterator(rows, columns, a.iter().map(|x| f64::from(*x)));
        let product = if rows < columns { &a * a.transpose() } else { a.transpose() * &a };
        let n = product.nrows();
        (product - DMatrix::from_diagonal_element(n, n, gain * gain)).abs().max()
    }

    #[test]
    fn orthogonal_matrices_are() {
        for (rows, columns) in [(1, 1), (6, 6), (8, 3), (3, 8), (64, 48), (1, 7), (7, 1), (128, 128)] {
            for gain in [1.0, 2f64.sqrt()] {
                let a = orthogonal(1, "a", rows, columns, gain);
                assert!(distance(&a, rows, columns, gain) < 1e-5, "{rows} x {columns}");
            }
        }
        assert_ne!(orthogonal(1, "a", 4, 4, 1.0), orthogonal(1, "b", 4, 4, 1.0));
    }

    /// Every entry of a Haar matrix has mean 0; without the signs the diagonal would be biased.
    #[test]
    fn orthogonal_matrices_have_no_preferred_sign() {
        let n = 4;
        let draws = 2000;
        let mean: f64 =
            (0..draws).map(|i| f64::from(orthogonal(1, &i.to_string(), n, n, 1.0)[0])).sum::<f64>() / f64::from(draws);
        // An entry has variance 1/n.
        assert!(mean.abs() < 5.0 * (1.0 / n as f64 / f64::from(draws)).sqrt(), "{mean}");
    }

    #[test]
    fn delta_orthogonal_wants_at_least_as_many_outputs() {
        assert!(delta_orthogonal(1, "a", 3, 4, &[3], 1.0).is_none());
        let w = delta_orthogonal(1, "a", 4, 3, &[3, 5], 2.0).unwrap();
        assert_eq!(w.len(), 4 * 3 * 15);
        let middle: Vec<f32> = w.chunks(15).map(|taps| taps[7]).collect();
        assert!(distance(&middle, 4, 3, 2.0) < 1e-5);
        assert!(w.chunks(15).all(|taps| taps.iter().enumerate().all(|(i, v)| i == 7 || *v == 0.0)));
    }
}
