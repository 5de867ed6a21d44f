//! Thirty training steps from given weights, against the losses, gradient norms and weights of the
//! same run in float64.

use crate::common::golden::{Array, Case, Names, numbers, walk};
use crate::common::{test_device, values};
use unitgain_model::{Activation, ModelConfig, NormConfig, Parametrization, Placement, Position};
use unitgain_train::checkpoint::assign;
use unitgain_train::{Batch, OptimizerConfig, Record, ScheduleConfig, Trainer, read_rows};

#[test]
fn trajectories_match_the_reference() {
    walk("trajectories", |kind, case| match kind {
        "trajectory" => {
            let n = |key| case.size(key);
            let norm = case.norm();
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
                tie_embeddings: case.setting("tied").as_bool().unwrap(),
                norm,
                placement: placement(case),
                ..ModelConfig::default()
            };
            let mut names = Names::decoder(n("N"), 0, norm);
            names.plain("tok_emb", "embedding".into());
            names.plain("pos_emb", "position".into());
            names.turned("lm_head", "head.weight".into());
            if placement(case) == (Placement::DeepNorm {}) {
                let alpha = Placement::DeepNorm {}.constant(0, n("N"));
                assert!((alpha - case.number("alpha")).abs() < 1e-9, "{}: alpha is {alpha}", case.name);
            }
            follow(case, &model, &names);
            true
        }
        "trajectory_mup" => {
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
                tie_embeddings: case.setting("tied").as_bool().unwrap(),
                norm: NormConfig::LayerNorm { eps: case.number("norm_eps"), gain: true, bias: true },
                parametrization: Parametrization::mup(n("base_width")),
                ..ModelConfig::default()
            };
            let names = Names::mup(n("layers"));
            factors_match(case, &model, &names);
            follow(case, &model, &names);
            true
        }
        _ => false,
    });
}

fn placement(case: &Case) -> Placement {
    match case.text("placement") {
        "pre_ln" => Placement::PreNorm {},
        "post_ln" => Placement::PostNorm {},
        "deepnorm" => Placement::DeepNorm {},
        "sandwich" => Placement::Sandwich {},
        other => panic!("{}: unknown placement {other:?}", case.name),
    }
}

fn optimizer(case: &Case) -> OptimizerConfig {
    let (lr, weight_decay) = (case.number("lr"), case.number("weight_decay"));
    let betas = || <[f64; 2]>::try_from(numbers(case.setting("betas"))).unwrap();
    match case.text("optimizer") {
        "adamw" | "mu_adamw" => {
            OptimizerConfig::Adamw { lr, betas: betas(), eps: case.number("eps"), weight_decay: weight_decay.into() }
        }
        "adam" | "mu_adam" => OptimizerConfig::Adam { lr, betas: betas(), eps: case.number("eps"), weight_decay },
        "sgd" | "mu_sgd" => {
            let nesterov = case.setting("nesterov").as_bool().unwrap_or(false);
            OptimizerConfig::Sgd {
                lr,
                momentum: case.setting("momentum").as_f64().unwrap_or(0.0),
                nesterov,
                weight_decay,
            }
        }
        "lion" => OptimizerConfig::Lion { lr, betas: betas(), weight_decay: weight_decay.into() },
        other => panic!("{}: unknown optimizer {other:?}", case.name),
    }
}

fn trainer(case: &Case, model: &ModelConfig, names: &Names) -> Trainer {
    let mut trainer = Trainer::new(model, optimizer(case), case.number("clip").into(), 1, &test_device()).unwrap();
    let given = case.tensors.iter().filter_map(|(name, array)| Some((name.strip_prefix("init.")?, array)));
    let values = names.ours(case, given);
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
    let expected = |key: &str| numbers(&case.json["expected"][key]);
    case.close("lr", "lr", &rates, &expected("lr"));
    let losses: Vec<f64> = rows.iter().map(|row| f64::from(row.loss)).collect();
    case.close("loss", "loss", &losses, &expected("loss"));
    let norms: Vec<f64> = rows.iter().map(|row| f64::from(row.grad_norm())).collect();
    case.close("grad_norm_before_clip", "grad_norm", &norms, &expected("grad_norm_before_clip"));
    for (step, (row, want)) in
        rows.iter().zip(case.json["expected"]["block_grad_norms"].as_array().unwrap()).enumerate()
    {
        let block = Record::block_norms(row, &trainer.table, model.n_layers);
        let block: Vec<f64> = block.into_iter().map(f64::from).collect();
        case.close("block_grad_norms", &format!("block norms of step {step}"), &block, &numbers(want));
    }
    for (name, want) in case.tensors.iter().filter_map(|(n, a)| Some((n.strip_prefix("final.")?, a))) {
        let got = Array { shape: want.shape.clone(), values: last(&trainer, names, name) };
        case.close(&format!("final.{name}"), name, &got.values, &want.values);
    }
    for (name, want) in case.json["expected"]["final_param_norms"].as_object().unwrap() {
        let norm = last(&trainer, names, name).iter().map(|x| x * x).sum::<f64>().sqrt();
        case.close("final_param_norms", &format!("norm of {name}"), &[norm], &[want.as_f64().unwrap()]);
    }
}

/// The final values of a weight, in the reference's layout.
fn last(trainer: &Trainer, names: &Names, name: &str) -> Vec<f64> {
    let (path, turned) = &names.0[name];
    let shape = trainer.table.iter().find(|entry| entry.path == *path).unwrap().shape.clone();
    let array = Array { shape, values: values(&trainer.model, path).into_iter().map(f64::from).collect() };
    if *turned { array.transposed().values } else { array.values }
}

/// The learning rate and weight decay of every parameter, and the multipliers, as microsoft/mup has
/// them.
fn factors_match(case: &Case, model: &ModelConfig, names: &Names) {
    let trainer = trainer(case, model, names);
    let optimizer = optimizer(case);
    for (name, want) in case.json["per_parameter"].as_object().unwrap() {
        let (path, _) = &names.0[name];
        let entry = trainer.table.iter().find(|entry| entry.path == *path).unwrap();
        let pairs = [(entry.factors.lr, "lr_mult"), (optimizer.decay_of(entry), "weight_decay")];
        for (got, key) in pairs {
            let want = want[key].as_f64().unwrap();
            assert!((got - want).abs() < 1e-12, "{}: {key} of {name} is {got}, not {want}", case.name);
        }
    }
    if let Some(head) = trainer.table.iter().find(|entry| entry.path == "head.weight") {
        assert!((head.factors.forward - case.number("output_multiplier")).abs() < 1e-12, "{}", case.name);
    }
}
