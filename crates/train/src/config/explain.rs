//! Translates serde's errors into messages about keys.

use super::TAGS;
use super::names;
use super::schema::{self, Keys};
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::{Table, Value};

/// A value that cannot be read, or an unknown key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misread {
    /// Path of the key; indices of arrays are decimal strings.
    pub(super) path: Vec<String>,
    /// What is wrong, what is allowed, and how to fix it.
    pub(super) problem: String,
    /// Whether the key is unknown.
    pub(super) is_unknown: bool,
    /// The most likely intended key of the same table, or value.
    near: Option<String>,
}

/// Maximum number of faults in one message.
pub(super) const MOST_FAULTS: usize = 50;

/// Longer than any key; bounds the cost of comparing names, the product of their lengths.
const LONGEST_NAME: usize = 64;

/// Reads a configuration and collects all faults. Faulty parts are removed from `root`, so that the rest can be read.
pub(super) fn read<T: DeserializeOwned>(root: &mut Value) -> Result<T, Vec<Misread>> {
    let mut faults = misplaced::<T>(root);
    for fault in faults.iter().rev() {
        take(root, &fault.path, None);
    }
    loop {
        let (path, message) = match attempt::<T>(root) {
            Ok(_) if !faults.is_empty() => return Err(faults),
            Ok(config) => return Ok(config),
            Err(failure) => failure,
        };
        let path = locate::<T>(root, path, &message);
        let fault = match mistaken::<T>(root, &path, &message) {
            Some(problem) => Misread { path: path.clone(), problem, is_unknown: false, near: None },
            None => explain(path.clone(), &message, &schema::of::<T>().keys),
        };
        // A key that is missing because it was removed or misspelt is not a second fault.
        let is_consequence = message.starts_with("missing field")
            && faults.iter().any(|earlier| {
                let meant = earlier.near.iter().cloned().fold(earlier.path.clone(), |mut path, near| {
                    path.pop();
                    path.push(near);
                    path
                });
                earlier.path.starts_with(&fault.path) || meant == fault.path
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

/// Reads a value. The error is the path where serde failed and its message, without the path that the last line
/// repeats.
fn attempt<T: DeserializeOwned>(root: &Value) -> Result<T, (Vec<String>, String)> {
    serde_path_to_error::deserialize(root.clone()).map_err(|e| {
        let segment = |segment: &Segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } => Some(key.clone()),
            Segment::Enum { variant } => Some(variant.clone()),
            Segment::Unknown => None,
        };
        let path = e.path().iter().filter_map(segment).collect();
        let said = e.into_inner().to_string();
        let end = said.rfind("\nin `").unwrap_or(said.len());
        (path, said[..end].trim_end().to_string())
    })
}

/// Finds arrays in place of tables, which serde would read as a sequence of fields, and dates, which no key accepts.
fn misplaced<T: DeserializeOwned>(root: &Value) -> Vec<Misread> {
    let mut found = Vec::new();
    let is_table = |path: &[String]| {
        let schema = schema::of::<T>();
        let is_index = |part: &&String| part.parse::<usize>().is_ok();
        let names: Vec<String> = path.iter().filter(|part| !is_index(part)).cloned().collect();
        // An element of an array of tables is a table.
        let is_list = schema.lists.contains(&names) && path.last().is_none_or(|last| !is_index(&last));
        // A table with a kind rejects arrays itself.
        let has_kind = schema.keys.contains(&[names.as_slice(), &["kind".to_string()]].concat());
        let mut below = schema.keys.range(names.clone()..).take_while(|key| key.starts_with(&names));
        !is_list && !has_kind && below.any(|key| key.len() > names.len())
    };
    look(root, &mut Vec::new(), &mut |value, path| match value {
        _ if found.len() >= MOST_FAULTS => false,
        Value::Datetime(date) => {
            let problem = format!("invalid type: date `{date}`, which no key has; a text is written in quotes");
            found.push(Misread { path: path.to_vec(), problem, is_unknown: false, near: None });
            false
        }
        Value::Array(_) if is_table(path) => {
            let problem = "invalid type: a list, expected a table".into();
            found.push(Misread { path: path.to_vec(), problem, is_unknown: false, near: None });
            false
        }
        Value::Array(_)
        | Value::Table(_)
        | Value::String(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_) => true,
    });
    found
}

/// Visits a value, and its contents as long as `visit` returns true.
fn look(value: &Value, path: &mut Vec<String>, visit: &mut dyn FnMut(&Value, &[String]) -> bool) {
    if !visit(value, path) {
        return;
    }
    let mut enter = |key: String, value: &Value| {
        path.push(key);
        look(value, path, visit);
        path.pop();
    };
    match value {
        Value::Table(table) => table.iter().for_each(|(key, value)| enter(key.clone(), value)),
        Value::Array(array) => array.iter().enumerate().for_each(|(i, value)| enter(i.to_string(), value)),
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {}
    }
}

/// Describes a value of a wrong type in TOML's terms; None if the type is not the problem.
fn mistaken<T: DeserializeOwned>(root: &Value, path: &[String], message: &str) -> Option<String> {
    let what =
        ["invalid type", "invalid value", "invalid length"].into_iter().find(|what| message.starts_with(what))?;
    let value = at(root, path)?;
    let said_of = |other: Value| {
        let mut root = root.clone();
        *at_mut(&mut root, path)? = other;
        said::<T>(&root)
    };
    let expected = |message: &str| message.rsplit_once(", expected ").map(|(_, expected)| expected.to_string());
    let mut wanted = expected(message)?;
    if what == "invalid length" {
        // The message for a list that is too long does not give the allowed length.
        wanted = said_of(Value::Boolean(true)).as_deref().and_then(expected).unwrap_or(wanted);
    }
    if is_choice(&wanted) {
        let names = said_of(Value::String(String::new())).unwrap_or_default();
        let names: Vec<&str> = names.split('`').skip(1).step_by(2).skip(1).collect();
        return Some(format!("{what}: {}, expected one of {}", named(value), names.join(", ")));
    }
    Some(format!("{what}: {}, expected {}", named(value), plain(&wanted)))
}

/// Whether a list of allowed names is expected.
fn is_choice(expected: &str) -> bool {
    matches!(expected, "string or map" | "string only" | "map with a single key" | "variant identifier")
        || ["enum ", "variant of ", "unit variant"].iter().any(|start| expected.starts_with(start))
}

/// A value with its TOML type.
fn named(value: &Value) -> String {
    match value {
        Value::String(text) => format!("string {text:?}"),
        Value::Integer(n) => format!("integer `{n}`"),
        Value::Float(x) => format!("number `{x:?}`"),
        Value::Boolean(b) => format!("boolean `{b}`"),
        Value::Datetime(date) => format!("date `{date}`"),
        Value::Array(array) => format!("a list of {}", array.len()),
        Value::Table(_) => "a table".into(),
    }
}

/// serde's expectation, without Rust type names.
fn plain(expected: &str) -> String {
    match expected {
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number, 0 or more".into(),
        "isize" | "i64" | "i32" | "i16" | "i8" => "a whole number".into(),
        "f64" | "f32" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "text".into(),
        "path string" => "text, the path of a file".into(),
        "a sequence" => "a list".into(),
        "a map" => "a table".into(),
        other if other.starts_with("internally tagged enum ") => "a table with a `kind` or `task`".into(),
        other if other.starts_with("struct ") => "a table".into(),
        other => match other.strip_prefix("an array of length ") {
            Some(length) => format!("a list of {length}"),
            None => other.into(),
        },
    }
}

/// First line of serde's error for a value that cannot be read.
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

/// The full path of a fault: serde buffers a table with a kind, and its errors then lack the key.
fn locate<T: DeserializeOwned>(root: &Value, path: Vec<String>, message: &str) -> Vec<String> {
    let named = message.split('`').nth(1).unwrap_or_default();
    let is_missing = message.starts_with("missing field");
    let below = |name: &str| [path.as_slice(), &[name.to_string()]].concat();
    let Some(Value::Table(table)) = at(root, &path) else { return path };
    let unknown = message.starts_with("unknown field");
    if unknown && at(root, &below(named)).is_some() {
        return below(named);
    }
    // Find the entry that gives the same error when it is alone with the kind.
    let tag = TAGS.into_iter().find(|tag| table.contains_key(*tag));
    let same = |kept: &[&str]| {
        let part = kept.iter().filter_map(|key| table.get_key_value(*key)).map(owned).collect();
        said::<T>(&alone(root, &path, part)).is_some_and(|said| said == message)
    };
    // A missing kind below would be missing here too.
    if !is_missing && same(&[]) {
        return path;
    }
    let Some(tag) = tag else { return path };
    if same(&[tag]) {
        // A key missing from this table is missing whatever the other entries are.
        return if is_missing { path } else { below(tag) };
    }
    match table.keys().find(|key| *key != tag && same(&[tag, key])) {
        Some(key) => locate::<T>(root, below(key), message),
        None => path,
    }
}

/// Nests `inner` at `path`; the tables around it keep only their kinds.
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

/// Removes the value at `path`, or sets it to `replacement`; false if there is nothing to remove.
fn take(root: &mut Value, path: &[String], replacement: Option<String>) -> bool {
    let Some((last, parents)) = path.split_last() else { return false };
    if let (Some(near), Some(slot)) = (replacement, at_mut(root, path)) {
        *slot = Value::String(near);
        return true;
    }
    match at_mut(root, parents) {
        Some(Value::Table(table)) => table.remove(last).is_some(),
        // Remove the whole array: without one element, the indices of the others would shift.
        Some(Value::Array(_)) => take(root, parents, None),
        Some(_) | None => false,
    }
}

/// A path in dotted notation.
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

/// Translates serde's message about the value at `path`.
fn explain(path: Vec<String>, message: &str, keys: &Keys) -> Misread {
    // Search from the end: the name in the message is user input and may contain anything.
    let (name, expected) = message.rsplit_once("`, expected ").or(message.rsplit_once('`')).unwrap_or((message, ""));
    let first = name.split_once('`').map_or("", |(_, first)| first);
    let allowed: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
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
        return Misread {
            path,
            problem: format!("unknown key. {problem}"),
            is_unknown: true,
            near: near.map(Into::into),
        };
    }
    let fault =
        |path, problem, near: Option<&str>| Misread { path, problem, is_unknown: false, near: near.map(Into::into) };
    if message.starts_with("unknown variant") {
        let near = nearest(first, &allowed);
        let said = near.map_or(String::new(), |near| format!("Did you mean `{near}`? "));
        fault(path, format!("unknown value {first:?}. {said}Allowed: {}", allowed.join(", ")), near)
    } else if message.starts_with("missing field") {
        let which =
            if TAGS.contains(&first) { "say which; `unitgain configs` lists them" } else { "it has no default" };
        fault([path, vec![first.into()]].concat(), format!("missing: {which}"), None)
    } else {
        fault(path, message.to_string(), None)
    }
}

/// The known name closest to a misspelt one.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let (distance, best) = known.iter().map(|k| (strsim::damerau_levenshtein(name, k), *k)).min()?;
    (distance <= 1.max(name.len() / 3)).then_some(best)
}

/// The key of another table that a misspelt name most likely means.
fn near_elsewhere(name: &str, keys: &Keys) -> Option<String> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let last = |key: &Vec<String>| key.last().cloned().unwrap_or_default();
    let distance = |key: &&Vec<String>| strsim::damerau_levenshtein(name, &last(key));
    // A key of exactly this name belongs to another kind of the same table.
    let best = keys.iter().filter(|key| last(key) != name).min_by_key(|key| (distance(key), key.len()))?;
    (distance(&best) <= name.len() / 4).then(|| shown(best))
}
