use std::fmt::Display;

/// What is wrong with a model's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// One value is out of range, or two values do not fit.
    #[error("model.{key} = {value}: {problem}")]
    Value {
        /// The key below `model`.
        key: String,
        /// Its value.
        value: String,
        /// What is allowed, and how to fix it.
        problem: String,
    },
    /// Two settings exclude each other (one of [`RULES`](crate::RULES)).
    #[error("model: {pair} cannot be combined: {reason}. {fix}")]
    Combination {
        /// The settings.
        pair: &'static str,
        /// Why not.
        reason: &'static str,
        /// What to do instead.
        fix: &'static str,
    },
    /// Tensors are not those of the model.
    #[error("the weights do not fit the model: {}", few(.problems))]
    Weights {
        /// What is missing, unknown, or of another shape.
        problems: Vec<String>,
    },
}

/// The first few of many, as a message lists them.
pub fn few(all: &[String]) -> String {
    let shown = all.iter().take(8).cloned().collect::<Vec<_>>().join("; ");
    match all.len() {
        0 => "nothing".into(),
        n if n > 8 => format!("{shown}; and {} more", n - 8),
        _ => shown,
    }
}

pub(crate) fn value(key: &str, value: impl Display, problem: impl Into<String>) -> ModelError {
    ModelError::Value { key: key.into(), value: short(&value.to_string()), problem: problem.into() }
}

/// Digits of the largest whole number.
const LONGEST_NUMBER: usize = 20;

/// A value as a message shows it: a number with more digits than the largest whole number in exponent form (1e300 has 301
/// digits), anything else as it is.
pub fn short(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(x) if value.len() > LONGEST_NUMBER => format!("{x:e}"),
        Ok(_) | Err(_) => value.into(),
    }
}
