//! The run folder: which folders may be replaced or resumed.

pub mod checkpoint;
pub mod files;
pub mod metrics;
pub mod process;
pub mod read;

use crate::config::ConfigFile;
use crate::folder::checkpoint::{Checkpoint, Progress};
use crate::folder::files::{Digest, write_atomically};
use crate::folder::metrics::Status;
use crate::{Error, HeldOut, Record, RunConfig, Start, Summary};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The folder of a run's checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// Other files of a run. `summary.json` is last, because it marks a folder as a run.
const FILES: [&str; 4] = ["init.json", "metrics.jsonl", "config.toml", "summary.json"];

/// Contents of a folder.
#[derive(Debug, Default)]
struct Contents {
    /// Whether a file of a run exists.
    has_files: bool,
    /// Whether a checkpoint exists.
    has_checkpoint: bool,
    /// A name that no run writes.
    foreign: Option<String>,
}

impl Contents {
    fn of(folder: &Path) -> Result<Self, Error> {
        let mut contents = Self::default();
        for (name, path) in entries(folder)? {
            let own = files::unfinished(&name).unwrap_or(&name);
            match own {
                CHECKPOINTS if path.is_dir() => {
                    for (name, path) in entries(&path)? {
                        let own = files::unfinished(&name).unwrap_or(&name);
                        let is_checkpoint = checkpoint::step_of(own).is_some() && path.is_file();
                        contents.has_checkpoint |= is_checkpoint && own == name;
                        if !is_checkpoint {
                            contents.foreign.get_or_insert(format!("{CHECKPOINTS}/{name}"));
                        }
                    }
                }
                files::LOCK => {}
                own if FILES.contains(&own) && !path.is_dir() => {
                    // An empty `metrics.jsonl` does not tell whose it is.
                    let is_empty = || fs::metadata(&path).is_ok_and(|file| file.len() == 0);
                    contents.has_files |= own == name && !(own == "metrics.jsonl" && is_empty());
                }
                _ => {
                    contents.foreign.get_or_insert(name);
                }
            }
        }
        Ok(contents)
    }

    /// Whether the folder is a run, interrupted at any moment.
    fn is_run(&self, folder: &Path) -> bool {
        let is_own_config = || match read::all(&folder.join("config.toml"), read::MOST_WRITTEN) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).contains(SEAL),
            Err(e) => e.kind() == ErrorKind::NotFound,
        };
        self.has_checkpoint
            || read::bytes(&folder.join("summary.json"), read::MOST_WRITTEN)
                .is_ok_and(|text| serde_json::from_slice::<Summary>(&text).is_ok())
            || (self.has_files && self.foreign.is_none() && is_own_config())
    }
}

/// Names and paths of the entries of a folder.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let entries = fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.map_err(Error::io("read", folder))?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    };
    entries.map(entry).collect()
}

fn refuse<T>(folder: &Path, problem: impl Into<String>) -> Result<T, Error> {
    Err(Error::Folder { path: folder.to_path_buf(), problem: problem.into() })
}

/// Checks that a folder suits `start`: empty for a new run; holding a run, or empty, to replace; holding a run to
/// resume.
pub(crate) fn check(folder: &Path, start: Start) -> Result<(), Error> {
    match fs::metadata(folder) {
        Ok(there) if !there.is_dir() => {
            return refuse(folder, "is a file. Use --out for a folder that does not exist yet");
        }
        Err(e) if e.kind() == ErrorKind::NotFound && start == Start::Resume => {
            return refuse(folder, "does not exist; give the folder of a run");
        }
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(_) | Err(_) => {}
    }
    let contents = Contents::of(folder)?;
    let is_free = !contents.has_files && !contents.has_checkpoint && contents.foreign.is_none();
    match start {
        Start::New if !is_free => refuse(
            folder,
            "is not empty. Use --force to replace the run in it, --resume to go on with it, or --out for another folder",
        ),
        Start::Replace if !is_free && !contents.is_run(folder) => refuse(
            folder,
            format!(
                "is not a run ({}), so --force does not replace it. Use --out for another folder",
                contents
                    .foreign
                    .map_or("its config.toml is not one that a run wrote".into(), |name| format!("it holds {name}"))
            ),
        ),
        Start::Resume if is_free || !contents.is_run(folder) => {
            refuse(folder, "holds no run that could go on; give the folder of a run")
        }
        Start::New | Start::Replace | Start::Resume => Ok(()),
    }
}

/// Whether a folder holds a run, or the beginning of one.
///
/// # Errors
/// [`Error::Folder`] if it holds other things and no run.
pub fn is_begun(folder: &Path) -> Result<bool, Error> {
    if !folder.exists() {
        return Ok(false);
    }
    let contents = Contents::of(folder)?;
    match (&contents.foreign, contents.is_run(folder)) {
        (_, true) => Ok(true),
        (None, false) if !contents.has_files => Ok(false),
        (foreign, false) => {
            let what = foreign.clone().unwrap_or_else(|| "config.toml".into());
            refuse(folder, format!("holds {what:?}, which is of no run. Move it away, or use --out for another folder"))
        }
    }
}

/// Removes the files of a run and no others.
pub fn remove(folder: &Path) -> Result<(), Error> {
    clear(folder)?;
    let config = folder.join("config.toml");
    match fs::symlink_metadata(&config) {
        Ok(_) => fs::remove_file(&config).map_err(Error::io("remove", &config)),
        Err(_) => Ok(()),
    }
}

/// Removes the files of an earlier run except its configuration, which is overwritten next: if that is interrupted, the
/// folder is a run without steps.
pub(crate) fn clear(folder: &Path) -> Result<(), Error> {
    remove_unfinished(folder)?;
    let checkpoints = folder.join(CHECKPOINTS);
    let mut own = if checkpoints.is_dir() { checkpoint::list(&checkpoints)? } else { Vec::new() };
    own.extend(FILES.iter().filter(|file| **file != "config.toml").map(|file| folder.join(file)));
    for path in own.iter().filter(|path| fs::symlink_metadata(path).is_ok()) {
        fs::remove_file(path).map_err(Error::io("remove", path))?;
    }
    Ok(())
}

/// Removes the temporary files of a killed process.
pub(crate) fn remove_unfinished(folder: &Path) -> Result<(), Error> {
    files::remove_unfinished(folder, |name| FILES.contains(&name))?;
    let checkpoints = folder.join(CHECKPOINTS);
    match checkpoints.is_dir() {
        true => files::remove_unfinished(&checkpoints, |name| checkpoint::step_of(name).is_some()),
        false => Ok(()),
    }
}

/// The summary of the run in a folder; None if there is none, or it is damaged.
pub fn read_summary(folder: &Path) -> Option<Summary> {
    let text = read::bytes(&folder.join("summary.json"), read::MOST_WRITTEN).ok()?;
    let summary = Summary::parse(&text);
    if summary.is_none() {
        tracing::warn!("{}: its checksum is wrong, so it is not used", folder.join("summary.json").display());
    }
    summary
}

/// Checks that the summary of an ended run belongs to `config` and follows from the run's records.
pub fn check_ended(folder: &Path, summary: &Summary, config: &RunConfig) -> Result<(), Error> {
    let records = records_of(folder, summary)?;
    let mut derived = summary.clone();
    derived.take_losses(&records);
    let evaluated = records.iter().rev().find(|record| record.eval_loss.is_some());
    if let Some(evaluated) = evaluated {
        (derived.floor, derived.eval_tokens) = (evaluated.floor, evaluated.eval_tokens);
    }
    derived.steps = config.train.steps;
    if summary.status == Status::Finished {
        derived.step = config.train.steps;
        let learned = |loss: f32| {
            let held_out = HeldOut { tokens: 0, unigram_loss: summary.unigram_loss?, floor: summary.floor };
            Some(held_out.is_beaten_by(loss, records.first().map(|record| record.loss)))
        };
        derived.learned = derived.eval_loss.and_then(learned);
    }
    derived.tokens = derived.step * config.tokens_of_step();
    match derived == *summary {
        true => Ok(()),
        false => refuse(
            folder,
            "the numbers in summary.json do not follow from the records: it was changed. Remove it to have it written \
             again",
        ),
    }
}

/// The records of an ended run.
///
/// # Errors
/// [`Error::Folder`] if they are not the ones from which the summary was written.
pub(crate) fn records_of(folder: &Path, summary: &Summary) -> Result<Vec<Record>, Error> {
    let path = folder.join("metrics.jsonl");
    let text = read::fitting_text(&path, metrics::HELD).map_err(Error::io("read", &path))?;
    if Digest::of(&text) != summary.records {
        return refuse(
            folder,
            "the records in metrics.jsonl are not those that summary.json was written from: one of them was changed. \
             Restore it, or remove the folder to repeat the run",
        );
    }
    metrics::parse(folder, &text, 0)
}

/// Start of the last line of `config.toml`, which holds the checksum of the lines above it.
const SEAL: &str = "\nchecksum = \"";

/// Text of a run's `config.toml`: the configuration, followed by its checksum.
pub(crate) fn sealed(config: &RunConfig) -> String {
    let text = config.to_toml();
    let text = text.trim_end();
    format!("{text}{SEAL}{}\"\n", files::checksum(text))
}

/// Whether a text is an unchanged `config.toml` of a run.
pub(crate) fn is_sealed(text: &str) -> bool {
    let end = text.trim_end().rfind(SEAL);
    end.is_some_and(|end| text[end..].trim_end() == format!("{SEAL}{}\"", files::checksum(&text[..end])))
}

/// The `config.toml` of a run; None if it is missing.
///
/// # Errors
/// [`Error::Folder`] if it was changed or damaged, [`Error::Io`].
pub(crate) fn config_file(folder: &Path) -> Result<Option<ConfigFile>, Error> {
    let path = folder.join("config.toml");
    match read::all(&path, read::MOST_WRITTEN).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()) {
        Ok(text) if is_sealed(&text) => ConfigFile::parse(&text, &path.display().to_string()).map(Some),
        Ok(_) => refuse(
            folder,
            "its config.toml is not as it was written. Change settings on the command line: --set key=value. Restore \
             it; or remove it to resume with the configuration of the newest checkpoint",
        ),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", &path)(e)),
    }
}

/// The configuration of the run in a folder, with `settings` applied: from its `config.toml`, or if that is missing
/// from its newest checkpoint.
///
/// # Errors
/// [`Error::Folder`] for a changed or damaged file, and as [`RunConfig::load`].
pub fn configuration(folder: &Path, settings: &[String]) -> Result<RunConfig, Error> {
    if let Some(file) = config_file(folder)? {
        return file.with(settings);
    }
    let Ok(checkpoint) = Checkpoint::newest(folder) else {
        return refuse(
            folder,
            "has neither config.toml nor a checkpoint, so it cannot be resumed; start it again with its TOML file and \
             --out",
        );
    };
    let origin = checkpoint.path().display().to_string();
    ConfigFile::parse(&checkpoint.config.to_toml(), &origin)?.with(settings)
}

/// As [`configuration`] without settings; None if the run was killed before it wrote its configuration.
pub fn configuration_if_any(folder: &Path) -> Result<Option<RunConfig>, Error> {
    match folder.join("config.toml").exists() || Contents::of(folder)?.has_checkpoint {
        true => configuration(folder, &[]).map(Some),
        false => Ok(None),
    }
}

/// Refuses to resume a checkpoint of another run.
pub(crate) fn check_same_run(
    checkpoint: &Checkpoint,
    config: &RunConfig,
    here: &Progress,
    folder: &Path,
) -> Result<(), Error> {
    let refuse = |problem: String| refuse(folder, problem);
    let there = &checkpoint.progress;
    if there.tokenizer != here.tokenizer {
        return refuse(format!(
            "was trained with another vocabulary ({} tokens, now {}); give the original data",
            there.tokenizer.vocab_size(),
            here.tokenizer.vocab_size()
        ));
    }
    if there.fingerprint != here.fingerprint {
        return refuse("was trained on another text; give the original file".into());
    }
    check_same_settings(&checkpoint.config, config, folder)?;
    let finished = read_summary(folder).is_some_and(|summary| summary.status == Status::Finished);
    if there.step > config.train.steps || (there.step == config.train.steps && finished) {
        return refuse(format!(
            "has already made {} of train.steps = {}. A run whose schedule is constant can be made longer with --steps",
            there.step, config.train.steps
        ));
    }
    Ok(())
}

/// The keys in which two runs differ, except those that may change when a run is resumed.
pub(crate) fn of_another_run(there: &RunConfig, config: &RunConfig) -> Vec<String> {
    let mut changed = there.differences(config);
    // Without a schedule that depends on the length, a longer run begins with the steps of a shorter one.
    if !config.schedule.depends_on_length() {
        changed.retain(|key| !key.starts_with("train.steps "));
    }
    // Handling of divergences does not affect the steps before the first one.
    changed.retain(|key| !key.starts_with("train.on_divergence"));
    changed
}

/// Refuses to resume a run with settings that change its steps.
pub(crate) fn check_same_settings(there: &RunConfig, config: &RunConfig, folder: &Path) -> Result<(), Error> {
    let changed = of_another_run(there, config);
    match changed.as_slice() {
        [] => Ok(()),
        _ => refuse(
            folder,
            format!(
                "was started with other settings: {}. Resume without changes, or start a new run",
                changed.join(", ")
            ),
        ),
    }
}

/// The part of `metrics.jsonl` that a resumed run keeps.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) records: Vec<Record>,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Number and hash of its lines, including their speeds.
    pub(crate) digest: Digest,
}

/// Truncates `metrics.jsonl` to the records of a checkpoint and returns them. Records of later steps, which will be
/// repeated, and an unfinished last line are dropped.
///
/// # Errors
/// [`Error::Folder`] if the file does not begin with the checkpoint's records, or continues with anything but later
/// ones.
pub(crate) fn keep_records(folder: &Path, progress: &Progress) -> Result<Kept, Error> {
    let (step, kept) = (progress.step, progress.records);
    let path = folder.join("metrics.jsonl");
    let bytes = match read::fitting(&path, metrics::HELD) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(Error::io("read", &path)(e)),
    };
    let length: usize = bytes.split_inclusive(|b| *b == b'\n').take(kept.lines).map(<[u8]>::len).sum();
    let (own, rest) = bytes.split_at(length);
    let Some(own) = std::str::from_utf8(own).ok().filter(|own| metrics::digest(own) == kept) else {
        return refuse(
            folder,
            format!(
                "metrics.jsonl does not begin with the {} records of the checkpoint of step {step}: it was changed. \
                 Restore it, or remove the folder and repeat the run",
                kept.lines
            ),
        );
    };
    let complete = rest.iter().rposition(|b| *b == b'\n').map_or(&[][..], |end| &rest[..=end]);
    let Ok(later) = std::str::from_utf8(complete) else {
        let problem = format!("metrics.jsonl has lines that are not records after line {}; remove them", kept.lines);
        return refuse(folder, problem);
    };
    // After a divergence the steps before it are recorded, which may be older than the checkpoint.
    let is_ours = |record: &Record| record.step > step || progress.recent.iter().any(|own| own.step == record.step);
    if let Some(foreign) = metrics::parse(folder, later, kept.lines)?.iter().find(|record| !is_ours(record)) {
        return refuse(
            folder,
            format!(
                "metrics.jsonl has a record of step {} after those of the checkpoint of step {step}: it was changed. \
                 Remove the lines after line {}",
                foreign.step, kept.lines
            ),
        );
    }
    // The checkpoint's digest leaves out speeds; the summary's has them.
    let digest = Digest::of(own);
    if read_summary(folder).is_some_and(|s| s.records.lines == kept.lines && s.records != digest) {
        return refuse(
            folder,
            "the times in metrics.jsonl are not those that summary.json was written from: one of them was changed. \
             Restore it, or remove summary.json to accept the other",
        );
    }
    if !rest.is_empty() || !path.exists() {
        write_atomically(&path, own.as_bytes())?;
    }
    Ok(Kept { records: metrics::parse(folder, own, 0)?, bytes: own.len() as u64, digest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_broken_by_every_change() {
        let origin = Some(crate::config::Origin::default());
        let text = sealed(&RunConfig { origin, ..RunConfig::default().resolved(32).unwrap() });
        assert!(is_sealed(&text));
        RunConfig::parse(&text, "test", &[]).unwrap();
        for cut in (0..text.len() - 1).step_by(7) {
            assert!(!is_sealed(&text[..cut]), "cut at {cut}");
        }
        for at in (0..text.len() - 1).step_by(5).filter(|at| text.is_char_boundary(*at)) {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(!is_sealed(&String::from_utf8(bytes).unwrap()), "changed at {at}: {}", &text[at..at + 1]);
        }
        assert!(!is_sealed(&format!("{text}seed = 7\n")) && !is_sealed(&format!("seed = 7\n{text}")));
    }
}
