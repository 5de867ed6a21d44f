//! Tables, equivalent forms and coordinate checks of microsoft/mup.

use crate::common::golden::{Case, Json, Names, walk};
use crate::common::{host, memo, values};
use burn::module::{Module, ParamId};
use burn::tensor::{Device, Tensor};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use unitgain_init::Scheme;
use unitgain_model::weights::{assign, of as weights};
use unitgain_model::{
    Branch, Form, ModelConfig, ParamTable, Parametrization, Point, Probe, Role, Shape, Spec, Update, cross_entropy,
};
use unitgain_study::signal::slope;
use unitgain_train::{Batch, OptimizerConfig, Trainer};

#[test]
fn mup_matches_the_reference() {
    walk("mup", check);
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    match kind {
        "mup_table" => table(case),
        "mup_rules" => rules(case),
        "mup_equivalence" => equivalence(case),
        "coordinate_check" => coordinates(case),
        _ => return false,
    }
    true
}

/// The constant of the heads over widths: their number, or their size.
#[derive(Clone, Copy)]
enum Heads {
    Number(usize),
    Size(usize),
}

impl Heads {
    /// Parses `4 heads, head dim width/4`, `width/4 (4 heads)`, or `16 (width/16 heads)`; a plain number is passed to
    /// `alone`.
    fn of(setting: Json<'_>, alone: fn(usize) -> Self) -> Self {
        if setting.is_number() {
            return alone(setting.size());
        }
        let text = setting.text();
        let leading = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
        let behind = |words: &str| text.split_once(words).and_then(|(_, rest)| leading(rest));
        let number = text
            .split_once(" heads")
            .and_then(|(before, _)| before.rsplit([' ', '(']).next().and_then(|word| word.parse::<usize>().ok()));
        let size: Option<usize> = behind("head dim ").or_else(|| leading(text).filter(|_| number != leading(text)));
        match (number, size, behind("width/")) {
            (Some(number), None, Some(part)) if number == part => Self::Number(number),
            (None, Some(size), Some(part)) if size == part => Self::Size(size),
            _ => panic!("heads are given in words that no test knows: {text:?}"),
        }
    }

    fn number(self, width: usize) -> usize {
        match self {
            Self::Number(heads) => heads,
            Self::Size(size) => width / size,
        }
    }

    fn base_head_dim(self) -> Option<f64> {
        match self {
            Self::Number(_) => None,
            Self::Size(size) => Some(size as f64),
        }
    }
}

fn mup(case: &Case, form: Form, heads: Heads) -> Parametrization {
    let tuned = ["output_mult", "output_multiplier"].into_iter().find_map(|key| case.setting(key).given());
    let output_multiplier = tuned.map_or(1.0, Json::f64);
    Parametrization::Mup {
        base_width: case.size("base_width"),
        base_head_dim: heads.base_head_dim(),
        output_multiplier,
        form,
    }
}

/// The reference's decoder, with biases in the MLP only.
#[derive(Clone, Copy)]
struct Decoder {
    layers: usize,
    vocab: usize,
    context: usize,
    heads: Heads,
    tied: bool,
}

impl Decoder {
    fn of(case: &Case, heads: Heads) -> Self {
        let [layers, vocab, context] = ["layers", "vocab", "context"].map(|key| case.size(key));
        Self { layers, vocab, context, heads, tied: case.flag("tied") }
    }

    fn at(self, width: usize) -> ModelConfig {
        ModelConfig {
            vocab_size: Some(self.vocab),
            context: self.context,
            d_model: width,
            n_layers: self.layers,
            n_heads: self.heads.number(width),
            d_ff: Some(4 * width),
            bias: true,
            attention_bias: Some(false),
            tie_embeddings: self.tied,
            ..ModelConfig::default()
        }
    }
}

fn close(case: &Case, what: &str, got: f64, want: Json<'_>) {
    let want = want.f64();
    assert!((got - want).abs() <= 1e-6 * want.abs(), "{}: {what} is {got}, not {want}", case.name);
}

/// Shape of a weight in the reference's layout.
fn stored(names: &Names, name: &str, table: &ParamTable) -> Vec<usize> {
    let (path, turned) = names.0.get(name).unwrap_or_else(|| panic!("unknown weight {name}"));
    let entry = table.iter().find(|e| e.path == *path).unwrap_or_else(|| panic!("no weight {path}"));
    let mut shape = entry.shape.clone();
    if *turned {
        shape.reverse();
    }
    shape
}

/// Learning rate, decay and init of each parameter at each width, and the two multipliers.
fn table(case: &Case) {
    case.skip("settings/mup_version", "words");
    case.skip("expected/by_width/*/params/*/note", "words");
    let heads = Heads::of(case.setting("heads"), Heads::Number);
    let decoder = Decoder::of(case, heads);
    case.says("ff", &["4*width"]);
    assert!(!case.flag("readout_bias"), "{}: no test of where the package draws the bias of its readout", case.name);
    let names = Names::mup(decoder.layers);
    let base_width = case.size("base_width");
    let built = |width: usize, init: Scheme| {
        let config = ModelConfig { init: Some(init), ..decoder.at(width) };
        let config = ModelConfig { parametrization: mup(case, Form::Table8, heads), ..config };
        config.build(1, &Device::flex()).unwrap()
    };
    let widths = case.setting("widths").sizes();
    let by_width = case.expected().at("by_width");
    assert_eq!(by_width.table().len(), widths.len(), "{}: widths", case.name);
    for width in widths {
        let want = by_width.at(&width.to_string());
        let (model, torch) = built(width, Scheme::TorchLinear { embedding_std: 1.0 });
        let (_, normal) = built(width, Scheme::Normal { std: 0.02 });
        let (_, base) = built(base_width, Scheme::Normal { std: 0.02 });
        let (_, wider) = built(2 * base_width, Scheme::Normal { std: 0.02 });
        let by_update = [Update::Normalized, Update::Normalized, Update::Proportional];
        let of = |table: &ParamTable, path: &str| table.iter().find(|e| e.path == path).unwrap().clone();
        let params = want.at("params").table();
        assert_eq!(params.len(), normal.iter().count(), "{}: number of parameters", case.name);
        for (name, want) in params {
            let path = &names.0[name].0;
            let shape = stored(&names, name, &normal);
            assert_eq!(want.at("shape").sizes(), shape, "{}: shape of {name}", case.name);
            let of_base = stored(&names, name, &base);
            assert_eq!(want.at("base_shape").sizes(), of_base, "{}: base shape of {name}", case.name);
            let grows: Vec<bool> =
                of_base.iter().zip(stored(&names, name, &wider)).map(|(base, wider)| *base != wider).collect();
            let says: Vec<bool> = want.at("inf_dims").list().into_iter().map(Json::flag).collect();
            assert_eq!(says, grows, "{}: what grows of {name}", case.name);
            let class = ["fixed", "vector", "matrix"][grows.iter().filter(|grows| **grows).count()];
            assert_eq!(want.at("class").text(), class, "{}: class of {name}", case.name);
            let growth: Vec<f64> = shape.iter().zip(&of_base).map(|(n, base)| *n as f64 / *base as f64).collect();
            let main = growth.iter().zip(&grows).rev().find(|(_, grows)| **grows).map_or(1.0, |(growth, _)| *growth);
            close(case, &format!("growth of {name}"), main, want.at("width_mult"));
            if let [fan_out, fan_in] = growth[..] {
                close(case, &format!("fans of {name}"), fan_in / fan_out, want.at("fanin_mult_over_fanout_mult"));
            }
            for (update, kind) in by_update.into_iter().zip(["adam", "adamw", "sgd"]) {
                let entry = of(&normal.clone().for_updates(|_| update), path);
                close(case, &format!("lr of {name}"), entry.factors.lr, want.at(&format!("lr_mult_{kind}")));
                close(case, &format!("decay of {name}"), entry.factors.decay, want.at(&format!("wd_mult_{kind}")));
            }
            let is_drawn = path.ends_with("weight") || path == "embedding" || path == "position";
            // MuSharedReadout multiplies a tied embedding by sqrt(m), so that it grows with the width: a known bug of
            // the package (its issue 55); table 8 has no such factor.
            let is_tied = decoder.tied && name == "tok.weight";
            let fault = if is_tied { (width as f64 / base_width as f64).sqrt() } else { 1.0 };
            let stds = [
                ("default_rescaled", of(&torch, path).init_std * fault),
                ("mup_normal_0.02", of(&normal, path).init_std),
            ];
            for (key, std) in stds {
                let (exact, drawn) = (want.at(&format!("init_std_{key}")), want.at(&format!("measured_std_{key}")));
                match exact.given() {
                    Some(exact) => close(case, &format!("std of {name}"), std, exact),
                    None => assert!(!is_drawn, "{}: {name} has no init_std_{key}", case.name),
                }
                // A single draw of the package, with few numbers at the base width.
                if let Some(drawn) = drawn.given() {
                    let (drawn, n) = (drawn.f64(), shape.iter().product::<usize>() as f64);
                    let bound = case.tolerance("measured_std_*").1.max(4.0 / (2.0 * n).sqrt());
                    assert!((drawn / std - 1.0).abs() < bound, "{}: drawn std of {name}: {drawn} {std}", case.name);
                }
            }
            if let Some(value) = want.at("init_value").given() {
                let value = value.f64() as f32;
                assert!(values(&model, path).iter().all(|v| *v == value), "{}: first value of {name}", case.name);
            }
        }
        let shape = Shape { width, head_dim: width / heads.number(width), blocks: decoder.layers };
        let attention = mup(case, Form::Table8, heads).attention_logits(shape);
        close(case, "attention scale", attention, want.at("attention_scale"));
        close(case, "output multiplier", model.head_multiplier(), want.at("output_multiplier"));
    }
}

/// Tables 3 and 8.
fn rules(case: &Case) {
    case.says("m", &["width / base width"]);
    case.skip("expected/by_width/*/attention_scale_relative_to_1_over_sqrt_dhead", "words");
    for (width, want) in case.expected().at("by_width").table() {
        let size: usize = width.parse().unwrap();
        let shape = Shape { width: size, head_dim: size / 4, blocks: 2 };
        for (form, key) in [(Form::Table3, "A_no_multiplier"), (Form::Table8, "B_mup_package")] {
            for (class, want) in want.at(key).table() {
                let role = match class {
                    "input_or_embedding_matrix" => Role::Embedding,
                    "hidden_matrix" => Role::MlpIn,
                    "output_matrix" => Role::Head,
                    "hidden_size_bias_or_norm_gain" => Role::Norm,
                    // Outside any block, like the head's bias.
                    "output_bias" => Role::Bias,
                    other => panic!("{}: unknown class {other}", case.name),
                };
                let width = size as f64;
                let spec = Spec { role, fan_in: width, fan_out: width, blocks: 2, block: None, width };
                let of = |update| mup(case, form, Heads::Number(4)).factors(&spec, shape, update);
                let (adam, sgd) = (of(Update::Normalized), of(Update::Proportional));
                for (key, want) in want.table() {
                    let got = match key {
                        "init_std" => adam.init,
                        "forward_multiplier" => adam.forward,
                        "lr_adam" => adam.lr,
                        "lr_sgd" => sgd.lr,
                        other => panic!("{}: unknown factor {other}", case.name),
                    };
                    close(case, &format!("{form:?} {class} {key}"), got, want);
                }
                if form == Form::Table3 {
                    assert_eq!(adam.forward, 1.0);
                }
            }
        }
    }
}

/// The three tables train alike. At a power of four times the base width all factors are powers of two, so equality is
/// exact.
fn equivalence(case: &Case) {
    case.skip("settings/dtype", "of the reference; ours is f32, and agrees to the last bit");
    let lr = case.number("lr");
    let optimizer = match case.text("optimizer") {
        "adam" => OptimizerConfig::Adam { lr, betas: [0.9, 0.999], eps: case.number("adam_eps"), weight_decay: 0.0 },
        "sgd" => {
            case.skip("settings/adam_eps", "no part of this optimizer's rule");
            OptimizerConfig::Sgd { lr, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
        }
        other => panic!("{}: unknown optimizer {other}", case.name),
    };
    let steps = case.size("steps");
    let decoder = Decoder { layers: 2, vocab: 64, context: 16, heads: Heads::Number(4), tied: false };
    let losses = |form| -> Vec<f32> {
        let config = ModelConfig {
            init: Some(Scheme::TorchLinear { embedding_std: 1.0 }),
            parametrization: mup(case, form, decoder.heads),
            ..decoder.at(case.size("width"))
        };
        let mut trainer = Trainer::new(&config, optimizer, 0.0.into(), 5, &Device::flex()).unwrap();
        let tokens = |step: i32| (0..64).map(|i| (i * i * 7 + step * 13 + i / 3) % 64).collect::<Vec<i32>>();
        let mut rows = Vec::new();
        for step in 0..steps as i32 {
            let batch = Batch { rows: 4, time: 16, tokens: tokens(step), targets: tokens(step + 5), weights: None };
            let (next, row) = trainer.step(&[batch], lr, false);
            trainer = next;
            rows.push(row);
        }
        unitgain_train::read_rows(&rows).iter().map(|row| row.loss).collect()
    };
    let of_package = losses(Form::Table8);
    assert!(of_package.iter().all(|loss| loss.is_finite()) && of_package[steps - 1] != of_package[0]);
    for form in [Form::Table3, Form::Table9] {
        assert_eq!(losses(form), of_package, "{}: {form:?}", case.name);
    }
    // Its weights are not given; we compare the agreement and the number of the reference's losses.
    let of = case.expected().at("losses");
    let [package, plain] = ["B_mup_package", "A_no_multiplier"].map(|key| of.at(key).numbers());
    assert_eq!([package.len(), plain.len()], [steps; 2], "{}: steps", case.name);
    let apart = package.iter().zip(&plain).fold(0f64, |most, (a, b)| most.max((a - b).abs()));
    assert_eq!(apart, case.expected().at("max_abs_difference").f64(), "{}: difference of the two forms", case.name);
    assert!(apart <= case.tolerance("difference between the two forms").0, "{}: the two forms differ", case.name);
}

/// Results of a run of a coordinate check: by activation and step (from 0), mean |x| and mean |change|; and the losses.
#[derive(Clone, Debug, Default)]
struct Measured {
    sizes: BTreeMap<String, Vec<f64>>,
    changes: BTreeMap<String, Vec<f64>>,
    losses: Vec<f64>,
}

/// Sizes or changes.
type Part = fn(&Measured) -> &BTreeMap<String, Vec<f64>>;

/// Sizes and changes of each activation over the width, their slopes, and the losses, standard and muP. Our random
/// numbers differ, so two means of `seeds` runs are compared.
fn coordinates(case: &Case) {
    case.says("model", &["pre-LN decoder", "q,k,v,o without bias", "4*width, exact GELU", "LayerNorm eps 1e-5"]);
    case.says("init", &["matrices N(0,1/fan_in), token embedding N(0,1), positions N(0,0.1^2), biases 0"]);
    case.says("attention_scale", &["SP 1/sqrt(head_dim); muP sqrt(base_head_dim)/head_dim"]);
    case.says("data", &["one batch of uniform random tokens and targets, repeated every step"]);
    let heads = Heads::of(case.setting("head_dim"), Heads::Size);
    let decoder = Decoder::of(case, heads);
    let (seeds, steps) = (case.size("seeds"), case.size("steps"));
    let widths = case.setting("widths").sizes();
    for kind in ["sp", "mup"] {
        let want = case.expected().at(kind);
        let runs: Vec<Vec<Measured>> = widths
            .iter()
            .map(|width| (0..seeds as u64).map(|seed| measured(case, kind, decoder, (*width, seed))).collect())
            .collect();
        let layers: Vec<&String> = runs[0][0].sizes.keys().collect();
        let of = |what: Part, layer: &str, t: usize| -> Vec<f64> {
            let mean = |runs: &Vec<Measured>| runs.iter().map(|run| what(run)[layer][t]).sum::<f64>() / seeds as f64;
            runs.iter().map(mean).collect()
        };
        let quantities: [(_, Part, f64); 2] =
            [("mean_abs", |run| &run.sizes, 0.15), ("mean_abs_change", |run| &run.changes, 0.2)];
        for (key, what, rtol) in quantities {
            let slopes = want.at(&format!("slope_{key}"));
            for part in [want.at(key), slopes] {
                let theirs: Vec<&str> = part.table().into_iter().map(|(layer, _)| layer).collect();
                let unknown: Vec<_> = theirs.iter().filter(|layer| !layers.iter().any(|own| own == *layer)).collect();
                assert!(unknown.is_empty() && theirs.len() == layers.len(), "{}: {unknown:?}", case.name);
            }
            for layer in &layers {
                let (want, slopes) = (want.at(key).at(layer), slopes.at(layer).list());
                assert_eq!(slopes.len(), steps + 1, "{}: slopes of {layer}", case.name);
                for (t, of_slope) in slopes.into_iter().enumerate() {
                    let ours = of(what, layer, t);
                    let means = widths.iter().zip(&ours).map(|(width, got)| {
                        let by_step = want.at(&width.to_string()).list();
                        assert_eq!(by_step.len(), steps + 1, "{}: steps of {layer}", case.name);
                        let what = format!("{key} of {layer} at width {width}, step {t}, under {kind}");
                        mean_of_seeds(case, &what, by_step[t].numbers(), *got, rtol)
                    });
                    let means: Vec<f64> = means.collect();
                    let what = format!("the slope of {key} of {layer} at step {t} under {kind}");
                    slope_of(case, &what, &widths, (&ours, &means), of_slope);
                }
            }
        }
        let losses = want.at("loss");
        assert_eq!(losses.table().len(), widths.len(), "{}: losses", case.name);
        for (width, runs) in widths.iter().zip(&runs) {
            let theirs = losses.at(&width.to_string()).list();
            assert_eq!(theirs.len(), seeds, "{}: seeds", case.name);
            for of_seed in theirs.into_iter().map(Json::numbers) {
                assert_eq!(of_seed.len(), steps + 1, "{}: steps", case.name);
                for (t, want) in of_seed.into_iter().enumerate() {
                    let got = runs.iter().map(|run| run.losses[t]).sum::<f64>() / seeds as f64;
                    let what = format!("the loss at width {width}, step {t}, under {kind}");
                    // A loss below 1 is too noisy: the reference's own seeds differ by half of it and more.
                    let allowed = if want > 1.0 { 0.15 * want } else { 0.3 };
                    assert!((got - want).abs() < allowed, "{}: {what} is {got:.3}, not {want:.3}", case.name);
                }
            }
        }
    }
}

/// Mean, minimum and maximum over the reference's seeds, which must be consistent, and whose mean must match ours.
fn mean_of_seeds(case: &Case, what: &str, of_seeds: Vec<f64>, got: f64, rtol: f64) -> f64 {
    let [mean, least, most] = of_seeds[..] else { panic!("{}: {what}: {of_seeds:?}", case.name) };
    let rest = (case.size("seeds") - 1) as f64;
    let sum = (rest + 1.0) * mean;
    let rounding = 1e-5 * mean;
    let fit = least + rest * most + rounding >= sum && rest * least + most - rounding <= sum && least <= most;
    assert!(fit, "{}: {what}: {mean} is no mean from {least} to {most}", case.name);
    assert!((got - mean).abs() <= rtol * mean, "{}: {what} is {got:.4}, not {mean:.4}", case.name);
    mean
}

/// The slopes of our means and of the reference's means, against the reference's slope.
fn slope_of(case: &Case, what: &str, widths: &[usize], (ours, means): (&[f64], &[f64]), want: Json<'_>) {
    let of = |values: &[f64]| {
        let points = widths.iter().zip(values).map(|(width, value)| ((*width as f64).log2(), value.log2()));
        slope(&points.collect::<Vec<_>>())
    };
    let Some(want) = want.given() else {
        assert!(means.iter().all(|mean| *mean == 0.0), "{}: {what} is missing", case.name);
        return;
    };
    let want = want.f64();
    // Given with three decimals.
    assert!((of(means) - want).abs() < 1e-3, "{}: {what}, of its own means: {}, not {want}", case.name, of(means));
    let tolerance = case.tolerance("slope_mean_abs_change (t>=1)").0;
    let got = of(ours);
    println!("{what}: {got:+.2} ({want:+.2})");
    assert!((got - want).abs() <= tolerance, "{}: {what} is {got:.3}, not {want:.3}", case.name);
}

/// One run of a coordinate check.
fn measured(case: &Case, kind: &str, decoder: Decoder, (width, seed): (usize, u64)) -> Measured {
    let device = Device::flex();
    let zero = case.flag("zero_init_readout_and_q");
    let lr = case.number("lr_at_base_width");
    let config = ModelConfig {
        init: Some(Scheme::Lecun {
            gain: unitgain_init::Gain::Constant { value: 1.0 },
            form: unitgain_init::Form::Normal,
            embedding_std: 1.0,
        }),
        parametrization: match kind {
            "sp" => Parametrization::Standard {},
            "mup" => mup(case, Form::Table8, decoder.heads),
            other => panic!("{}: unknown parametrization {other}", case.name),
        },
        zero_query: zero,
        zero_readout: zero,
        ..decoder.at(width)
    };
    let optimizer = match case.text("optimizer") {
        "adam" => OptimizerConfig::Adam { lr, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 },
        "sgd" => OptimizerConfig::Sgd { lr, momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        other => panic!("{}: unknown optimizer {other}", case.name),
    };
    let (rows, time) = (case.size("batch"), case.size("context"));
    let ids = |name: &str| {
        let array = case.array(name);
        assert_eq!(array.shape, [rows, time], "{}: {name}", case.name);
        array.values.iter().map(|id| *id as i32).collect::<Vec<_>>()
    };
    let batch = Batch { rows, time, tokens: ids("x"), targets: ids("y"), weights: None };
    let steps = case.size("steps");
    memo(format!("{config:?} {optimizer:?} {batch:?} {steps} {seed}"), || {
        let mut trainer = Trainer::new(&config, optimizer, 0.0.into(), seed, &device).unwrap();
        // The reference draws positions at a tenth of the tokens' size.
        let mut values: HashMap<_, _> =
            weights(&trainer.model).into_iter().map(|(path, shape, values)| (path, (shape, values))).collect();
        values.get_mut("position").unwrap().1.iter_mut().for_each(|w| *w *= 0.1);
        trainer.model = assign(trainer.model, &values).unwrap();
        let see = |trainer: &Trainer| {
            let mut paths = HashMap::new();
            trainer.model.visit(&mut unitgain_model::Walk::new(|path: &str, id, _: Vec<usize>| {
                paths.insert(id, path.to_string());
            }));
            let seen = Seen { paths, values: RefCell::default() };
            let (tokens, targets) = batch.tensors(&device);
            let logits = trainer.model.valid().forward_probed(tokens, &seen);
            let loss = cross_entropy(logits, targets, None).into_scalar::<f32>();
            (seen.values.into_inner(), f64::from(loss))
        };
        let mut measured = Measured::default();
        let (first, _) = see(&trainer);
        for step in 0..=steps {
            let (seen, loss) = see(&trainer);
            measured.losses.push(loss);
            for (name, now) in seen {
                let mean = |sum: f64| sum / now.len() as f64;
                let size = mean(now.iter().map(|x| f64::from(x.abs())).sum());
                let change = mean(first[&name].iter().zip(&now).map(|(a, b)| f64::from((a - b).abs())).sum());
                measured.sizes.entry(name.clone()).or_default().push(size);
                measured.changes.entry(name).or_default().push(change);
            }
            if step < steps {
                (trainer, _) = trainer.step(std::slice::from_ref(&batch), lr, false);
            }
        }
        measured
    })
}

/// Records activations under the reference's names.
struct Seen {
    paths: HashMap<ParamId, String>,
    values: RefCell<BTreeMap<String, Vec<f32>>>,
}

impl Seen {
    fn note<const D: usize>(&self, name: String, x: &Tensor<D>) {
        self.values.borrow_mut().insert(name, host(x.clone()));
    }
}

impl Probe for Seen {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        let name = match point {
            Point::Embedding => "emb".into(),
            Point::Block(l) => format!("block{l}.resid"),
            Point::FinalNorm => "ln_f".into(),
            Point::Logits => "logits".into(),
        };
        self.note(name, &x);
        x
    }

    fn branch(&self, block: usize, branch: Branch, y: Tensor<2>) -> Tensor<2> {
        let name = if branch == Branch::Mlp { "fc2" } else { "attn_out" };
        self.note(format!("block{block}.{name}"), &y);
        y
    }

    fn sees_layers(&self) -> bool {
        true
    }

    fn linear(&self, weight: ParamId, y: Tensor<2>) -> Tensor<2> {
        let path = &self.paths[&weight];
        for (ours, theirs) in [("query", "q"), ("key", "k"), ("value", "v"), ("up", "fc1")] {
            if let [_, l, _, name, _] = path.split('.').collect::<Vec<_>>()[..]
                && name == ours
            {
                self.note(format!("block{l}.{theirs}"), &y);
            }
        }
        y
    }

    fn attention(&self, block: usize, q: &Tensor<4>, k: &Tensor<4>, scale: f64, _: Option<usize>) {
        let logits = q.clone().swap_dims(1, 2).matmul(k.clone().swap_dims(1, 2).transpose()) * scale;
        let time = logits.dims()[3];
        // Masked entries do not count.
        let earlier = host(logits).into_iter().enumerate().filter(|(i, _)| i % time <= i / time % time);
        let logits: Vec<f32> = earlier.map(|(_, x)| x).collect();
        self.values.borrow_mut().insert(format!("block{block}.attn_logits"), logits);
    }
}
