//! Signal and gradient at init, over many seeds, against the spread that PyTorch has over its own.

use crate::common::golden::{Case, connection, numbers, walk};
use crate::common::{draw, parameter_gradients, test_device};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use serde_json::Value;
use std::collections::HashMap;
use unitgain_init::{Role, Spec, sample};
use unitgain_model::{Activation, ModelConfig, NormConfig, Observe, Point, Position, Scheme, Transformer};
use unitgain_residual::Placement;
use unitgain_train::checkpoint::{assign, weights};
use unitgain_train::sanity::{Sizes, last_over_first, run};

#[test]
fn statistics_at_init_are_within_the_references_spread() {
    walk("sanity", |kind, case| {
        match kind {
            "appendix_checks" => appendix(case),
            "gradient_over_depth" => gradient_over_depth(case),
            "residual_stream_growth" => stream_growth(case),
            "relu_second_moment" => relu_second_moment(case),
            _ => return false,
        }
        true
    });
}

/// The mean over the seeds has to be in the band, and nine in ten seeds: some ratios have a long tail.
fn within(case: &Case, what: &str, expected: &Value, values: &[f64]) {
    let band = numbers(&expected["band"]);
    let fits = |value: f64| (band[0]..=band[1]).contains(&value);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    assert!(fits(mean), "{}: the mean of {what} is {mean}, not within {band:?}", case.name);
    let inside = values.iter().filter(|value| fits(**value)).count();
    assert!(10 * inside >= 9 * values.len(), "{}: {what} is {values:?}, not within {band:?}", case.name);
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
    let seeds = numbers(case.setting("seeds"));
    let seeds = (seeds[1] - seeds[0]) as u64 + 1;
    let device = test_device();
    let checks = run(seeds, sizes, &device, &mut |_| ());
    for (key, expected) in case.json["expected"].as_object().unwrap() {
        if key == "d_trend_over_depth_quadratic" {
            for (depth, expected) in expected.as_object().unwrap() {
                let sizes = Sizes { depth: depth.parse().unwrap(), ..sizes };
                for (name, placement) in [("pre", Placement::PreNorm {}), ("post", Placement::PostNorm {})] {
                    let ratio = |seed| last_over_first(seed, placement, |y, _| y.square().mean(), sizes, &device);
                    let ratios: Vec<f64> = (0..seeds).map(ratio).collect();
                    within(case, &format!("{name} at depth {depth}"), &expected[name], &ratios);
                }
            }
            continue;
        }
        let check = checks.iter().find(|c| c.key == key).unwrap_or_else(|| panic!("{}: unknown {key}", case.name));
        assert_eq!(check.measured.len() as u64, seeds);
        within(case, key, expected, &check.measured);
        assert!(check.passed(), "{key}");
    }
    assert_eq!(checks.len() + 1, case.json["expected"].as_object().unwrap().len());
}

/// The stack of a case at one depth.
fn model(case: &Case, depth: usize, seed: u64, device: &Device) -> Transformer {
    let n = |key| case.size(key);
    let (placement, scale) = connection(case.text("placement"), case).expect("a known placement");
    let init = case.text("init");
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
        init: Some(if init.starts_with("xavier") { Scheme::xavier() } else { Scheme::lecun() }),
        ..ModelConfig::default()
    };
    let (model, _) = config.build(seed, device).unwrap();
    if !init.ends_with("gpt2_scaled") {
        return model;
    }
    let scaled: HashMap<_, _> = weights(&model)
        .into_iter()
        .map(|(path, shape, mut values)| {
            if [".attention.out.", ".mlp.down."].iter().any(|writer| path.contains(writer)) {
                values.iter_mut().for_each(|w| *w *= (2.0 * depth as f32).powf(-0.5));
            }
            (path, (shape, values))
        })
        .collect();
    assign(model, &scaled).unwrap()
}

fn input(case: &Case, seed: u64, device: &Device) -> Tensor<3> {
    let shape = [case.size("B"), case.size("T"), case.size("d")];
    Tensor::from_data(TensorData::new(sample::normal(seed, "input", shape.iter().product(), 1.0), shape), device)
}

/// rms behind each block.
fn stream_rms(case: &Case, depth: usize, seed: u64, device: &Device) -> Vec<f64> {
    let mut rms = Vec::new();
    let mut note = |point: Point, x: &Tensor<2>| {
        if let Point::Block(_) = point {
            rms.push(f64::from(x.clone().square().mean().sqrt().into_scalar::<f32>()));
        }
    };
    model(case, depth, seed, device).forward_stream(input(case, seed, device), &Observe::new(&mut note));
    rms
}

fn stream_growth(case: &Case) {
    let device = test_device();
    let expected = &case.json["expected"];
    let depths = numbers(case.setting("depths"));
    let deepest = depths.iter().copied().fold(0.0, f64::max);
    let seeds = case.size("seeds") as u64;
    let mut ends = vec![Vec::new(); seeds as usize];
    for depth in &depths {
        let runs: Vec<_> = (0..seeds).map(|seed| stream_rms(case, *depth as usize, seed, &device)).collect();
        let at = |layer: usize| runs.iter().map(|rms| rms[layer - 1]).collect::<Vec<f64>>();
        let last = at(*depth as usize);
        within(case, "rms at the end", &expected["rms_at_end"][format!("{depth}")], &last);
        ends.iter_mut().zip(last).for_each(|(ends, last)| ends.push(last));
        if *depth == deepest {
            for (layer, expected) in expected["rms_along_deepest"].as_object().unwrap() {
                within(case, &format!("rms behind block {layer}"), expected, &at(layer.parse().unwrap()));
            }
        }
    }
    let slopes: Vec<f64> = ends.iter().map(|ends| slope(&depths, ends)).collect();
    within(case, "slope", &expected["slope"], &slopes);
}

/// Least squares of ln y over ln x.
fn slope(x: &[f64], y: &[f64]) -> f64 {
    let mean = |v: &[f64]| v.iter().map(|v| v.ln()).sum::<f64>() / v.len() as f64;
    let (mx, my) = (mean(x), mean(y));
    let covariance: f64 = x.iter().zip(y).map(|(a, b)| (a.ln() - mx) * (b.ln() - my)).sum();
    covariance / x.iter().map(|a| (a.ln() - mx).powi(2)).sum::<f64>()
}

/// Gradient norm of the MLP's last weight, by block, of a random readout's cross-entropy on random targets.
fn block_gradients(case: &Case, depth: usize, seed: u64, device: &Device) -> Vec<f64> {
    let (rows, d, vocabulary) = (case.size("B") * case.size("T"), case.size("d"), case.size("vocab"));
    let model = model(case, depth, seed, device);
    let y = model.forward_stream(input(case, seed, device), &()).reshape([rows, d]);
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
}

fn gradient_over_depth(case: &Case) {
    let device = test_device().autodiff();
    let expected = &case.json["expected"];
    let depths = numbers(case.setting("depths"));
    // Post-norm's first gradient has a long tail: over ten seeds the slope of its mean varies by more than its bound.
    let deepest = &expected["first"][format!("{}", depths[depths.len() - 1])];
    let has_tail = deepest["std"].as_f64().unwrap() > 0.5 * deepest["mean"].as_f64().unwrap();
    let seeds = case.size("seeds").max(if has_tail { 40 } else { 0 }) as u64;
    let profile = expected.as_object().unwrap().iter().find(|(key, _)| key.starts_with("profile_"));
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for depth in &depths {
        let runs: Vec<Vec<f64>> = (0..seeds).map(|s| block_gradients(case, *depth as usize, s, &device)).collect();
        let firsts: Vec<f64> = runs.iter().map(|run| run[0]).collect();
        let lasts: Vec<f64> = runs.iter().map(|run| run[run.len() - 1]).collect();
        within(case, "first", &expected["first"][format!("{depth}")], &firsts);
        within(case, "last", &expected["last"][format!("{depth}")], &lasts);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        first.push(mean(&firsts));
        last.push(mean(&lasts));
        if let Some((_, layers)) = profile.filter(|(key, _)| **key == format!("profile_{depth}_layers")) {
            for (layer, expected) in layers.as_array().unwrap().iter().enumerate() {
                let values: Vec<f64> = runs.iter().map(|run| run[layer]).collect();
                within(case, &format!("block {layer} of {depth}"), expected, &values);
            }
        }
    }
    for (key, means) in [("slope_first", first), ("slope_last", last)] {
        let (got, want) = (slope(&depths, &means), expected[key].as_f64().unwrap());
        case.close("slopes", key, &[got], &[want]);
    }
}

fn relu_second_moment(case: &Case) {
    let device = test_device();
    let (n, rows, layers) = (case.size("n"), case.size("rows"), case.size("layers"));
    let n_f64 = n as f64;
    let spec = Spec { role: Role::MlpIn, fan_in: n_f64, fan_out: n_f64, layers: 1, layer: None, width: n_f64 };
    for (name, expected) in case.json["expected"].as_object().unwrap() {
        let scheme = match name.as_str() {
            "kaiming" => Scheme::kaiming(),
            "xavier_for_relu" => Scheme::xavier(),
            other => panic!("{}: unknown init {other}", case.name),
        };
        // A fifth of the seeds, which take a second each.
        let runs: Vec<Vec<f64>> = (0..case.size("seeds").div_ceil(5))
            .map(|seed| {
                let mut x = draw(&format!("relu/{seed}"), rows, n, &device);
                let mut moments = vec![f64::from(x.clone().square().mean().into_scalar::<f32>())];
                for layer in 0..layers {
                    let w =
                        draw(&format!("relu/{seed}/{layer}"), n, n, &device) * scheme.std(&spec).unwrap_or(f64::NAN);
                    x = activation::relu(x.matmul(w));
                    moments.push(f64::from(x.clone().square().mean().into_scalar::<f32>()));
                }
                moments
            })
            .collect();
        for (layer, expected) in expected["second_moment_by_layer"].as_array().unwrap().iter().enumerate() {
            let moments: Vec<f64> = runs.iter().map(|moments| moments[layer]).collect();
            within(case, &format!("{name}, layer {layer}"), expected, &moments);
        }
        let ratios: Vec<f64> = runs.iter().flat_map(|m| m.windows(2).map(|pair| pair[1] / pair[0])).collect();
        within(case, name, &expected["ratio_per_layer"], &ratios);
        let geometric: Vec<f64> = runs.iter().map(|m| (m[layers] / m[0]).powf(1.0 / layers as f64)).collect();
        within(case, name, &expected["geometric_mean_ratio"], &geometric);
    }
}
