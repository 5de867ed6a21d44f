//! The run folder: what may be replaced, what may go on.

use crate::checkpoint::{self, Checkpoint, Position};
use crate::files::{self, write_atomically};
use crate::metrics::Status;
use crate::{Error, RunConfig, Start, Summary};
use std::fs;
use std::path::{Path, PathBuf};

/// Refuses a folder that holds something: any for a new run, one that is not a run for a replacement.
pub(crate) fn check_free(folder: &Path, start: Start) -> Result<(), Error> {
    let occupied = match fs::read_dir(folder) {
        Err(_) if folder.is_file() => {
            let problem = "is a file. Use --out for a folder that does not exist yet".into();
            return Err(Error::Folder { path: folder.to_path_buf(), problem });
        }
        Ok(entries) => entries.flatten().any(|entry| entry.file_name() != files::LOCK),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
        Err(e) => return Err(Error::io("read", folder)(e)),
    };
    let refuse = |problem: &str| Err(Error::Folder { path: folder.to_path_buf(), problem: problem.into() });
    match start {
        Start::New if occupied => refuse(
            "is not empty. Use --force to replace the run in it, --resume to go on with it, or --out for another folder",
        ),
        Start::Replace if occupied && read_summary(folder).is_none() => refuse(
            "is not a run (it has no summary.json of one), so --force does not replace it. Use --out for another folder",
        ),
        Start::New | Start::Replace | Start::Resume => Ok(()),
    }
}

/// Removes the files of an earlier run, and nothing else.
pub(crate) fn clear(folder: &Path) -> Result<(), Error> {
    let checkpoints = folder.join("checkpoints");
    files::remove_partial(folder)?;
    let mut own: Vec<PathBuf> = ["config.toml", "metrics.jsonl", "init.json"].map(|file| folder.join(file)).to_vec();
    if checkpoints.is_dir() {
        files::remove_partial(&checkpoints)?;
        own.extend(checkpoint::list(&checkpoints)?);
    }
    // The summary last: it is what says that this is a run.
    own.push(folder.join("summary.json"));
    for path in own.iter().filter(|path| path.exists()) {
        fs::remove_file(path).map_err(Error::io("remove", path))?;
    }
    Ok(())
}

/// The summary of the run in a folder, if it is a run.
pub(crate) fn read_summary(folder: &Path) -> Option<Summary> {
    serde_json::from_slice(&fs::read(folder.join("summary.json")).ok()?).ok()
}

/// Refuses to go on with another run than the one that wrote the checkpoint.
pub(crate) fn check_same_run(
    checkpoint: &Checkpoint,
    config: &RunConfig,
    here: &Position,
    folder: &Path,
) -> Result<(), Error> {
    let refuse = |problem: String| Err(Error::Folder { path: folder.to_path_buf(), problem });
    let there = &checkpoint.position;
    if there.tokenizer != here.tokenizer {
        return refuse(format!(
            "was trained with another vocabulary ({} tokens, now {}); give it the data it was started with",
            there.tokenizer.vocab_size(),
            here.tokenizer.vocab_size()
        ));
    }
    if there.fingerprint != here.fingerprint {
        return refuse("was trained on another text; give it the file it was started with".into());
    }
    let mut changed = checkpoint.config.differences(config);
    // A longer or shorter run is the same run as far as it goes, unless its schedule looks ahead.
    if !config.schedule.depends_on_length() {
        changed.retain(|key| !key.starts_with("train.steps "));
    }
    if !changed.is_empty() {
        return refuse(format!(
            "was started with other settings: {}. Resume without changes, or start a new run",
            changed.join(", ")
        ));
    }
    let finished = read_summary(folder).is_some_and(|summary| summary.status == Status::Finished);
    if there.step > config.train.steps || (there.step == config.train.steps && finished) {
        return refuse(format!(
            "has already made {} of train.steps = {}. A run whose schedule is constant can be made longer with --steps",
            there.step, config.train.steps
        ));
    }
    Ok(())
}

/// Drops the records after `step`, and a last line that a killed process did not finish.
pub(crate) fn keep_records(path: &Path, step: usize) -> Result<(), Error> {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(Error::io("read", path)(e)),
    };
    #[derive(serde::Deserialize)]
    struct OfStep {
        step: usize,
    }
    let is_kept = |line: &&str| serde_json::from_str::<OfStep>(line).is_ok_and(|record| record.step <= step);
    let kept: String = text.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    write_atomically(path, kept.as_bytes())
}
