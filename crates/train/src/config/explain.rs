//! serde's messages, in terms of keys.

use super::TAGS;
use crate::Error;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Reads a configuration from a parsed file.
pub(crate) fn deserialize<T: DeserializeOwned>(table: Table, origin: &str) -> Result<T, Error> {
    let all = Value::Table(table);
    serde_path_to_error::deserialize(all.clone()).map_err(|e| {
        let path = e.path().to_string();
        let message = e.into_inner().to_string();
        let path = if path == "." { String::new() } else { within(&all, &path, &message) };
        let (key, problem) = explain(&path, &message);
        Error::Config { origin: origin.into(), key, problem }
    })
}

/// The path of the value that a message about a table of some kind means: serde reads such a table as a
/// whole and forgets the key, but its message shows the value.
fn within(all: &Value, path: &str, message: &str) -> String {
    let found = path.split('.').try_fold(all, |value, key| match key.split_once('[') {
        Some((key, index)) => value.get(key)?.get(index.trim_end_matches(']').parse::<usize>().ok()?),
        None => value.get(key),
    });
    let shown = |value: &Value| match value {
        Value::String(s) if message.starts_with("unknown variant") => format!("`{s}`"),
        Value::String(s) => format!("string {s:?}"),
        Value::Integer(i) => format!("integer `{i}`"),
        Value::Float(x) => format!("floating point `{x:?}`"),
        Value::Boolean(b) => format!("boolean `{b}`"),
        Value::Array(_) => "sequence".into(),
        Value::Table(_) => "map".into(),
        Value::Datetime(_) => "datetime".into(),
    };
    let about = |kind: &str| message.starts_with(kind);
    let tag = TAGS.into_iter().find(|tag| about(&format!("missing field `{tag}`")));
    let mut meant = Vec::new();
    if let Some(Value::Table(table)) = found {
        below(path, table, &mut |path, value| {
            let is_meant = match (tag, value) {
                // The table itself has its tag where it is one in it that has none.
                (Some(tag), Value::Table(inner)) => table.contains_key(tag) && !inner.contains_key(tag),
                (Some(_), _) => false,
                (None, _) => (about("invalid") || about("unknown variant")) && message.contains(&shown(value)),
            };
            if is_meant {
                meant.push(path);
            }
        });
    }
    match meant.as_slice() {
        [only] => only.clone(),
        [] | [_, ..] => path.to_string(),
    }
}

/// Tells every value below a table, with its path.
fn below(path: &str, table: &Table, tell: &mut dyn FnMut(String, &Value)) {
    for (key, value) in table {
        let path = format!("{path}.{key}");
        tell(path.clone(), value);
        if let Value::Table(table) = value {
            below(&path, table, tell);
        }
    }
}

/// Turns serde's message about the value at `path` into the key and what to do.
fn explain(path: &str, message: &str) -> (String, String) {
    // What follows the first line is the path once more.
    let message = message.lines().next().unwrap_or_default();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let first = quoted.next().unwrap_or_default();
    let allowed: Vec<&str> = quoted.collect();
    let below = |name: &str| match path {
        "" => name.to_string(),
        path if path == name || path.ends_with(&format!(".{name}")) => path.to_string(),
        path => format!("{path}.{name}"),
    };
    let choices = || match nearest(first, &allowed) {
        Some(near) => format!("Did you mean `{near}`? Allowed: {}", allowed.join(", ")),
        None => format!("Allowed: {}", allowed.join(", ")),
    };
    if message.starts_with("unknown field") {
        let problem =
            if allowed.is_empty() { "There are no keys here: this kind has no settings".into() } else { choices() };
        (below(first), format!("unknown key. {problem}"))
    } else if message.starts_with("unknown variant") {
        (path.to_string(), format!("unknown value {first:?}. {}", choices()))
    } else if message.starts_with("missing field") {
        let which =
            if TAGS.contains(&first) { "say which; `unitgain configs` lists them" } else { "it has no default" };
        (below(first), format!("missing: {which}"))
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
        (path.to_string(), plain)
    }
}

/// The known name that a misspelt one most likely means.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let (distance, best) = known.iter().map(|k| (strsim::damerau_levenshtein(name, k), *k)).min()?;
    (distance <= 1.max(name.len() / 3)).then_some(best)
}
