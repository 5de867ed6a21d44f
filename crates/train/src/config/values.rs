//! Collects all invalid values of a configuration, where a check stops at the first.

use super::RunConfig;
use super::explain::{MOST_FAULTS, at, at_mut};
use super::file::{fault_of, parts};
use crate::Error;
use toml::Value;

impl RunConfig {
    /// The result of `check`, or all values that it refuses: each refused value is reset to its default until no
    /// written value is refused.
    pub(crate) fn all_faults<R>(&self, check: impl Fn(&Self) -> Result<R, Error>) -> Result<R, Error> {
        let mut config = self.clone();
        let mut errors: Vec<(Option<usize>, Error)> = Vec::new();
        let mut taken: Vec<Vec<String>> = Vec::new();
        loop {
            let error = match check(&config) {
                Ok(made) if errors.is_empty() => return Ok(made),
                Ok(_) => return Err(in_order(errors)),
                Err(error) => error,
            };
            let (path, said) = fault_of(&error).map(|fault| (parts(&fault.key), fault.problem)).unwrap_or_default();
            // A value that only conflicts with a reset value is not at fault.
            let words: Vec<&str> = said.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let compares = |other: &Vec<String>| other.last().is_some_and(|last| words.contains(&last.as_str()));
            let is_own = !path.is_empty() && self.written.has(&path) && !taken.contains(&path);
            if errors.is_empty() || is_own && !taken.iter().any(compares) {
                errors.push((self.written.line(&path), self.written.locate(error)));
            }
            let Some(other) = config.without(&path).filter(|_| !taken.contains(&path) && errors.len() < MOST_FAULTS)
            else {
                return Err(in_order(errors));
            };
            taken.push(path);
            config = other;
        }
    }

    /// Faults of written values in a configuration with other faults, except comparisons with another value, which may
    /// be the wrong one.
    pub(super) fn own_faults(&self) -> Vec<Error> {
        let checked = self.all_faults(|config| {
            config.check()?;
            config.plan()
        });
        let all = match checked {
            Ok(_) => Vec::new(),
            Err(Error::Several(all)) => all,
            Err(one) => vec![one],
        };
        let is_own = |error: &Error| fault_of(error).is_some_and(|fault| !fault.problem.contains(" = "));
        all.into_iter().filter(is_own).collect()
    }

    /// The configuration with a value, or the table around it, reset to its default; None if there is no default.
    pub fn without(&self, path: &[String]) -> Option<Self> {
        let mut root = Value::try_from(self).ok()?;
        // Reset a whole section only for a value at its top level.
        (path.len().min(2)..=path.len()).rev().filter(|n| *n > 0).find_map(|n| {
            let (last, parents) = path[..n].split_last()?;
            at(&root, &path[..n])?;
            let holder = at_mut(&mut root, parents)?;
            holder.as_table_mut()?.remove(last)?;
            let read: Result<Self, _> = serde::Deserialize::deserialize(root.clone());
            read.ok().map(|config| Self { written: self.written.clone(), ..config })
        })
    }
}

/// One error of all: first those of the file in its order, then the others.
fn in_order(mut errors: Vec<(Option<usize>, Error)>) -> Error {
    errors.sort_by_key(|(line, _)| line.unwrap_or(usize::MAX));
    Error::several(errors.into_iter().map(|(_, error)| error).collect())
}
