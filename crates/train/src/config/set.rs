//! `--set key.path=value`.

use super::file::{MOST_LEVELS, bounded};
use super::path::PATHS;
use super::{RunConfig, TAGS};
use crate::Error;
use serde::Deserialize;
use toml::de::{DeTable, Deserializer};
use toml::{Table, Value};

/// Keys whose default is a word and whose value can be a number.
const OR_NUMBERS: [&str; 1] = ["train.replicas"];

/// The key of a `key.path=value` setting.
pub(super) fn key(setting: &str) -> &str {
    setting.split('=').next().unwrap_or_default().trim()
}

/// Applies one `key.path=value`. The value is parsed as TOML, and is a string if that fails, or if the key is a text or
/// a path.
///
/// A new `kind` (in `data` a `task`) removes the settings of the old kind; the new one starts from its defaults. A table
/// sets the keys that it contains and leaves the others.
pub(super) fn set(table: &mut Table, setting: &str) -> Result<(), Error> {
    let error = |key: &str, problem: String| Error::Config { origin: "--set".into(), key: key.into(), problem };
    let Some((path, raw)) = setting.split_once('=') else {
        return Err(error(setting, "has no value; write --set key.path=value".into()));
    };
    let path = path.trim();
    let keys: Vec<&str> = path.split('.').map(str::trim).collect();
    if keys.iter().any(|key| key.is_empty()) {
        return Err(error(path, "has an empty part; write --set key.path=value".into()));
    }
    if keys.len() > MOST_LEVELS {
        let start: String = path.chars().take(40).collect();
        return Err(error(&format!("{start}.."), format!("has {} parts, more than {MOST_LEVELS}", keys.len())));
    }
    let (last, parents) = keys.split_last().unwrap_or((&"", &[]));

    let defaults = Value::try_from(RunConfig::default()).unwrap_or_else(|_| Value::Table(Table::new()));
    let mut default = Some(&defaults);
    let mut holder = Holder::Table(table);
    for key in parents {
        default = default.and_then(|d| d.get(*key));
        holder =
            holder.enter(key, default).ok_or_else(|| error(path, format!("{key} is not a table or an index here")))?;
    }
    let key = keys.join(".");
    let is_string = default.and_then(|d| d.get(*last)).is_some_and(|value| value.is_str());
    let is_text = PATHS.contains(&key.as_str()) || is_string && !OR_NUMBERS.contains(&key.as_str());
    let value = if is_text { Value::String(text(raw)) } else { parse_value(raw.trim()) };
    match holder {
        Holder::Table(table) => {
            put(table, last, value, default.and_then(|d| d.get(*last)));
            Ok(())
        }
        Holder::Array(array) => match last.parse::<usize>().ok().and_then(|i| array.get_mut(i)) {
            Some(Value::Table(table)) if value.is_table() => {
                merge(table, value, None);
                Ok(())
            }
            Some(slot) => {
                *slot = value;
                Ok(())
            }
            None => Err(error(path, format!("{last:?} is not an index below {}", array.len()))),
        },
    }
}

/// Sets one key of a table.
fn put(table: &mut Table, key: &str, value: Value, default: Option<&Value>) {
    if TAGS.contains(&key) && table.get(key).is_some_and(|kind| *kind != value) {
        table.clear();
    }
    // A value that is not a table must not replace a table of a kind that is written as a name.
    if value.is_table()
        && let Some(Holder::Table(inner)) = Holder::Table(table).enter(key, default)
    {
        return merge(inner, value, default);
    }
    table.insert(key.to_string(), value);
}

/// Sets the keys of a table one by one, its kind first; other keys stay.
fn merge(table: &mut Table, value: Value, default: Option<&Value>) {
    let Value::Table(value) = value else { return };
    let (tags, others): (Vec<_>, Vec<_>) = value.into_iter().partition(|(key, _)| TAGS.contains(&key.as_str()));
    for (key, value) in tags.into_iter().chain(others) {
        put(table, &key, value, default.and_then(|d| d.get(&key)));
    }
}

/// The container that a part of a path leads into.
enum Holder<'a> {
    Table(&'a mut Table),
    Array(&'a mut Vec<Value>),
}

impl<'a> Holder<'a> {
    /// Enters the table or array at `key`. A missing one is created, and a bare kind is expanded, from the default
    /// where that has the same kind.
    fn enter(self, key: &str, default: Option<&Value>) -> Option<Self> {
        let slot = match self {
            Self::Table(table) => table.entry(key).or_insert_with(|| match default {
                Some(Value::Table(d)) if TAGS.iter().any(|tag| d.contains_key(*tag)) => Value::Table(d.clone()),
                _ => Value::Table(Table::new()),
            }),
            Self::Array(array) => array.get_mut(key.parse::<usize>().ok()?)?,
        };
        if let (Value::Integer(_) | Value::Float(_), Some(Value::Table(d))) = (&*slot, default) {
            // A number in place of a table.
            *slot = Value::Table(d.clone());
        }
        if let Value::String(kind) = slot {
            *slot = Value::Table(Table::from_iter([("kind".to_string(), Value::String(kind.clone()))]));
        }
        match slot {
            Value::Table(table) => Some(Self::Table(table)),
            Value::Array(array) => Some(Self::Array(array)),
            _ => None,
        }
    }
}

fn parse_value(raw: &str) -> Value {
    // In brackets, so that a TOML comment is not taken for an empty value.
    let text = format!("value = [{raw}]");
    let read = |root| Table::deserialize(Deserializer::from(root)).ok();
    let parsed = DeTable::parse(&text).ok().and_then(|root| bounded(root).ok()).and_then(read);
    let parsed = parsed.filter(|table| table.len() == 1);
    match parsed.and_then(|mut table| table.remove("value")) {
        Some(Value::Array(mut all)) if all.len() == 1 && !raw.ends_with(',') => all.remove(0),
        Some(_) | None => Value::String(raw.into()),
    }
}

/// A text as given, or without the quotes of a TOML string.
pub(super) fn text(raw: &str) -> String {
    match parse_value(raw.trim()) {
        Value::String(text) => text,
        Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::Table(_) => raw.trim().into(),
    }
}
