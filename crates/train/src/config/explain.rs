//! serde's messages, in terms of keys.

use super::TAGS;
use super::names;
use super::schema::{self, Keys};
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::{Table, Value};

/// A fault of a value, or a key that there is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Where it is: names of keys, and indices of arrays as numbers.
    pub(super) path: Vec<String>,
    /// What is wrong, what is allowed, how to fix it.
    pub(super) problem: String,
    /// Whether there is no such key.
    pub(super) is_unknown: bool,
    /// What was most likely meant: the name of a key beside it, or a value.
    near: Option<String>,
}

/// Most faults that are told at once.
pub(super) const MOST_FAULTS: usize = 50;

/// Reads a configuration and collects all that is wrong with it. What is wrong is taken out of `root`, so that what is
/// left can be read.
pub(super) fn read<T: DeserializeOwned>(root: &mut Value) -> Result<T, Vec<Fault>> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut keys = None;
    loop {
        let (path, message) = match attempt::<T>(root) {
            Ok(_) if !faults.is_empty() => return Err(faults),
            Ok(config) => return Ok(config),
            Err(failure) => failure,
        };
        let path = locate::<T>(root, path, &message);
        let fault = explain(path.clone(), &message, keys.get_or_insert_with(schema::keys::<T>));
        // What is missing because it was taken out, or misspelt, is no second fault.
        let is_consequence = message.starts_with("missing field")
            && faults.iter().any(|earlier| {
                let meant = earlier.near.iter().cloned().fold(earlier.path.clone(), |mut path, near| {
                    path.pop();
                    path.push(near);
                    path
                });
                earlier.path == fault.path || meant == fault.path
            });
        let replacement = fault.near.clone().filter(|_| !fault.is_unknown);
        if !is_consequence {
            faults.push(fault);
        }
        if faults.len() >= MOST_FAULTS || !take(root, &path, replacement) {
            return Err(faults);
        }
    }
}

/// Reads a value; else where serde was, and the first line of what it said. What follows is the path once more.
fn attempt<T: DeserializeOwned>(root: &Value) -> Result<T, (Vec<String>, String)> {
    serde_path_to_error::deserialize(root.clone()).map_err(|e| {
        let segment = |segment: &Segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } => Some(key.clone()),
            Segment::Enum { variant } => Some(variant.clone()),
            Segment::Unknown => None,
        };
        let path = e.path().iter().filter_map(segment).collect();
        (path, e.into_inner().to_string().lines().next().unwrap_or_default().to_string())
    })
}

/// The first line of what serde says of a value that cannot be read.
pub(super) fn said<T: DeserializeOwned>(root: &Value) -> Option<String> {
    attempt::<T>(root).err().map(|(_, message)| message)
}

/// The value at a path.
pub(super) fn at<'a>(root: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Array(array) => array.get(key.parse::<usize>().ok()?),
        value => value.get(key.as_str()),
    })
}

pub(super) fn at_mut<'a>(root: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Array(array) => array.get_mut(key.parse::<usize>().ok()?),
        value => value.get_mut(key.as_str()),
    })
}

/// The path of what a message means: serde reads a table of some kind as a whole and forgets the key.
fn locate<T: DeserializeOwned>(root: &Value, path: Vec<String>, message: &str) -> Vec<String> {
    let named = message.split('`').nth(1).unwrap_or_default();
    let is_missing = message.starts_with("missing field");
    let below = |name: &str| [path.as_slice(), &[name.to_string()]].concat();
    let Some(Value::Table(table)) = at(root, &path) else { return path };
    let unknown = message.starts_with("unknown field");
    if unknown && at(root, &below(named)).is_some() {
        return below(named);
    }
    if is_missing && !table.contains_key(named) {
        return path;
    }
    // The part that is left alone with its kind and still gets the same message.
    let tag = TAGS.into_iter().find(|tag| table.contains_key(*tag));
    let same = |kept: &[&str]| {
        let part = kept.iter().filter_map(|key| table.get_key_value(*key)).map(owned).collect();
        said::<T>(&alone(root, &path, part)).is_some_and(|said| said == message)
    };
    // A kind that is missing below would be missing here too.
    if !is_missing && same(&[]) {
        return path;
    }
    let Some(tag) = tag else { return path };
    if same(&[tag]) {
        return below(tag);
    }
    match table.keys().find(|key| *key != tag && same(&[tag, key])) {
        Some(key) => locate::<T>(root, below(key), message),
        None => path,
    }
}

/// `inner` at a path, and of the tables around it only what says their kind.
fn alone(root: &Value, path: &[String], inner: Table) -> Value {
    let Some((key, rest)) = path.split_first() else { return Value::Table(inner) };
    match root {
        Value::Table(table) => {
            let tags = TAGS.iter().filter_map(|tag| table.get_key_value(*tag)).map(owned);
            let next = table.get(key).map(|value| (key.clone(), alone(value, rest, inner)));
            Value::Table(tags.chain(next).collect())
        }
        Value::Array(array) => {
            let next = key.parse::<usize>().ok().and_then(|i| array.get(i)).map(|value| alone(value, rest, inner));
            Value::Array(next.into_iter().collect())
        }
        other => other.clone(),
    }
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

/// Takes out what is at a path, or puts what was meant in its place; false where there is nothing to take.
fn take(root: &mut Value, path: &[String], replacement: Option<String>) -> bool {
    let Some((last, parents)) = path.split_last() else { return false };
    if let (Some(near), Some(slot)) = (replacement, at_mut(root, path)) {
        *slot = Value::String(near);
        return true;
    }
    match at_mut(root, parents) {
        Some(Value::Table(table)) => table.remove(last).is_some(),
        // The others keep their indices.
        Some(Value::Array(_)) => take(root, parents, None),
        Some(_) | None => false,
    }
}

/// A path as a person writes it.
pub(super) fn shown(path: &[String]) -> String {
    let mut text = String::new();
    for key in path {
        match key.parse::<usize>() {
            Ok(index) => text += &format!("[{index}]"),
            Err(_) if text.is_empty() => text += key,
            Err(_) => text += &format!(".{key}"),
        }
    }
    text
}

/// Turns serde's message about the value at `path` into the key and what to do.
fn explain(path: Vec<String>, message: &str, keys: &Keys) -> Fault {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let first = quoted.next().unwrap_or_default();
    let allowed: Vec<&str> = quoted.collect();
    if message.starts_with("unknown field") {
        let (table, name) = match path.split_last() {
            Some((last, table)) if last == first => (table, last.as_str()),
            Some(_) | None => (path.as_slice(), first),
        };
        let near = nearest(name, &allowed);
        let problem = match (names::suggestion(table, name, keys), near) {
            (Some(said), _) => said,
            (None, Some(near)) => format!("Did you mean `{near}`?"),
            (None, None) if allowed.is_empty() => "There are no keys here: this kind has no settings".into(),
            (None, None) => match near_elsewhere(name, keys) {
                Some(near) => format!("Did you mean `{near}`?"),
                None => format!("Allowed: {}", allowed.join(", ")),
            },
        };
        let path =
            if path.last().is_some_and(|last| last == first) { path } else { [path, vec![first.into()]].concat() };
        return Fault {
            path,
            problem: format!("unknown key. {problem}"),
            is_unknown: true,
            near: near.map(Into::into),
        };
    }
    let fault =
        |path, problem, near: Option<&str>| Fault { path, problem, is_unknown: false, near: near.map(Into::into) };
    if message.starts_with("unknown variant") {
        let near = nearest(first, &allowed);
        let said = near.map_or(String::new(), |near| format!("Did you mean `{near}`? "));
        fault(path, format!("unknown value {first:?}. {said}Allowed: {}", allowed.join(", ")), near)
    } else if message.starts_with("missing field") {
        let which =
            if TAGS.contains(&first) { "say which; `unitgain configs` lists them" } else { "it has no default" };
        fault([path, vec![first.into()]].concat(), format!("missing: {which}"), None)
    } else {
        let types = [
            ("usize", "a whole number, 0 or more"),
            ("u64", "a whole number, 0 or more"),
            ("f64", "a number"),
            ("a boolean", "true or false"),
            ("internally tagged enum ", "a table with a `kind` or `task`: "),
            ("struct ", "a table: "),
        ];
        let plain = types.iter().fold(message.to_string(), |text, (rust, plain)| {
            text.replace(&format!("expected {rust}"), &format!("expected {plain}"))
        });
        fault(path, plain, None)
    }
}

/// The known name that a misspelt one most likely means.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let (distance, best) = known.iter().map(|k| (strsim::damerau_levenshtein(name, k), *k)).min()?;
    (distance <= 1.max(name.len() / 3)).then_some(best)
}

/// The key of another table that a misspelt name most likely means.
fn near_elsewhere(name: &str, keys: &Keys) -> Option<String> {
    let last = |key: &Vec<String>| key.last().cloned().unwrap_or_default();
    let distance = |key: &&Vec<String>| strsim::damerau_levenshtein(name, &last(key));
    // One of just this name is of another kind of the same table.
    let best = keys.iter().filter(|key| last(key) != name).min_by_key(|key| (distance(key), key.len()))?;
    (distance(&best) <= name.len() / 4).then(|| shown(best))
}
