//! Parsing of configuration files, with the lines of their keys.

use super::explain::{self, Misread, shown};
use super::{RunConfig, TAGS, path, set};
use crate::folder::is_sealed;
use crate::{Error, folder::read};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use toml::de::{DeArray, DeTable, DeValue};
use toml::{Spanned, Table, Value};
use unitgain_model::{Fault, ModelError};

/// A parsed configuration file with its faults, before settings.
pub struct ConfigFile {
    written: Written,
    /// The table without its faulty parts.
    table: Table,
    faults: Vec<Misread>,
    /// Messages about paths that are not relative to the file.
    notes: Vec<path::Note>,
}

/// Where the keys of a configuration were written, for messages. All values compare equal.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Name of the file; empty if there is none.
    file: String,
    lines: Arc<Lines>,
    /// Keys changed by settings.
    settings: Vec<Vec<String>>,
    /// Origin of the settings.
    set: &'static str,
}

/// The line of each key and array element, by path.
type Lines = BTreeMap<Vec<String>, usize>;

impl PartialEq for Written {
    /// Configurations are equal wherever they were written.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Written {
    /// Where a key was written: the file and line, or the origin of the setting.
    pub(super) fn place(&self, key: &[String]) -> Option<String> {
        if self.0.settings.iter().any(|set| key.starts_with(set) || set.starts_with(key)) {
            return Some(self.0.set.into());
        }
        match self.line(key) {
            _ if self.0.file.is_empty() => None,
            Some(line) => Some(format!("{}:{line}", self.0.file)),
            None => Some(self.0.file.clone()),
        }
    }

    /// The line of a key, or of the nearest table around it.
    pub(super) fn line(&self, key: &[String]) -> Option<usize> {
        line_of(&self.0.lines, key)
    }

    /// Whether a key was written, or a value in place of its table.
    pub(super) fn has(&self, key: &[String]) -> bool {
        let is_written =
            |key: &[String]| self.0.lines.contains_key(key) || self.0.settings.iter().any(|set| set.as_slice() == key);
        self.0.file.is_empty() || (key.len().min(2)..=key.len()).any(|n| is_written(&key[..n]))
    }

    /// Adds to an error the place where its value was written.
    pub(super) fn locate(&self, error: Error) -> Error {
        match fault_of(&error).and_then(|fault| self.place(&parts(&fault.key))) {
            Some(place) => Error::At { place, error: Box::new(error) },
            None => error,
        }
    }
}

/// The line of a key, or of the nearest table around it.
fn line_of(lines: &Lines, key: &[String]) -> Option<usize> {
    (1..=key.len()).rev().find_map(|n| lines.get(&key[..n])).copied()
}

/// The value that an error is about, and what is wrong with it.
pub(super) fn fault_of(error: &Error) -> Option<Fault> {
    match error {
        Error::Value(fault) => Some(fault.clone()),
        Error::Model(ModelError::Value(fault)) => Some(fault.clone().below("model")),
        Error::Device { name, problem } => Some(Fault::new("backend", name, problem)),
        Error::Data(problem) => Some(Fault::new("data.path", "", problem)),
        Error::At { error, .. } => fault_of(error),
        Error::Config { .. }
        | Error::Model(ModelError::Combination { .. } | ModelError::Weights { .. })
        | Error::Syntax { .. }
        | Error::Several(_)
        | Error::Checkpoint { .. }
        | Error::Folder { .. }
        | Error::Run { .. }
        | Error::Io { .. }
        | Error::Stopped
        | Error::Generate(_) => None,
    }
}

/// The parts of a key: `model.block[0].norm` and `model.block.0.norm` are the same.
pub(super) fn parts(key: &str) -> Vec<String> {
    key.split(['.', '[', ']']).map(str::trim).filter(|part| !part.is_empty()).map(String::from).collect()
}

/// Parses a configuration of any type from text; unknown keys are errors.
///
/// # Errors
/// [`Error::Syntax`], or all faults of keys and types with their lines.
pub fn read<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T, Error> {
    let (table, lines) = parse::<T>(text, origin)?;
    explain::read(&mut Value::Table(table)).map_err(|faults| Error::several(placed(faults, origin, &lines)))
}

/// As [`read()`], for a table that is already parsed.
pub fn deserialize<T: DeserializeOwned>(table: Table, origin: &str) -> Result<T, Error> {
    let faults = |faults| Error::several(placed(faults, origin, &Lines::new()));
    explain::read(&mut Value::Table(table)).map_err(faults)
}

fn placed(faults: Vec<Misread>, origin: &str, lines: &Lines) -> Vec<Error> {
    let mut placed: Vec<(Option<usize>, Error)> = Vec::new();
    for Misread { path, problem, .. } in faults {
        let line = line_of(lines, &path);
        let origin = line.map_or(origin.to_string(), |line| format!("{origin}:{line}"));
        placed.push((line, Error::Config { origin, key: shown(&path), problem }));
    }
    placed.sort_by_key(|(line, _)| *line);
    placed.into_iter().map(|(_, error)| error).collect()
}

/// Parses a text into its table and the line of each key. If it is not TOML, all syntax errors are reported, together
/// with unknown keys.
fn parse<T: DeserializeOwned>(text: &str, origin: &str) -> Result<(Table, Lines), Error> {
    if text.len() as u64 > read::MOST_WRITTEN {
        let problem = format!("has {} bytes, and may have {}; shorten it", text.len(), read::MOST_WRITTEN);
        return Err(Error::Config { origin: origin.into(), key: "configuration".into(), problem });
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    let starts = Starts::of(text);
    let line = |byte| starts.line(byte);
    let root = bounded(root).map_err(|(byte, problem)| Error::Config {
        origin: format!("{origin}:{}", line(byte)),
        key: "tables".into(),
        problem,
    })?;
    let mut lines = Lines::new();
    note(root.get_ref(), &starts, &mut Vec::new(), &mut lines);
    let table: Result<Table, _> = serde::Deserialize::deserialize(toml::de::Deserializer::from(root));
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else {
        return match table {
            Ok(table) => Ok((table, lines)),
            Err(e) => Err(too_large(&e, origin, &lines)),
        };
    };
    let shown = first.to_string();
    let problem = match (shown.len() <= LONGEST_SHOWN, first.span()) {
        // This error has no position.
        _ if first.message() == "recursion limit" => format!("a key has more than {MOST_LEVELS} parts"),
        (true, _) | (false, None) => shown.trim_end().into(),
        (false, Some(span)) => format!("line {}: {}", line(span.start), first.message()),
    };
    let mut all = vec![Error::Syntax { origin: origin.into(), problem }];
    let at = |e: &toml::de::Error| e.span().map(|span| line(span.start));
    let mut known = BTreeSet::from([at(&first)]);
    for error in errors {
        if all.len() >= explain::MOST_FAULTS {
            break;
        }
        // Further errors in the same line are most likely consequences.
        let line = at(&error);
        let is_new = known.insert(line);
        if let Some(n) = line.filter(|_| is_new) {
            all.push(Error::Syntax { origin: format!("{origin}:{n}"), problem: error.message().into() });
        }
    }
    let faults = table.ok().and_then(|table| explain::read::<T>(&mut Value::Table(table)).err()).unwrap_or_default();
    // A line that is not `key = value` has no key.
    let is_key = |fault: &Misread| {
        let text = lines.get(&fault.path).and_then(|line| text.lines().nth(line - 1)).unwrap_or_default();
        let (key, _) = text.split_once('=').unwrap_or_default();
        fault.path.last().is_some_and(|last| key.trim() == last)
    };
    let unknown: Vec<Misread> = faults.into_iter().filter(|fault| fault.is_unknown && is_key(fault)).collect();
    all.extend(placed(unknown, origin, &lines));
    Err(Error::several(all))
}

/// The error for a number that is too large, whose key the parser names in its last line.
fn too_large(e: &toml::de::Error, origin: &str, lines: &Lines) -> Error {
    let said = e.to_string();
    let key = said.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
    let Some(key) = key else { return Error::Syntax { origin: origin.into(), problem: said.trim_end().into() } };
    let line = line_of(lines, &parts(key)).map_or(String::new(), |line| format!(":{line}"));
    let problem = format!(
        "the number is too large: a whole number of TOML is from {} to {}, a decimal one is less than 1.8e308",
        i64::MIN,
        i64::MAX
    );
    Error::Config { origin: format!("{origin}{line}"), key: key.into(), problem }
}

/// Longer parser messages are shown without the line of the file.
const LONGEST_SHOWN: usize = 1000;
/// Maximum nesting of tables and arrays, including dotted keys. A configuration needs 5; readers recurse once per
/// level.
pub(super) const MOST_LEVELS: usize = 32;
/// Maximum number of keys in a table.
const MOST_KEYS: usize = 1000;
/// Maximum number of tables, which take far more memory than their text.
const MOST_TABLES: usize = 20_000;

/// Checks the limits above; the error is the offending byte and the reason.
pub(super) fn bounded(root: Spanned<DeTable<'_>>) -> Result<Spanned<DeTable<'_>>, (usize, String)> {
    match excess(root.get_ref()) {
        None => Ok(root),
        Some(excess) => {
            // Drop values iteratively: dropping a deeply nested value recurses once per level.
            let mut rest = vec![DeValue::Table(root.into_inner())];
            while let Some(value) = rest.pop() {
                match value {
                    DeValue::Table(table) => rest.extend(table.into_iter().map(|(_, value)| value.into_inner())),
                    DeValue::Array(array) => rest.extend(array.into_iter().map(Spanned::into_inner)),
                    DeValue::String(_)
                    | DeValue::Integer(_)
                    | DeValue::Float(_)
                    | DeValue::Boolean(_)
                    | DeValue::Datetime(_) => {}
                }
            }
            Err(excess)
        }
    }
}

/// The first byte that exceeds a limit, and the limit.
fn excess(root: &DeTable<'_>) -> Option<(usize, String)> {
    enum Holder<'a, 'i> {
        Table(&'a DeTable<'i>),
        Array(&'a DeArray<'i>),
    }
    let mut tables = 0usize;
    let mut rest = vec![(0, 1, Holder::Table(root))];
    while let Some((byte, level, next)) = rest.pop() {
        if level > MOST_LEVELS {
            let problem = format!(
                "are more than {MOST_LEVELS} levels deep, arrays and dots of keys included; no key of a configuration is"
            );
            return Some((byte, problem));
        }
        let values: Box<dyn Iterator<Item = &Spanned<DeValue<'_>>>> = match next {
            Holder::Table(table) if table.len() > MOST_KEYS => {
                return Some((byte, format!("one has {} keys, and may have {MOST_KEYS}; take some away", table.len())));
            }
            Holder::Table(table) => {
                tables += 1;
                Box::new(table.values())
            }
            Holder::Array(array) => Box::new(array.iter()),
        };
        for value in values {
            let byte = value.span().start;
            match value.get_ref() {
                DeValue::Table(table) => rest.push((byte, level + 1, Holder::Table(table))),
                DeValue::Array(array) => rest.push((byte, level + 1, Holder::Array(array))),
                DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_) => {}
            }
        }
        if tables > MOST_TABLES {
            return Some((byte, format!("are more than {MOST_TABLES}; take some away")));
        }
    }
    None
}

/// The offsets of the lines of a text.
struct Starts(Vec<usize>);

impl Starts {
    fn of(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self(std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect())
    }

    /// The line number of a byte.
    fn line(&self, byte: usize) -> usize {
        self.0.partition_point(|start| *start <= byte)
    }
}

/// Maximum number of elements of an array with a line of their own; the others have the array's.
const MOST_NOTED: usize = 1000;

fn note(table: &DeTable<'_>, starts: &Starts, path: &mut Vec<String>, lines: &mut Lines) {
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        lines.insert(path.clone(), starts.line(key.span().start));
        note_value(value.get_ref(), starts, path, lines);
        path.pop();
    }
}

fn note_value(value: &DeValue<'_>, starts: &Starts, path: &mut Vec<String>, lines: &mut Lines) {
    match value {
        DeValue::Table(table) => note(table, starts, path, lines),
        DeValue::Array(array) => {
            for (i, element) in array.iter().take(MOST_NOTED).enumerate() {
                path.push(i.to_string());
                lines.insert(path.clone(), starts.line(element.span().start));
                note_value(element.get_ref(), starts, path, lines);
                path.pop();
            }
        }
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {}
    }
}

impl ConfigFile {
    /// Reads a file. Paths in it are relative to the file.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Syntax`]; [`ConfigFile::with`] reports other faults.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = read::text(path, read::MOST_WRITTEN)?;
        let mut file = Self::parse(&text, &path.display().to_string())?;
        let wrote = ["versions", "origin"].into_iter().find(|key| file.table.contains_key(*key));
        if let Some(table) = wrote.filter(|_| !is_sealed(&text)) {
            tracing::warn!(
                "{}: [{table}] describes the program that wrote a run's config.toml, and does nothing in another file",
                path.display()
            );
        }
        file.notes = path::resolve(&mut file.table, path);
        Ok(file)
    }

    /// Parses a text from `origin`.
    ///
    /// # Errors
    /// As [`ConfigFile::load`].
    pub(crate) fn parse(text: &str, origin: &str) -> Result<Self, Error> {
        let (mut table, lines) = parse::<RunConfig>(text, origin)?;
        // A table without a kind has the default kind, as with `--set`.
        for (section, tag, kind) in
            [("optimizer", "kind", "adamw"), ("schedule", "kind", "cosine"), ("data", "task", "markov")]
        {
            if let Some(Value::Table(section)) = table.get_mut(section) {
                section.entry(tag).or_insert(Value::String(kind.into()));
            }
        }
        let mut root = Value::Table(table);
        let faults = explain::read::<RunConfig>(&mut root).err().unwrap_or_default();
        let Value::Table(table) = root else { unreachable!("a table stays one") };
        let written =
            Written(Arc::new(Places { file: origin.into(), lines: lines.into(), settings: Vec::new(), set: "--set" }));
        Ok(Self { written, table, faults, notes: Vec::new() })
    }

    /// The configuration with `key.path=value` settings. Kinds are set before their settings; the last of several
    /// settings of a key wins.
    ///
    /// # Errors
    /// All faults of the file and the settings: [`Error::Config`] with the line and the key, the likely intention, and
    /// what is allowed.
    pub fn with(&self, settings: &[String]) -> Result<RunConfig, Error> {
        self.with_those_of("--set", settings)
    }

    /// As [`ConfigFile::with`], for settings from another origin than the command line.
    ///
    /// # Errors
    /// As [`ConfigFile::with`].
    pub fn with_those_of(&self, from: &'static str, settings: &[String]) -> Result<RunConfig, Error> {
        let Places { file, lines, .. } = &*self.written.0;
        let mut table = self.table.clone();
        let mut errors = placed(self.faults.clone(), file, lines);
        // Set a kind before its settings, in whatever order they were given.
        let mut ordered: Vec<&String> = settings.iter().collect();
        ordered.sort_by_key(|setting| {
            let path = set::key(setting);
            let is_tag = path.rsplit('.').next().is_some_and(|last| TAGS.contains(&last));
            path.split('.').count() - usize::from(is_tag)
        });
        errors.extend(ordered.into_iter().filter_map(|setting| set::set(&mut table, setting).err()));
        let keys: Vec<Vec<String>> = settings.iter().map(|setting| parts(set::key(setting))).collect();
        for note in &self.notes {
            // A path that settings replace need not exist.
            let own = parts(note.key);
            let replaces = |key: &Vec<String>| {
                own.starts_with(key) || key.last().is_some_and(|last| TAGS.contains(&last.as_str()) && own[0] == key[0])
            };
            if !keys.iter().any(replaces) {
                path::warn(&note.said);
            }
        }
        let origin = if settings.is_empty() { file } else { from };
        let mut root = Value::Table(table);
        let read = explain::read::<RunConfig>(&mut root);
        let places = Places { file: file.clone(), lines: Arc::clone(lines), settings: keys, set: from };
        let written = Written(places.into());
        match read {
            Ok(config) if errors.is_empty() => return Ok(RunConfig { written, ..config }),
            Ok(_) => {}
            Err(faults) => errors.extend(placed(faults, origin, &Lines::new())),
        }
        // If the rest can be read, also report the faults of its values.
        if let Ok(config) = <RunConfig as serde::Deserialize>::deserialize(root) {
            errors.extend(RunConfig { written, ..config }.own_faults());
        }
        errors.truncate(explain::MOST_FAULTS);
        Err(Error::several(errors))
    }
}
