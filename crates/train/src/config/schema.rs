//! The keys of a configuration, derived from serde's errors for impossible values.

use super::TAGS;
use super::explain::said;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use toml::{Table, Value};

/// Paths of keys, of all kinds of table.
pub(super) type Keys = BTreeSet<Vec<String>>;

/// A name that no key has.
const NONE: &str = "?";
/// Maximum nesting of tables.
const DEPTH: usize = 5;

/// Schemas of the types explored so far, because a sweep reads a configuration for each of its runs.
static KNOWN: Mutex<BTreeMap<&str, Arc<Schema>>> = Mutex::new(BTreeMap::new());

/// The schema of a type.
pub(super) fn of<T: DeserializeOwned>() -> Arc<Schema> {
    let name = std::any::type_name::<T>();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let explored = known.entry(name).or_insert_with(|| {
        let mut schema = Schema::default();
        explore::<T>(&mut Vec::new(), &mut schema);
        schema.into()
    });
    Arc::clone(explored)
}

/// The keys that were found.
#[derive(Default)]
pub(super) struct Schema {
    /// All keys.
    pub(super) keys: Keys,
    /// Keys whose value is a path.
    paths: Keys,
    /// Keys whose value is an array of tables.
    pub(super) lists: Keys,
}

/// A table on the way to the explored value: its key, whether it is in an array, and its kind.
struct Step {
    key: String,
    is_array: bool,
    kind: Table,
}

/// serde's error for a value at the end of `way`.
fn tell<T: DeserializeOwned>(way: &[Step], table: Table) -> String {
    let root = way.iter().enumerate().rev().fold(Value::Table(table), |inner, (i, step)| {
        let inner = if step.is_array { Value::Array(vec![inner]) } else { inner };
        // A table's kind stands beside the key that leads further.
        let mut holder = if i == 0 { Table::new() } else { way[i - 1].kind.clone() };
        holder.insert(step.key.clone(), inner);
        Value::Table(holder)
    });
    said::<T>(&root).unwrap_or_default()
}

fn pair(key: &str, value: Value) -> (String, Value) {
    (key.to_string(), value)
}

fn explore<T: DeserializeOwned>(way: &mut Vec<Step>, seen: &mut Schema) {
    if way.len() > DEPTH {
        return;
    }
    let unknown = || pair(NONE, Value::Integer(1));
    let mut message = tell::<T>(way, Table::from_iter([unknown()]));
    if let Some(last) = way.last_mut().filter(|_| message.contains("expected a sequence")) {
        last.is_array = true;
        message = tell::<T>(way, Table::from_iter([unknown()]));
        if message.starts_with("unknown field") {
            seen.lists.insert(way.iter().map(|step| step.key.clone()).collect());
        }
    }
    if message.contains("expected path string") {
        seen.paths.insert(way.iter().map(|step| step.key.clone()).collect());
    }
    match TAGS.into_iter().find(|tag| message.starts_with(&format!("missing field `{tag}`"))) {
        Some(tag) => {
            let kinds = tell::<T>(way, Table::from_iter([pair(tag, Value::String(NONE.into()))]));
            for kind in quoted(&kinds, "unknown variant") {
                let kind = pair(tag, Value::String(kind));
                let fields = tell::<T>(way, Table::from_iter([kind.clone(), unknown()]));
                let kind = Table::from_iter([kind]);
                enter::<T>(way, &kind, quoted(&fields, "unknown field"), seen);
            }
            seen.keys.insert(way.iter().map(|step| step.key.clone()).chain([tag.to_string()]).collect());
        }
        None => enter::<T>(way, &Table::new(), quoted(&message, "unknown field"), seen),
    }
}

/// Collects the fields of a table of one kind, and their contents.
fn enter<T: DeserializeOwned>(way: &mut Vec<Step>, kind: &Table, fields: Vec<String>, seen: &mut Schema) {
    if let Some(last) = way.last_mut() {
        last.kind = kind.clone();
    }
    for key in fields {
        way.push(Step { key, is_array: false, kind: Table::new() });
        seen.keys.insert(way.iter().map(|step| step.key.clone()).collect());
        explore::<T>(way, seen);
        way.pop();
    }
}

/// The names that a message lists as allowed.
fn quoted(message: &str, about: &str) -> Vec<String> {
    match message.starts_with(about) {
        true => message.split('`').skip(1).step_by(2).skip(1).map(Into::into).collect(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;
    use crate::config::path::PATHS;

    #[test]
    fn every_table_and_kind_is_found() {
        let keys = &of::<RunConfig>().keys;
        let path = |key: &str| key.split('.').map(String::from).collect::<Vec<_>>();
        for key in [
            "seed",
            "model.d_model",
            "model.norm.groups",
            "model.norm.kind",
            "model.block.range",
            "model.block.norm.eps",
            "model.parametrization.base_depth",
            "data.path",
            "data.pairs",
            "optimizer.momentum",
            "optimizer.weight_decay.value",
            "train.clip.lambda",
            "init.calibrate.passes",
            "schedule.decay",
        ] {
            assert!(keys.contains(&path(key)), "{key} is not in {keys:?}");
        }
        assert!(!keys.contains(&path("model.lr")) && !keys.iter().any(|key| key.contains(&NONE.to_string())));
    }

    /// A new key with a path must be listed, or it would not be relative to its file.
    #[test]
    fn every_path_is_listed() {
        let paths: Vec<String> = of::<RunConfig>().paths.iter().map(|path| path.join(".")).collect();
        assert_eq!(paths, PATHS);
    }
}
