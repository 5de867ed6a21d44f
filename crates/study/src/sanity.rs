//! Six sanity checks with this project's own layers: norms against burn's, invariance to mean and batch, gradients by
//! placement, and the effect of init and depth on a signal. `unitgain sanity` prints them.

use burn::module::Module;
use burn::nn::{LayerNormConfig, RmsNormConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation, module};
use serde::Serialize;
use unitgain_init::{Role, Scheme, Spec, sample};
use unitgain_norms::{BatchNorm, NormConfig, NormSite};
use unitgain_residual::{Branch, Joint, Placement, Residual, ScaleConfig, Site, Stream};
use unitgain_train::Replicas;

/// Sizes of the checks.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Width in (a), (b) and (d). Default 64.
    pub width: usize,
    /// Blocks in (d). Default 48.
    pub depth: usize,
    /// Rows in (d). Default 16.
    pub rows: usize,
    /// Fan-in and fan-out in (e). Default 512.
    pub fan: usize,
    /// Rows in (e). Default 4096.
    pub fan_rows: usize,
    /// Blocks in (f), each with two branches. Default 50.
    pub layers: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { width: 64, depth: 48, rows: 16, fan: 512, fan_rows: 4096, layers: 50 }
    }
}

/// Maximum memory of the checks, in bytes.
pub const MEMORY: f64 = 1e8;

/// One measured quantity, over all seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Letter of the check and name of the quantity.
    pub key: &'static str,
    /// Description of the quantity.
    pub what: &'static str,
    /// Expected value, from theory or a reference.
    pub expected: String,
    /// Value for each seed.
    pub measured: Vec<f64>,
    /// Lower and upper bound of the mean; None is unbounded.
    pub allowed: [Option<f64>; 2],
}

impl Check {
    /// Whether the mean is within bounds; false for NaN.
    pub fn passed(&self) -> bool {
        let ([least, most], mean) = (self.allowed, self.mean());
        mean.is_finite() && least.is_none_or(|least| mean >= least) && most.is_none_or(|most| mean <= most)
    }

    /// Mean over the seeds.
    pub fn mean(&self) -> f64 {
        self.measured.iter().sum::<f64>() / self.measured.len() as f64
    }

    /// Standard deviation over the seeds.
    pub fn std(&self) -> f64 {
        let mean = self.mean();
        (self.measured.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / self.measured.len() as f64).sqrt()
    }
}

/// Runs all checks on seeds `0..seeds`, each on one of the replicas; calls `progress` after each seed, in order.
pub fn run(
    seeds: u64,
    sizes: Sizes,
    device: &Device,
    replicas: &Replicas,
    progress: &mut dyn FnMut(u64),
) -> Vec<Check> {
    let of_seed = |_, seed: u64| -> Vec<f64> {
        let parts = [
            norms(seed, sizes, device),
            batch_norm(seed, device),
            gradients(seed, sizes, device),
            second_moments(seed, sizes, device),
            growth(seed, sizes, device),
        ];
        parts.concat()
    };
    let mut checks = checks(sizes);
    let all: Vec<u64> = (0..seeds).collect();
    for seeds in all.chunks(replicas.count()) {
        for (seed, values) in seeds.iter().zip(replicas.each(seeds.to_vec(), of_seed)) {
            assert_eq!(values.len(), checks.len(), "every check is computed");
            checks.iter_mut().zip(values).for_each(|(check, value)| check.measured.push(value));
            progress(*seed);
        }
    }
    checks
}

/// The checks in order of computation. The bounds of (d) are 2/3 of the minimum and 3/2 of the maximum over 20 seeds in
/// PyTorch, for 48 blocks of width 64.
fn checks(sizes: Sizes) -> Vec<Check> {
    let writes = 1.0 + 2.0 * sizes.layers as f64;
    let variance = 1.0 - std::f64::consts::FRAC_1_PI;
    let most = |bound| [Some(0.0), Some(bound)];
    let least = |bound| [Some(bound), None];
    let range = |a, b| [Some(a), Some(b)];
    let near = |center: f64, part: f64| range(center * (1.0 - part), center * (1.0 + part));
    let check = |key, what, expected: &str, allowed| Check {
        key,
        what,
        expected: expected.into(),
        measured: Vec::new(),
        allowed,
    };
    vec![
        check("a_layernorm_max_abs_diff", "LayerNorm, difference from burn's", "0", most(1e-5)),
        check("b_rmsnorm_max_abs_diff", "RMSNorm, difference from burn's", "0", most(1e-5)),
        check("b_layernorm_shift_by_5_max_abs_change", "LayerNorm, change by a shift of 5", "0", most(1e-4)),
        check("b_rmsnorm_shift_by_5_max_abs_change", "RMSNorm, change by a shift of 5", "above 0.01", least(0.01)),
        check("c_batchnorm_train_eval_max_abs_diff", "BatchNorm, training - evaluation", "above 0.1", least(0.1)),
        check("c_running_mean_max_abs_after_one_step", "BatchNorm, running mean moved by", "above 0.01", least(0.01)),
        check("c_train_feature_mean_max_abs", "BatchNorm, mean of a feature in training", "0", most(1e-5)),
        check(
            "d_last_over_first_pre_ln_quadratic",
            "pre_norm, last/first gradient, quadratic loss",
            "0.39 +- 0.04",
            range(0.2133, 0.6645),
        ),
        check(
            "d_last_over_first_post_ln_quadratic",
            "post_norm, last/first gradient, quadratic loss",
            "2.0 +- 0.5",
            range(0.8435, 5.5404),
        ),
        check(
            "d_last_over_first_pre_ln_cross_entropy",
            "pre_norm, last/first gradient, cross-entropy",
            "0.29 +- 0.03",
            range(0.1476, 0.5163),
        ),
        check(
            "d_last_over_first_post_ln_cross_entropy",
            "post_norm, last/first gradient, cross-entropy",
            "1.0 +- 0.2",
            range(0.4911, 2.1821),
        ),
        check("e_kaiming_second_moment", "Kaiming, E[y^2] behind ReLU", "1", near(1.0, 0.05)),
        check("e_xavier_for_relu_second_moment", "Xavier, E[y^2] behind ReLU", "1/2", near(0.5, 0.06)),
        check(
            "e_kaiming_variance",
            "Kaiming, Var[y] behind ReLU",
            &format!("1 - 1/pi = {variance:.3}"),
            range(0.64, 0.72),
        ),
        check("f_unscaled_growth", "variance behind all writes", &format!("1 + 2L = {writes}"), near(writes, 0.05)),
        check("f_scaled_growth", "the same, each write / sqrt(2L)", "2", near(2.0, 0.05)),
    ]
}

/// Standard normal numbers of a seed.
fn draw(seed: u64, path: &str, shape: [usize; 2], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(sample::normal(seed, path, shape[0] * shape[1], 1.0), shape), device)
}

fn scalar<const D: usize>(x: Tensor<D>) -> f64 {
    f64::from(x.into_scalar::<f32>())
}

/// Maximum absolute value; NaN if any entry is NaN, which a device's maximum may ignore.
fn largest<const D: usize>(x: Tensor<D>) -> f64 {
    let values: Vec<f32> = x.into_data().iter::<f32>().collect();
    if values.iter().any(|v| v.is_nan()) {
        return f64::NAN;
    }
    values.iter().fold(0.0, |most, v| most.max(f64::from(v.abs())))
}

/// Maximum absolute difference of tensors that should be equal; NaN if both are all zeros.
fn difference<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> f64 {
    match largest(a.clone()) > 0.0 && largest(b.clone()) > 0.0 {
        true => largest(a - b),
        false => f64::NAN,
    }
}

/// (a) and (b): our norms against burn's, and the effect of a constant added to the input.
fn norms(seed: u64, sizes: Sizes, device: &Device) -> Vec<f64> {
    let d = sizes.width;
    let x = draw(seed, "sanity/norms", [8, d], device);
    let site = NormSite::of(d);
    let layer = NormConfig::LayerNorm { eps: 1e-5, gain: true, bias: true }.build(site, device);
    let rms = NormConfig::RmsNorm { eps: 1e-6, gain: true, unit_offset: false }.build(site, device);
    let burn_layer = LayerNormConfig::new(d).with_epsilon(1e-5).init(device);
    let burn_rms = RmsNormConfig::new(d).with_epsilon(1e-6).init(device);
    vec![
        difference(layer.forward(x.clone()), burn_layer.forward(x.clone())),
        difference(rms.forward(x.clone()), burn_rms.forward(x.clone())),
        difference(layer.forward(x.clone() + 5.0), layer.forward(x.clone())),
        difference(rms.forward(x.clone() + 5.0), rms.forward(x)),
    ]
}

/// (c): BatchNorm on 32 rows of 2 N(0, 1) + 5, in a training step and then in evaluation.
fn batch_norm(seed: u64, device: &Device) -> Vec<f64> {
    let x = draw(seed, "sanity/batch", [32, 16], device) * 2.0 + 5.0;
    let norm = BatchNorm::new(16, 1e-5, 0.1, &device.clone().autodiff());
    let trained = norm.forward(Tensor::from_inner(x.clone())).inner();
    let evaluated = norm.valid().forward(x);
    let mean = if largest(trained.clone()) > 0.0 { largest(trained.clone().mean_dim(0)) } else { f64::NAN };
    vec![difference(trained, evaluated), largest(norm.running().0.inner()), mean]
}

/// (d): gradient norm of the last block's weight relative to the first's, at init, in a stack of residual blocks of one
/// linear layer each (PyTorch's default init) with a linear head: quadratic loss and cross-entropy, pre_norm and
/// post_norm each.
fn gradients(seed: u64, sizes: Sizes, device: &Device) -> Vec<f64> {
    let losses: [fn(Tensor<2>, u64) -> Tensor<1>; 2] = [
        |y, _| y.square().mean(),
        |y, seed| {
            let [rows, classes] = y.dims();
            let uniform = sample::uniform(seed, "sanity/targets", rows, 0.5);
            let targets: Vec<i32> = uniform.into_iter().map(|u| ((u + 0.5) * classes as f32) as i32).collect();
            let device = y.device();
            let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [rows, 1]), &device);
            activation::log_softmax(y, 1).gather(1, targets).mean().neg()
        },
    ];
    let placements = [Placement::PreNorm {}, Placement::PostNorm {}];
    let ratios = losses.iter().flat_map(|loss| placements.map(|p| last_over_first(seed, p, *loss, sizes, device)));
    ratios.collect()
}

/// The ratio of (d) for a placement, and a loss given the head's output and the seed.
pub fn last_over_first(
    seed: u64,
    placement: Placement,
    loss: impl Fn(Tensor<2>, u64) -> Tensor<1>,
    sizes: Sizes,
    device: &Device,
) -> f64 {
    let device = device.clone().autodiff();
    let d = sizes.width;
    let bound = (d as f64).powf(-0.5);
    let uniform = |path: &str, n: usize| sample::uniform(seed, path, n, bound);
    let linear = |path: &str| {
        let weight = TensorData::new(uniform(&format!("{path}.weight"), d * d), [d, d]);
        let bias = uniform(&format!("{path}.bias"), d);
        let bias = Tensor::<1>::from_data(bias.as_slice(), &device);
        (Tensor::<2>::from_data(weight, &device).require_grad(), bias)
    };
    let mut stream = Stream::new(draw(seed, "sanity/stream", [sizes.rows, d], &device), sizes.rows, false);
    let norm = NormConfig::layer_norm();
    let mut weights = Vec::new();
    for block in 0..sizes.depth {
        let site =
            Site { block, blocks: sizes.depth, width: d, base_width: d, joint: Joint::of(1.0), branch: Branch::Mlp };
        let residual = Residual::new(placement, &norm, ScaleConfig::One {}, site, &device);
        let (weight, bias) = linear(&format!("sanity/{block}"));
        stream = residual.forward(stream, |x| module::linear(x, weight.clone(), Some(bias)));
        weights.push(weight);
    }
    let (weight, bias) = linear("sanity/head");
    let gradients = loss(module::linear(stream.x, weight, Some(bias)), seed).backward();
    // A weight without gradient has no ratio.
    let norm = |weight: &Tensor<2>| {
        weight.grad(&gradients).map_or(f64::NAN, |gradient| scalar(gradient.square().sum().sqrt()))
    };
    norm(&weights[sizes.depth - 1]) / norm(&weights[0])
}

/// (e): a linear layer with ReLU on rows with E[x^2] = 1.
fn second_moments(seed: u64, sizes: Sizes, device: &Device) -> Vec<f64> {
    let n = sizes.fan;
    let x = draw(seed, "sanity/rows", [sizes.fan_rows, n], device);
    let n_f64 = n as f64;
    let spec = Spec { role: Role::MlpIn, fan_in: n_f64, fan_out: n_f64, blocks: 1, block: None, width: n_f64 };
    let behind = |scheme: Scheme| {
        let w = draw(seed, "sanity/weight", [n, n], device) * scheme.std(&spec).unwrap_or(f64::NAN);
        activation::relu(x.clone().matmul(w))
    };
    let kaiming = behind(Scheme::kaiming());
    let second = scalar(kaiming.clone().square().mean());
    let variance = second - scalar(kaiming.mean()).powi(2);
    vec![second, scalar(behind(Scheme::xavier()).square().mean()), variance]
}

/// (f): growth of the variance of a stream to which each branch adds N(0, 1).
fn growth(seed: u64, sizes: Sizes, device: &Device) -> Vec<f64> {
    let shape = [512, 64];
    let variance = |x: &Tensor<2>| {
        let mean = scalar(x.clone().mean());
        scalar(x.clone().square().mean()) - mean * mean
    };
    let start = draw(seed, "sanity/start", shape, device);
    let of = |scale| {
        let mut stream = Stream::new(start.clone(), 1, false);
        for block in 0..sizes.layers {
            for branch in [Branch::Attention, Branch::Mlp] {
                let site = Site {
                    block,
                    blocks: sizes.layers,
                    width: shape[1],
                    base_width: shape[1],
                    joint: Joint::of(1.0),
                    branch,
                };
                let residual = Residual::new(Placement::None {}, &NormConfig::None {}, scale, site, device);
                let path = format!("sanity/write/{block}/{}", branch as usize);
                stream = residual.forward(stream, |_| draw(seed, &path, shape, device));
            }
        }
        variance(&stream.x) / variance(&start)
    };
    vec![of(ScaleConfig::One {}), of(ScaleConfig::Depth {})]
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn a_check_fails_outside_of_its_range_and_on_what_is_no_number() {
        let passed = |measured: &[f64], allowed| {
            Check { key: "a", what: "", expected: String::new(), measured: measured.to_vec(), allowed }.passed()
        };
        assert!(passed(&[1.0, 3.0], [Some(2.0), Some(2.0)]));
        assert!(!passed(&[1.0, 3.1], [Some(2.0), Some(2.0)]) && !passed(&[1.0], [Some(2.0), None]));
        assert!(passed(&[9.0], [Some(2.0), None]) && !passed(&[9.0], [None, Some(2.0)]));
        assert!(!passed(&[f64::NAN], [None, None]) && !passed(&[f64::INFINITY], [Some(0.0), None]));
        assert!(!passed(&[], [None, None]), "what was not measured does not hold");
        assert!(!passed(&[1.0, f64::NAN], [Some(0.0), None]));
    }

    /// Two zero tensors must not pass as equal, and a NaN must not hide behind the largest entry.
    #[test]
    fn what_is_not_there_is_no_small_difference() {
        let row = |values: [f32; 3]| Tensor::<1>::from_floats(values, &Device::flex());
        assert_eq!(difference(row([1.0, 2.0, 3.0]), row([1.0, 2.5, 3.0])), 0.5);
        assert!(difference(row([0.0; 3]), row([0.0; 3])).is_nan());
        assert!(difference(row([1.0; 3]), row([0.0; 3])).is_nan());
        for at in 0..3 {
            let mut values = [1.0; 3];
            values[at] = f32::NAN;
            assert!(largest(row(values)).is_nan() && difference(row(values), row([1.0; 3])).is_nan());
            assert!(difference(row([1.0; 3]), row(values)).is_nan());
        }
        let checks = run(
            1,
            Sizes { depth: 2, fan: 8, fan_rows: 8, layers: 1, ..Sizes::default() },
            &Device::flex(),
            &Replicas::one(),
            &mut |_| (),
        );
        assert!(checks.iter().all(|check| check.measured.len() == 1 && check.measured[0].is_finite()), "{checks:#?}");
    }
}
