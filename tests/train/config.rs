//! What a configuration says of its faults, and how settings change it.

use crate::common::keys::{at, at_mut, in_toml, shown};
use toml::{Table, Value};
use unitgain_model::{
    Activation, NormConfig, Parametrization, Placement, Position, RopeScaling, ScaleConfig, Scheme, Variant,
    WeightNormConfig,
};
use unitgain_train::config::TAGS;
use unitgain_train::{Calibrate, ClipConfig, DataConfig, OnDivergence, OptimizerConfig, RunConfig, ScheduleConfig};
use unitgain_variant::assert_listed;

fn parse(text: &str, settings: &[&str]) -> Result<RunConfig, String> {
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    RunConfig::parse(text, "run.toml", &settings).map_err(|e| e.to_string())
}

#[test]
fn faults_name_the_key_and_what_is_allowed() {
    for (text, expected) in [
        ("[model]\nd_modle = 3", "model.d_modle: unknown key. Did you mean `d_model`?"),
        ("[model.norm]\nkind = 'rms_norm'\nepz = 1", "model.norm.epz: unknown key. Did you mean `eps`?"),
        ("[model.norm]\nkind = 'none'\neps = 1", "model.norm.eps: unknown key. There are no keys here"),
        ("[model]\nplacement = 'prenorm'", "model.placement: unknown value \"prenorm\". Did you mean `pre_norm`?"),
        ("[model]\nnorm = 'rms'", "model.norm: unknown value \"rms\". Allowed: layer_norm, rms_norm, "),
        (
            "[model]\nd_model = 'wide'",
            "model.d_model: invalid type: string \"wide\", expected a whole number, 0 or more",
        ),
        (
            "[train]\nbatch_size = -1",
            "train.batch_size: invalid value: integer `-1`, expected a whole number, 0 or more",
        ),
        ("[model.parametrization]\nkind = 'mup'", "model.parametrization.base_width: missing: it has no default"),
        ("[[model.block]]\nrange = [0, 1]\nnorn = 1", "model.block[0].norn: unknown key. Did you mean `norm`?"),
        ("[optimizer]\nkind = 'adamw'\nlr = 'x'", "optimizer.lr: invalid type: string \"x\", expected a number"),
        ("[schedule]\nkind = 'cosine'\nwarmup = -1", "schedule.warmup: invalid value: integer `-1`"),
        (
            "[data]\ntask = 'text'\npath = 'x'\ntokenizer = 'word'",
            "data.tokenizer: unknown value \"word\". Allowed: byte, char",
        ),
        ("[model]\nnorm = { eps = 1e-5 }", "model.norm.kind: missing: say which"),
        (
            "[optimizer]\nkind = 'adamw'\nweight_decay = { value = 0.1 }",
            "optimizer.weight_decay.kind: missing: say which",
        ),
        (
            "[optimizer]\nkind = 'adamw'\nweight_decay = { kind = 'indep' }",
            "optimizer.weight_decay.kind: unknown value \"indep\"",
        ),
        ("model = 3", "model: invalid type: integer `3`, expected a table"),
        ("model = [1]", "model: invalid type: a list, expected a table"),
        ("[model]\nblock = [[[0, 1]]]", "model.block[0]: invalid type: a list, expected a table"),
        ("data = ['markov']", "data: invalid type: a list, expected a table"),
        (
            "[model]\nactivation = 3",
            "model.activation: invalid type: integer `3`, expected one of relu, relu_squared, ",
        ),
        ("seed = 1979-05-27", "seed: invalid type: date `1979-05-27`, which no key has"),
        ("backend = 1979-05-27", "backend: invalid type: date `1979-05-27`"),
        ("[optimizer]\nbetas = [1, 2, 3]", "optimizer.betas: invalid length: a list of 3, expected a list of 2"),
        (
            "[model]\ninit = { kind = 'xavier', gain = { kind = 'torch', activation = 3 } }",
            "model.init.gain.activation: ",
        ),
        ("[[model.block]]\nrange = [0, 1e17]", "model.block[0].range[1]: invalid type: number `1e17`"),
        ("seed = 18446744073709551615", "run.toml:1: seed: the number is too large"),
        ("[optimizer]\nlr = 1e400", "run.toml:2: optimizer.lr: the number is too large"),
        ("[optimiser]\nlr = 1", "optimiser: unknown key. Did you mean `optimizer`?"),
        ("[data]\ntask = 'text'", "data.path: missing"),
        ("[model\n", "run.toml is not valid TOML"),
    ] {
        let problem = parse(text, &[]).unwrap_err();
        assert!(problem.contains(expected), "{problem:?} does not say {expected:?}");
    }
}

#[test]
fn a_kind_can_stand_for_its_table() {
    let short =
        parse("optimizer = 'lion'\n[model]\nnorm = 'rms_norm'\nscale = 're_zero'\ninit = 'xavier'", &[]).unwrap();
    assert_eq!(short.model.norm, NormConfig::rms_norm());
    assert_eq!(short.model.scale, ScaleConfig::ReZero { shared: false });
    assert_eq!(short.optimizer.about().name, "lion");
}

#[test]
fn a_clip_is_a_number_a_kind_or_a_table() {
    let clip = |text: &str| parse(&format!("[train]\nclip = {text}"), &[]).unwrap().train.clip;
    assert_eq!(clip("2"), ClipConfig::GlobalNorm { max: 2.0 });
    assert_eq!(clip("0.5"), ClipConfig::GlobalNorm { max: 0.5 });
    assert_eq!(clip("0"), ClipConfig::None {});
    assert_eq!(clip("'adaptive'"), ClipConfig::Adaptive { lambda: 0.01, eps: 1e-3 });
    assert_eq!(clip("{ kind = 'adaptive', lambda = 0.1 }"), ClipConfig::Adaptive { lambda: 0.1, eps: 1e-3 });
    let changed = parse("[train]\nclip = 0.5", &["train.clip.max=2"]).unwrap();
    assert_eq!(changed.train.clip, ClipConfig::GlobalNorm { max: 2.0 });
    let set = parse("[train]\nclip = 0.5", &["train.clip.kind=adaptive", "train.clip.lambda=0.2"]).unwrap();
    assert_eq!(set.train.clip, ClipConfig::Adaptive { lambda: 0.2, eps: 1e-3 });
    assert!(parse("[train]\nclip = true", &[]).unwrap_err().contains("train.clip: invalid type"));
}

#[test]
fn settings_reach_every_key() {
    let config = parse(
        "[model]\nnorm = 'rms_norm'\n[[model.block]]\nrange = [0, 1]",
        &[
            "model.norm.eps=1e-3",
            "model.placement=deep_norm",
            "optimizer.lr=0.5",
            "model.block.0.scale=re_zero",
            "seed=7",
        ],
    )
    .unwrap();
    assert_eq!(config.model.norm, NormConfig::RmsNorm { eps: 1e-3, gain: true, unit_offset: false });
    assert_eq!(config.model.placement, Placement::DeepNorm {});
    assert_eq!((config.optimizer.lr(), config.seed), (0.5, 7));
    assert_eq!(config.model.block[0].scale, Some(ScaleConfig::ReZero { shared: false }));
}

#[test]
fn a_new_kind_starts_from_its_defaults() {
    let text = "[model.parametrization]\nkind = 'mup'\nbase_width = 64\n[optimizer]\nkind = 'adamw'\nlr = 0.5";
    let config = parse(text, &["model.parametrization.kind=standard", "optimizer.kind=adamw"]).unwrap();
    assert_eq!(config.model.parametrization, Parametrization::Standard {});
    assert_eq!(config.optimizer.lr(), 0.5);
}

#[test]
fn a_kind_comes_before_its_settings_in_any_order() {
    let sgd = parse("", &["optimizer.lr=0.5", "optimizer.kind=sgd"]).unwrap();
    assert_eq!((sgd.optimizer.about().name, sgd.optimizer.lr()), ("sgd", 0.5));
    let text = parse("", &["data.path=t.txt", "data.task=text"]).unwrap();
    assert!(matches!(text.data, DataConfig::Text { .. }));
    assert!(parse("", &["optimizer.momntum=0.5", "optimizer.kind=sgd"]).unwrap_err().contains("momentum"));
    assert_eq!(parse("", &["seed=1", "seed=2"]).unwrap().seed, 2);
}

#[test]
fn a_run_that_does_not_fit_into_memory_is_refused() {
    let problem = parse("[train]\nbatch_size = 200000", &[]).unwrap().resolved(32).unwrap_err().to_string();
    assert!(problem.contains("train.batch_size") && problem.contains("GB"), "{problem}");
}

#[test]
fn faulty_settings_are_named() {
    let problem = |setting| parse("", &[setting]).unwrap_err();
    assert!(problem("model.width=3").contains("model.width: unknown key"));
    assert!(problem("seed").contains("--set key.path=value"));
    assert!(problem("seed.x=1").contains("seed"));
    assert!(problem("model.block.0.norm=none").contains("model.block"));
    assert!(problem("model..norm=none").contains("empty part"));
}

#[test]
fn values_out_of_range_are_named() {
    let problem = |text: &str| parse(text, &[]).unwrap().resolved(32).unwrap_err().to_string();
    for (text, expected) in [
        ("[train]\nbatch_size = 0", "train.batch_size: 0 must be at least 1"),
        ("[train]\nclip = -1.0", "train.clip.max: -1 must be a positive number"),
        ("[train]\nsteps = 5\n[schedule]\nkind = 'constant'\nwarmup = 6", "schedule.warmup: 6 is longer than the run"),
        ("[train]\nsteps = 5\n[schedule]\nkind = 'warmup_stable_decay'\nwarmup = 3\ndecay = 3", "schedule.decay: 3"),
        ("[optimizer]\nkind = 'adamw'\nbetas = [0.9, 1.0]", "optimizer.betas: 1 must be"),
        ("[optimizer]\nkind = 'sgd'\nlr = 0.0", "optimizer.lr: 0 must be a positive number"),
        ("[model]\nd_model = 130", "model.d_model = 130: must be a multiple of n_heads = 4"),
        ("[model]\nd_model = 12\nposition = 'rope'", "model.head_dim = 3: must be even"),
        ("[model]\nvocab_size = 7", "model.vocab_size: 7 is not the vocabulary of the data, which is 32"),
        ("[model]\ndropout = 1.0", "model.dropout = 1"),
        ("[model.norm]\nkind = 'rms_norm'\neps = 0.0", "model.norm.eps = 0: must be a number of at least 1e-18"),
        ("backend = 'gpu'", "unknown backend"),
    ] {
        let problem = problem(text);
        assert!(problem.contains(expected), "{problem:?} does not say {expected:?}");
    }
}

#[test]
fn a_resolved_configuration_is_read_back_as_itself() {
    let text = "[model]\nplacement = 'deep_norm'\nscale = 'layer_scale'\nactivation = 'swi_glu'\nposition = 'rope'\n\
                [model.parametrization]\nkind = 'mup'\nbase_width = 64\n[[model.block]]\nrange = [1, 2]\nnorm = 'rms_norm'";
    let resolved = parse(text, &[]).unwrap().resolved(32).unwrap();
    let again = parse(&resolved.to_toml(), &[]).unwrap();
    assert_eq!(again, resolved);
    assert_eq!(again.resolved(32).unwrap(), resolved);
    for key in ["head_dim = 32", "d_ff = 344", "init = 0.1", "base_head_dim = 16.0", "embedding_std = 0.02", "burn = "]
    {
        assert!(resolved.to_toml().contains(key), "{key} is not in\n{}", resolved.to_toml());
    }
}

#[test]
fn differences_name_the_keys_that_change_a_step() {
    let a = parse("", &[]).unwrap();
    let b = parse("[optimizer]\nkind = 'adamw'\nlr = 0.5\n[log]\nevery = 3", &[]).unwrap();
    assert_eq!(a.differences(&a), Vec::<String>::new());
    assert_eq!(a.differences(&b), ["optimizer.lr (0.001, now 0.5)"]);
}

#[test]
fn a_table_without_its_kind_has_the_default_one() {
    let text = "[optimizer]\nlr = 0.5\n[schedule]\nwarmup = 3\n[data]\nvocab_size = 7";
    let config = RunConfig::parse(text, "run.toml", &[]).unwrap();
    let same = ["optimizer.lr=0.5", "schedule.warmup=3", "data.vocab_size=7"].map(String::from);
    assert_eq!(config, RunConfig::parse("", "run.toml", &same).unwrap());
    assert_eq!((config.optimizer.lr(), config.schedule.warmup()), (0.5, 3));
}

#[test]
fn every_fault_has_its_line() {
    let text = "seed = 'one'\n\n[model]\nd_modle = 3\nnorm = { kind = 'rms_norm', epz = 1 }\nplacement = 'prenorm'\n\
                [optimizer]\nkind = 'adamw'\nlr = 'x'\neps = 'x'\nweight_decay = { kind = 'indep' }\n\
                [[model.block]]\nrange = [0, 1]\nnorn = 1\n[[model.block]]\nrange = [1, 2]\nscale = 'on'\n";
    let problem = parse(text, &[]).unwrap_err();
    for part in [
        "9 faults",
        "run.toml:1: seed: invalid type",
        "run.toml:4: model.d_modle: unknown key",
        "run.toml:5: model.norm.epz: unknown key",
        "run.toml:6: model.placement: unknown value",
        "run.toml:9: optimizer.lr: invalid type",
        "run.toml:10: optimizer.eps: invalid type",
        "run.toml:11: optimizer.weight_decay.kind: unknown value",
        "run.toml:14: model.block[0].norn: unknown key",
        "run.toml:17: model.block[1].scale: unknown value",
    ] {
        assert!(problem.contains(part), "{part} is not in\n{problem}");
    }
    assert_eq!(problem.lines().count(), 10, "{problem}");
}

#[test]
fn a_key_in_the_wrong_place_is_told_where_it_belongs() {
    for (text, expected) in [
        ("lr = 1", "lr: unknown key. It belongs elsewhere: write `optimizer.lr`"),
        ("[train]\nbackend = 'flex'", "write `backend`, above the first table"),
        ("[train]\nd_model = 8", "write `model.d_model`"),
        (
            "'optimizer.lr' = 1",
            "write `optimizer.lr = ..` without quotes above the first table, or `lr = ..` below [optimizer]",
        ),
        ("[model]\n'norm.eps' = 1", "`model.norm.eps = ..` without quotes"),
        ("[model]\nhidden_size = 8", "`hidden_size` of Hugging Face's config.json is `model.d_model` here"),
        ("[train]\nper_device_train_batch_size = 8", "TrainingArguments is `train.batch_size` here"),
        ("[model]\nuse_rmsnorm = true", "x-transformers is `model.norm` here = \"rms_norm\""),
        ("n_layesr = 8", "Did you mean `model.n_layers`?"),
        // A key of another kind of the same table.
        ("[optimizer]\nmomentum = 0.5", "optimizer.momentum: unknown key. Allowed: lr, betas, eps, weight_decay"),
        ("zzz = 1", "Allowed: seed, backend, threads, "),
    ] {
        let problem = parse(text, &[]).unwrap_err();
        assert!(problem.contains(expected), "{problem:?} does not say {expected:?}");
    }
    let problem = parse("", &["n_embd=3"]).unwrap_err();
    assert!(problem.contains("--set: n_embd: unknown key. `n_embd` of nanoGPT"), "{problem}");
}

/// A value that is wrong only because of another fault is not reported.
#[test]
fn a_consequence_is_no_fault() {
    for text in [
        "[data]\ntask = 'text'\npath = 3",
        "[data]\ntask = 'text'\npth = 'x'",
        "[model]\nnorm = { knd = 'rms_norm' }",
        "[optimizer]\nkind = 'nothing alike'",
    ] {
        let problem = parse(text, &[]).unwrap_err();
        assert_eq!(problem.lines().count(), 1, "{problem}");
    }
    // Zero heads would divide by zero, and any warm-up is longer than a run of no steps.
    let text = "[model]\nn_heads = 0\nn_kv_heads = 3\n[train]\nsteps = 0\n[schedule]\nwarmup = 2000";
    let problem = parse(text, &[]).unwrap().prepare().unwrap_err().to_string();
    assert!(
        problem.contains("run.toml:2: model.n_heads = 0") && problem.contains("run.toml:5: train.steps: 0"),
        "{problem}"
    );
    assert_eq!(problem.lines().count(), 3, "{problem}");
}

#[test]
fn a_text_is_taken_as_it_is() {
    let path = |value: &str| match parse("[data]\ntask = 'text'\npath = 'x'", &[&format!("data.path={value}")])
        .unwrap()
        .data
    {
        DataConfig::Text { path, .. } => path.display().to_string(),
        other => unreachable!("{other:?}"),
    };
    for name in ["2024", "true", "nan", "inf", "1_000", "2024#1", "a#b", "#", "[1]", "{}", "1979-05-27", "a, b", "it's"]
    {
        assert_eq!(path(name), name);
    }
    assert_eq!(path("'2024'"), "2024", "quotes are those of TOML");
    assert!(parse("", &["backend=2024"]).unwrap().backend == "2024");
    for (setting, key) in [
        ("seed=3 # three", "seed"),
        ("optimizer.lr=1e-3#", "optimizer.lr"),
        ("seed=1,", "seed"),
        ("seed=1, 2", "seed"),
        ("seed=1]\nseed = [2", "seed"),
    ] {
        assert!(parse("", &[setting]).unwrap_err().contains(&format!("{key}: invalid type")), "{setting}");
    }
    assert_eq!(parse("", &["optimizer.betas=[0.5, 0.6]"]).unwrap().optimizer.lr(), 1e-3);
}

#[test]
fn values_are_told_beside_keys() {
    let text = "n_head = 8\nmax_iters = 5000\n[model]\nd_model = 44\ndropout = 1.5\n[train]\nbatch_size = 0\n\
                [schedule]\nwarmup = 2000\n[optimizer]\nlr = -1";
    let problem = parse(text, &["model.widht=3"]).unwrap_err();
    for part in [
        "run.toml:1: n_head: unknown key",
        "run.toml:2: max_iters: unknown key",
        "run.toml:5: model.dropout = 1.5",
        "run.toml:7: train.batch_size: 0 must be",
        "run.toml:11: optimizer.lr: -1 must be",
        "--set: model.widht: unknown key",
    ] {
        assert!(problem.contains(part), "{part} is not in\n{problem}");
    }
    // Warm-up and width are compared only when steps and heads are valid.
    assert_eq!(problem.lines().count(), 7, "{problem}");
}

/// The path of every key of every kind of table.
fn leaves() -> Vec<(String, Table)> {
    let mut all: Vec<(String, Table)> = Vec::new();
    let mut known = std::collections::BTreeSet::new();
    let mut add = |text: &str| {
        let resolved = parse(text, &[]).unwrap().to_value();
        let mut paths = Vec::new();
        collect(&resolved, String::new(), &mut paths);
        for path in paths {
            let table: Vec<String> = path.split('.').map(String::from).collect();
            let kind = TAGS.iter().find_map(|tag| {
                at(&resolved, &[&table[..table.len() - 1], &[tag.to_string()]].concat()).map(Value::to_string)
            });
            if known.insert((path.clone(), kind)) {
                all.push((path, resolved.as_table().unwrap().clone()));
            }
        }
    };
    let blocks = "[[model.block]]\nrange = [0, 1]\nplacement = 'mix_norm'\nmlp_placement = 'admin'\nnorm = 'group_norm'\n\
                  scale = 'layer_scale'";
    add(
        "threads = 1\n[versions]\nunitgain = 'x'\n[init]\ncalibrate = 'lsuv'\n[model]\nvocab_size = 8\nn_kv_heads = 2\n\
         head_dim = 2\nd_ff = 4\nattention_bias = true\nqkv_bias = true\nembedding_scale = 'learned'\nembedding_norm = 'dyt'\n\
         attention_scale = { kind = 'learned', init = 1.0, per_head = true }\nmlp_placement = 'none'\nfinal_norm = true\n\
         head_scale = true\nposition = 'rope'\ninit = { kind = 'kaiming', gain = { kind = 'torch', activation = 'relu' } }",
    );
    add(blocks);
    add("[model]\nposition = 'none'\nwindow = 4\n[[model.block]]\nrange = [0, 1]\nwindow = 2\nposition = 'rope'");
    for scaling in in_toml::<RopeScaling>() {
        add(&format!("[model]\nposition = {{ kind = 'rope', fraction = 0.5, scaling = {scaling} }}"));
    }
    for name in NormConfig::names() {
        add(&format!("[model]\nnorm = {name:?}"));
    }
    for name in ClipConfig::names() {
        add(&format!("[train]\nclip = {name:?}"));
    }
    for scheme in Scheme::all() {
        let around =
            if scheme.is_norm_free() { "placement = 'none'\nqk_norm = 'none'\nfinal_norm = false" } else { "" };
        add(&format!("[model]\ninit = {:?}\n{around}", scheme.about().name));
    }
    for name in Calibrate::names() {
        let model = match *name {
            "admin" => "placement = 'admin'",
            "data_dependent" => "bias = true",
            _ => "",
        };
        add(&format!("[init]\ncalibrate = {name:?}\n[model]\n{model}"));
    }
    for name in OptimizerConfig::names() {
        add(&format!("optimizer = {name:?}"));
    }
    for schedule in in_toml::<ScheduleConfig>() {
        add(&format!("schedule = {schedule}"));
    }
    for parametrization in in_toml::<Parametrization>() {
        add(&format!(
            "optimizer.weight_decay.kind = 'independent'\n[model]\ntie_embeddings = false\n\
             parametrization = {parametrization}"
        ));
    }
    for name in WeightNormConfig::names() {
        add(&format!("[model]\nweight_norm = {name:?}"));
    }
    for data in in_toml::<DataConfig>() {
        add(&format!("data = {data}"));
    }
    all
}

#[test]
fn every_kind_is_listed_under_its_own_name() {
    assert_listed::<Activation>();
    assert_listed::<Position>();
    assert_listed::<RopeScaling>();
    assert_listed::<OptimizerConfig>();
    assert_listed::<ScheduleConfig>();
    assert_listed::<ClipConfig>();
    assert_listed::<OnDivergence>();
    assert_listed::<Calibrate>();
    assert_listed::<DataConfig>();
}

fn collect(value: &Value, path: String, paths: &mut Vec<String>) {
    let below = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        Value::Table(table) => table.iter().for_each(|(key, value)| collect(value, below(key), paths)),
        Value::Array(array) => {
            paths.push(path.clone());
            array.iter().enumerate().for_each(|(i, value)| collect(value, below(&i.to_string()), paths));
        }
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {
            paths.push(path);
        }
    }
}

/// A value of each wrong type in the place of each value.
#[test]
fn a_value_of_a_wrong_type_is_told_with_its_key_and_without_rust() {
    const RUST: [&str; 24] = [
        "usize",
        "u64",
        "u32",
        "i64",
        "i128",
        "f64",
        "Option",
        "struct",
        "enum",
        "expected a map",
        "sequence",
        " unit",
        "tuple",
        "variant",
        "Config",
        "floating point",
        "a string",
        "path string",
        "string or map",
        "identifier",
        "expected map",
        "invalid type: map",
        "array of length",
        "elements in",
    ];
    let checked = |text: &str| {
        let config = parse(text, &[])?;
        config.resolved(config.model.vocab_size.unwrap_or(32)).map(|_| ()).map_err(|e| e.to_string())
    };
    let wrong = [
        "'?'",
        "1e17",
        "1e300",
        "-1",
        "-0.5",
        "true",
        "1979-05-27",
        "[]",
        "[1]",
        "[[1]]",
        "{}",
        "{ x = 1 }",
        "inf",
        "nan",
    ];
    let mut wrong_messages = Vec::new();
    let (mut seen, mut refused) = (std::collections::BTreeSet::new(), 0);
    for (path, base) in leaves() {
        assert_eq!(checked(&toml::to_string(&base).unwrap()), Ok(()), "the other values are right");
        for wrong in wrong {
            let value: Table = format!("value = {wrong}").parse().unwrap();
            let mut root = Value::Table(base.clone());
            let keys: Vec<String> = path.split('.').map(String::from).collect();
            *at_mut(&mut root, &keys).unwrap() = value["value"].clone();
            let text = toml::to_string(&root).unwrap();
            let checked = checked(&text);
            let Err(problem) = checked else { continue };
            refused += 1;
            seen.insert(path.clone());
            // An array may be reported as a whole, and a table by its kind or the number in its place.
            let shown = shown(&keys);
            let list = shown.trim_end_matches(|c: char| c == '[' || c == ']' || c.is_ascii_digit());
            let table = [".kind", ".task", ".value"].iter().find_map(|tag| list.strip_suffix(tag)).unwrap_or(list);
            let is_key = |key: &str| [": ", " = ", ".", "["].iter().any(|end| problem.contains(&format!("{key}{end}")));
            // Invalid combinations are reported relative to the table `model`.
            let last = keys.last().unwrap();
            let is_pair = problem.contains(&format!("model: {last} = ")) && problem.contains("cannot be combined");
            let is_named = [shown.as_str(), list, table, path.as_str()].into_iter().any(is_key) || is_pair;
            let rust: Vec<&str> = RUST.into_iter().filter(|rust| problem.contains(rust)).collect();
            let has_long_number = problem.contains(&"0".repeat(25));
            if !is_named || has_long_number || !rust.is_empty() || problem.matches("configuration: ").count() > 1 {
                wrong_messages.push(format!("{path} = {wrong} {rust:?}: {problem}"));
            }
        }
    }
    assert!(wrong_messages.is_empty(), "{} messages:\n{}", wrong_messages.len(), wrong_messages.join("\n"));
    assert!(refused > 1000 && seen.len() > 100, "{refused} of {} keys", seen.len());
}

#[test]
fn a_table_that_is_set_leaves_the_keys_that_it_does_not_name() {
    let text = "[model]\nd_model = 64\nn_heads = 8\nnorm = { kind = 'rms_norm', eps = 1e-3 }\n[train]\nclip = 0.5\n\
                [optimizer]\nlr = 0.5\nbetas = [0.5, 0.6]\n[[model.block]]\nrange = [0, 1]\nnorm = 'dyt'";
    let same = |table: &[&str], single: &[&str]| {
        let [a, b] = [table, single].map(|settings| parse(text, settings).unwrap());
        assert_eq!(a, b, "{table:?}");
        a
    };
    let set = same(&["model={d_model=8}"], &["model.d_model=8"]);
    assert_eq!((set.model.d_model, set.model.n_heads), (8, 8));
    same(&["model={norm={gain=false}, d_model=16}"], &["model.norm.gain=false", "model.d_model=16"]);
    // A kind is set first, and a new one starts from its defaults.
    same(&["optimizer={lr=0.1, kind='sgd'}"], &["optimizer.kind=sgd", "optimizer.lr=0.1"]);
    same(&["optimizer={kind='adamw', lr=0.1}"], &["optimizer.lr=0.1"]);
    same(&["train={clip={max=2}}"], &["train.clip.max=2"]);
    same(
        &["model.parametrization={kind='mup', base_width=32}"],
        &["model.parametrization.kind=mup", "model.parametrization.base_width=32"],
    );
    same(&["model.block.0={scale='re_zero'}"], &["model.block.0.scale=re_zero"]);
    same(&["schedule={warmup=3}"], &["schedule.warmup=3"]);
    same(&["model={}"], &[]);
    // An array is one value.
    assert_eq!(parse(text, &["model.block=[]"]).unwrap().model.block, []);
    assert!(parse(text, &["model={d_modle=8}"]).unwrap_err().contains("model.d_modle: unknown key"));
}
