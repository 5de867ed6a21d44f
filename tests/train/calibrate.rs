//! Data-driven inits of whole models.

use crate::common::Scratch;
use crate::model::whole::tiny;
use std::collections::HashMap;
use std::ops::ControlFlow;
use unitgain_model::weights::of as weights;
use unitgain_model::{Activation, ModelConfig, NormConfig, Placement, ScaleConfig, Scheme, Variant};
use unitgain_train::{Calibrate, DataConfig, EvalTokens, Measured, RunConfig, Start, Task, Trainer, calibrate, train};

/// A run of a model without norms, small enough for second-order gradients.
fn run(model: ModelConfig, kind: Option<Calibrate>) -> RunConfig {
    let mut config = RunConfig {
        model: ModelConfig { vocab_size: None, ..model },
        data: DataConfig::Markov { vocab_size: 11, order: 1, branching: 2, seed: 1 },
        ..RunConfig::default()
    };
    config.train.batch_size = 4;
    config.train.steps = 4;
    config.schedule = unitgain_train::ScheduleConfig::Constant { warmup: 0 };
    config.eval.tokens = EvalTokens::Count(64);
    config.init.calibrate = kind;
    config
}

fn norm_free() -> ModelConfig {
    ModelConfig {
        placement: Placement::None {},
        norm: NormConfig::None {},
        init: Some(Scheme::xavier()),
        tie_embeddings: false,
        ..tiny()
    }
}

type Weights = HashMap<String, Vec<f32>>;

/// The weights before and after, and the measurements.
fn calibrated(config: &RunConfig) -> (Weights, Weights, Vec<Measured>, RunConfig, Task) {
    let (config, task) = config.prepare().unwrap();
    let device = burn::tensor::Device::flex();
    let trainer = Trainer::new(&config.model, config.optimizer, config.train.clip, config.seed, &device).unwrap();
    let trainer = trainer.with_precision(config.train.precision);
    let read = |trainer: &Trainer| weights(&trainer.model).into_iter().map(|(path, _, v)| (path, v)).collect();
    let before = read(&trainer);
    let mut steps = Vec::new();
    let (trainer, measured) = calibrate(trainer, &config, &task, &mut |step, of| steps.push((step, of))).unwrap();
    assert!(steps.last().is_some_and(|(step, of)| step == of), "{steps:?}");
    (before, read(&trainer), measured, config, task)
}

#[test]
fn lsuv_brings_every_layer_to_variance_one_by_a_factor() {
    let models = [
        norm_free(),
        ModelConfig { activation: Activation::SwiGlu, ..norm_free() },
        ModelConfig { init: Some(Scheme::TorchLinear { embedding_std: 1.0 }), bias: true, ..norm_free() },
        ModelConfig { placement: Placement::PreNorm {}, norm: NormConfig::layer_norm(), ..norm_free() },
    ];
    for model in models {
        let (before, after, measured, ..) = calibrated(&run(model.clone(), Calibrate::named("lsuv")));
        // Query, key, value, out, up, down (and gate) of three blocks, and the head.
        let layers = if model.activation.is_gated() { 7 } else { 6 };
        assert_eq!(measured.len(), 3 * layers + 1);
        assert!(measured.iter().any(|m| (m.before - 1.0).abs() > 0.5));
        for m in &measured {
            assert!((m.after - 1.0).abs() < 0.1, "{m:?}");
        }
        for (path, values) in &after {
            let ratio = |i: usize| f64::from(values[i]) / f64::from(before[path][i]);
            let is_layer = path.ends_with(".weight");
            let changed = values != &before[path];
            assert_eq!(changed, is_layer && (ratio(0) - 1.0).abs() > 1e-9, "{path}");
            if is_layer {
                (1..values.len()).for_each(|i| assert!((ratio(i) / ratio(0) - 1.0).abs() < 1e-4, "{path}"));
            }
        }
    }
}

#[test]
fn lsuv_leaves_a_layer_that_writes_nothing() {
    let (_, after, measured, ..) =
        calibrated(&run(ModelConfig { zero_writers: true, ..norm_free() }, Calibrate::named("lsuv")));
    assert!(after["blocks.0.mlp.down.weight"].iter().all(|w| *w == 0.0));
    let down = measured.iter().find(|m| m.what.contains("blocks.0.mlp.down")).unwrap();
    assert_eq!((down.before, down.after), (0.0, 0.0));
}

#[test]
fn data_dependent_init_normalizes_each_layer_and_evens_out_pairs() {
    for activation in [Activation::Relu, Activation::Gelu, Activation::SwiGlu] {
        let model = ModelConfig { bias: true, activation, ..norm_free() };
        let (_, _, first, ..) = calibrated(&run(model.clone(), Some(Calibrate::DataDependent { between: false })));
        assert!(first.len() > 18 && first.iter().all(|m| (m.after - 1.0).abs() < 1e-3), "{first:?}");
        // The second stage keeps the product of each pair, so the head's output keeps its variance.
        let (_, _, both, ..) = calibrated(&run(model, Some(Calibrate::DataDependent { between: true })));
        let of = |measured: &[Measured], name: &str| measured.iter().find(|m| m.what.contains(name)).unwrap().after;
        assert!((of(&both, "head") - of(&first, "head")).abs() < 1e-3);
        for layer in ["attention.out", "mlp.down"] {
            assert!((of(&both, &format!("blocks.2.{layer}")) - 1.0).abs() < 1e-3, "{activation:?} {layer}");
        }
        assert!((of(&both, "blocks.0.attention.query") - of(&first, "blocks.0.attention.query")).abs() > 1e-3);
    }
}

#[test]
fn admin_sets_omega_to_the_root_of_what_was_written_before() {
    let model = ModelConfig { placement: Placement::Admin { omega: 1.0 }, ..tiny() };
    let (before, after, measured, ..) = calibrated(&run(model, Calibrate::named("admin")));
    assert_eq!(measured.len(), 6);
    let omegas: Vec<f64> = measured.iter().map(|m| m.after).collect();
    assert!(omegas.windows(2).all(|pair| pair[0] < pair[1]), "{omegas:?}");
    for (path, values) in &after {
        assert_eq!(values != &before[path], path.ends_with(".omega"), "{path}");
    }
}

#[test]
fn meta_init_lowers_its_quotient_and_grad_init_its_loss() {
    let xavier = ModelConfig { n_layers: 2, ..norm_free() };
    let meta = Calibrate::MetaInit { steps: 6, lr: 0.05, momentum: 0.9 };
    let (before, after, measured, ..) = calibrated(&run(xavier.clone(), Some(meta)));
    assert!(measured[0].after < 0.9 * measured[0].before, "{measured:?}");
    assert_ne!(before["blocks.0.mlp.up.weight"], after["blocks.0.mlp.up.weight"]);
    let grad = Calibrate::GradInit { steps: 30, lr: 0.02, gamma: Some(1e4), eta: None };
    let (_, after, measured, ..) = calibrated(&run(xavier.clone(), Some(grad)));
    assert!(measured[0].after < measured[0].before - 0.01, "{measured:?}");
    // With a bound that is exceeded, the gradient shrinks.
    let tight = Calibrate::GradInit { steps: 30, lr: 0.02, gamma: Some(1e-3), eta: None };
    let (_, other, measured, ..) = calibrated(&run(xavier, Some(tight)));
    assert!(measured[1].after < measured[1].before, "{measured:?}");
    assert_ne!(after["head.weight"], other["head.weight"]);
}

#[test]
fn a_calibrated_run_resumes_to_an_unbroken_one_and_says_what_it_measured() {
    let scratch = Scratch::new("calibrate");
    let config = run(norm_free(), Calibrate::named("lsuv"));
    let whole = scratch.0.join("whole");
    train(&config, &whole, Start::New, &mut |_| ControlFlow::Continue(())).unwrap();
    let measured: Vec<Measured> =
        serde_json::from_str(&std::fs::read_to_string(whole.join("init.json")).unwrap()).unwrap();
    assert_eq!(measured.len(), 19);
    let broken = scratch.0.join("broken");
    let mut half = config.clone();
    half.train.steps = 2;
    train(&half, &broken, Start::New, &mut |_| ControlFlow::Continue(())).unwrap();
    train(&config, &broken, Start::Resume, &mut |_| ControlFlow::Continue(())).unwrap();
    let records = |folder: &std::path::Path| {
        let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        (last["step"].clone(), last["loss"].clone(), last["eval_loss"].clone())
    };
    assert_eq!(records(&whole), records(&broken));
    // A new run without calibration removes the earlier run's file.
    train(&run(norm_free(), None), &whole, Start::Replace, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(!whole.join("init.json").exists());
}

#[test]
fn a_calibration_that_does_not_fit_is_refused() {
    let problem =
        |model: ModelConfig, calibrate: Calibrate| run(model, Some(calibrate)).prepare().unwrap_err().to_string();
    assert!(problem(norm_free(), Calibrate::Admin {}).contains("placement = \"admin\""));
    assert!(problem(norm_free(), Calibrate::DataDependent { between: true }).contains("model.bias = true"));
    let normed = ModelConfig { weight_norm: unitgain_model::WeightNormConfig::weight_norm(), ..tiny() };
    assert!(problem(normed, Calibrate::named("lsuv").unwrap()).contains("weight_norm"));
    assert!(problem(tiny(), Calibrate::Lsuv { tolerance: 0.0, passes: 1 }).contains("init.calibrate.tolerance"));
    assert!(problem(tiny(), Calibrate::Lsuv { tolerance: 0.1, passes: 0 }).contains("init.calibrate.passes"));
    let scaled = ModelConfig { scale: ScaleConfig::ReZero { shared: false }, ..norm_free() };
    let (_, _, measured, ..) = calibrated(&run(scaled, Calibrate::named("lsuv")));
    assert_eq!(measured.len(), 19);
    assert!(measured.iter().all(|m| (m.after - 1.0).abs() < 0.1), "a branch that is multiplied by 0 is still measured");
}

/// Calibrations are repeatable: dropout masks and the order of blocks have no effect.
#[test]
fn dropout_does_not_reach_a_calibration() {
    let _turn = crate::common::generator();
    let kinds = [
        Calibrate::DataDependent { between: true },
        Calibrate::MetaInit { steps: 1, lr: 0.05, momentum: 0.9 },
        Calibrate::GradInit { steps: 2, lr: 0.02, gamma: None, eta: None },
    ];
    for kind in kinds {
        let with = |dropout| run(ModelConfig { dropout, bias: true, n_layers: 2, ..norm_free() }, Some(kind));
        let (_, dropped, measured, ..) = calibrated(&with(0.3));
        let (_, plain, same, ..) = calibrated(&with(0.0));
        assert!(!measured.is_empty(), "{kind:?}");
        assert_eq!((dropped, measured), (plain, same), "{kind:?}");
    }
}

#[test]
fn the_second_stage_changes_no_function_whatever_a_block_has() {
    use unitgain_model::BlockConfig;
    use unitgain_study::signal::measure;
    let block = |placement, mlp_placement| BlockConfig {
        range: [0, 1],
        placement,
        mlp_placement,
        norm: Some(NormConfig::layer_norm()),
        ..BlockConfig::default()
    };
    let models = [
        ModelConfig { mlp_placement: Some(Placement::SubNorm {}), norm: NormConfig::layer_norm(), ..norm_free() },
        ModelConfig { block: vec![block(Some(Placement::SubNorm {}), None)], ..norm_free() },
        ModelConfig { block: vec![block(Some(Placement::HybridNorm {}), None)], ..norm_free() },
        ModelConfig { block: vec![block(None, Some(Placement::Normformer {}))], ..norm_free() },
    ];
    for model in models {
        let model = ModelConfig { bias: true, activation: Activation::SwiGlu, ..model };
        let loss =
            |between| measure(&run(model.clone(), Some(Calibrate::DataDependent { between })), false).unwrap().loss;
        assert!((loss(true) - loss(false)).abs() < 1e-5, "{model:?}: {} {}", loss(true), loss(false));
    }
}

#[test]
fn every_calibration_works_on_bf16_branches() {
    for kind in Calibrate::all() {
        let kind = match kind {
            Calibrate::MetaInit { lr, momentum, .. } => Calibrate::MetaInit { steps: 1, lr, momentum },
            Calibrate::GradInit { lr, gamma, eta, .. } => Calibrate::GradInit { steps: 1, lr, gamma, eta },
            other => other,
        };
        let placement = match kind {
            Calibrate::Admin {} => Placement::Admin { omega: 5.0 },
            _ => Placement::None {},
        };
        let mut config = run(ModelConfig { bias: true, placement, n_layers: 2, ..norm_free() }, Some(kind));
        let (_, _, in_f32, ..) = calibrated(&config);
        config.train.precision = unitgain_model::Precision::Bf16;
        let (_, _, measured, ..) = calibrated(&config);
        assert!(!measured.is_empty() && measured.iter().all(|m| m.after.is_finite()), "{kind:?}");
        // A difference of gradients has no significant digits in bf16.
        let by_gradients = matches!(kind, Calibrate::MetaInit { .. } | Calibrate::GradInit { .. });
        assert_eq!(measured == in_f32, by_gradients, "{kind:?}: {measured:?} {in_f32:?}");
    }
}

/// The profiling pass uses omega = 1, whatever the configured start.
#[test]
fn admin_profiles_with_omega_one() {
    let with = |omega| {
        let model = ModelConfig { placement: Placement::Admin { omega }, ..tiny() };
        calibrated(&run(model, Calibrate::named("admin"))).2.iter().map(|m| m.after).collect::<Vec<f64>>()
    };
    assert_eq!(with(1.0), with(5.0));
}
