//! Keys that change no number, against runs that differ in one key.

use crate::common::keys::{at, at_mut, in_toml, parts, shown};
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use toml::Value;
use unitgain_model::{NormConfig, Placement, ScaleConfig, Scheme, Variant};
use unitgain_train::config::{TAGS, is_within};
use unitgain_train::folder::{checkpoint, metrics};
use unitgain_train::{Calibrate, OptimizerConfig, Record, RunConfig, Start, train};

const TINY: &str = "
    threads = 1
    [model]
    context = 8
    d_model = 16
    n_layers = 2
    n_heads = 2
    [data]
    task = 'markov'
    vocab_size = 8
    order = 1
    branching = 2
    [train]
    steps = 3
    batch_size = 2
    [log]
    every = 1
    [eval]
    every = 2
    tokens = 32";

/// The keys reported as idle, and the keys that a combination rule mentions.
fn told(config: &RunConfig) -> [Vec<String>; 2] {
    let (resolved, _) = config.prepare().unwrap();
    let key = |said: String| said.split_once(" = ").unwrap().0.rsplit(": ").next().unwrap().to_string();
    let idle = config.idle_keys(&resolved).into_iter().map(key).collect();
    let rules = resolved.plan().unwrap().warnings().into_iter().map(|rule| rule.pair.to_string()).collect();
    [idle, rules]
}

/// Records and final weights of a run, or its error.
fn outcome(config: &RunConfig, folder: &Path) -> Result<String, String> {
    let _ = std::fs::remove_dir_all(folder);
    let summary =
        train(config, folder, Start::New, &mut |_| std::ops::ControlFlow::Continue(())).map_err(|e| e.to_string())?;
    let mut text = format!("{:?} {:?}\n", summary.status, summary.learned);
    for record in metrics::read(folder).map_err(|e| e.to_string())? {
        text += &format!("{:?}\n", Record { tokens_per_second: 0.0, ..record });
    }
    for file in checkpoint::list(&folder.join("checkpoints")).unwrap() {
        let bytes = std::fs::read(file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensors: BTreeMap<String, Vec<u8>> =
            tensors.iter().map(|(name, view)| (name.into(), view.data().to_vec())).collect();
        text += &format!("{tensors:?}\n");
    }
    Ok(text)
}

fn leaves(value: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                path.push(key.clone());
                leaves(value, path, found);
                path.pop();
            }
        }
        Value::Array(array) => {
            for (i, value) in array.iter().enumerate() {
                path.push(i.to_string());
                leaves(value, path, found);
                path.pop();
            }
        }
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {
            found.push(path.clone());
        }
    }
}

/// Other values for a key, the most plausible first.
fn others(value: &Value) -> Vec<Value> {
    let names = [
        "uniform", "fan_out", "paper", "width", "matrix", "nfnet", "table_3", "table_9", "relu", "silu", "bf16",
        "decoder", "char", "normal", "one", "head", "authors", "timm",
    ];
    match value {
        Value::Boolean(b) => vec![Value::Boolean(!b)],
        Value::Integer(n) => [2 * n, n + 1, n / 2, n - 1, n + 2].map(Value::Integer).to_vec(),
        Value::Float(x) => [4.0 * x, x / 4.0, x + 0.5, 1.0 - x, 2.0 * x].map(Value::Float).to_vec(),
        Value::String(_) => names.map(|name| Value::String(name.into())).to_vec(),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => Vec::new(),
    }
}

/// Keys that never change a number, or not in runs as small as these, with the reason.
const BY_WHAT_THEY_ARE: [(&str, &str); 11] = [
    ("log.every", "how often a record is written"),
    ("eval.every", "how often an evaluation is made"),
    ("checkpoint.", "what is kept"),
    ("versions.", "what wrote the run"),
    ("threads", "of a size at which one thread does all"),
    ("train.fused", "the last digits, of a size at which there are none"),
    ("init.calibrate.tolerance", "one pass is enough here"),
    ("init.calibrate.passes", "one pass is enough here"),
    ("train.clip.max", "the gradients here are shorter"),
    ("model.norm.eps", "of scale_norm and l2_norm: the least length to divide by, which nothing has here"),
    ("model.qk_norm.eps", "as that of model.norm"),
];

/// Configurations that together contain every kind of table.
fn bases() -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    let mut add = |settings: &[&str]| all.push(settings.iter().map(ToString::to_string).collect());
    add(&[]);
    for norm in NormConfig::all() {
        let has_none = norm.is_none();
        let norm = format!("model.norm={}", norm.about().name);
        add(&[&norm]);
        if has_none {
            continue;
        }
        add(&[&norm, "model.placement=none"]);
        add(&[&norm, "model.placement=none", "model.mlp_placement=post_norm"]);
        add(&[&norm, "model.block=[{range=[0,2], placement='none'}]"]);
        add(&[&norm, "model.block=[{range=[0,2], norm={kind='rms_norm', eps=1e-3}}]", "model.placement=post_norm"]);
    }
    for placement in Placement::all() {
        let placement = format!("model.placement={}", placement.about().name);
        add(&[&placement]);
        let other = if placement.ends_with("sandwich") { "pre_norm" } else { "sandwich" };
        add(&[&placement, &format!("model.block=[{{range=[0,2], placement='{other}'}}]")]);
        add(&[&placement, "model.mlp_placement=admin", "model.block=[{range=[0,2], placement='post_norm'}]"]);
    }
    add(&["model.placement=admin", "init.calibrate=admin"]);
    add(&["model.block=[{range=[0,1], placement='none', norm='rms_norm'}]"]);
    // The first is that of the blocks below.
    for scale in in_toml::<ScaleConfig>().iter().skip(1) {
        let scale = format!("model.scale={scale}");
        add(&[&scale]);
        add(&[&scale, "model.placement=none"]);
        add(&[&scale, "model.block=[{range=[0,2], scale='one'}]"]);
    }
    for scheme in Scheme::all() {
        let init = format!("model.init={}", scheme.about().name);
        add(&[&init, "model.placement=none", "model.tie_embeddings=false"]);
        add(&[&init]);
    }
    for calibrate in Calibrate::all() {
        let calibrate = format!("init.calibrate={}", calibrate.about().name);
        add(&[&calibrate, "model.bias=true", "init.calibrate.steps=2"]);
        add(&[&calibrate, "model.bias=true"]);
    }
    for parametrization in [
        "{kind='mup', base_width=8}",
        "{kind='spectral', base_width=8}",
        "{kind='depth_mup', base_width=8, base_depth=1}",
        "{kind='complete_p', base_width=8, base_depth=1}",
        "u_mup",
    ] {
        let parametrization = format!("model.parametrization={parametrization}");
        let free = ["model.tie_embeddings=false", "optimizer.weight_decay={kind='independent', value=1e-3}"];
        for more in [&[][..], &["model.attention_scale=0.3"], &["model.attention_scale=learned"]] {
            add(&[&[parametrization.as_str()], &free[..], more].concat());
        }
    }
    for optimizer in OptimizerConfig::all() {
        let optimizer = format!("optimizer.kind={}", optimizer.about().name);
        add(&[&optimizer]);
        add(&[&optimizer, "optimizer.momentum=0.0", "optimizer.lr=0.5"]);
    }
    for schedule in [
        "constant",
        "cosine",
        "linear",
        "{kind='warmup_stable_decay', decay=2}",
        "{kind='warmup_stable_decay', decay=1}",
    ] {
        let schedule = format!("schedule={schedule}");
        for warmup in ["0", "1", "2"] {
            add(&[&schedule, &format!("schedule.warmup={warmup}")]);
        }
    }
    for more in [
        "train.clip=0",
        "train.clip=0.01",
        "train.clip=adaptive",
        "model.position=rope",
        "model.position=sinusoidal",
        "model.position=none",
        "model.qk_norm=rms_norm",
        "model.qk_norm=l2_norm",
        "model.embedding_norm=layer_norm",
        "model.embedding_scale=learned",
        "model.embedding_scale=2",
        "model.attention_scale=learned",
        "model.weight_norm=weight_norm",
        "model.weight_norm=scaled_weight_standardization",
        "model.activation=swi_glu",
        "model.zero_writers=true",
        "data.task=recall",
        "data.task=copy",
        "model.dropout=0.2",
        "model.bias=true",
        "model.tie_embeddings=false",
        "model.n_kv_heads=1",
        "model.head_bias=true",
    ] {
        add(&[more]);
    }
    add(&["model.position=rope", "model.n_heads=8"]);
    add(&["model.zero_writers=true", "model.init=zero"]);
    all
}

/// A configuration with another value at a path; values derived from other keys are set where necessary.
fn with(base: &RunConfig, resolved: &Value, path: &[String], other: Value) -> Option<RunConfig> {
    let mut root = base.to_value();
    let (last, parents) = path.split_last()?;
    for n in 1..=parents.len() {
        if !at(&root, &path[..n]).is_some_and(|inner| inner.is_table() || inner.is_array()) {
            let whole = at(resolved, &path[..n])?.clone();
            at_mut(&mut root, &path[..n - 1])?.as_table_mut()?.insert(path[n - 1].clone(), whole);
        }
    }
    match at_mut(&mut root, parents)? {
        Value::Table(table) => drop(table.insert(last.clone(), other)),
        Value::Array(array) => *array.get_mut(last.parse::<usize>().ok()?)? = other,
        _ => return None,
    }
    RunConfig::parse(&toml::to_string(&root).ok()?, "run.toml", &[]).ok()
}

/// Compares pairs of runs that differ in one key, for every base: of the base's own keys, or of all keys.
fn check_pairs(name: &str, of_all_keys: bool) -> usize {
    let scratch = std::env::temp_dir().join(format!("unitgain-idle-{name}-{}", std::process::id()));
    let (mut silent, mut wrong, mut seen, mut pairs) = (Vec::new(), Vec::new(), BTreeSet::new(), 0);
    for settings in bases() {
        let Ok(base) = RunConfig::parse(TINY, "run.toml", &settings) else { continue };
        let Ok((resolved, _)) = base.prepare() else { continue };
        let root = resolved.to_value();
        // A base with a long calibration has the same keys as one with a short calibration.
        let steps = at(&root, &parts("init.calibrate.steps")).and_then(Value::as_integer);
        if steps.is_some_and(|steps| steps > 2) {
            continue;
        }
        let own = outcome(&base, &scratch).unwrap();
        let [idle, _] = told(&base);
        for key in &idle {
            // A key without a default is compared with no decay.
            let without = base.without(&parts(key)).or_else(|| with(&base, &root, &parts(key), Value::Integer(0)));
            if outcome(&without.unwrap(), &scratch) != Ok(own.clone()) {
                wrong.push(format!("{settings:?}: {key}"));
            }
        }
        let mut paths = Vec::new();
        leaves(&root, &mut Vec::new(), &mut paths);
        for path in paths {
            let (last, table) = path.split_last().unwrap();
            let (key, value) = (shown(&path), at(&root, &path).unwrap());
            let is_own = |setting: &String| key.starts_with(setting.split('=').next().unwrap());
            let is_asked = of_all_keys || settings.is_empty() || settings.iter().any(is_own);
            if !is_asked || TAGS.contains(&last.as_str()) {
                continue;
            }
            let kind = at(&root, &[table, &["kind".to_string()]].concat()).map(Value::to_string);
            if !seen.insert((key.clone(), kind, settings.clone())) {
                continue;
            }
            let changed = others(value).into_iter().filter(|other| other != value).find_map(|other| {
                let config = with(&base, &root, &path, other)?;
                Some((outcome(&config, &scratch).ok()?, config))
            });
            let Some((theirs, config)) = changed else { continue };
            pairs += 1;
            let is_told = [&base, &config].into_iter().map(told).any(|[idle, rules]| {
                idle.iter().any(|said| is_within(&key, said))
                    || rules.iter().any(|pair| pair.contains(&format!("{last} = ")))
            });
            let is_known = BY_WHAT_THEY_ARE.iter().any(|(own, _)| key.starts_with(own));
            if own == theirs && !is_told && !is_known {
                silent.push(format!("{settings:?}: {key} = {value}"));
            }
        }
    }
    let _ = std::fs::remove_dir_all(&scratch);
    let [silent, wrong] = [silent, wrong].map(|all| all.join("\n"));
    assert!(silent.is_empty() && wrong.is_empty(), "{pairs} pairs\nnot told:\n{silent}\nwrongly told:\n{wrong}");
    pairs
}

/// If all numbers of two runs are equal, one of the two reports the key as idle; and a key reported as idle can be
/// left out.
#[test]
fn keys_that_do_nothing_are_those_that_are_told() {
    let pairs = check_pairs("own", false);
    assert!(pairs > 300, "{pairs}");
}

#[test]
#[ignore = "minutes: every key of every base"]
fn all_keys_that_do_nothing_are_those_that_are_told() {
    let pairs = check_pairs("all", true);
    assert!(pairs > 3000, "{pairs}");
}

#[test]
fn a_key_that_does_nothing_is_told_with_its_line() {
    let said = |text: &str| {
        let config = RunConfig::parse(text, "run.toml", &[]).unwrap();
        config.idle_keys(&config.prepare().unwrap().0)
    };
    let text = "[model]\nplacement = 'none'\n\n[model.norm]\nkind = 'rms_norm'\n[schedule]\nkind = 'warmup_stable_decay'\n\
                decay = 0\nmin_ratio = 0.5\n";
    let found = said(text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("run.toml:4: model.norm = \"rms_norm\" does nothing: no placement asks"), "{found:?}");
    assert!(found[1].starts_with("run.toml:9: schedule.min_ratio = 0.5 does nothing: "), "{found:?}");
    // A value equal to the default needs no message.
    assert_eq!(said("[model]\nplacement = 'none'\nnorm = 'layer_norm'"), Vec::<String>::new());
    assert_eq!(said(""), Vec::<String>::new());
    // A run's own configuration has all defaults written out.
    let resolved = RunConfig::parse("[model]\nplacement = 'none'", "run.toml", &[]).unwrap().prepare().unwrap().0;
    assert_eq!(said(&resolved.to_toml()), Vec::<String>::new());
}
