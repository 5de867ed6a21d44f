//! What is wrong with a setting, and what several settings ask for.

use std::fmt::Display;

/// A setting that is out of range, or does not fit another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct Fault {
    /// The key, with its path below what was checked.
    pub key: String,
    /// Its value, as [`short`] shows it.
    pub value: String,
    /// What is allowed, and how to fix it.
    pub problem: String,
}

impl Fault {
    /// Of a key, its value, and what is allowed.
    pub fn new(key: impl Into<String>, value: impl Display, problem: impl Into<String>) -> Self {
        Self { key: key.into(), value: short(&value.to_string()), problem: problem.into() }
    }

    /// The same, of a table that `key` is the key of.
    #[must_use]
    pub fn below(self, key: &str) -> Self {
        Self { key: format!("{key}.{}", self.key), ..self }
    }
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

/// A [`Fault`] unless `holds`.
///
/// # Errors
/// That fault.
pub fn require(
    holds: bool,
    key: impl Into<String>,
    value: impl Display,
    problem: impl Into<String>,
) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::new(key, value, problem)) }
}

/// A number from `least` to `most`.
///
/// # Errors
/// Where it is not.
pub fn within(key: &str, x: f64, least: f64, most: f64) -> Result<(), Fault> {
    let shown = |bound: f64| {
        let [plain, exponent] = [format!("{bound}"), format!("{bound:e}")];
        if exponent.len() < plain.len() { exponent } else { plain }
    };
    let problem = format!("must be a number from {} to {}", shown(least), shown(most));
    require((least..=most).contains(&x), key, x, problem)
}

/// A whole number from 1 to `most`.
///
/// # Errors
/// Where it is not.
pub fn from_one(key: &str, n: usize, most: usize) -> Result<(), Fault> {
    require((1..=most).contains(&n), key, n, format!("must be from 1 to {most}"))
}

/// A part of something, and not none of it: above 0 and at most 1.
///
/// # Errors
/// Where it is not.
pub fn fraction(key: &str, x: f64) -> Result<(), Fault> {
    require(x > 0.0 && x <= 1.0, key, x, "must be above 0 and at most 1")
}

/// What an average keeps: from 0 up to, but without, 1.
///
/// # Errors
/// Where it is not.
pub fn proper_fraction(key: &str, x: f64) -> Result<(), Fault> {
    require((0.0..1.0).contains(&x), key, x, "must be from 0 up to, but without, 1")
}

/// A factor of either sign, of a size that f32 can hold, with that of what it multiplies.
///
/// # Errors
/// Where it is not.
pub fn factor(key: &str, x: f64) -> Result<(), Fault> {
    within(key, x.abs(), 1e-30, 1e30).map_err(|_| Fault::new(key, x, "must be a number from 1e-30 to 1e30 in size"))
}

/// A factor above 0, of a size that f32 can hold, with that of what it multiplies.
///
/// # Errors
/// Where it is not.
pub fn positive_factor(key: &str, x: f64) -> Result<(), Fault> {
    within(key, x, 1e-30, 1e30)
}
