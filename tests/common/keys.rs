//! Keys of a configuration as paths in its TOML value.

use serde::Serialize;
use toml::Value;
use unitgain_variant::Variant;

/// The value at a path; a part is a key, or the index of an array.
pub(crate) fn at<'a>(root: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Array(array) => array.get(key.parse::<usize>().ok()?),
        value => value.get(key.as_str()),
    })
}

pub(crate) fn at_mut<'a>(root: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Array(array) => array.get_mut(key.parse::<usize>().ok()?),
        value => value.get_mut(key.as_str()),
    })
}

/// `model.block[0].norm`.
pub(crate) fn shown(path: &[String]) -> String {
    let parts = path.iter().map(|key| match key.parse::<usize>() {
        Ok(index) => format!("[{index}]"),
        Err(_) => format!(".{key}"),
    });
    parts.collect::<String>().trim_start_matches('.').into()
}

/// The parts of a key, whether an index stands in brackets or behind a dot.
pub(crate) fn parts(key: &str) -> Vec<String> {
    key.split(['.', '[', ']']).filter(|part| !part.is_empty()).map(String::from).collect()
}

/// Each kind of an axis as TOML, with its settings.
pub(crate) fn in_toml<V: Variant + Serialize>() -> Vec<String> {
    V::all().iter().map(|kind| Value::try_from(kind).unwrap().to_string()).collect()
}
