//! Paths in a configuration, relative to its file; paths in settings are relative to the working folder.

use super::set;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use toml::{Table, Value};

/// Every key whose value is a path.
pub(super) const PATHS: [&str; 1] = ["data.path"];

/// A message about a path that is not relative to its file.
pub(super) struct Note {
    pub(super) key: &'static str,
    pub(super) said: String,
}

/// Makes the paths in the table of `file` relative to the working folder.
pub(super) fn resolve(table: &mut Table, file: &Path) -> Vec<Note> {
    let mut notes = Vec::new();
    for key in PATHS {
        let mut parts = key.split('.');
        let first = parts.next().and_then(|part| table.get_mut(part));
        let Some(Value::String(text)) = parts.fold(first, |value, part| value?.get_mut(part)) else { continue };
        let (found, said) = find(key, text, file);
        *text = found;
        notes.extend(said.map(|said| Note { key, said }));
    }
    notes
}

/// Rewrites a `key.path=value` setting from `file` as a setting of the command line.
pub fn setting_of(file: &Path, setting: &str) -> String {
    let key = set::key(setting);
    let Some(key) = PATHS.into_iter().find(|path| *path == key.replace(char::is_whitespace, "")) else {
        return setting.into();
    };
    let (_, raw) = setting.split_once('=').unwrap_or_default();
    let (found, said) = find(key, &set::text(raw), file);
    said.iter().for_each(|said| warn(said));
    format!("{key}={}", Value::String(found))
}

/// A path in `file`, relative to the working folder; with a message if it exists only there.
fn find(key: &str, text: &str, file: &Path) -> (String, Option<String>) {
    let beside = file.parent().unwrap_or(Path::new("")).join(text);
    if beside.exists() || !Path::new(text).exists() {
        return (beside.display().to_string(), None);
    }
    let said = format!(
        "{}: {key} = {text:?} is taken from the working folder, since there is no {}. Write it relative to the \
         configuration's file",
        file.display(),
        beside.display()
    );
    (text.into(), Some(said))
}

/// The absolute path of a file. A link in the last component is not resolved.
pub(super) fn absolute(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match (whole.parent().and_then(|folder| folder.canonicalize().ok()), whole.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        (None, _) | (_, None) => whole,
    }
}

/// Warns once per message: a sweep reads a file for each of its runs.
pub(super) fn warn(said: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let is_new = SAID.lock().is_ok_and(|mut all| all.insert(said.into()));
    if is_new {
        tracing::warn!("{said}");
    }
}
