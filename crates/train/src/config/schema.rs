//! Which keys a configuration can have, as serde tells when it is given one that cannot be.

use super::TAGS;
use super::explain::said;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use toml::{Table, Value};

/// Paths of keys, those of every kind.
pub(super) type Keys = BTreeSet<Vec<String>>;

/// No key has this name.
const NONE: &str = "?";
/// Levels of tables.
const DEPTH: usize = 5;

/// What there is to find, for each type that was explored: a sweep reads a configuration for each of its runs.
static KNOWN: Mutex<BTreeMap<&str, Arc<Schema>>> = Mutex::new(BTreeMap::new());

/// All that a configuration can have.
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

/// What was found.
#[derive(Default)]
pub(super) struct Schema {
    /// All keys.
    pub(super) keys: Keys,
    /// Those whose value is a path.
    paths: Keys,
    /// Those whose value is a list of tables.
    pub(super) lists: Keys,
}

/// A table on the way to what is looked at: its key, whether it stands in an array, and what says its kind.
struct Step {
    key: String,
    is_array: bool,
    kind: Table,
}

/// What serde says of the value at the end of the way.
fn tell<T: DeserializeOwned>(way: &[Step], table: Table) -> String {
    let root = way.iter().enumerate().rev().fold(Value::Table(table), |inner, (i, step)| {
        let inner = if step.is_array { Value::Array(vec![inner]) } else { inner };
        // The kind of a table stands beside the key that leads on.
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

/// Notes the fields of a table of some kind, and what is in them.
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

/// The names that a message allows.
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

    /// A new key with a path is to be listed, or it would be relative to the working folder.
    #[test]
    fn every_path_is_listed() {
        let paths: Vec<String> = of::<RunConfig>().paths.iter().map(|path| path.join(".")).collect();
        assert_eq!(paths, PATHS);
    }
}
