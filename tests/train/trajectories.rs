//! Thirty training steps from given weights, against losses, gradient norms and weights in float64.

use crate::common::golden::{Array, Case, Json, Names, connection, walk};
use crate::common::{test_device, values};
use unitgain_model::weights::assign;
use unitgain_model::{Activation, ModelConfig, NormConfig, Parametrization, Placement, Position, ScaleConfig, Shape};
use unitgain_train::{Batch, OptimizerConfig, Record, ScheduleConfig, Trainer, read_rows};

#[test]
fn trajectories_match_the_reference() {
    walk("trajectories", check);
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    match kind {
        "trajectory" => trajectory(case),
        "trajectory_mup" => trajectory_mup(case),
        _ => return false,
    }
    true
}

fn trajectory(case: &Case) {
    let n = |key| case.size(key);
    let norm = case.norm();
    let Some((placement, mlp_placement, scale)) = joined(case) else { return };
    let model = ModelConfig {
        vocab_size: Some(n("vocab")),
        context: n("T"),
        d_model: n("d"),
        n_layers: n("N"),
        n_heads: n("heads"),
        d_ff: Some(n("ff")),
        activation: Activation::Gelu,
        position: Position::Learned {},
        bias: true,
        attention_bias: Some(false),
        tie_embeddings: case.flag("tied"),
        norm,
        placement,
        mlp_placement,
        scale,
        // NormFormer has no head scale in the cases.
        head_scale: Some(false),
        final_norm: case.setting("final_norm").given().map(Json::flag),
        ..ModelConfig::default()
    };
    let mut names = Names::decoder(n("N"), 0, norm);
    names.plain("tok_emb", "embedding".into());
    names.plain("pos_emb", "position".into());
    names.turned("lm_head", "head.weight".into());
    if placement == (Placement::DeepNorm {}) {
        let ours = [placement.constant(0, n("N")), placement.branch_gain(n("N"))];
        for (got, key) in ours.into_iter().zip(["alpha", "beta_used_in_init"]) {
            let want = case.number(key);
            assert!((got - want).abs() < 1e-9, "{}: {key} is {got}, not {want}", case.name);
        }
    }
    follow(case, &model, &names);
}

fn trajectory_mup(case: &Case) {
    let n = |key| case.size(key);
    let model = ModelConfig {
        vocab_size: Some(n("vocab")),
        context: n("T"),
        d_model: n("width"),
        n_layers: n("layers"),
        n_heads: n("heads"),
        d_ff: Some(n("ff")),
        activation: Activation::Gelu,
        bias: true,
        attention_bias: Some(false),
        tie_embeddings: case.flag("tied"),
        norm: NormConfig::LayerNorm { eps: case.number("norm_eps"), gain: true, bias: true },
        parametrization: Parametrization::mup(n("base_width")),
        ..ModelConfig::default()
    };
    let names = Names::mup(n("layers"));
    factors_match(case, &model, &names);
    follow(case, &model, &names);
}

/// How a case joins its branches; None if it is skipped.
fn joined(case: &Case) -> Option<(Placement, Option<Placement>, ScaleConfig)> {
    let name = case.text("placement");
    if name == "admin" {
        case.skip("**", "its omega is one number a connection, which the product learns for each channel");
        return None;
    }
    if name == "hybrid_pre_attn_post_ffn" {
        return Some((Placement::PreNorm {}, Some(Placement::PostNorm {}), ScaleConfig::One {}));
    }
    let (placement, scale) =
        connection(name, case).unwrap_or_else(|| panic!("{}: unknown placement {name:?}", case.name));
    let scale = match case.setting("branch_multiplier").given() {
        Some(multiplier) => ScaleConfig::Constant { value: multiplier.f64() },
        None => scale,
    };
    Some((placement, None, scale))
}

fn optimizer(case: &Case) -> OptimizerConfig {
    let (lr, weight_decay) = (case.number("lr"), case.number("weight_decay"));
    let betas = || <[f64; 2]>::try_from(case.setting("betas").numbers()).unwrap();
    match case.text("optimizer") {
        "adamw" | "mu_adamw" => {
            OptimizerConfig::Adamw { lr, betas: betas(), eps: case.number("eps"), weight_decay: weight_decay.into() }
        }
        "adam" | "mu_adam" => OptimizerConfig::Adam { lr, betas: betas(), eps: case.number("eps"), weight_decay },
        "sgd" | "mu_sgd" => {
            let nesterov = case.setting("nesterov").given().is_some_and(Json::flag);
            let momentum = case.setting("momentum").given().map_or(0.0, Json::f64);
            OptimizerConfig::Sgd { lr, momentum, nesterov, weight_decay }
        }
        "lion" => OptimizerConfig::Lion { lr, betas: betas(), weight_decay: weight_decay.into() },
        other => panic!("{}: unknown optimizer {other:?}", case.name),
    }
}

fn trainer(case: &Case, model: &ModelConfig, names: &Names) -> Trainer {
    let mut trainer = Trainer::new(model, optimizer(case), case.number("clip").into(), 1, &test_device()).unwrap();
    let values = names.ours(case, &case.names_behind("init."), "init.");
    trainer.model = assign(trainer.model, &values).unwrap();
    trainer
}

fn follow(case: &Case, model: &ModelConfig, names: &Names) {
    let mut trainer = trainer(case, model, names);
    let steps = case.size("steps");
    let schedule =
        ScheduleConfig::Cosine { warmup: case.size("warmup"), min_ratio: case.number("lr_min") / case.number("lr") };
    let (batch, time) = (case.size("B"), case.size("T"));
    let tokens = case.array("toks");
    assert_eq!(tokens.shape, [steps, batch, time + 1], "{}: toks", case.name);
    let per_step = batch * (time + 1);
    let (mut rates, mut rows) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let sequences: Vec<i32> =
            tokens.values[step * per_step..(step + 1) * per_step].iter().map(|&t| t as i32).collect();
        let cut = |from: usize| sequences.chunks(time + 1).flat_map(|s| s[from..from + time].to_vec()).collect();
        let batch = Batch { rows: batch, time, tokens: cut(0), targets: cut(1), weights: None };
        let lr = case.number("lr") * schedule.factor(step, steps);
        let (next, row) = trainer.step(&[batch], lr, false);
        trainer = next;
        rates.push(lr);
        rows.push(row);
    }

    let rows = read_rows(&rows);
    let expected = |key: &str| case.expected().at(key).numbers();
    case.close("lr", "lr", &rates, &expected("lr"));
    let losses: Vec<f64> = rows.iter().map(|row| f64::from(row.loss)).collect();
    case.close("loss", "loss", &losses, &expected("loss"));
    let norms: Vec<f64> = rows.iter().map(|row| f64::from(row.grad_norm())).collect();
    case.close("grad_norm_before_clip", "grad_norm", &norms, &expected("grad_norm_before_clip"));
    // The ratio of the norms is the clip's factor.
    let coefficients: Vec<f64> =
        rows.iter().map(|row| f64::from(row.grad_norm_clipped) / f64::from(row.grad_norm())).collect();
    case.close("grad_norm_before_clip", "clip_coefficient", &coefficients, &expected("clip_coefficient"));
    let by_step = case.expected().at("block_grad_norms").list();
    assert_eq!(by_step.len(), steps, "{}: steps", case.name);
    for (step, (row, want)) in rows.iter().zip(by_step).enumerate() {
        let block = Record::block_norms(row, &trainer.table, model.n_layers);
        let block: Vec<f64> = block.into_iter().map(f64::from).collect();
        case.close("block_grad_norms", &format!("block norms of step {step}"), &block, &want.numbers());
    }
    for name in case.names_behind("final.") {
        let key = format!("final.{name}");
        let want = case.array(&key);
        let got = Array { shape: want.shape.clone(), values: last(&trainer, names, name) };
        case.close(&key, name, &got.values, &want.values);
    }
    let norms = case.expected().at("final_param_norms").table();
    assert_eq!(norms.len(), trainer.table.iter().count(), "{}: final_param_norms", case.name);
    for (name, want) in norms {
        let norm = last(&trainer, names, name).iter().map(|x| x * x).sum::<f64>().sqrt();
        case.equal("final_param_norms", &format!("norm of {name}"), norm, want);
    }
}

/// The final values of a weight, in the reference's layout.
fn last(trainer: &Trainer, names: &Names, name: &str) -> Vec<f64> {
    let (path, turned) = &names.0[name];
    let shape = trainer.table.iter().find(|entry| entry.path == *path).unwrap().shape.clone();
    let array = Array { shape, values: values(&trainer.model, path).into_iter().map(f64::from).collect() };
    if *turned { array.transposed().values } else { array.values }
}

/// Learning rate and weight decay of each parameter, and the multipliers, against microsoft/mup.
fn factors_match(case: &Case, model: &ModelConfig, names: &Names) {
    let trainer = trainer(case, model, names);
    let optimizer = optimizer(case);
    let per_parameter = case.part("per_parameter").table();
    assert_eq!(per_parameter.len(), trainer.table.iter().count(), "{}: per_parameter", case.name);
    for (name, want) in per_parameter {
        let (path, _) = &names.0[name];
        let entry = trainer.table.iter().find(|entry| entry.path == *path).unwrap();
        let pairs = [(entry.factors.lr, "lr_mult"), (optimizer.decay_of(entry), "weight_decay")];
        for (got, key) in pairs {
            let want = want.at(key).f64();
            assert!((got - want).abs() < 1e-12, "{}: {key} of {name} is {got}, not {want}", case.name);
        }
    }
    let shape = Shape { width: model.d_model, head_dim: model.d_model / model.n_heads, blocks: model.n_layers };
    let attention = model.parametrization.attention_logits(shape);
    for (got, key) in [(attention, "attention_scale"), (trainer.model.head_multiplier(), "output_multiplier")] {
        let want = case.number(key);
        assert!((got - want).abs() < 1e-12, "{}: {key} is {got}, not {want}", case.name);
    }
}
