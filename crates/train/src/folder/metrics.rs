//! The records and the summary of a run. `docs/run-folder.md` documents the format.

use crate::folder::process::Process;
use crate::step::HostRow;
use crate::{Digest, Divergence, Error, device::memory, folder, folder::files, folder::read};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use unitgain_model::{ParamTable, Role};

/// Version of the format of [`Record`] and [`Summary`]. It rises when a field is removed or changes its meaning; not
/// for new fields. In format 1 the evaluation used sequences drawn from the run's own seed.
pub const FORMAT: u32 = 2;

/// One line of `metrics.jsonl`: a logged step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The step, from 1. Everything is measured before its update, except the evaluation, which follows it.
    pub step: usize,
    /// Tokens seen, including this step.
    pub tokens: usize,
    /// Mean loss of the step's batch, in nats per target token.
    pub loss: f32,
    /// Scheduled learning rate, before the weights' own factors.
    pub lr: f64,
    /// Training speed since the last record, excluding evaluations and checkpoints.
    pub tokens_per_second: f64,
    /// Number of replicas that made the step. Records of earlier versions lack it.
    #[serde(default = "one")]
    pub replicas: usize,
    /// Global gradient norm before the clip.
    pub grad_norm: f32,
    /// Global gradient norm after the clip.
    pub grad_norm_clipped: f32,
    /// Norm of the gradients of each block, before the clip.
    pub grad_norm_block: Vec<f32>,
    /// Norm of the gradients of each role in the model, before the clip.
    pub grad_norm_role: BTreeMap<String, f32>,
    /// Root mean square of the residual stream after each block.
    pub stream_rms: Vec<f32>,
    /// Mean loss on the held-out split; on evaluation steps only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f32>,
    /// Number of held-out tokens behind `eval_loss`: the same for all runs with these data and this `eval.tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_tokens: Option<usize>,
    /// Lowest expected loss on the held-out tokens, on evaluation steps and where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// `eval_loss - floor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess: Option<f64>,
}

fn one() -> usize {
    1
}

/// Memory of parsed records, as a multiple of the length of their text.
pub(crate) const HELD: f64 = 4.0;

/// All records of the run in a folder. An unfinished last line, left by a killed process, is dropped.
///
/// # Errors
/// [`Error::Io`], and [`Error::Folder`] with the number of a line that is not a record, or whose step does not
/// increase.
pub fn read(folder: &Path) -> Result<Vec<Record>, Error> {
    let path = folder.join("metrics.jsonl");
    let text = read::fitting_text(&path, HELD).map_err(Error::io("read", &path))?;
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    parse(folder, complete, 0)
}

/// As [`read()`]; if the run has ended, the records are also compared with the digest in its summary.
///
/// # Errors
/// As [`read()`], and [`Error::Folder`] for records that differ from the digest.
pub fn of_run(folder: &Path) -> Result<Vec<Record>, Error> {
    match folder::read_summary(folder).filter(|summary| summary.status != Status::Running) {
        Some(summary) => folder::records_of(folder, &summary),
        None => read(folder),
    }
}

/// Parses the records of a text that follows after `lines` lines of the file.
pub(crate) fn parse(folder: &Path, text: &str, lines: usize) -> Result<Vec<Record>, Error> {
    let mut records: Vec<Record> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let refuse = |problem: String| {
            let problem = format!("line {} of metrics.jsonl {problem}", lines + i + 1);
            Error::Folder { path: folder.to_path_buf(), problem }
        };
        let record: Record = serde_json::from_str(line).map_err(|e| refuse(format!("is not a record: {e}")))?;
        if let Some(last) = records.last().filter(|last| last.step >= record.step) {
            return Err(refuse(format!("is of step {}, after one of step {}", record.step, last.step)));
        }
        records.push(record);
    }
    Ok(records)
}

/// A line of `metrics.jsonl` without its speed, the only field that differs when a run is repeated.
pub(crate) fn timeless(line: &str) -> String {
    const KEY: &str = "\"tokens_per_second\":";
    match line.split_once(KEY) {
        Some((before, rest)) => format!("{before}{}", rest.split_once(',').map_or(rest, |(_, after)| after)),
        None => line.into(),
    }
}

/// Number and hash of the records of a text, without their speeds.
pub(crate) fn digest(text: &str) -> Digest {
    text.split_inclusive('\n').fold(Digest::default(), |digest, line| digest.with(&timeless(line)))
}

/// Step, tokens, learning rate, speed and replicas of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepInfo {
    pub(crate) step: usize,
    pub(crate) tokens: usize,
    pub(crate) lr: f64,
    pub(crate) tokens_per_second: f64,
    pub(crate) replicas: usize,
}

impl Record {
    pub(crate) fn new(at: StepInfo, row: &HostRow, table: &ParamTable, blocks: usize) -> Self {
        let mut role = BTreeMap::<Role, f32>::new();
        for (entry, square) in table.iter().zip(&row.squares).filter(|(entry, _)| entry.role().is_trainable()) {
            *role.entry(entry.role()).or_default() += square;
        }
        Self {
            step: at.step,
            tokens: at.tokens,
            loss: row.loss,
            lr: at.lr,
            tokens_per_second: at.tokens_per_second.round(),
            replicas: at.replicas,
            grad_norm: row.grad_norm(),
            grad_norm_clipped: row.grad_norm_clipped,
            grad_norm_block: Self::block_norms(row, table, blocks),
            grad_norm_role: role.into_iter().map(|(role, square)| (role.name().into(), square.sqrt())).collect(),
            stream_rms: row.stream_rms.clone(),
            eval_loss: None,
            eval_tokens: None,
            floor: None,
            excess: None,
        }
    }

    /// Gradient norm of each block.
    pub fn block_norms(row: &HostRow, table: &ParamTable, blocks: usize) -> Vec<f32> {
        let mut squares = vec![0.0f32; blocks];
        for (entry, square) in table.iter().zip(&row.squares) {
            if let Some(index) = entry.block() {
                squares[index] += square;
            }
        }
        squares.into_iter().map(f32::sqrt).collect()
    }

    pub(crate) fn with_evaluation(mut self, loss: f32, tokens: usize, floor: Option<f64>) -> Self {
        self.eval_loss = Some(loss);
        self.eval_tokens = Some(tokens);
        self.floor = floor;
        self.excess = floor.map(|floor| f64::from(loss) - floor);
        self
    }
}

/// Status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is running, or was killed.
    Running,
    /// All steps are done.
    Finished,
    /// It was stopped on request, with a checkpoint of its last step.
    Interrupted,
    /// A loss or gradient was not finite.
    Diverged,
}

impl Status {
    /// Whether no step is left to do.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Finished | Self::Diverged => true,
            Self::Running | Self::Interrupted => false,
        }
    }
}

/// Contents of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of the format.
    pub format: u32,
    /// Status of the run.
    pub status: Status,
    /// Why the run diverged: the step and the first layer with a gradient that is not finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The divergences: steps with a loss or gradient that was not finite, and what was done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divergences: Vec<Divergence>,
    /// Steps done.
    pub step: usize,
    /// Steps configured.
    pub steps: usize,
    /// Tokens seen.
    pub tokens: usize,
    /// Number of trainable elements.
    pub parameters: usize,
    /// Loss of the last recorded step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f32>,
    /// Last evaluation loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f32>,
    /// Best evaluation loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_eval_loss: Option<f32>,
    /// Lowest expected loss on the held-out tokens, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// Last evaluation loss above the floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess: Option<f64>,
    /// Number of held-out tokens per evaluation. None in format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_tokens: Option<usize>,
    /// Loss of the best prediction without context: the entropy of the held-out tokens' frequencies, in nats. None in
    /// format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unigram_loss: Option<f64>,
    /// Whether the last evaluation is more than 0.01 below `unigram_loss`, and below the loss of the first step. None
    /// for unfinished runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<bool>,
    /// Time spent by this process, in seconds.
    pub seconds: Seconds,
    /// Peak memory of this process, in bytes; None where the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// Fingerprint of the data; 0 for generated data.
    #[serde(default)]
    pub fingerprint: u64,
    /// The process that did the last steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// Number and hash of the lines of `metrics.jsonl` from which the losses above are taken.
    #[serde(default)]
    pub records: Digest,
    /// Hash of the fields above.
    #[serde(default)]
    pub checksum: String,
}

impl Summary {
    /// The summary of the run in a folder.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Folder`] if it was changed or damaged.
    pub fn of_run(folder: &Path) -> Result<Self, Error> {
        let text = read::bytes(&folder.join("summary.json"), read::MOST_WRITTEN)?;
        Self::parse(&text).ok_or_else(|| Error::Folder {
            path: folder.to_path_buf(),
            problem: "its summary.json is not as it was written; --resume makes it anew from the records".into(),
        })
    }

    /// JSON text, with its checksum.
    pub(crate) fn sealed(&mut self) -> String {
        self.checksum = self.own_checksum();
        let text = serde_json::to_string_pretty(self);
        text.unwrap_or_else(|e| unreachable!("a summary is always valid JSON: {e}")) + "\n"
    }

    /// Parses a summary; None if it was changed or damaged.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let summary: Self = serde_json::from_slice(text).ok()?;
        (summary.checksum == summary.own_checksum()).then_some(summary)
    }

    fn own_checksum(&self) -> String {
        let bare = Self { checksum: String::new(), ..self.clone() };
        files::checksum(&serde_json::to_string(&bare).unwrap_or_default())
    }

    /// Takes the losses from the run's records.
    pub(crate) fn take_losses(&mut self, records: &[Record]) {
        let evaluated = records.iter().rev().find(|record| record.eval_loss.is_some());
        self.loss = records.last().map(|record| record.loss);
        self.eval_loss = evaluated.and_then(|record| record.eval_loss);
        self.excess = evaluated.and_then(|record| record.excess);
        self.best_eval_loss = records.iter().filter_map(|record| record.eval_loss).reduce(f32::min);
    }
}

/// Times in seconds. On an asynchronous device, the parts of a step are the times to enqueue it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Total time.
    pub total: f64,
    /// Forward passes of training.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// Gradient norms, clip and update.
    pub optimizer: f64,
    /// Transfers from the device and writing of records.
    pub logging: f64,
    /// Evaluations.
    pub evaluation: f64,
    /// Checkpoints.
    pub checkpoint: f64,
}

/// Peak resident set size of this process, in bytes; None without `/proc`.
pub fn peak_memory() -> Option<u64> {
    memory::of_proc("/proc/self/status", "VmHWM:")
}

/// Pages of memory that the kernel has cleared for this process so far; None without `/proc`.
pub fn page_faults() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name of the command, which may have spaces.
    text.rsplit_once(") ")?.1.split(' ').nth(7)?.parse().ok()
}

/// Memory of this machine, in bytes; None without `/proc`.
pub(crate) fn total_memory() -> Option<u64> {
    memory::of_proc("/proc/meminfo", "MemTotal:")
}
