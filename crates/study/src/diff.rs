//! Differences between two runs: the first step whose records differ, and configuration keys.

use serde::Serialize;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use toml::Value;
use unitgain_train::{Error, Record, RunConfig, folder::metrics};

/// The differences between two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunDiff {
    /// Number of steps recorded by both runs.
    pub compared: usize,
    /// The first step whose records differ, if any.
    pub first: Option<MetricDiff>,
    /// Records of steps that only the first or only the second run has.
    pub more: [More; 2],
    /// Keys with different values in the resolved configurations, in alphabetical order.
    pub configuration: Vec<KeyDiff>,
}

/// A metric that differs, with its value in each run; None if a record lacks it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricDiff {
    /// The step.
    pub step: usize,
    /// Its field in `metrics.jsonl`, e.g. `grad_norm_block[1]` or `grad_norm_role.query`.
    pub metric: String,
    /// Value in each run.
    pub values: [Option<f64>; 2],
    /// Number of metrics that differ at this step.
    pub metrics: usize,
}

/// Records of one run at steps that the other run did not record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct More {
    /// Number of records.
    pub records: usize,
    /// The first of those steps.
    pub from_step: Option<usize>,
}

/// A key that differs, with its TOML value in each run; None if a configuration lacks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyDiff {
    /// The key, e.g. `model.block[0].norm.eps`.
    pub key: String,
    /// Value in each run.
    pub values: [Option<String>; 2],
}

/// Compares records and configurations of the runs in two folders. Speeds are ignored, because they always vary.
///
/// # Errors
/// As [`RunConfig::of_run`] and [`metrics::of_run`], for a folder that does not hold a run.
pub fn runs(a: &Path, b: &Path) -> Result<RunDiff, Error> {
    let read = |folder: &Path| Ok::<_, Error>((RunConfig::of_run(folder, &[])?, metrics::of_run(folder)?));
    let ((config_a, records_a), (config_b, records_b)) = (read(a)?, read(b)?);
    Ok(RunDiff::new([&config_a, &config_b], [&records_a, &records_b]))
}

impl RunDiff {
    /// Compares two runs; records are sorted by step.
    pub fn new(configs: [&RunConfig; 2], records: [&[Record]; 2]) -> Self {
        let none = More { records: 0, from_step: None };
        let (mut compared, mut first, mut more) = (0, None, [none.clone(), none]);
        let mut rest = records;
        while let Some(next) = next_step(rest) {
            let at = rest.map(|records| records.first().filter(|record| record.step == next));
            for (records, record) in rest.iter_mut().zip(at) {
                *records = &records[usize::from(record.is_some())..];
            }
            match at {
                [Some(a), Some(b)] => {
                    compared += 1;
                    first = first.or_else(|| metric_of(a, b));
                }
                [a, _] => {
                    let own = &mut more[usize::from(a.is_none())];
                    own.records += 1;
                    own.from_step.get_or_insert(next);
                }
            }
        }
        Self { compared, first, more, configuration: keys(configs) }
    }

    /// Whether records and configurations are equal.
    pub fn is_equal(&self) -> bool {
        self.first.is_none() && self.more.iter().all(|more| more.records == 0) && self.configuration.is_empty()
    }

    /// JSON text.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Told<'a> {
            equal: bool,
            #[serde(flatten)]
            diff: &'a RunDiff,
        }
        serde_json::to_string_pretty(&Told { equal: self.is_equal(), diff: self })
            .unwrap_or_else(|e| unreachable!("a comparison is always valid JSON: {e}"))
    }
}

/// The lowest step among the remaining records.
fn next_step(rest: [&[Record]; 2]) -> Option<usize> {
    rest.iter().filter_map(|records| records.first()).map(|record| record.step).min()
}

fn metric_of(a: &Record, b: &Record) -> Option<MetricDiff> {
    let (all_a, all_b) = (measured(a), measured(b));
    // Fast path for equal records, without looking up metrics by name.
    let is_equal =
        |((name_a, a), (name_b, b)): (&(String, f64), &(String, f64))| name_a == name_b && a.to_bits() == b.to_bits();
    if all_a.len() == all_b.len() && all_a.iter().zip(&all_b).all(is_equal) {
        return None;
    }
    let value =
        |all: &[(String, f64)], name: &str| all.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let only_b = all_b.iter().filter(|(name, _)| value(&all_a, name).is_none());
    let names = all_a.iter().chain(only_b).map(|(name, _)| name);
    let mut differ = names
        .map(|name| (name, [value(&all_a, name), value(&all_b, name)]))
        .filter(|(_, [a, b])| !is_same(*a, *b))
        .peekable();
    let (metric, values) = differ.peek().map(|(name, values)| ((*name).clone(), *values))?;
    Some(MetricDiff { step: a.step, metric, values, metrics: differ.count() })
}

fn is_same(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.total_cmp(&b) == Ordering::Equal,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// All numbers of a record except the speed and the number of replicas, by name, in file order.
fn measured(record: &Record) -> Vec<(String, f64)> {
    let Record {
        step: _,
        tokens,
        loss,
        lr,
        tokens_per_second: _,
        replicas: _,
        grad_norm,
        grad_norm_clipped,
        grad_norm_block,
        grad_norm_role,
        stream_rms,
        eval_loss,
        eval_tokens,
        floor,
        excess,
    } = record;
    let mut all = vec![
        ("tokens".to_string(), *tokens as f64),
        ("loss".into(), widened(*loss)),
        ("lr".into(), *lr),
        ("grad_norm".into(), widened(*grad_norm)),
        ("grad_norm_clipped".into(), widened(*grad_norm_clipped)),
    ];
    let blocks = |name: &str, values: &[f32]| {
        values.iter().enumerate().map(|(i, value)| (format!("{name}[{i}]"), widened(*value))).collect::<Vec<_>>()
    };
    all.extend(blocks("grad_norm_block", grad_norm_block));
    all.extend(grad_norm_role.iter().map(|(role, value)| (format!("grad_norm_role.{role}"), widened(*value))));
    all.extend(blocks("stream_rms", stream_rms));
    let evaluation = [
        ("eval_loss", eval_loss.map(widened)),
        ("eval_tokens", eval_tokens.map(|n| n as f64)),
        ("floor", *floor),
        ("excess", *excess),
    ];
    all.extend(evaluation.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))));
    all
}

/// The number as written in the file: `0.1` for the nearest `f32`.
fn widened(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

fn keys(configs: [&RunConfig; 2]) -> Vec<KeyDiff> {
    let [a, b] = configs.map(|config| {
        let mut leaves = BTreeMap::new();
        // Start time and command are not part of the configuration.
        collect("", &RunConfig { origin: None, ..(*config).clone() }.to_value(), &mut leaves);
        leaves
    });
    let all: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differ = all.into_iter().filter(|key| a.get(*key) != b.get(*key));
    differ.map(|key| KeyDiff { key: key.clone(), values: [a.get(key).cloned(), b.get(key).cloned()] }).collect()
}

/// Collects all values except tables as TOML, by key.
fn collect(path: &str, value: &Value, leaves: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(&path, value, leaves);
            }
        }
        Value::Array(array) if array.iter().any(Value::is_table) => {
            for (i, value) in array.iter().enumerate() {
                collect(&format!("{path}[{i}]"), value, leaves);
            }
        }
        // In the shortest form: 1e-8.
        Value::Float(x) => {
            leaves.insert(path.into(), format!("{x:?}"));
        }
        Value::Array(_) | Value::String(_) | Value::Integer(_) | Value::Boolean(_) | Value::Datetime(_) => {
            leaves.insert(path.into(), value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: usize, loss: f32) -> Record {
        Record {
            step,
            tokens: 8 * step,
            loss,
            lr: 0.1,
            tokens_per_second: 100.0 * loss as f64,
            replicas: 1,
            grad_norm: 1.0,
            grad_norm_clipped: 1.0,
            grad_norm_block: vec![0.5, 0.25],
            grad_norm_role: BTreeMap::from([("query".to_string(), 0.5)]),
            stream_rms: vec![1.0, 2.0],
            eval_loss: None,
            eval_tokens: None,
            floor: None,
            excess: None,
        }
    }

    fn config(settings: &[&str]) -> RunConfig {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        RunConfig::parse("", "test", &settings).unwrap()
    }

    fn diff(a: &[Record], b: &[Record]) -> RunDiff {
        let config = config(&[]);
        RunDiff::new([&config, &config], [a, b])
    }

    #[test]
    fn the_same_records_are_equal_whatever_their_speed() {
        let a = [record(1, 3.0), record(2, 2.5)];
        let b = a.clone().map(|record| Record { tokens_per_second: 1.0, ..record });
        let same = diff(&a, &b);
        assert!(same.is_equal() && same.compared == 2, "{same:?}");
        assert!(diff(&[], &[]).is_equal());
    }

    /// Changes each metric alone, found by the name of its field.
    #[test]
    fn the_first_step_and_metric_that_differ_are_found() {
        type Change = fn(&mut Record);
        let changes: [(&str, Change, [Option<f64>; 2]); 13] = [
            ("tokens", |r| r.tokens = 17, [Some(16.0), Some(17.0)]),
            ("loss", |r| r.loss = 2.4, [Some(2.5), Some(2.4)]),
            ("lr", |r| r.lr = 0.2, [Some(0.1), Some(0.2)]),
            ("grad_norm", |r| r.grad_norm = 1.5, [Some(1.0), Some(1.5)]),
            ("grad_norm_clipped", |r| r.grad_norm_clipped = 0.1, [Some(1.0), Some(0.1)]),
            ("grad_norm_block[1]", |r| r.grad_norm_block[1] = 0.5, [Some(0.25), Some(0.5)]),
            ("grad_norm_block[2]", |r| r.grad_norm_block.push(0.5), [None, Some(0.5)]),
            ("grad_norm_role.query", |r| r.grad_norm_role.clear(), [Some(0.5), None]),
            ("stream_rms[0]", |r| r.stream_rms[0] = -0.0, [Some(1.0), Some(-0.0)]),
            ("eval_loss", |r| r.eval_loss = Some(2.0), [None, Some(2.0)]),
            ("eval_tokens", |r| r.eval_tokens = Some(9), [None, Some(9.0)]),
            ("floor", |r| r.floor = Some(1.0), [None, Some(1.0)]),
            ("excess", |r| r.excess = Some(1.0), [None, Some(1.0)]),
        ];
        let a = [record(1, 3.0), record(2, 2.5), record(3, 2.0)];
        for (metric, change, values) in changes {
            let mut b = a.clone();
            b[1..].iter_mut().for_each(change);
            let found = diff(&a, &b);
            let want = MetricDiff { step: 2, metric: metric.into(), values, metrics: 1 };
            assert_eq!(found.first, Some(want), "{metric}");
            assert!(!found.is_equal() && found.compared == 3);
        }
        let b = [record(1, 3.0), Record { lr: 0.2, ..record(2, 2.0) }];
        assert_eq!(diff(&a, &b).first.map(|first| (first.metric, first.metrics)), Some(("loss".into(), 2)));
    }

    #[test]
    fn what_one_run_has_more_is_told_from_where() {
        let a: Vec<Record> = [1, 2, 4, 6, 8].map(|step| record(step, 2.0)).to_vec();
        let b: Vec<Record> = [1, 4, 5, 8, 9, 10].map(|step| record(step, 2.0)).to_vec();
        let found = diff(&a, &b);
        let more = |records, from_step| More { records, from_step };
        assert_eq!((found.compared, found.first.clone()), (3, None));
        assert_eq!(found.more, [more(2, Some(2)), more(3, Some(5))]);
        assert!(!found.is_equal());
        assert_eq!(diff(&a, &a[..3]).more, [more(2, Some(6)), more(0, None)]);
        assert_eq!(diff(&[], &a).more, [more(0, None), more(5, Some(1))]);
    }

    #[test]
    fn every_key_is_told_with_both_values() {
        let a =
            config(&["optimizer.kind=sgd", "model.block=[{range = [0, 1], norm = {kind = 'rms_norm', eps = 1e-3}}]"]);
        let b = config(&["model.block=[{range = [0, 2], norm = {kind = 'rms_norm', eps = 1e-4}}]", "seed=7"]);
        let found = RunDiff::new([&a, &b], [&[], &[]]);
        let all: Vec<(&str, [Option<&str>; 2])> = found
            .configuration
            .iter()
            .map(|KeyDiff { key, values }| (key.as_str(), values.each_ref().map(Option::as_deref)))
            .collect();
        assert_eq!(
            all,
            [
                ("model.block[0].norm.eps", [Some("0.001"), Some("0.0001")]),
                ("model.block[0].range", [Some("[0, 1]"), Some("[0, 2]")]),
                ("optimizer.betas", [None, Some("[0.9, 0.95]")]),
                ("optimizer.eps", [None, Some("1e-8")]),
                ("optimizer.kind", [Some("\"sgd\""), Some("\"adamw\"")]),
                ("optimizer.lr", [Some("0.1"), Some("0.001")]),
                ("optimizer.momentum", [Some("0.9"), None]),
                ("optimizer.nesterov", [Some("false"), None]),
                ("optimizer.weight_decay", [Some("0.0"), None]),
                ("optimizer.weight_decay.kind", [None, Some("\"coupled\"")]),
                ("optimizer.weight_decay.value", [None, Some("0.1")]),
                ("seed", [Some("1"), Some("7")]),
            ]
        );
        assert!(!found.is_equal() && found.to_json().contains("\"equal\": false"));
    }
}
