//! Our optimizers against burn's, where burn has the same rule.

use crate::common::golden::{Case, numbers, walk};
use crate::common::max_difference;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use unitgain_model::{ModelConfig, NormConfig, Placement, Role, ScaleConfig, Transformer, Update, cross_entropy};
use unitgain_train::checkpoint::weights;
use unitgain_train::{ClipConfig, Gradients, Optimizer, OptimizerConfig, Trainer, clip, read_rows};

/// Matrices only: burn's optimizers decay every parameter.
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
    let mut optimizer = Optimizer::new(ours, &table);
    for step in 0..20 {
        let gradients = Gradients::backward(&loss(&a, step, &device), &a);
        a = optimizer.step(a, &table, gradients, lr);
        let gradients = GradientsParams::from_grads(loss(&b, step, &device).backward(), &b);
        b = theirs.step(lr, b, gradients);
    }
    for ((path, _, x), (_, _, y)) in weights(&a).into_iter().zip(weights(&b)) {
        let difference = max_difference(&x, &y);
        assert!(difference < 2e-5, "{}: {path} differs by {difference}", ours.about().0);
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
    walk("agc_optim", |kind, case| match kind {
        "adaptive_gradient_clipping" => {
            units_of(case);
            true
        }
        "global_norm_clipping" => {
            global_norm_of(case);
            true
        }
        "optimizer_steps" => {
            steps_of(case);
            true
        }
        _ => false,
    });
}

fn flat(values: Vec<f32>) -> Tensor<1> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), &Device::flex())
}

fn host(x: Tensor<1>) -> Vec<f64> {
    x.into_data().iter::<f32>().map(f64::from).collect()
}

/// Weights are `[out, ..]` there: a unit is a row, and what is behind the first axis is its fan-in.
fn units_of(case: &Case) {
    for i in 0.. {
        let Some(w) = case.tensors.get(&format!("w{i}")) else { break };
        let axis = (w.shape.len() > 1).then_some(1);
        let g = case.array(&format!("g{i}"));
        let got =
            clip::units(flat(g.f32()), flat(w.f32()), &w.shape, axis, case.number("clip_factor"), case.number("eps"));
        let key = format!("out{i}");
        case.close(&key, &key, &host(got), &case.array(&key).values);
    }
}

fn global_norm_of(case: &Case) {
    let gradients: Vec<Tensor<1>> = (0..3).map(|i| flat(case.array(&format!("g{i}")).f32())).collect();
    for (k, max) in numbers(case.setting("max_norms")).into_iter().enumerate() {
        let square = Tensor::cat(gradients.iter().map(|g| g.clone().square().sum()).collect(), 0).sum();
        let coefficient = clip::coefficient(square.clone(), max);
        for (i, gradient) in gradients.iter().enumerate() {
            let got = gradient.clone() * coefficient.clone();
            let key = format!("max{k}.out{i}");
            case.close("*.out*", &key, &host(got), &case.array(&key).values);
        }
        let row = &case.json["expected"]["rows"][k];
        case.close("rows", "norm", &host(square.sqrt()), &[row["total_l2"].as_f64().unwrap()]);
        case.close("rows", "coefficient", &host(coefficient), &[row["coefficient"].as_f64().unwrap()]);
    }
}

/// The weights before the first step. In the files p0 is the last weight once more, so they are found
/// from p1 by the rule in reverse; all later steps then have to follow from them.
fn start_of(case: &Case, config: OptimizerConfig, lr: f64, decay: f64) -> Vec<f32> {
    let (p0, p1, g) = (case.array("p0"), case.array("p1"), case.array("g0"));
    let last = format!("p{}", case.size("steps"));
    if max_difference(&p0.f32(), &case.array(&last).f32()) > 1e-5 {
        return p0.f32();
    }
    let before = |(p, g): (&f64, &f64)| match config {
        OptimizerConfig::Adamw { .. } | OptimizerConfig::Lion { .. } => (p + lr * g.signum()) / (1.0 - lr * decay),
        OptimizerConfig::Sgd { .. } => (p + lr * g) / (1.0 - lr * decay),
        // The step is the sign of g + decay p.
        OptimizerConfig::Adam { .. } => match p + lr {
            up if g + decay * up > 0.0 => up,
            _ => p - lr,
        },
    };
    p1.values.iter().zip(&g.values).map(|pair| before(pair) as f32).collect()
}

fn steps_of(case: &Case) {
    let (lr, weight_decay, eps) = (case.number("lr"), case.number("weight_decay"), case.number("eps"));
    let betas = || <[f64; 2]>::try_from(numbers(case.setting("betas"))).unwrap();
    let config = match case.text("optimizer") {
        "adamw" => OptimizerConfig::Adamw { lr, betas: betas(), eps, weight_decay: weight_decay.into() },
        "adam_l2" => OptimizerConfig::Adam { lr, betas: betas(), eps, weight_decay },
        "sgd_momentum" => OptimizerConfig::Sgd { lr, momentum: case.number("momentum"), nesterov: false, weight_decay },
        // The rule in words has the averages; settings.betas are those of Adam.
        "lion" => OptimizerConfig::Lion { lr, betas: [0.9, 0.99], weight_decay: weight_decay.into() },
        other => panic!("{}: unknown optimizer {other:?}", case.name),
    };
    let mut rule = unitgain_train::optim::Rule::new(config);
    let mut w = flat(start_of(case, config, lr, weight_decay));
    for t in 0..case.size("steps") {
        w = rule.step(w, flat(case.array(&format!("g{t}")).f32()), lr, weight_decay, eps);
        let key = format!("p{}", t + 1);
        case.close(&key, &key, &host(w.clone()), &case.array(&key).values);
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

/// arXiv:1901.09321, section 4: the scalars learn at a tenth of the rate, whatever the optimizer.
#[test]
fn fixups_scalars_have_a_tenth_of_the_learning_rate() {
    let config = ModelConfig { scale: ScaleConfig::Fixup {}, placement: Placement::None {}, ..matrices() };
    let (_, table) = config.build(1, &Device::flex()).unwrap();
    for table in [table.clone(), table.for_update(Update::Proportional)] {
        let scalars = table.iter().filter(|entry| entry.role() == Role::Scale).count();
        assert_eq!(scalars, config.n_layers * (2 * 2 + 2 + 3), "a scale and a bias of each branch, and those inside");
        for entry in &table {
            assert_eq!(entry.factors.lr, if entry.role() == Role::Scale { 0.1 } else { 1.0 }, "{}", entry.path);
        }
    }
}
