//! The runs of a sweep, all checked before the first one starts.

use super::config::{Axis, LR, SweepConfig};
use crate::coord_check::{self, resized};
use std::path::Path;
use toml::Value;
use unitgain_train::config::{ConfigFile, is_within, setting_of};
use unitgain_train::{DataConfig, Error, RunConfig, folder::files};

/// A run to train.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of its folder, unique in the plan.
    pub name: String,
    /// Resolved configuration.
    pub config: RunConfig,
    /// Fingerprint of its data ([`Task::fingerprint`](unitgain_train::Task::fingerprint)).
    pub fingerprint: u64,
}

/// A run of a sweep.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The run.
    pub job: Job,
    /// Index of its value on each axis.
    pub at: Vec<usize>,
}

/// Maximum number of runs in a sweep.
const MOST_RUNS: usize = 100_000;
/// Maximum length of a folder name that all file systems accept, leaving room for a suffix.
const LONGEST_NAME: usize = 200;
const LONGEST_VALUE: usize = 40;

/// All runs of a sweep; the last axis changes fastest. `settings` are applied after the file's.
///
/// # Errors
/// The error of the first invalid run, with its name; and for more than 100000 runs, a setting that an axis overrides,
/// or an unreadable file.
pub fn plan(sweep: &SweepConfig, path: &Path, settings: &[String]) -> Result<Vec<Planned>, Error> {
    let origin = path.display().to_string();
    let error = |key: &str, problem: String| Error::Config { origin: origin.clone(), key: key.into(), problem };
    let file = ConfigFile::load(&sweep.run)?;
    // Paths in settings and axes are relative to the sweep's file.
    let own = |setting: &String| setting_of(path, setting);
    let settings: Vec<String> = sweep.set.iter().map(own).chain(settings.iter().cloned()).collect();
    // Load without axes first, so that faults of the file are not attributed to a run.
    let fixed_heads = file.with(&settings)?.model.head_dim.is_some();
    for (i, axis) in sweep.axes.iter().enumerate() {
        let key = |setting: &String| setting.split('=').next().unwrap_or_default().replace(char::is_whitespace, "");
        if settings.iter().any(|setting| key(setting) == axis.key || key(setting) == target(&axis.key)) {
            return Err(error(&axis.key, "is both set and an axis; change the axis, or remove one".into()));
        }
        if let Some(other) = sweep.axes[..i].iter().find(|other| overlap(&other.key, &axis.key, fixed_heads)) {
            let problem = format!("and the axis {:?} change the same key; remove one", other.key);
            return Err(error(&axis.key, problem));
        }
    }
    let count = sweep.axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()));
    let Some(count) = count.filter(|count| *count <= MOST_RUNS) else {
        return Err(error("axes", format!("make more than {MOST_RUNS} runs; take fewer values")));
    };
    let label = |axis: &Axis| axis.values.iter().map(|value| label(&axis.key, value)).collect();
    let labels: Vec<Vec<String>> = sweep.axes.iter().map(label).collect();
    let mut resolver = Resolver::default();
    let mut plan = Vec::with_capacity(count);
    for index in 0..count {
        let at = position(index, &sweep.axes);
        let said: Vec<&str> = at.iter().zip(&labels).map(|(i, labels)| labels[*i].as_str()).collect();
        let mut name = said.join(",");
        if name.len() > LONGEST_NAME {
            name = format!("run_{:016x}", files::hash(files::HASH_START, name.as_bytes()));
        }
        let chosen: Vec<(&str, &Value)> =
            sweep.axes.iter().zip(&at).map(|(axis, i)| (axis.key.as_str(), &axis.values[*i])).collect();
        let job = configured(&file, path, &settings, &chosen).and_then(|config| resolver.job(name.clone(), &config));
        plan.push(Planned { job: job.map_err(|e| error(&name, e.to_string()))?, at });
    }
    Ok(plan)
}

/// The key that an axis sets.
fn target(axis: &str) -> &str {
    match axis {
        "width" => "model.d_model",
        "depth" => "model.n_layers",
        key => key,
    }
}

/// Whether two axes change the same key. A width also changes the MLP's width and, with a fixed head size, the numbers
/// of heads.
fn overlap(a: &str, b: &str, fixed_heads: bool) -> bool {
    let keys = |axis: &str| {
        let mut keys = vec![target(axis).to_string()];
        if axis == "width" {
            keys.push("model.d_ff".into());
            keys.extend(["model.n_heads", "model.n_kv_heads"].iter().filter(|_| fixed_heads).map(ToString::to_string));
        }
        keys
    };
    keys(a).iter().any(|a| keys(b).iter().any(|b| is_within(a, b) || is_within(b, a)))
}

/// The indices of the values of run number `index`.
fn position(mut index: usize, axes: &[Axis]) -> Vec<usize> {
    let mut at: Vec<usize> = Vec::with_capacity(axes.len());
    for axis in axes.iter().rev() {
        at.push(index % axis.values.len());
        index /= axis.values.len();
    }
    at.reverse();
    at
}

fn configured(
    file: &ConfigFile,
    sweep: &Path,
    settings: &[String],
    chosen: &[(&str, &Value)],
) -> Result<RunConfig, Error> {
    let size = |key: &str| match key {
        "width" => Some(coord_check::Axis::Width),
        "depth" => Some(coord_check::Axis::Depth),
        _ => None,
    };
    let mut all = settings.to_vec();
    let varied = chosen.iter().filter(|(key, _)| size(key).is_none());
    all.extend(varied.map(|(key, value)| setting_of(sweep, &format!("{key}={value}"))));
    let mut config = file.with_those_of("the sweep", &all)?;
    for (key, value) in chosen {
        let Some(axis) = size(key) else { continue };
        let size = value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let size = size.ok_or_else(|| Error::value(key, value, "must be a whole number above 0"))?;
        config = resized(&config, axis, size)?;
    }
    Ok(config)
}

/// `key=value` as a safe file name. It depends on key and value alone, so that a run keeps its name when other axes
/// change. A value that cannot be written in a name gets its hash as a suffix.
fn label(key: &str, value: &Value) -> String {
    let said = match value {
        // Written like the equal integer.
        Value::Float(x) if x.fract() == 0.0 && x.abs() < 1e15 => format!("{x}"),
        Value::Float(x) if (1e-5..1e15).contains(&x.abs()) => format!("{x}"),
        Value::Float(x) => format!("{x:e}"),
        other => plain(other),
    };
    let safe = file_safe(&said);
    // Some file systems ignore case.
    let is_whole = safe == said && !safe.is_empty() && safe.len() <= LONGEST_VALUE && safe == safe.to_lowercase();
    let value = if is_whole {
        safe
    } else {
        let start: String = safe.chars().take(LONGEST_VALUE - 9).collect();
        format!("{start}-{:08x}", files::hash(files::HASH_START, said.as_bytes()) as u32)
    };
    let key = match key {
        LR => "lr",
        key => key.strip_prefix("model.").or(key.strip_prefix("train.")).unwrap_or(key),
    };
    format!("{}={}", file_safe(key), value.trim_start_matches('-'))
}

/// Four significant digits, without trailing zeros.
pub fn shortest(x: f64) -> String {
    let rounded: f64 = format!("{x:.3e}").parse().unwrap_or(x);
    match rounded.abs() {
        size if size == 0.0 || (1e-4..1e6).contains(&size) => format!("{rounded}"),
        _ => format!("{rounded:e}"),
    }
}

/// A value in plain notation.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::Table(_) => value.to_string(),
    }
}

/// `text` reduced to characters that are safe in a file name.
pub(crate) fn file_safe(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '-' };
    let text: String = text.chars().map(kept).collect();
    text.trim_matches(['-', '.']).split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

/// Resolves configurations, loading each data set once.
#[derive(Default)]
pub(crate) struct Resolver {
    known: Vec<Known>,
}

/// The cached properties of a data set.
struct Known {
    data: DataConfig,
    context: usize,
    vocab_size: usize,
    fingerprint: u64,
}

impl Resolver {
    /// The job of a configuration, resolved as by [`RunConfig::prepare`].
    pub(crate) fn job(&mut self, name: String, config: &RunConfig) -> Result<Job, Error> {
        // On an error, prepare the run alone, which reports all its faults.
        self.try_job(name, config).map_err(|first| config.prepare().err().unwrap_or(first))
    }

    fn try_job(&mut self, name: String, config: &RunConfig) -> Result<Job, Error> {
        config.check()?;
        config.plan()?;
        let (data, context) = (&config.data, config.model.context);
        let is_known = |known: &Known| known.data == *data && known.context == context;
        if !self.known.iter().any(is_known) {
            let task = data.load(context)?;
            let (vocab_size, fingerprint) = (task.vocab_size(), task.fingerprint());
            self.known.push(Known { data: data.clone(), context, vocab_size, fingerprint });
        }
        let known = self.known.iter().find(|known| is_known(known));
        let Known { vocab_size, fingerprint, .. } = known.unwrap_or_else(|| unreachable!("it was just put there"));
        Ok(Job { name, config: config.resolved(*vocab_size)?, fingerprint: *fingerprint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The plan of `[axes]` on the default run.
    fn planned(name: &str, axes: &str, settings: &[&str]) -> Result<Vec<Planned>, Error> {
        let folder = std::env::temp_dir().join(format!("unitgain-plan-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("run.toml"), "[model]\nd_model = 32\nn_heads = 2\nn_layers = 1\nd_ff = 64").unwrap();
        let path = folder.join("sweep.toml");
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let result =
            SweepConfig::parse(&format!("run = 'run.toml'\n{axes}"), &path).and_then(|s| plan(&s, &path, &settings));
        let _ = std::fs::remove_dir_all(&folder);
        result
    }

    #[test]
    fn a_plan_is_the_product_of_its_axes_in_order() {
        let axes = "[axes]\nwidth = [16, 64]\n'optimizer.lr' = { from = 1e-3, octaves = 0.5 }\nseed = [1, 2]
            'model.placement' = ['pre_norm']";
        let plan = planned("order", axes, &["train.steps=7"]).unwrap();
        let names: Vec<&str> = plan.iter().map(|run| run.job.name.as_str()).collect();
        assert_eq!(
            names[..2],
            ["width=16,lr=0.001,seed=1,placement=pre_norm", "width=16,lr=0.001,seed=2,placement=pre_norm"]
        );
        assert_eq!(names[7], "width=64,lr=0.0014142135623730952,seed=2,placement=pre_norm");
        let different: HashSet<&&str> = names.iter().collect();
        assert_eq!(different.len(), 8);
        let last = &plan[7].job.config;
        assert_eq!((last.model.d_model, last.model.d_ff, last.seed, last.train.steps), (64, Some(128), 2, 7));
        assert_eq!(last.optimizer.lr(), 1e-3 * 0.5f64.exp2(), "all digits reach the run");
        assert_eq!(plan[7].at, [1, 1, 1, 0]);
    }

    #[test]
    fn names_are_different_and_fit_for_files() {
        let axes =
            "[axes]\n'optimizer.lr' = [0.1, 0.10000001]\n'model.norm' = ['layer_norm', {kind = 'dyt', alpha = 0.5}]";
        let plan = planned("names", axes, &[]).unwrap();
        let names: Vec<&str> = plan.iter().map(|run| run.job.name.as_str()).collect();
        assert_eq!(names[2], "lr=0.10000001,norm=layer_norm");
        assert!(names[1].starts_with("lr=0.1,norm=alpha-0.5-kind-dyt-"), "{names:?}");
        let depths = planned("keys", "[axes]\ndepth = [1, 2]\n'model.d_ff' = [8]\n'data.seed' = [3]\nseed = [1]", &[]);
        assert_eq!(depths.unwrap()[1].job.name, "depth=2,d_ff=8,data.seed=3,seed=1");
    }

    #[test]
    fn a_name_is_a_function_of_key_and_value_alone() {
        let long = "x".repeat(300);
        let float = |x: f64| Value::Float(x);
        let values = [
            float(0.001414),
            float(0.0014142135),
            float(1e-3 * 2f64.sqrt()),
            float(0.00141425),
            float(1e-30),
            float(1e30),
            float(-0.5),
            float(0.5),
            Value::Integer(64),
            Value::Boolean(true),
            Value::String("a b".into()),
            Value::String("a-b".into()),
            Value::String("A-b".into()),
            Value::String(String::new()),
            Value::String(long.clone()),
            Value::String(long.clone() + "y"),
            Value::Array(vec![Value::Float(0.9), Value::Float(0.95)]),
            Value::Array(vec![Value::Float(0.9), Value::Float(0.99)]),
        ];
        let labels: Vec<String> = values.iter().map(|value| label("optimizer.x", value)).collect();
        let different: HashSet<String> = labels.iter().map(|label| label.to_lowercase()).collect();
        assert_eq!(different.len(), values.len(), "{labels:?}");
        assert!(labels.iter().all(|label| label.len() <= "optimizer.x=".len() + LONGEST_VALUE), "{labels:?}");
        assert!(labels.iter().all(|label| label == &format!("optimizer.x={}", file_safe(&label[12..]))), "{labels:?}");
        assert_eq!(label("x", &Value::Integer(64)), label("x", &float(64.0)), "equal numbers have one name");
        // Independent of the other axes.
        let names = |lr: &str, more: &str| -> HashSet<String> {
            let axes = format!("[axes]\n'optimizer.lr' = [{lr}]\n'data.seed' = [3]\n{more}");
            planned("alone", &axes, &[]).unwrap().into_iter().map(|run| run.job.name).collect()
        };
        let few = names("1e-3, 0.0014142135623730951", "");
        let many = names("1e-3, 0.0014142135623730951, 0.00141425, 0.123456789012345678901234567890", "");
        assert!(few.is_subset(&many), "{few:?} {many:?}");
        let with = |name: &String| format!("{name},seed=1");
        assert_eq!(names("1e-3", "seed = [1]"), names("1e-3", "").iter().map(with).collect());
    }

    #[test]
    fn what_cannot_be_is_an_error_that_names_the_run() {
        for (axes, settings, expected) in [
            ("[axes]\nwidth = [32, 33]", &[][..], "width=33: "),
            ("[axes]\nwidth = [-1]", &[], "above 0"),
            ("[axes]\n'optimiser.lr' = [0.1]", &[], "optimizer"),
            ("[axes]\n'optimizer.beta' = [0.1]", &[], "optimizer.beta"),
            ("[axes]\nseed = [1]", &["seed=2"], "both set and an axis"),
            ("[axes]\n'optimizer.lr' = [1.0]", &["optimizer . lr=2"], "both set and an axis"),
            ("[axes]\nwidth = [16]\n'model.d_model' = [32]", &[], "change the same key"),
            ("[axes]\ndepth = [1]", &["model.n_layers=4"], "both set and an axis"),
            ("[axes]\nwidth = [32]\n'model.n_heads' = [2, 4]", &["model.head_dim=8"], "change the same key"),
            ("[axes]\ndepth = [1]\nmodel = [{ d_model = 8 }]", &[], "change the same key"),
            ("[axes]\n'optimizer.lr ' = [1.0]", &[], "without spaces"),
            ("[axes]\nseed = [1]", &["train.steps=x"], "train.steps"),
            (
                "[axes]\nseed = [1]\n'train.steps' = { from = 1.0, octaves = 400 }\nwidth = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]\n'optimizer.lr' = { from = 1.0, octaves = 400 }",
                &[],
                "more than 100000",
            ),
        ] {
            let message = planned("errors", axes, settings).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} does not say {expected:?}");
        }
    }
}
