//! Our optimizers against burn's, where the rules agree.

use crate::common::golden::{Case, Json, walk};
use crate::common::max_difference;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use unitgain_model::weights::of as weights;
use unitgain_model::{
    ModelConfig, NormConfig, Placement, Role, ScaleConfig, Spec, Transformer, Update, Variant, cross_entropy,
};
use unitgain_train::step::optim::{Moved, Rates, Weight};
use unitgain_train::{ClipConfig, Gradients, Optimizer, OptimizerConfig, Trainer, read_rows, step::clip};

/// A model of matrices only, because burn's optimizers decay all parameters.
fn matrices() -> ModelConfig {
    ModelConfig {
        vocab_size: Some(7),
        context: 8,
        d_model: 16,
        n_layers: 2,
        norm: NormConfig::None {},
        ..ModelConfig::default()
    }
}

fn loss(model: &Transformer, step: usize, device: &Device) -> Tensor<1> {
    let values: Vec<i32> = (0..32).map(|i| ((i * 5 + step * i + step) % 7) as i32).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(values, [4, 8]), device);
    cross_entropy(model.forward(tokens.clone()), tokens, None)
}

fn compare(ours: OptimizerConfig, mut theirs: ModuleOptimizer, lr: f64) {
    let device = Device::flex().autodiff();
    let (mut a, table) = matrices().build(1, &device).unwrap();
    let (mut b, _) = matrices().build(1, &device).unwrap();
    let (mut optimizer, table) = Optimizer::new(ours, table);
    for step in 0..20 {
        let gradients = Gradients::backward(&loss(&a, step, &device), &a);
        a = optimizer.step(a, &table, gradients, lr);
        let gradients = GradientsParams::from_grads(loss(&b, step, &device).backward(), &b);
        b = theirs.step(lr, b, gradients);
    }
    for ((path, _, x), (_, _, y)) in weights(&a).into_iter().zip(weights(&b)) {
        let difference = max_difference(&x, &y);
        assert!(difference < 2e-5, "{}: {path} differs by {difference}", ours.about().name);
    }
}

#[test]
fn adamw_is_burns() {
    let ours = OptimizerConfig::Adamw { lr: 1e-2, betas: [0.8, 0.9], eps: 1e-6, weight_decay: 0.3.into() };
    let theirs = AdamWConfig::new().with_beta_1(0.8).with_beta_2(0.9).with_epsilon(1e-6).with_weight_decay(0.3);
    compare(ours, theirs.init(), 1e-2);
}

#[test]
fn adam_with_l2_is_burns() {
    let ours = OptimizerConfig::Adam { lr: 1e-2, betas: [0.8, 0.9], eps: 1e-5, weight_decay: 0.3 };
    let decay = burn::optim::decay::WeightDecayConfig::new(0.3);
    let theirs = AdamConfig::new().with_beta_1(0.8).with_beta_2(0.9).with_epsilon(1e-5).with_weight_decay(Some(decay));
    compare(ours, theirs.init(), 1e-2);
}

#[test]
fn sgd_is_burns() {
    for nesterov in [false, true] {
        let ours = OptimizerConfig::Sgd { lr: 0.1, momentum: 0.9, nesterov, weight_decay: 0.01 };
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0).with_nesterov(nesterov);
        let decay = burn::optim::decay::WeightDecayConfig::new(0.01);
        let theirs = SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(Some(decay));
        compare(ours, theirs.init(), 0.1);
    }
}

#[test]
fn only_matrices_decay() {
    let config =
        ModelConfig { bias: true, qk_norm: NormConfig::rms_norm(), norm: NormConfig::layer_norm(), ..matrices() };
    let (_, table) = config.build(1, &Device::flex()).unwrap();
    for optimizer in OptimizerConfig::all() {
        for entry in &table {
            let decays = entry.shape.len() == 2;
            assert_eq!(
                optimizer.decay_of(entry),
                if decays { optimizer.weight_decay().value() } else { 0.0 },
                "{}",
                entry.path
            );
        }
    }
}

#[test]
fn clips_and_optimizers_match_the_reference() {
    walk("agc_optim", check);
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    match kind {
        "adaptive_gradient_clipping" => units_of(case),
        "global_norm_clipping" => global_norm_of(case),
        "optimizer_steps" => steps_of(case),
        _ => return false,
    }
    true
}

fn flat(values: Vec<f32>) -> Tensor<1> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), &Device::flex())
}

fn host(x: Tensor<1>) -> Vec<f64> {
    x.into_data().iter::<f32>().map(f64::from).collect()
}

/// Number of tensors of a case named `name` with consecutive numbers from 0.
fn count(case: &Case, name: &str) -> usize {
    let numbers = case.names_behind(name).into_iter().filter(|rest| rest.parse::<usize>().is_ok()).count();
    assert!(numbers > 0, "{}: no {name}0", case.name);
    numbers
}

/// Weights are `[out, ..]` in the reference: a unit is a row, and the other axes are its fan-in.
fn units_of(case: &Case) {
    let expected = case.expected().at("units_clipped").list();
    assert_eq!(expected.len(), count(case, "w"), "{}: units_clipped", case.name);
    for (i, expected) in expected.into_iter().enumerate() {
        let w = case.array(&format!("w{i}"));
        let axis = (w.shape.len() > 1).then_some(1);
        let g = case.array(&format!("g{i}"));
        let (lambda, eps) = (case.number("clip_factor"), case.number("eps"));
        let got = host(clip::units(flat(g.f32()), flat(w.f32()), &w.shape, axis, lambda, eps));
        let key = format!("out{i}");
        case.close(&key, &key, &got, &case.array(&key).values);
        let unit = if axis.is_some() { g.values.len() / g.shape[0] } else { g.values.len() };
        let changed = got
            .chunks(unit)
            .zip(g.values.chunks(unit))
            .map(|(got, g)| got.iter().zip(g).any(|(got, g)| (got - g).abs() > 1e-5 * g.abs()));
        let want: Vec<bool> = expected.list().into_iter().map(Json::flag).collect();
        assert_eq!(changed.collect::<Vec<bool>>(), want, "{}: clipped units of w{i}", case.name);
    }
}

fn global_norm_of(case: &Case) {
    let gradients: Vec<Tensor<1>> = (0..count(case, "g")).map(|i| flat(case.array(&format!("g{i}")).f32())).collect();
    let square_of = |g: &Tensor<1>| g.clone().square().sum();
    let clipped = |key: &str, gradient: &Tensor<1>, coefficient: Tensor<1>| {
        case.close("*.out*", key, &host(gradient.clone() * coefficient), &case.array(key).values);
    };
    let rows = case.expected().at("rows").list();
    let max_norms = case.setting("max_norms").numbers();
    assert_eq!(rows.len(), max_norms.len(), "{}: rows", case.name);
    for (k, (max, row)) in max_norms.into_iter().zip(rows).enumerate() {
        case.equal("rows", "max_norm", max, row.at("max_norm"));
        let square = Tensor::cat(gradients.iter().map(square_of).collect(), 0).sum();
        let coefficient = clip::coefficient(square.clone(), max);
        for (i, gradient) in gradients.iter().enumerate() {
            clipped(&format!("max{k}.out{i}"), gradient, coefficient.clone());
            // Each tensor alone.
            clipped(&format!("per_tensor.max{k}.out{i}"), gradient, clip::coefficient(square_of(gradient), max));
        }
        case.equal("rows", "norm", host(square.sqrt())[0], row.at("total_l2"));
        case.equal("rows", "coefficient", host(coefficient)[0], row.at("coefficient"));
        let largest = Tensor::cat(gradients.clone(), 0).abs().max();
        case.equal("rows", "largest entry", host(largest.clone())[0], row.at("total_inf"));
        let coefficient = clip::coefficient(largest.square(), max);
        case.equal("rows", "coefficient of the largest entry", host(coefficient)[0], row.at("coefficient_inf"));
    }
    for name in case.names_behind("by_value.") {
        case.skip(&format!("tensors/by_value.{name}"), "not a setting of the product: a clip by value");
    }
}

fn steps_of(case: &Case) {
    let (lr, weight_decay) = (case.number("lr"), case.number("weight_decay"));
    let betas = || <[f64; 2]>::try_from(case.setting("betas").numbers()).unwrap();
    let not_of_the_rule = |keys: &[&str]| {
        keys.iter().for_each(|key| case.skip(&format!("settings/{key}"), "no part of this optimizer's rule"));
    };
    let config = match case.text("optimizer") {
        "adamw" => {
            OptimizerConfig::Adamw { lr, betas: betas(), eps: case.number("eps"), weight_decay: weight_decay.into() }
        }
        "adam_l2" => OptimizerConfig::Adam { lr, betas: betas(), eps: case.number("eps"), weight_decay },
        "sgd_momentum" => OptimizerConfig::Sgd { lr, momentum: case.number("momentum"), nesterov: false, weight_decay },
        // The averages are in the rule's text; settings.betas are Adam's.
        "lion" => OptimizerConfig::Lion { lr, betas: betas_in_words(case), weight_decay: weight_decay.into() },
        other => panic!("{}: unknown optimizer {other:?}", case.name),
    };
    let eps = match config {
        OptimizerConfig::Adamw { eps, .. } | OptimizerConfig::Adam { eps, .. } => {
            not_of_the_rule(&["momentum"]);
            eps
        }
        OptimizerConfig::Sgd { .. } => {
            not_of_the_rule(&["betas/*", "eps"]);
            0.0
        }
        OptimizerConfig::Lion { .. } => {
            not_of_the_rule(&["betas/*", "eps", "momentum"]);
            0.0
        }
    };
    let rule = config.rule(Role::MlpIn);
    let (mut values, mut states) = (flat(case.array("p0").f32()), Vec::new());
    let shape = values.dims();
    let spec = Spec { role: Role::MlpIn, fan_in: 1.0, fan_out: 1.0, blocks: 1, block: Some(0), width: 1.0 };
    assert_eq!(case.size("steps"), count(case, "g"), "{}: steps", case.name);
    for t in 0..case.size("steps") {
        let rates = Rates { lr, decay: weight_decay, eps };
        let weight = Weight { values, shape: &shape, spec: &spec, time: t + 1, rates, states };
        Moved { values, states } = rule.step(weight, flat(case.array(&format!("g{t}")).f32()).into());
        let key = format!("p{}", t + 1);
        case.close(&key, &key, &host(values.clone()), &case.array(&key).values);
    }
}

/// Parses `b = (0.9, 0.99)` in a rule.
fn betas_in_words(case: &Case) -> [f64; 2] {
    let rule = case.text("rule");
    let inside = rule.split_once("b = (").and_then(|(_, rest)| rest.split_once(')')).map(|(inside, _)| inside);
    let numbers = inside.map(|inside| inside.split(", ").map(str::parse::<f64>).collect::<Result<Vec<_>, _>>());
    match numbers {
        Some(Ok(betas)) if betas.len() == 2 => [betas[0], betas[1]],
        _ => panic!("{}: no averages in the rule {rule:?}", case.name),
    }
}

#[test]
fn the_adaptive_clip_bounds_every_unit_but_the_head() {
    let config = ModelConfig { tie_embeddings: false, norm: NormConfig::layer_norm(), ..matrices() };
    let device = Device::flex();
    let run = |clip: ClipConfig| {
        let optimizer = OptimizerConfig::Sgd { lr: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let trainer = Trainer::new(&config, optimizer, clip, 1, &device).unwrap();
        let before = weights(&trainer.model);
        let tokens: Vec<i32> = (0..32).map(|i| (i * i) % 7).collect();
        let batch = unitgain_train::Batch { rows: 4, time: 8, targets: tokens.clone(), tokens, weights: None };
        let (trainer, row) = trainer.step(&[batch], 1.0, false);
        let row = read_rows(&[row]).remove(0);
        (before, weights(&trainer.model), row)
    };
    let (before, free, unclipped) = run(ClipConfig::None {});
    let (_, clipped, row) = run(ClipConfig::Adaptive { lambda: 0.01, eps: 1e-3 });
    assert_eq!(unclipped.grad_norm(), row.grad_norm());
    assert!(row.grad_norm_clipped < row.grad_norm());
    let mut total = 0.0;
    for ((path, shape, w), ((_, _, free), (_, _, clipped))) in before.into_iter().zip(free.into_iter().zip(clipped)) {
        let step = |after: &[f32]| -> Vec<f64> { w.iter().zip(after).map(|(a, b)| f64::from(a - b)).collect() };
        let (free, clipped) = (step(&free), step(&clipped));
        total += clipped.iter().map(|x| x * x).sum::<f64>();
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
        if path == "head.weight" {
            assert_eq!(free, clipped);
        } else if path.starts_with("blocks.") && shape.len() == 2 {
            for unit in 0..shape[1] {
                let column = |x: &[f64]| norm(&mut x.iter().skip(unit).step_by(shape[1]).copied());
                let w: Vec<f64> = w.iter().map(|v| f64::from(*v)).collect();
                let most = 0.01 * column(&w).max(1e-3);
                assert!(column(&clipped) <= most * 1.01, "{path} {unit}");
                assert!((column(&clipped) - column(&free).min(most)).abs() <= 0.01 * most, "{path} {unit}");
            }
        }
    }
    assert!((total.sqrt() / f64::from(row.grad_norm_clipped) - 1.0).abs() < 1e-2);
}

/// arXiv:1901.09321, section 4: the scalars have a tenth of the learning rate, for any optimizer.
#[test]
fn fixups_scalars_have_a_tenth_of_the_learning_rate() {
    let config = ModelConfig { scale: ScaleConfig::Fixup {}, placement: Placement::None {}, ..matrices() };
    let (_, table) = config.build(1, &Device::flex()).unwrap();
    for table in [table.clone(), table.for_updates(|_| Update::Proportional)] {
        let scalars = table.iter().filter(|entry| entry.role() == Role::Scale).count();
        assert_eq!(scalars, config.n_layers * (2 * 2 + 2 + 3), "a scale and a bias of each branch, and those inside");
        for entry in &table {
            assert_eq!(entry.factors.lr, if entry.role() == Role::Scale { 0.1 } else { 1.0 }, "{}", entry.path);
        }
    }
}
