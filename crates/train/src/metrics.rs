//! What a run writes down. `docs/run-folder.md` is the public description of the format.

use crate::Error;
use crate::step::HostRow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use unitgain_model::{ParamTable, Role};

/// Version of the format of [`Record`] and [`Summary`]. A change of meaning or the loss of a field
/// raises it; new fields do not. In format 1 an evaluation was of sequences that the run's own seed drew.
pub const FORMAT: u32 = 2;

/// One line of `metrics.jsonl`: one logged step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The step, from 1. Everything is measured before its update, but the evaluation, which is after.
    pub step: usize,
    /// Tokens seen, this step's included.
    pub tokens: usize,
    /// Mean loss of the step's batch, nats per asked token.
    pub loss: f32,
    /// Scheduled learning rate, before the factors of each weight.
    pub lr: f64,
    /// Training speed since the last record, without evaluations and checkpoints.
    pub tokens_per_second: f64,
    /// Norm of all gradients together, before the clip.
    pub grad_norm: f32,
    /// The same after the clip.
    pub grad_norm_clipped: f32,
    /// Norm of the gradients of each block, before the clip.
    pub grad_norm_block: Vec<f32>,
    /// Norm of the gradients of each role that the model has, before the clip.
    pub grad_norm_role: BTreeMap<String, f32>,
    /// Root mean square of the stream after each block.
    pub stream_rms: Vec<f32>,
    /// Mean loss on the held-out split. On evaluation steps only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f32>,
    /// Number of held-out tokens that `eval_loss` is the mean of, the same in every run on these data with the same
    /// `eval.tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_tokens: Option<usize>,
    /// Least loss that can be expected on the held-out tokens. On evaluation steps, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// `eval_loss - floor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess: Option<f64>,
}

/// All records of the run in a folder.
///
/// # Errors
/// [`Error::Io`], and [`Error::Folder`] with the number of the line that is not a record.
pub fn read(folder: &Path) -> Result<Vec<Record>, Error> {
    let path = folder.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let record = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| {
            let problem = format!("line {} of metrics.jsonl is not a record: {e}", i + 1);
            Error::Folder { path: folder.to_path_buf(), problem }
        })
    };
    text.lines().enumerate().map(record).collect()
}

/// Where a step is, for its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) step: usize,
    pub(crate) tokens: usize,
    pub(crate) lr: f64,
    pub(crate) tokens_per_second: f64,
}

impl Record {
    pub(crate) fn new(at: At, row: &HostRow, table: &ParamTable, blocks: usize) -> Self {
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

    /// Norm of the gradients of each block.
    pub fn block_norms(row: &HostRow, table: &ParamTable, blocks: usize) -> Vec<f32> {
        let mut squares = vec![0.0f32; blocks];
        for (entry, square) in table.iter().zip(&row.squares) {
            if let Some(index) = entry.block {
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

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is going on, or was killed.
    Running,
    /// It made all its steps.
    Finished,
    /// A loss or gradient was not finite.
    Diverged,
}

/// `summary.json`: the run in one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of the format.
    pub format: u32,
    /// How the run stands.
    pub status: Status,
    /// Why it diverged: the step and the first layer whose gradient is not finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Steps made.
    pub step: usize,
    /// Steps asked for.
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
    /// Least loss that can be expected on the held-out tokens, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// Last evaluation loss above the floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess: Option<f64>,
    /// Number of held-out tokens that an evaluation is the mean of. None in format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_tokens: Option<usize>,
    /// Loss of the best guess that ignores the context: the entropy of the held-out tokens' frequencies, in nats. None in
    /// format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unigram_loss: Option<f64>,
    /// Whether the last evaluation is below `unigram_loss` by more than 0.01, and below the loss of the first step. None
    /// where the run has not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<bool>,
    /// Where the time of this process went, in seconds.
    pub seconds: Seconds,
    /// Largest memory of this process, in bytes, where the system says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
}

/// Times in seconds. On an asynchronous device the parts of the step are the times to enqueue it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// All of it.
    pub total: f64,
    /// Forward passes of training.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// Norms, clip and update.
    pub optimizer: f64,
    /// Reading from the device and writing records.
    pub logging: f64,
    /// Evaluations.
    pub evaluation: f64,
    /// Checkpoints.
    pub checkpoint: f64,
}

/// Largest resident set of this process so far, in bytes; None where there is no `/proc`.
pub fn peak_memory() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM:")
}

/// Memory of this machine, in bytes; None where there is no `/proc`.
pub(crate) fn total_memory() -> Option<u64> {
    kilobytes("/proc/meminfo", "MemTotal:")
}

fn kilobytes(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
