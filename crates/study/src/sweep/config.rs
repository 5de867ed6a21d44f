//! The TOML file of a sweep.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use toml::{Table, Value};
use unitgain_train::Error;
use unitgain_train::config::{deserialize, read};
use unitgain_variant::shorthand;

/// A sweep: a base run, and the axes to vary. Unknown keys are errors.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepConfig {
    /// TOML file of the base run, relative to the sweep's file. Required.
    pub run: PathBuf,
    /// `key.path=value` settings for all runs. Default none.
    pub set: Vec<String>,
    /// The loss that runs are compared by. Default `evaluation`.
    pub loss: Loss,
    /// Maximum shift of the optimum that counts as transfer, in octaves. Default 0.5.
    pub tolerance: f64,
    /// Axes in file order; the last one changes fastest.
    pub axes: Vec<Axis>,
}

/// The loss that runs are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Loss {
    /// The evaluation after the last step.
    Evaluation {},
    /// Mean training loss of the last records.
    Window {
        /// Number of records. Default 10.
        #[serde(default = "ten")]
        records: usize,
    },
}

/// An axis of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// `width`, `depth`, or the path of a configuration key.
    pub key: String,
    /// Distinct values, at least one.
    pub values: Vec<Value>,
}

/// The axis to optimize.
pub const LR: &str = "optimizer.lr";
/// The axis to average over.
pub const SEED: &str = "seed";
/// Maximum number of values in a range.
const MOST_VALUES: f64 = 1000.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    run: PathBuf,
    #[serde(default)]
    set: Vec<String>,
    #[serde(default = "evaluation", deserialize_with = "shorthand::kind_or_table")]
    loss: Loss,
    #[serde(default = "half")]
    tolerance: f64,
    axes: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: f64,
    octaves: f64,
    #[serde(default = "half")]
    step: f64,
}

fn evaluation() -> Loss {
    Loss::Evaluation {}
}

fn ten() -> usize {
    10
}

fn half() -> f64 {
    0.5
}

impl SweepConfig {
    /// Parses the text of the file at `path`.
    ///
    /// # Errors
    /// [`Error::Syntax`], or [`Error::Config`] with the key.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let origin = path.display().to_string();
        let error = |key: &str, problem: String| Error::Config { origin: origin.clone(), key: key.into(), problem };
        let File { run, set, loss, tolerance, axes } = read(text, &origin)?;
        if !(tolerance >= 0.0 && tolerance.is_finite()) {
            return Err(error("tolerance", format!("{tolerance} must be 0 or more octaves")));
        }
        if matches!(loss, Loss::Window { records: 0 }) {
            return Err(error("loss.records", "0 must be at least 1".into()));
        }
        let mut read = Vec::new();
        for key in keys_in_order(text, "axes") {
            let Some(value) = axes.get(&key) else { continue };
            let at = format!("axes.{key:?}");
            let values = match value {
                Value::Array(values) => values.clone(),
                Value::Table(range) => range_of(range, &origin, &at)?,
                Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {
                    return Err(error(&at, format!("{value} must be a list of values, as [{value}]")));
                }
            };
            let meant = match key.as_str() {
                "lr" => Some(LR),
                "d_model" => Some("width"),
                "n_layers" | "layers" => Some("depth"),
                "steps" => Some("train.steps"),
                "placement" | "norm" | "scale" | "init" | "parametrization" => Some("model."),
                _ => None,
            };
            if let Some(meant) = meant {
                let meant = if meant.ends_with('.') { format!("{meant}{key}") } else { meant.into() };
                return Err(error(&at, format!("is not a configuration key. Did you mean {meant:?}?")));
            }
            if key.contains(char::is_whitespace) {
                return Err(error(&at, "must be a key without spaces".into()));
            }
            if values.is_empty() {
                return Err(error(&at, "has no value; an axis needs at least one".into()));
            }
            let mut earlier = HashSet::new();
            if let Some(value) = values.iter().find(|value| !earlier.insert(identity(value))) {
                return Err(error(&at, format!("{value} is there twice; remove one")));
            }
            if key == LR && !values.iter().all(|value| number(value).is_some_and(|lr| lr > 0.0)) {
                return Err(error(&at, "must be numbers above 0".into()));
            }
            read.push(Axis { key, values });
        }
        if read.is_empty() {
            return Err(error("axes", "is empty; give at least one axis, as width = [64, 128]".into()));
        }
        let run = path.parent().unwrap_or(Path::new("")).join(run);
        Ok(Self { run, set, loss, tolerance, axes: read })
    }
}

/// The keys of a table in file order, which a parsed TOML table does not keep.
pub(crate) fn keys_in_order(text: &str, table: &str) -> Vec<String> {
    let Ok(root) = toml::de::DeTable::parse(text) else { return Vec::new() };
    let Some(table) = root.get_ref().get(table).and_then(|table| table.get_ref().as_table()) else { return Vec::new() };
    let mut keys: Vec<(usize, String)> =
        table.keys().map(|key| (key.span().start, key.get_ref().to_string())).collect();
    keys.sort();
    keys.into_iter().map(|(_, key)| key).collect()
}

/// `from * 2^(k step)` for k = 0, 1, .. up to `octaves`; integers if `from` and all values are.
fn range_of(table: &Table, origin: &str, at: &str) -> Result<Vec<Value>, Error> {
    let error = |key: String, problem: String| Error::Config { origin: origin.into(), key, problem };
    if let Some(key) = table.keys().find(|key| !["from", "octaves", "step"].contains(&key.as_str())) {
        let problem = "is not a key of a range, which has from, octaves and step. Write a key with dots in quotes, as \
                       \"optimizer.lr\" = [1e-3, 2e-3]";
        return Err(error(format!("{at}.{key}"), problem.into()));
    }
    let range: Range = deserialize(table.clone(), origin).map_err(|e| match e {
        Error::Config { origin, key, problem } => Error::Config { origin, key: format!("{at}.{key}"), problem },
        other => other,
    })?;
    let Range { from, octaves, step } = range;
    let positive = [("from", from), ("step", step)];
    if let Some((key, x)) = positive.iter().find(|(_, x)| !(*x > 0.0 && x.is_finite())) {
        return Err(error(format!("{at}.{key}"), format!("{x} must be above 0")));
    }
    let steps = octaves / step + 1e-9;
    if !(octaves >= 0.0 && steps < MOST_VALUES) {
        let problem = format!("{octaves} must be 0 or more, in fewer than {MOST_VALUES} steps of {step}");
        return Err(error(format!("{at}.octaves"), problem));
    }
    let values: Vec<f64> = (0..=steps as usize).map(|k| from * (k as f64 * step).exp2()).collect();
    let whole = table["from"].is_integer() && values.iter().all(|x| x.fract() == 0.0 && *x < 2f64.powi(53));
    Ok(values.into_iter().map(|x| if whole { Value::Integer(x as i64) } else { Value::Float(x) }).collect())
}

/// A value as a number.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(i) => Some(*i as f64),
        Value::Float(x) => Some(*x),
        Value::String(_) | Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

/// A text that is equal for equal values: an integer equals the same float.
fn identity(value: &Value) -> String {
    // Negative zero equals zero.
    number(value).map_or_else(|| value.to_string(), |x| format!("{:?}", x + 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(axes: &str) -> Result<SweepConfig, Error> {
        SweepConfig::parse(&format!("run = '../a.toml'\n{axes}"), Path::new("sweeps/b.toml"))
    }

    #[test]
    fn a_file_gives_axes_in_its_order() {
        let sweep =
            parse("[axes]\nwidth = [64, 128]\n'optimizer.lr' = { from = 1e-3, octaves = 1 }\nseed = [2, 1]").unwrap();
        assert_eq!(sweep.run, Path::new("sweeps/../a.toml"));
        assert_eq!((sweep.loss, sweep.tolerance), (Loss::Evaluation {}, 0.5));
        let keys: Vec<&str> = sweep.axes.iter().map(|axis| axis.key.as_str()).collect();
        assert_eq!(keys, ["width", "optimizer.lr", "seed"]);
        let rates: Vec<f64> = sweep.axes[1].values.iter().filter_map(number).collect();
        assert_eq!(rates, [1e-3, 1e-3 * 2f64.sqrt(), 2e-3]);
        let widths = parse("[axes]\nwidth = { from = 64, octaves = 2, step = 1 }").unwrap();
        assert_eq!(widths.axes[0].values, [64, 128, 256].map(Value::Integer), "a range of whole numbers stays whole");
        let window = parse("loss = { kind = 'window' }\n[axes]\nseed = [1]").unwrap();
        assert_eq!(window.loss, Loss::Window { records: 10 });
        let rest = parse("[axes]\n'optimizer.lr' = { from = 1.0, octaves = 1, step = 0.3 }").unwrap();
        assert_eq!(rest.axes[0].values.len(), 4, "no value lies beyond the range");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (axes, expected) in [
            ("runs = 1\n[axes]\nwidth = [1]", "runs"),
            ("loss = 'best'\n[axes]\nwidth = [1]", "evaluation, window"),
            ("loss = { kind = 'window', records = 0 }\n[axes]\nwidth = [1]", "loss.records"),
            ("tolerance = -1\n[axes]\nwidth = [1]", "tolerance"),
            ("", "axes"),
            ("[axes]", "at least one axis"),
            ("[axes]\nwidth = []", "at least one"),
            ("[axes]\nwidth = 64", "as [64]"),
            ("[axes]\nwidth = [64, 128, 64.0]", "64.0 is there twice"),
            ("[axes]\noptimizer.lr = [1e-3]", "in quotes"),
            ("[axes]\nlr = [1e-3]", "\"optimizer.lr\"?"),
            ("[axes]\nplacement = ['pre_norm']", "\"model.placement\"?"),
            ("[axes]\n'optimizer.lr' = [0.0]", "above 0"),
            ("[axes]\n'optimizer.lr' = { from = 0.0, octaves = 1 }", "from"),
            ("[axes]\n'optimizer.lr' = { from = 1.0, octaves = -1 }", "octaves"),
            ("[axes]\n'optimizer.lr' = { from = 1.0 }", "octaves: missing"),
            ("[axes]\n'optimizer.lr' = { from = 1.0, octaves = 1e9 }", "fewer than"),
        ] {
            let message = parse(axes).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} does not say {expected:?}");
        }
    }
}
