//! Faults of settings, and checks of ranges.

use std::fmt::Display;

/// A setting that is out of range, or does not fit another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct Fault {
    /// Path of the key, relative to the table that was checked.
    pub key: String,
    /// Value of the key, as [`short`] shows it.
    pub value: String,
    /// What is allowed, and how to fix it.
    pub problem: String,
}

impl Fault {
    /// The fault of `key = value`; `problem` says what is allowed.
    pub fn new(key: impl Into<String>, value: impl Display, problem: impl Into<String>) -> Self {
        Self { key: key.into(), value: short(&value.to_string()), problem: problem.into() }
    }

    /// The same fault seen from the parent table, in which `key` names the table that was checked.
    #[must_use]
    pub fn below(self, key: &str) -> Self {
        Self { key: format!("{key}.{}", self.key), ..self }
    }
}

/// Number of digits of the largest `u64`.
const LONGEST_NUMBER: usize = 20;

/// A value as messages show it: a number with more digits than the largest `u64` in exponent form, anything else unchanged.
pub fn short(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(x) if value.len() > LONGEST_NUMBER => format!("{x:e}"),
        Ok(_) | Err(_) => value.into(),
    }
}

/// Checks that `holds`.
///
/// # Errors
/// The fault of `key = value` if not.
pub fn require(
    holds: bool,
    key: impl Into<String>,
    value: impl Display,
    problem: impl Into<String>,
) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::new(key, value, problem)) }
}

/// Checks that `least <= x <= most`.
///
/// # Errors
/// The fault of `key = x` if not.
pub fn within(key: &str, x: f64, least: f64, most: f64) -> Result<(), Fault> {
    let shown = |bound: f64| {
        let [plain, exponent] = [format!("{bound}"), format!("{bound:e}")];
        if exponent.len() < plain.len() { exponent } else { plain }
    };
    let problem = format!("must be a number from {} to {}", shown(least), shown(most));
    require((least..=most).contains(&x), key, x, problem)
}

/// Checks that `1 <= n <= most`.
///
/// # Errors
/// The fault of `key = n` if not.
pub fn from_one(key: &str, n: usize, most: usize) -> Result<(), Fault> {
    require((1..=most).contains(&n), key, n, format!("must be from 1 to {most}"))
}

/// Checks that `0 < x <= 1`.
///
/// # Errors
/// The fault of `key = x` if not.
pub fn fraction(key: &str, x: f64) -> Result<(), Fault> {
    require(x > 0.0 && x <= 1.0, key, x, "must be above 0 and at most 1")
}

/// Checks that `0 <= x < 1`.
///
/// # Errors
/// The fault of `key = x` if not.
pub fn proper_fraction(key: &str, x: f64) -> Result<(), Fault> {
    require((0.0..1.0).contains(&x), key, x, "must be from 0 up to, but without, 1")
}

/// Checks that `1e-30 <= |x| <= 1e30`, so that products with x stay in the range of f32.
///
/// # Errors
/// The fault of `key = x` if not.
pub fn factor(key: &str, x: f64) -> Result<(), Fault> {
    within(key, x.abs(), 1e-30, 1e30).map_err(|_| Fault::new(key, x, "must be a number from 1e-30 to 1e30 in size"))
}

/// Checks that `1e-30 <= x <= 1e30`, so that products with x stay in the range of f32.
///
/// # Errors
/// The fault of `key = x` if not.
pub fn positive_factor(key: &str, x: f64) -> Result<(), Fault> {
    within(key, x, 1e-30, 1e30)
}
