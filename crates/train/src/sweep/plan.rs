//! What runs a sweep has, all checked before the first one starts.

use super::config::{Axis, SweepConfig};
use crate::coord_check::{self, resized};
use crate::{DataConfig, Error, RunConfig, files};
use std::collections::HashSet;
use std::path::Path;
use toml::Value;

/// A run that is to be made.
#[derive(Clone, Debug)]
pub struct Job {
    /// Of its folder: different from that of every other run of the plan.
    pub name: String,
    /// Resolved.
    pub config: RunConfig,
}

/// A run of a sweep.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What is run.
    pub job: Job,
    /// Which value of each axis, by index.
    pub at: Vec<usize>,
}

/// Most runs of a sweep.
const MOST_RUNS: usize = 100_000;
/// Longest name of a folder that every file system takes, with an ending.
const LONGEST_NAME: usize = 200;
const LONGEST_VALUE: usize = 40;

/// All runs of a sweep, the last axis changing fastest. `settings` are set after those of the file.
///
/// # Errors
/// That of the first run that cannot be, with its name; and for more than 100000 runs, a setting that an axis would
/// change again, or a file that cannot be read.
pub fn plan(sweep: &SweepConfig, origin: &Path, settings: &[String]) -> Result<Vec<Planned>, Error> {
    let origin = origin.display().to_string();
    let error = |key: &str, problem: String| Error::Config { origin: origin.clone(), key: key.into(), problem };
    let text = std::fs::read_to_string(&sweep.run).map_err(Error::io("read", &sweep.run))?;
    let run = sweep.run.display().to_string();
    let settings: Vec<String> = sweep.set.iter().chain(settings).cloned().collect();
    // Before the axes, so that the file's faults are not laid on a run.
    let fixed_heads = RunConfig::parse(&text, &run, &settings)?.model.head_dim.is_some();
    for (i, axis) in sweep.axes.iter().enumerate() {
        let key = |setting: &String| setting.split('=').next().unwrap_or_default().replace(char::is_whitespace, "");
        if settings.iter().any(|setting| key(setting) == axis.key || key(setting) == target(&axis.key)) {
            return Err(error(&axis.key, "is both set and an axis; change the axis, or take one away".into()));
        }
        if let Some(other) = sweep.axes[..i].iter().find(|other| overlap(&other.key, &axis.key, fixed_heads)) {
            let problem = format!("and the axis {:?} change the same key; take one away", other.key);
            return Err(error(&axis.key, problem));
        }
    }
    let count = sweep.axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()));
    let Some(count) = count.filter(|count| *count <= MOST_RUNS) else {
        return Err(error("axes", format!("make more than {MOST_RUNS} runs; take fewer values")));
    };
    let labels: Vec<Vec<String>> = sweep.axes.iter().map(|axis| labels(axis, &sweep.axes)).collect();
    let mut resolver = Resolver::default();
    let mut plan = Vec::with_capacity(count);
    for index in 0..count {
        let at = position(index, &sweep.axes);
        let said: Vec<&str> = at.iter().zip(&labels).map(|(i, labels)| labels[*i].as_str()).collect();
        let mut name = said.join(",");
        if name.len() > LONGEST_NAME {
            // By what it is, not by where it stands: values may be added to an axis.
            name = format!("run_{:016x}", files::hash(files::HASH_START, name.as_bytes()));
        }
        let chosen: Vec<(&str, &Value)> =
            sweep.axes.iter().zip(&at).map(|(axis, i)| (axis.key.as_str(), &axis.values[*i])).collect();
        let config = configured(&text, &run, &settings, &chosen).and_then(|config| resolver.resolve(&config));
        let config = config.map_err(|e| error(&name, e.to_string()))?;
        plan.push(Planned { job: Job { name, config }, at });
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

/// Whether two axes change the same thing. A width also changes the MLP's, and with a fixed head size the numbers of
/// heads.
fn overlap(a: &str, b: &str, fixed_heads: bool) -> bool {
    let keys = |axis: &str| {
        let mut keys = vec![target(axis).to_string()];
        if axis == "width" {
            keys.push("model.d_ff".into());
            keys.extend(["model.n_heads", "model.n_kv_heads"].iter().filter(|_| fixed_heads).map(ToString::to_string));
        }
        keys
    };
    let is_within = |a: &str, b: &str| a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('.'));
    keys(a).iter().any(|a| keys(b).iter().any(|b| is_within(a, b) || is_within(b, a)))
}

/// The values of run number `index`.
fn position(mut index: usize, axes: &[Axis]) -> Vec<usize> {
    let mut at: Vec<usize> = Vec::with_capacity(axes.len());
    for axis in axes.iter().rev() {
        at.push(index % axis.values.len());
        index /= axis.values.len();
    }
    at.reverse();
    at
}

fn configured(text: &str, run: &str, settings: &[String], chosen: &[(&str, &Value)]) -> Result<RunConfig, Error> {
    let size = |key: &str| match key {
        "width" => Some(coord_check::Axis::Width),
        "depth" => Some(coord_check::Axis::Depth),
        _ => None,
    };
    let mut all = settings.to_vec();
    all.extend(chosen.iter().filter(|(key, _)| size(key).is_none()).map(|(key, value)| format!("{key}={value}")));
    let mut config = RunConfig::parse(text, run, &all)?;
    for (key, value) in chosen {
        let Some(axis) = size(key) else { continue };
        let size = value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let size = size.ok_or_else(|| Error::config(key, format!("{value} must be a whole number above 0")))?;
        config = resized(&config, axis, size)?;
    }
    Ok(config)
}

/// `key=value` of each value, fit for the name of a file: the last part of the key where no other axis ends in it, and
/// as many digits as tell the values apart.
fn labels(axis: &Axis, axes: &[Axis]) -> Vec<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_string();
    let short = last(&axis.key);
    let key = if axes.iter().filter(|other| last(&other.key) == short).count() == 1 { short } else { axis.key.clone() };
    let rounded = |value: &Value| match value {
        Value::Float(x) => shortest(*x),
        other => plain(other),
    };
    let candidates: [Vec<String>; 2] = [&rounded as &dyn Fn(&Value) -> String, &plain]
        .map(|f| axis.values.iter().map(|value| file_safe(&f(value))).collect());
    let fit = |labels: &Vec<String>| {
        // Some file systems do not tell upper from lower case.
        let different: HashSet<String> = labels.iter().map(|label| label.to_lowercase()).collect();
        different.len() == labels.len() && labels.iter().all(|label| !label.is_empty() && label.len() <= LONGEST_VALUE)
    };
    let values = candidates.into_iter().find(fit);
    // By what they are, not by where they stand: values may be added to the axis.
    let hashed = |value: &Value| format!("{:016x}", files::hash(files::HASH_START, plain(value).as_bytes()));
    let values = values.unwrap_or_else(|| axis.values.iter().map(hashed).collect());
    values.into_iter().map(|value| format!("{}={value}", file_safe(&key))).collect()
}

/// Four digits that count, without those that say nothing.
pub fn shortest(x: f64) -> String {
    let rounded: f64 = format!("{x:.3e}").parse().unwrap_or(x);
    match rounded.abs() {
        size if size == 0.0 || (1e-4..1e6).contains(&size) => format!("{rounded}"),
        _ => format!("{rounded:e}"),
    }
}

/// A value as a person writes it.
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

/// Of a text what any file system takes in a name.
pub(crate) fn file_safe(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '-' };
    let text: String = text.chars().map(kept).collect();
    text.trim_matches(['-', '.']).split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

/// Resolves configurations, reading each data set once.
#[derive(Default)]
pub(crate) struct Resolver {
    vocabularies: Vec<(DataConfig, usize, usize)>,
}

impl Resolver {
    /// As [`RunConfig::prepare`].
    pub(crate) fn resolve(&mut self, config: &RunConfig) -> Result<RunConfig, Error> {
        config.check()?;
        config.model.resolved()?;
        let (data, context) = (&config.data, config.model.context);
        let known = self.vocabularies.iter().find(|(of, time, _)| of == data && *time == context);
        let vocab_size = match known {
            Some((.., vocab_size)) => *vocab_size,
            None => {
                let vocab_size = data.load(context)?.vocab_size();
                self.vocabularies.push((data.clone(), context, vocab_size));
                vocab_size
            }
        };
        config.resolved(vocab_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plan of a file's `[axes]` on the default run.
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
        assert_eq!(names[7], "width=64,lr=0.001414,seed=2,placement=pre_norm");
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
        assert_eq!(names[1], "lr=0.1,norm=alpha-0.5-kind-dyt");
        assert_eq!(names[2], "lr=0.10000001,norm=layer_norm");
        let depths = planned("keys", "[axes]\ndepth = [1, 2]\n'model.d_ff' = [8]\n'data.seed' = [3]\nseed = [1]", &[]);
        assert_eq!(depths.unwrap()[1].job.name, "depth=2,d_ff=8,data.seed=3,seed=1");
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
