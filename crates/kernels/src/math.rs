//! Formulas without branches and calls, which the compiler vectorizes where they are inlined. `F` says whether the target
//! has a fused multiply-add.

/// `a b + c`.
#[inline(always)]
pub fn fma<const F: bool>(a: f32, b: f32, c: f32) -> f32 {
    if F { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x`, with a relative error of 1.2e-7 on [-57, 88.3]; 0 below, the value at the bound above. NaN stays NaN.
///
/// e^-57 = 2e-25 vanishes beside 1 in f32, but products of such numbers are denormal, and matrix products of denormals
/// take twenty times as long: training with saturated attention or loss would crawl.
#[inline(always)]
pub fn exp<const F: bool>(x: f32) -> f32 {
    // 1.5 2^23: adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let is_zero = x < -57.0;
    let x = x.clamp(-87.33, 88.37);
    let z = fma::<F>(x, std::f32::consts::LOG2_E, ROUND);
    let n = z - ROUND;
    // ln 2 in two parts, so that n ln 2 is exact.
    let r = fma::<F>(n, -0.693_359_4, x);
    let r = fma::<F>(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    p = fma::<F>(p, r, 1.398_199_9e-3);
    p = fma::<F>(p, r, 8.333_452e-3);
    p = fma::<F>(p, r, 4.166_579_6e-2);
    p = fma::<F>(p, r, 1.666_666_5e-1);
    p = fma::<F>(p, r, 0.5);
    let p = fma::<F>(p * r, r, r) + 1.0;
    let exponent = (z.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32).wrapping_add(127) << 23;
    if is_zero { 0.0 } else { p * f32::from_bits(exponent as u32) }
}

/// Distribution function and density of N(0, 1), with an absolute error of 1.7e-7, and a relative one of 1.2e-6 in the left
/// tail.
#[inline(always)]
pub fn normal<const F: bool>(x: f32) -> (f32, f32) {
    let e = exp::<F>(-0.5 * x * x);
    let t = 1.0 / fma::<F>(0.3, x.abs(), 1.0);
    let mut p = 0.037_536_096;
    p = fma::<F>(p, t, -0.165_021_4);
    p = fma::<F>(p, t, 0.219_974_58);
    p = fma::<F>(p, t, -0.066_406);
    p = fma::<F>(p, t, 0.135_422_2);
    p = fma::<F>(p, t, 0.097_783_245);
    p = fma::<F>(p, t, 0.121_105_83);
    p = fma::<F>(p, t, 0.119_605_48);
    let tail = e * (p * t);
    (if x < 0.0 { tail } else { 1.0 - tail }, e * 0.398_942_3)
}

/// `s = 1 / (1 + e^-x)` and `1 - s`, both without cancellation.
#[inline(always)]
pub fn sigmoid<const F: bool>(x: f32) -> (f32, f32) {
    let e = exp::<F>(-x);
    let s = 1.0 / (1.0 + e);
    (s, e * s)
}

/// `tanh x`, with an absolute error of 1.8e-7.
#[inline(always)]
pub fn tanh<const F: bool>(x: f32) -> f32 {
    fma::<F>(2.0, sigmoid::<F>(2.0 * x).0, -1.0)
}

pub(crate) const LANES: usize = 32;

/// `sum_i x_i`.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    sum_of(x, |x| x)
}

/// `sum_i f(x_i)`.
#[inline(always)]
pub fn sum_of(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += f(chunk[i]);
        }
    }
    let mut total = tree_sum(lanes);
    for v in rest {
        total += f(*v);
    }
    total
}

/// The largest element; NaNs are ignored.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    let mut largest = f32::NEG_INFINITY;
    for v in lanes {
        largest = if v > largest { v } else { largest };
    }
    for v in rest {
        largest = if *v > largest { *v } else { largest };
    }
    largest
}

/// Subtracts `value` from each element; returns the sum of the squares of the differences.
#[inline(always)]
pub fn subtract_and_square<const F: bool>(x: &mut [f32], value: f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            chunk[i] -= value;
            lanes[i] = fma::<F>(chunk[i], chunk[i], lanes[i]);
        }
    }
    let mut total = tree_sum(lanes);
    for v in rest {
        *v -= value;
        total = fma::<F>(*v, *v, total);
    }
    total
}

/// `sum_i x_i y_i`.
#[inline(always)]
pub fn dot<const F: bool>(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (others, other_rest) = y.as_chunks::<LANES>();
    for (a, b) in chunks.iter().zip(others) {
        for i in 0..LANES {
            lanes[i] = fma::<F>(a[i], b[i], lanes[i]);
        }
    }
    let mut total = tree_sum(lanes);
    for (a, b) in rest.iter().zip(other_rest) {
        total = fma::<F>(*a, *b, total);
    }
    total
}

#[inline(always)]
pub(crate) fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            lanes[i] += lanes[i + n];
        }
        n /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The normal distribution function to 1e-13, by a series near 0 and a continued fraction beyond.
    fn distribution(x: f64) -> f64 {
        let a = x.abs();
        let density = (-a * a / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let tail = if a < 3.0 {
            let (mut sum, mut term) = (a, a);
            for n in 1..200 {
                term *= a * a / f64::from(2 * n + 1);
                sum += term;
            }
            0.5 - sum * density
        } else {
            density / (a + (1..200).rev().fold(0.0, |f, n| f64::from(n) / (a + f)))
        };
        if x < 0.0 { tail } else { 1.0 - tail }
    }

    fn check<const F: bool>() {
        let (mut e, mut n, mut relative, mut t) = (0f64, 0f64, 0f64, 0f64);
        for i in -40_000..40_000 {
            let x = i as f32 * 2e-4;
            let z = x * 10.0;
            if z >= -57.0 {
                e = e.max((f64::from(exp::<F>(z)) / f64::from(z).exp() - 1.0).abs());
            } else {
                assert_eq!(exp::<F>(z), 0.0);
            }
            let (got, want) = (f64::from(normal::<F>(x).0), distribution(f64::from(x)));
            n = n.max((got - want).abs());
            relative = relative.max((got / want - 1.0).abs());
            t = t.max((f64::from(tanh::<F>(x)) - f64::from(x).tanh()).abs());
        }
        assert!(e < 3e-7 && n < 2e-7 && relative < 2e-6 && t < 3e-7, "{e:e} {n:e} {relative:e} {t:e}");
        assert!(exp::<F>(f32::NAN).is_nan() && exp::<F>(f32::NEG_INFINITY) == 0.0 && exp::<F>(f32::INFINITY) > 1e38);
    }

    #[test]
    fn formulas_are_as_exact_as_they_say() {
        check::<false>();
        check::<true>();
    }

    #[test]
    fn reductions_take_every_element() {
        for n in [0, 1, 31, 32, 33, 100] {
            let x: Vec<f32> = (0..n).map(|i| (i as f32 - 40.0) / 8.0).collect();
            let naive: f32 = x.iter().sum();
            assert!((sum(&x) - naive).abs() < 1e-3);
            assert!((dot::<true>(&x, &x) - x.iter().map(|v| v * v).sum::<f32>()).abs() < 1e-2);
            let less: Vec<f32> = x.iter().map(|v| v - 0.5).collect();
            assert_eq!(sum_of(&x, |v| v - 0.5), sum(&less));
            let mut left = x.clone();
            assert_eq!(subtract_and_square::<true>(&mut left, 0.5), dot::<true>(&less, &less));
            assert_eq!(left, less);
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
