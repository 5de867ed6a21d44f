//! Signal and gradient at init over many seeds, against PyTorch's distribution over seeds.

use crate::common::golden::{Case, Json, connection, walk};
use crate::common::{draw, memo, parameter_gradients, test_device, tests_a_gpu};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use std::collections::HashMap;
use unitgain_init::{Role, Spec, sample};
use unitgain_model::weights::{assign, of as weights};
use unitgain_model::{Activation, ModelConfig, NormConfig, Observe, Point, Position, Scheme, Transformer};
use unitgain_residual::Placement;
use unitgain_study::sanity::{Sizes, last_over_first, run};
use unitgain_train::Replicas;

#[test]
fn statistics_at_init_are_within_the_references_spread() {
    walk("sanity", check);
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    case.skip("expected/**/seed0", "of one seed of PyTorch's");
    match kind {
        "appendix_checks" => appendix(case),
        "gradient_over_depth" => gradient_over_depth(case),
        "residual_stream_growth" => stream_growth(case),
        "relu_second_moment" => relu_second_moment(case),
        _ => return false,
    }
    true
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() as f64 - 1.0)
}

/// Our mean must equal the reference's within the standard errors of both over `seeds` seeds, and nine in ten of our
/// values must be in the band, because some ratios have long tails. The reference's own values must be consistent.
/// Returns its mean.
fn within(case: &Case, what: &str, expected: Json<'_>, seeds: usize, values: &[f64]) -> f64 {
    let number = |key: &str| expected.at(key).f64();
    let (center, std, least, most) = (number("mean"), number("std"), number("min"), number("max"));
    let band = expected.at("band").numbers();
    let n = seeds as f64;
    // The maximum possible deviation of one of n values from their mean.
    let farthest = std * (n - 1.0) / n.sqrt() * 1.01 + 1e-6 * center.abs();
    let fit = (center - farthest..=center).contains(&least) && (center..=center + farthest).contains(&most);
    assert!(fit, "{}: {what}: {least} and {most} are not of {seeds} values of {center} +- {std}", case.name);
    let fits = |value: f64| (band[0]..=band[1]).contains(&value);
    let ours = mean(values);
    assert!(fits(ours), "{}: the mean of {what} is {ours}, not within {band:?}", case.name);
    let inside = values.iter().filter(|value| fits(**value)).count();
    assert!(10 * inside >= 9 * values.len(), "{}: {what} is {values:?}, not within {band:?}", case.name);
    let error = (std * std / n + variance(values) / values.len() as f64).sqrt();
    // A difference from f32 rounding alone has no significant digits.
    let allowed = 4.5 * error + 1e-6;
    let off = (ours - center).abs();
    assert!(
        off <= allowed,
        "{}: the mean of {what} is {ours}, not {center} (off {off:.2e} > {allowed:.2e})",
        case.name
    );
    center
}

/// Checks that a band is five standard deviations wide to each side.
fn five_wide(case: &Case, what: &str, expected: Json<'_>) {
    let [center, std] = ["mean", "std"].map(|key| expected.at(key).f64());
    let want = [center - 5.0 * std, center + 5.0 * std];
    near_band(case, what, expected, want, 2e-5);
}

fn near_band(case: &Case, what: &str, expected: Json<'_>, want: [f64; 2], digits: f64) {
    for (got, want) in expected.at("band").numbers().into_iter().zip(want) {
        let scale = expected.at("mean").f64().abs() + expected.at("std").f64();
        assert!((got - want).abs() < digits * scale, "{}: the band of {what} is {got}, not {want}", case.name);
    }
}

fn appendix(case: &Case) {
    let n = |key| case.size(key);
    let sizes = Sizes {
        width: n("d"),
        depth: n("depth_d"),
        rows: n("rows_d"),
        fan: n("fan_e"),
        fan_rows: n("rows_e"),
        layers: n("layers_f"),
    };
    let [first, last] = case.setting("seeds").sizes()[..] else { panic!("{}: seeds", case.name) };
    let seeds = last - first + 1;
    let device = test_device();
    let checks = memo(format!("appendix {sizes:?} {seeds} {device:?}"), || {
        let replicas = match tests_a_gpu() {
            true => Replicas::one(),
            false => Replicas::on_threads(2, 2, &device).unwrap(),
        };
        run(seeds as u64, sizes, &device, &replicas, &mut |_| ())
    });
    let all = case.expected().table();
    assert_eq!(checks.len() + 1, all.len(), "{}: checks", case.name);
    for (key, expected) in all {
        if key == "d_trend_over_depth_quadratic" {
            for (depth, expected) in expected.table() {
                let sizes = Sizes { depth: depth.parse().unwrap(), ..sizes };
                for (name, placement) in [("pre", Placement::PreNorm {}), ("post", Placement::PostNorm {})] {
                    let ratio = |seed| last_over_first(seed, placement, |y, _| y.square().mean(), sizes, &device);
                    let key = format!("ratio {sizes:?} {placement:?} {seeds} {device:?}");
                    let ratios = memo(key, || (0..seeds as u64).map(ratio).collect::<Vec<f64>>());
                    let what = format!("{name} at depth {depth}");
                    within(case, &what, expected.at(name), seeds, &ratios);
                    five_wide(case, &what, expected.at(name));
                }
            }
            continue;
        }
        let check = checks.iter().find(|c| c.key == key).unwrap_or_else(|| panic!("{}: unknown {key}", case.name));
        assert_eq!(check.measured.len(), seeds);
        within(case, key, expected, seeds, &check.measured);
        assert!(check.passed(), "{key}");
        // `unitgain sanity` allows the reference's band or, if that is one-sided, five of its standard deviations.
        let [center, std] = ["mean", "std"].map(|key| expected.at(key).f64());
        let [least, most] = check.allowed;
        let band = [least.unwrap_or(center - 5.0 * std), most.unwrap_or(center + 5.0 * std)];
        near_band(case, key, expected, band, 1e-3);
        if key.starts_with("d_") {
            let [least, most] = ["min", "max"].map(|key| expected.at(key).f64());
            near_band(case, key, expected, [least / 1.5, most * 1.5], 2e-5);
        }
    }
}

/// The stack of a case at one depth.
struct Stack {
    config: ModelConfig,
    /// Factor on the weights that write to the stream.
    writers: f32,
    shape: [usize; 3],
}

impl Stack {
    fn of(case: &Case, depth: usize) -> Self {
        let n = |key| case.size(key);
        let (placement, scale) = connection(case.text("placement"), case).expect("a known placement");
        let gpt2 = (2.0 * depth as f32).powf(-0.5);
        let (init, writers) = match case.text("init") {
            "fan_in" => (Scheme::lecun(), 1.0),
            "fan_in_gpt2_scaled" => (Scheme::lecun(), gpt2),
            "xavier" | "xavier (deepnorm: with beta)" => (Scheme::xavier(), 1.0),
            "xavier_gpt2_scaled" => (Scheme::xavier(), gpt2),
            other => panic!("{}: unknown init {other:?}", case.name),
        };
        let config = ModelConfig {
            vocab_size: Some(2),
            context: n("T"),
            d_model: n("d"),
            n_layers: depth,
            n_heads: n("heads"),
            d_ff: Some(n("ff")),
            activation: Activation::Gelu,
            position: Position::None {},
            norm: NormConfig::layer_norm(),
            placement,
            scale,
            init: Some(init),
            ..ModelConfig::default()
        };
        Self { config, writers, shape: [n("B"), n("T"), n("d")] }
    }

    /// Everything that its results depend on.
    fn key(&self) -> String {
        format!("{:?} {} {:?}", self.config, self.writers, self.shape)
    }

    fn build(&self, seed: u64, device: &Device) -> Transformer {
        let (model, _) = self.config.build(seed, device).unwrap();
        let scaled: HashMap<_, _> = weights(&model)
            .into_iter()
            .map(|(path, shape, mut values)| {
                if [".attention.out.", ".mlp.down."].iter().any(|writer| path.contains(writer)) {
                    values.iter_mut().for_each(|w| *w *= self.writers);
                }
                (path, (shape, values))
            })
            .collect();
        assign(model, &scaled).unwrap()
    }

    fn input(&self, seed: u64, device: &Device) -> Tensor<3> {
        let values = sample::normal(seed, "input", self.shape.iter().product(), 1.0);
        Tensor::from_data(TensorData::new(values, self.shape), device)
    }
}

/// rms of the stream after each block.
fn stream_rms(stack: &Stack, seed: u64, device: &Device) -> Vec<f64> {
    memo(format!("stream {} {seed} {device:?}", stack.key()), || {
        let mut rms = Vec::new();
        let mut note = |point: Point, x: &Tensor<2>| {
            if let Point::Block(_) = point {
                rms.push(f64::from(x.clone().square().mean().sqrt().into_scalar::<f32>()));
            }
        };
        stack.build(seed, device).forward_stream(stack.input(seed, device), &Observe::new(&mut note));
        rms
    })
}

fn stream_growth(case: &Case) {
    let device = test_device();
    let expected = case.expected();
    let depths = case.setting("depths").sizes();
    let deepest = depths.iter().copied().fold(0, usize::max);
    let seeds = case.size("seeds");
    assert_eq!(expected.at("rms_at_end").table().len(), depths.len(), "{}: depths", case.name);
    let mut ends = vec![Vec::new(); seeds];
    for depth in &depths {
        let stack = Stack::of(case, *depth);
        let runs: Vec<_> = (0..seeds as u64).map(|seed| stream_rms(&stack, seed, &device)).collect();
        let at = |layer: usize| runs.iter().map(|rms| rms[layer - 1]).collect::<Vec<f64>>();
        let last = at(*depth);
        let check = |what: &str, expected: Json<'_>, values: &[f64]| {
            within(case, what, expected, seeds, values);
            five_wide(case, what, expected);
        };
        check(&format!("rms at the end of {depth}"), expected.at("rms_at_end").at(&depth.to_string()), &last);
        ends.iter_mut().zip(last).for_each(|(ends, last)| ends.push(last));
        if *depth == deepest {
            for (layer, expected) in expected.at("rms_along_deepest").table() {
                check(&format!("rms behind block {layer}"), expected, &at(layer.parse().unwrap()));
            }
        }
    }
    let depths: Vec<f64> = depths.into_iter().map(|depth| depth as f64).collect();
    let slopes: Vec<f64> = ends.iter().map(|ends| slope(&depths, ends)).collect();
    within(case, "slope", expected.at("slope"), seeds, &slopes);
    five_wide(case, "slope", expected.at("slope"));
}

/// Least-squares slope of ln y over ln x.
fn slope(x: &[f64], y: &[f64]) -> f64 {
    let mean = |v: &[f64]| v.iter().map(|v| v.ln()).sum::<f64>() / v.len() as f64;
    let (mx, my) = (mean(x), mean(y));
    let covariance: f64 = x.iter().zip(y).map(|(a, b)| (a.ln() - mx) * (b.ln() - my)).sum();
    covariance / x.iter().map(|a| (a.ln() - mx).powi(2)).sum::<f64>()
}

/// Gradient norm of the MLP's last weight by block, for the cross-entropy of a random readout on random targets.
fn block_gradients(stack: &Stack, vocabulary: usize, seed: u64, device: &Device) -> Vec<f64> {
    memo(format!("gradients {} {vocabulary} {seed} {device:?}", stack.key()), || {
        let [b, t, d] = stack.shape;
        let (rows, depth) = (b * t, stack.config.n_layers);
        let model = stack.build(seed, device);
        let y = model.forward_stream(stack.input(seed, device), &()).reshape([rows, d]);
        let readout = sample::normal(seed, "readout", d * vocabulary, (d as f64).powf(-0.5));
        let readout = Tensor::<2>::from_data(TensorData::new(readout, [d, vocabulary]), device);
        let uniform = sample::uniform(seed, "targets", rows, 0.5);
        let targets: Vec<i32> = uniform.into_iter().map(|u| ((u + 0.5) * vocabulary as f32) as i32).collect();
        let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [rows, 1]), device);
        let loss = activation::log_softmax(y.matmul(readout), 1).gather(1, targets).mean().neg();
        let by_path: HashMap<_, _> = parameter_gradients(&model, &loss.backward()).into_iter().collect();
        let norm = |layer: usize| {
            let gradient = &by_path[&format!("blocks.{layer}.mlp.down.weight")];
            gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt()
        };
        (0..depth).map(norm).collect()
    })
}

fn gradient_over_depth(case: &Case) {
    let device = test_device().autodiff();
    let expected = case.expected();
    let depths = case.setting("depths").sizes();
    // Post-norm's first gradient has a long tail: over ten seeds the slope of its mean varies by more than its bound.
    let deepest = expected.at("first").at(&depths[depths.len() - 1].to_string());
    let has_tail = deepest.at("std").f64() > 0.5 * deepest.at("mean").f64();
    let theirs = case.size("seeds");
    let seeds = theirs.max(if has_tail { 40 } else { 0 }) as u64;
    let profile = expected.table().into_iter().find(|(key, _)| key.starts_with("profile_"));
    for key in ["first", "last"] {
        assert_eq!(expected.at(key).table().len(), depths.len(), "{}: depths", case.name);
    }
    let (mut first, mut last) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut profiles = 0;
    for depth in &depths {
        let stack = Stack::of(case, *depth);
        let runs: Vec<Vec<f64>> =
            (0..seeds).map(|seed| block_gradients(&stack, case.size("vocab"), seed, &device)).collect();
        let at = |layer: usize| runs.iter().map(|run| run[layer]).collect::<Vec<f64>>();
        let check = |what: &str, expected: Json<'_>, values: &[f64]| {
            five_wide(case, what, expected);
            within(case, what, expected, theirs, values)
        };
        for (key, layer, means) in [("first", 0, &mut first), ("last", depth - 1, &mut last)] {
            let values = at(layer);
            means[0].push(mean(&values));
            means[1].push(check(&format!("{key} of {depth}"), expected.at(key).at(&depth.to_string()), &values));
        }
        if let Some((_, layers)) = profile.filter(|(key, _)| *key == format!("profile_{depth}_layers")) {
            profiles += 1;
            let layers = layers.list();
            assert_eq!(layers.len(), *depth, "{}: profile", case.name);
            for (layer, expected) in layers.into_iter().enumerate() {
                check(&format!("block {layer} of {depth}"), expected, &at(layer));
            }
        }
    }
    assert_eq!(profiles, usize::from(profile.is_some()), "{}: the profile is of no depth", case.name);
    let depths: Vec<f64> = depths.into_iter().map(|depth| depth as f64).collect();
    for (key, [ours, theirs]) in [("slope_first", first), ("slope_last", last)] {
        let want = expected.at(key);
        case.equal("slopes", key, slope(&depths, &ours), want);
        // Given with three decimals.
        let got = slope(&depths, &theirs);
        assert!((got - want.f64()).abs() < 1e-3, "{}: {key} of the reference's means is {got}", case.name);
    }
}

fn relu_second_moment(case: &Case) {
    let device = test_device();
    let (n, rows, layers) = (case.size("n"), case.size("rows"), case.size("layers"));
    let seeds = case.size("seeds");
    let n_f64 = n as f64;
    let spec = Spec { role: Role::MlpIn, fan_in: n_f64, fan_out: n_f64, blocks: 1, block: None, width: n_f64 };
    for (name, expected) in case.expected().table() {
        let scheme = match name {
            "kaiming" => Scheme::kaiming(),
            "xavier_for_relu" => Scheme::xavier(),
            other => panic!("{}: unknown init {other}", case.name),
        };
        // A fifth of the seeds, which take a second each.
        let runs = memo(format!("relu {n} {rows} {layers} {} {scheme:?} {device:?}", seeds.div_ceil(5)), || {
            let run = |seed| {
                let mut x = draw(&format!("relu/{seed}"), rows, n, &device);
                let mut moments = vec![f64::from(x.clone().square().mean().into_scalar::<f32>())];
                for layer in 0..layers {
                    let w =
                        draw(&format!("relu/{seed}/{layer}"), n, n, &device) * scheme.std(&spec).unwrap_or(f64::NAN);
                    x = activation::relu(x.matmul(w));
                    moments.push(f64::from(x.clone().square().mean().into_scalar::<f32>()));
                }
                moments
            };
            (0..seeds.div_ceil(5)).map(run).collect::<Vec<Vec<f64>>>()
        });
        let check = |what: &str, expected: Json<'_>, seeds: usize, values: &[f64]| {
            within(case, what, expected, seeds, values);
            five_wide(case, what, expected);
        };
        let by_layer = expected.at("second_moment_by_layer").list();
        assert_eq!(by_layer.len(), layers + 1, "{}: layers", case.name);
        for (layer, expected) in by_layer.into_iter().enumerate() {
            let moments: Vec<f64> = runs.iter().map(|moments| moments[layer]).collect();
            check(&format!("{name}, layer {layer}"), expected, seeds, &moments);
        }
        let ratios: Vec<f64> = runs.iter().flat_map(|m| m.windows(2).map(|pair| pair[1] / pair[0])).collect();
        check(name, expected.at("ratio_per_layer"), seeds * layers, &ratios);
        let geometric: Vec<f64> = runs.iter().map(|m| (m[layers] / m[0]).powf(1.0 / layers as f64)).collect();
        check(name, expected.at("geometric_mean_ratio"), seeds, &geometric);
    }
}
