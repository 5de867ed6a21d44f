//! Seeded draws on the host.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal, StandardUniform};

/// The random stream of (`seed`, `path`). It does not depend on other paths, so adding a layer changes no other weight.
pub fn stream(seed: u64, path: &str) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(fnv1a(path));
    rng
}

/// Draws `n` numbers from N(0, std^2), rounded from f64, from the stream of (`seed`, `path`).
pub fn normal(seed: u64, path: &str, n: usize, std: f64) -> Vec<f32> {
    let mut rng = stream(seed, path);
    (0..n)
        .map(|_| {
            let z: f64 = StandardNormal.sample(&mut rng);
            (z * std) as f32
        })
        .collect()
}

/// Draws `n` numbers from U(-bound, bound), rounded from f64, from the stream of (`seed`, `path`).
pub fn uniform(seed: u64, path: &str, n: usize, bound: f64) -> Vec<f32> {
    let mut rng = stream(seed, path);
    (0..n)
        .map(|_| {
            let u: f64 = StandardUniform.sample(&mut rng);
            ((2.0 * u - 1.0) * bound) as f32
        })
        .collect()
}

/// Draws `n` numbers from N(0, sigma^2) truncated at `cut` sigma, by rejection, rounded from f64, from the stream of
/// (`seed`, `path`).
pub fn truncated_normal(seed: u64, path: &str, n: usize, sigma: f64, cut: f64) -> Vec<f32> {
    let mut rng = stream(seed, path);
    let mut within = || loop {
        let z: f64 = StandardNormal.sample(&mut rng);
        if z.abs() <= cut {
            return (z * sigma) as f32;
        }
    };
    (0..n).map(|_| within()).collect()
}

/// Draws `count` distinct numbers below `n` from the stream of (`seed`, `path`).
pub fn some_of(seed: u64, path: &str, count: usize, n: usize) -> Vec<usize> {
    let mut rng = stream(seed, path);
    chosen(n, count, |left| {
        let u: f64 = StandardUniform.sample(&mut rng);
        ((u * left as f64) as usize).min(left - 1)
    })
}

/// `count` different numbers below `n` in random order, all if there are fewer: the first steps of a Fisher-Yates shuffle.
/// `below` draws a number below the one that it is given.
pub fn chosen(n: usize, count: usize, mut below: impl FnMut(usize) -> usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    for i in 0..count.min(n) {
        all.swap(i, i + below(n - i));
    }
    all.truncate(count);
    all
}

/// FNV-1a with 64 bits, a hash that is the same on every platform and in every version.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_depends_on_seed_and_path_alone() {
        let draw = |seed, path| normal(seed, path, 8, 1.0);
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_eq!(normal(1, "a", 16, 1.0)[..8], draw(1, "a"));
    }

    #[test]
    fn the_stream_is_the_same_in_every_version() {
        let got = normal(7, "blocks.0.attention.query", 4, 1.0);
        assert_eq!(
            got,
            [1.0067179, 0.5897796, 0.97283745, 0.44966677],
            "a change here changes every model that was ever trained"
        );
    }

    #[test]
    fn moments_are_those_of_the_normal_distribution() {
        let n = 200_000;
        let x = normal(3, "moments", n, 0.5);
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n as f64;
        let var = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n as f64;
        // five standard errors
        assert!(mean.abs() < 5.0 * 0.5 / (n as f64).sqrt());
        assert!((var / 0.25 - 1.0).abs() < 5.0 * (2.0 / n as f64).sqrt());
    }
}
