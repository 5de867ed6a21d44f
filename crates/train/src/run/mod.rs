//! A training run from start to end.

pub mod divergence;

use crate::config::{Origin, changed_keys, has_batch_norm};
use crate::device::Found;
use crate::folder::checkpoint::{self, Checkpoint, Progress};
use crate::folder::files::{self, write_atomically};
use crate::folder::metrics::{self, FORMAT, Seconds, Status, StepInfo, peak_memory};
use crate::folder::process::{Process, now};
use crate::folder::{self as on_disk, Kept};
use crate::run::divergence::{Action, Divergence, OnDivergence};
use crate::step::{HostRow, Row, read_rows};
use crate::{
    Digest, Error, HeldOut, Measured, Record, RunConfig, Summary, Task, Trainer, calibrate, device, folder::read,
};
use burn::tensor::Device;
use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use unitgain_model::Update;

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// In a folder that is new or empty.
    New,
    /// In a folder whose earlier run is removed first.
    Replace,
    /// From the newest checkpoint in the folder, or from the first step if the run was killed before it wrote one.
    Resume,
}

/// What a run reports to its caller.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// This process has locked the folder; nothing has been written yet.
    Claimed,
    /// Setup is complete; the first step follows.
    Started {
        /// Resolved configuration.
        config: &'a RunConfig,
        /// Number of trainable elements.
        parameters: usize,
        /// Lowest expected loss on the held-out tokens, where it is known.
        floor: Option<f64>,
        /// Steps done by earlier processes.
        step: usize,
    },
    /// Steps of the calibration done so far, and the total.
    Calibrating(usize, usize),
    /// Calibration is complete: the measured quantities before and after it.
    Calibrated(&'a [Measured]),
    /// A step is done.
    Step(usize),
    /// A record was written.
    Recorded(&'a Record),
    /// A checkpoint of this step was written.
    Saved(usize),
    /// A step was not finite, and the run continues.
    Diverged(&'a Divergence),
}

/// Receives the events of a run, and can stop it.
pub type OnEvent<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + Send + 'a;

/// Trains a model and writes `config.toml`, `metrics.jsonl`, `checkpoints/` and `summary.json` into `folder`.
/// Everything that can be checked is checked before anything is written.
///
/// If `on_event` breaks at [`Event::Claimed`], nothing is written. From [`Event::Started`] on the run ends after its
/// current step, with a checkpoint and the status [`Status::Interrupted`]; when resumed it gives the same numbers as
/// without the stop. Divergence is not an error: the summary reports it, and the records are kept.
///
/// # Errors
/// Any [`Error`]; files that were complete stay.
pub fn train(config: &RunConfig, folder: &Path, start: Start, on_event: &mut OnEvent<'_>) -> Result<Summary, Error> {
    device::compute(config, || Run::open(config, folder, start, on_event)?.go(on_event))
}

/// Maximum number of steps whose rows wait on the device; it bounds their memory.
const MOST_PENDING: usize = 256;
/// Number of steps before a divergence that are recorded in any case.
const RECENT: usize = 16;

struct Run {
    /// Keeps other processes out of the folder.
    _lock: File,
    config: RunConfig,
    /// Contents of `config.toml`.
    written: String,
    folder: PathBuf,
    task: Task,
    held_out: HeldOut,
    trainer: Trainer,
    progress: Progress,
    metrics: File,
    /// Length of `metrics.jsonl`, and digest of its lines.
    recorded: (u64, Digest),
    /// Steps whose rows are still on the device.
    pending: Vec<(usize, Row)>,
    summary: Summary,
    /// Loss of the first record.
    first_loss: Option<f32>,
    seconds: Seconds,
    started: Instant,
    /// Training time and tokens since the last record.
    since_record: (Duration, usize),
    /// What is not finite in the last step, if it is to be skipped.
    undone: Option<String>,
    /// Break after a request to stop.
    flow: ControlFlow<()>,
}

/// What to do after a step.
#[derive(Clone, Copy)]
struct Due {
    record: bool,
    evaluate: bool,
    save: bool,
}

/// Why the run loop leaves its normal course.
enum Problem {
    /// Loss, gradients or evaluation of a step are not finite; `is_undone` if its update was reverted.
    NotFinite {
        step: usize,
        message: String,
        is_undone: bool,
    },
    Failed(Error),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The state in which a process takes up a run.
struct Begun {
    trainer: Trainer,
    progress: Progress,
    /// Measurements of a calibration.
    measured: Vec<Measured>,
    /// Records of earlier processes.
    kept: Kept,
}

impl Begun {
    /// Resumes from a checkpoint.
    fn resumed(
        checkpoint: Checkpoint,
        config: &RunConfig,
        task: &Task,
        device: &Device,
        folder: &Path,
    ) -> Result<Self, Error> {
        on_disk::check_same_run(&checkpoint, config, &Progress::start(task), folder)?;
        let (there, here) = (checkpoint.config.threads, config.threads);
        if there != 0 && there != here {
            tracing::warn!(
                "the run was made with threads = {there}, now {here}: the last digits may differ from those of an \
                 uninterrupted run"
            );
        }
        let plan = config.plan()?;
        let (there, here) = (checkpoint.config.replica_count(&plan), config.replica_count(&plan));
        if there != here {
            tracing::warn!(
                "the run was made with {there} replicas (train.replicas), now {here}: the last digits may differ from those of an \
                 uninterrupted run"
            );
        }
        let changed = checkpoint.config.differences_of_outputs(config);
        if !changed.is_empty() {
            tracing::warn!("resumes with other settings than its checkpoint's: {}", changed.join(", "));
        }
        let trainer = checkpoint.trainer(config, device)?;
        let progress = checkpoint.progress;
        tracing::debug!("the run in {} goes on from step {}", folder.display(), progress.step);
        on_disk::remove_unfinished(folder)?;
        let kept = on_disk::keep_records(folder, &progress)?;
        let last = kept.records.last().map(|record| record.step);
        if progress.step == config.train.steps && last != Some(progress.step) {
            return Err(Error::Folder {
                path: folder.to_path_buf(),
                problem: format!(
                    "was stopped after step {} and has no record of it, so it cannot end there; give it more --steps",
                    progress.step
                ),
            });
        }
        checkpoint::prune(&folder.join(on_disk::CHECKPOINTS), config)?;
        Ok(Self { trainer, progress, measured: Vec::new(), kept })
    }

    /// Starts at the first step.
    fn anew(
        config: &RunConfig,
        task: &Task,
        device: &Device,
        folder: &Path,
        start: Start,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Self, Error> {
        if start == Start::Resume && folder.join("config.toml").exists() {
            on_disk::check_same_settings(&RunConfig::of_run(folder, &[])?, config, folder)?;
        }
        let mut progress = |step, of| {
            // There is nothing to save yet, so a request to stop has no effect here.
            let _ = on_event(Event::Calibrating(step, of));
        };
        let drawn = Trainer::of(config, device)?;
        let (trainer, measured) = calibrate(drawn, config, task, &mut progress)?;
        if !measured.is_empty() {
            let _ = on_event(Event::Calibrated(&measured));
        }
        on_disk::clear(folder)?;
        tracing::debug!("a new run in {}", folder.display());
        Ok(Self { trainer, progress: Progress::start(task), measured, kept: Kept::default() })
    }
}

impl Run {
    fn open(config: &RunConfig, folder: &Path, start: Start, on_event: &mut OnEvent<'_>) -> Result<Self, Error> {
        let mut config = config.clone();
        if start == Start::Resume {
            // A resolved configuration fixes the vocabulary; the checkpoint's vocabulary is compared below.
            config.model.vocab_size = None;
        }
        let (config, task) = config.prepare()?;
        warn(&config)?;
        let device = config.device()?;
        tell(&config, &task, &device);
        on_disk::check(folder, start)?;

        let lock = Claim::take(folder)?;
        // Another process may have changed the folder before it was locked.
        on_disk::check(folder, start)?;
        if on_event(Event::Claimed).is_break() {
            return Err(Error::Stopped);
        }
        let begun = match if start == Start::Resume { Checkpoint::of_run(folder)? } else { None } {
            Some(checkpoint) => Begun::resumed(checkpoint, &config, &task, &device, folder)?,
            None => Begun::anew(&config, &task, &device, folder, start, on_event)?,
        };
        let Begun { trainer, progress, measured, kept } = begun;
        let process = Process::this(config.threads, progress.step);
        let origin = Origin {
            command: process.command.clone(),
            processor: process.processor.clone(),
            started: process.started.clone(),
            checksum: String::new(),
        };
        let written = on_disk::sealed(&RunConfig { origin: Some(origin), ..config.clone() });
        let path = folder.join("metrics.jsonl");
        // Opened before anything is written, because opening may fail.
        let metrics = files::open_own(&path).map_err(Error::io("open", &path))?;
        write_atomically(&folder.join("config.toml"), written.as_bytes())?;
        files::create_folder(&folder.join(on_disk::CHECKPOINTS))?;
        if !measured.is_empty() {
            let text = serde_json::to_string_pretty(&measured)
                .unwrap_or_else(|e| unreachable!("what was measured is always valid JSON: {e}"));
            write_atomically(&folder.join("init.json"), format!("{text}\n").as_bytes())?;
        }
        let held_out = task.held_out(config.eval.tokens);
        let mut summary = Summary {
            format: FORMAT,
            status: Status::Running,
            message: None,
            divergences: progress.divergences.clone(),
            step: progress.step,
            steps: config.train.steps,
            tokens: progress.tokens,
            parameters: trainer.table.elements(),
            loss: None,
            eval_loss: None,
            best_eval_loss: None,
            floor: held_out.floor,
            excess: None,
            eval_tokens: Some(held_out.tokens),
            unigram_loss: Some(held_out.unigram_loss),
            learned: None,
            seconds: Seconds::default(),
            peak_memory: None,
            fingerprint: progress.fingerprint,
            process: Some(process),
            records: kept.digest,
            checksum: String::new(),
        };
        summary.take_losses(&kept.records);
        let mut run = Self {
            _lock: lock.keep(),
            config,
            written,
            folder: folder.to_path_buf(),
            task,
            held_out,
            trainer,
            progress,
            metrics,
            recorded: (kept.bytes, kept.digest),
            pending: Vec::new(),
            summary,
            first_loss: kept.records.first().map(|record| record.loss),
            seconds: Seconds::default(),
            started: Instant::now(),
            since_record: (Duration::ZERO, 0),
            undone: None,
            flow: ControlFlow::Continue(()),
        };
        run.write_summary()?;
        Ok(run)
    }

    fn go(mut self, on_event: &mut OnEvent<'_>) -> Result<Summary, Error> {
        let started = Event::Started {
            config: &self.config,
            parameters: self.summary.parameters,
            floor: self.summary.floor,
            step: self.progress.step,
        };
        self.flow = on_event(started);
        let steps = self.config.train.steps;
        if self.progress.step == 0 && matches!(self.config.train.on_divergence, OnDivergence::Rewind { .. }) {
            self.save()?;
        }
        while self.progress.step < steps {
            let step = self.progress.step + 1;
            let is_due = |every| self.config.is_due(every, step);
            let (evaluate, save) = (is_due(self.config.eval.every), is_due(self.config.checkpoint.every));
            let due = Due { record: step == 1 || evaluate || is_due(self.config.log.every), evaluate, save };
            self = self.step(step, due.record);
            match self.after(step, due, on_event) {
                Ok(()) if self.flow.is_break() && step < steps => {
                    self.end(Status::Interrupted)?;
                    return Ok(self.summary);
                }
                Ok(()) => {}
                Err(Problem::Failed(error)) => return Err(error),
                Err(Problem::NotFinite { step, message, is_undone }) => {
                    let (action, checkpoint) = self.action(is_undone && step < steps)?;
                    let divergence = Divergence { step, message, action };
                    if let Some(checkpoint) = checkpoint {
                        self.trainer = checkpoint.load(self.trainer)?;
                        let divergences = std::mem::take(&mut self.progress.divergences);
                        self.progress = Progress { divergences, ..checkpoint.progress };
                    }
                    self.progress.divergences.push(divergence.clone());
                    match action {
                        Action::Stopped {} => {
                            self.record_recent()?;
                            // Steps after the divergence, done before it was noticed, do not count.
                            self.progress.step = divergence.step;
                            self.progress.tokens = divergence.step * self.config.tokens_of_step();
                            self.summary.message = Some(divergence.describe());
                            self.end(Status::Diverged)?;
                            return Ok(self.summary);
                        }
                        Action::Skipped {} if due.save => self.save()?,
                        Action::Skipped {} => {}
                        Action::Rewound { rate, .. } => self.rewound(rate)?,
                    }
                    self.tell(on_event, Event::Diverged(&divergence));
                }
            }
        }
        self.check_files()?;
        self.refresh_summary();
        on_disk::records_of(&self.folder, &self.summary)?;
        self.summary.learned = self.summary.eval_loss.map(|loss| self.held_out.is_beaten_by(loss, self.first_loss));
        self.end(Status::Finished)?;
        Ok(self.summary)
    }

    /// Does a step, and reverts it if it is not finite and may be skipped.
    fn step(mut self, step: usize, observe: bool) -> Self {
        let started = Instant::now();
        let batches = self.config.batches(&self.task, step);
        let tokens: usize = batches.iter().map(|b| b.rows * b.time).sum();
        let before = match self.config.train.on_divergence {
            OnDivergence::Skip { .. } => Some((self.trainer.model.clone(), self.trainer.optimizer.clone())),
            OnDivergence::Stop {} | OnDivergence::Rewind { .. } => None,
        };
        let lr = lr(&self.config, self.progress.rate, step);
        let (trainer, row) = self.trainer.step(&batches, lr, observe);
        self.trainer = trainer;
        if let Some((model, optimizer)) = before {
            let seen = read_rows(std::slice::from_ref(&row));
            self.undone = seen.iter().find_map(|row| row.not_finite(&self.trainer.table));
            if self.undone.is_some() {
                (self.trainer.model, self.trainer.optimizer) = (model, optimizer);
            }
        }
        if self.undone.is_none() {
            self.pending.push((step, row));
        }
        self.progress.step = step;
        self.progress.tokens += tokens;
        self.since_record.0 += started.elapsed();
        self.since_record.1 += tokens;
        self
    }

    /// Reports an event, and remembers a request to stop.
    fn tell(&mut self, on_event: &mut OnEvent<'_>, event: Event<'_>) {
        if on_event(event).is_break() {
            self.flow = ControlFlow::Break(());
        }
    }

    /// Does what is due after a step; if the run is to stop, also writes a checkpoint.
    fn after(&mut self, step: usize, due: Due, on_event: &mut OnEvent<'_>) -> Result<(), Problem> {
        if let Some(message) = self.undone.take() {
            if !self.pending.is_empty() {
                self.read_pending(false)?;
            }
            return Err(Problem::NotFinite { step, message, is_undone: true });
        }
        self.tell(on_event, Event::Step(step));
        let is_full = self.pending.len() >= MOST_PENDING;
        if !(due.record || due.save || is_full || self.flow.is_break()) {
            return Ok(());
        }
        let row = self.read_pending(due.record)?;
        if due.record {
            let written = self.record(step, &row, due.evaluate)?;
            self.tell(on_event, Event::Recorded(&written));
        }
        if due.save || self.flow.is_break() {
            self.save()?;
            self.tell(on_event, Event::Saved(step));
        }
        Ok(())
    }

    /// How to handle a divergence, and the checkpoint for a rewind.
    fn action(&self, can_skip: bool) -> Result<(Action, Option<Checkpoint>), Error> {
        let rewinds = self.progress.divergences.iter().filter_map(Divergence::went_to).count();
        match self.config.train.on_divergence {
            OnDivergence::Skip { at_most } if can_skip && self.progress.skipped() < at_most => {
                Ok((Action::Skipped {}, None))
            }
            OnDivergence::Rewind { factor, at_most } if rewinds < at_most => {
                let checkpoint = Checkpoint::newest_due(&self.folder, &self.config)?;
                let (to, rate) = (checkpoint.progress.step, self.progress.rate * factor);
                Ok((Action::Rewound { to, rate }, Some(checkpoint)))
            }
            OnDivergence::Stop {} | OnDivergence::Skip { .. } | OnDivergence::Rewind { .. } => {
                Ok((Action::Stopped {}, None))
            }
        }
    }

    /// Continues from the checkpoint in `self.progress` at this rate.
    fn rewound(&mut self, rate: f64) -> Result<(), Error> {
        // Checkpoints go before records: a checkpoint without its records is damage.
        checkpoint::remove_after(&self.folder.join(on_disk::CHECKPOINTS), self.progress.step)?;
        let kept = on_disk::keep_records(&self.folder, &self.progress)?;
        let path = self.folder.join("metrics.jsonl");
        self.metrics = files::open_own(&path).map_err(Error::io("open", &path))?;
        self.progress.rate = rate;
        self.pending.clear();
        self.since_record = (Duration::ZERO, 0);
        self.recorded = (kept.bytes, kept.digest);
        self.summary.take_losses(&kept.records);
        self.end(Status::Running)
    }

    /// Reads the pending rows from the device, keeps those that a divergence would record, and returns the last one.
    fn read_pending(&mut self, is_recorded: bool) -> Result<HostRow, Problem> {
        let started = Instant::now();
        let (steps, rows): (Vec<usize>, Vec<Row>) = std::mem::take(&mut self.pending).into_iter().unzip();
        let mut rows = read_rows(&rows);
        self.since_record.0 += started.elapsed();
        self.seconds.logging += started.elapsed().as_secs_f64();
        let unrecorded = steps.len() - usize::from(is_recorded);
        for (i, (step, row)) in steps.iter().zip(&rows).enumerate() {
            if let Some(message) = row.not_finite(&self.trainer.table) {
                return Err(Problem::NotFinite { step: *step, message, is_undone: false });
            }
            if i < unrecorded {
                self.remember(*step, row);
            }
        }
        Ok(rows.pop().unwrap_or_else(|| unreachable!("a step precedes every read")))
    }

    /// Keeps a step that is recorded only if the run diverges before the next record.
    fn remember(&mut self, step: usize, row: &HostRow) {
        let recent = &mut self.progress.recent;
        if recent.len() == RECENT {
            recent.remove(0);
        }
        let at = StepInfo {
            step,
            tokens: step * self.config.tokens_of_step(),
            lr: lr(&self.config, self.progress.rate, step),
            // Speeds vary between runs, and a checkpoint must not.
            tokens_per_second: 0.0,
            replicas: self.trainer.replicas().count(),
        };
        recent.push(Record::new(at, row, &self.trainer.table, self.config.model.n_layers));
    }

    /// Records the steps before a divergence.
    fn record_recent(&mut self) -> Result<(), Error> {
        let speed = self.speed();
        for record in std::mem::take(&mut self.progress.recent) {
            self.write(&Record { tokens_per_second: speed, ..record })?;
        }
        Ok(())
    }

    /// Tokens per second since the last record.
    fn speed(&mut self) -> f64 {
        let (time, tokens) = std::mem::take(&mut self.since_record);
        (tokens as f64 / time.as_secs_f64().max(1e-9)).round()
    }

    /// Records a step, with its evaluation if one is due.
    fn record(&mut self, step: usize, row: &HostRow, evaluate: bool) -> Result<Record, Problem> {
        let at = StepInfo {
            step,
            tokens: self.progress.tokens,
            lr: lr(&self.config, self.progress.rate, step),
            tokens_per_second: self.speed(),
            replicas: self.trainer.replicas().count(),
        };
        let mut record = Record::new(at, row, &self.trainer.table, self.config.model.n_layers);
        if evaluate {
            let started = Instant::now();
            let loss = self.trainer.evaluate(self.task.evaluation(self.config.eval.tokens));
            if !loss.is_finite() {
                self.remember(step, row);
                let message = format!("the evaluation after its update has the loss {loss}");
                return Err(Problem::NotFinite { step, message, is_undone: false });
            }
            record = record.with_evaluation(loss, self.held_out.tokens, self.held_out.floor);
            tracing::debug!(
                "step {step}: evaluation {loss} on {} tokens in {:.2} s",
                self.held_out.tokens,
                started.elapsed().as_secs_f64()
            );
            let best = self.progress.best_eval_loss.map_or(loss, |best| best.min(loss));
            self.progress.best_eval_loss = Some(best);
            self.seconds.evaluation += started.elapsed().as_secs_f64();
        }
        self.write(&record)?;
        self.progress.recent.clear();
        Ok(record)
    }

    /// Appends a record to `metrics.jsonl` in a single write.
    fn write(&mut self, record: &Record) -> Result<(), Error> {
        let started = Instant::now();
        let mut line =
            serde_json::to_string(record).unwrap_or_else(|e| unreachable!("a record is always valid JSON: {e}"));
        line.push('\n');
        let path = self.folder.join("metrics.jsonl");
        if let Err(e) = self.metrics.write_all(line.as_bytes()) {
            // Remove a partial line; the error of the write is the one to report.
            let _ = self.metrics.set_len(self.recorded.0);
            return Err(Error::io("write", &path)(e));
        }
        self.progress.records = self.progress.records.with(&metrics::timeless(&line));
        self.recorded = (self.recorded.0 + line.len() as u64, self.recorded.1.with(&line));
        self.seconds.logging += started.elapsed().as_secs_f64();

        self.first_loss.get_or_insert(record.loss);
        self.summary.loss = Some(record.loss);
        if record.eval_loss.is_some() {
            self.summary.eval_loss = record.eval_loss;
            self.summary.excess = record.excess;
            self.summary.best_eval_loss = self.progress.best_eval_loss;
        }
        Ok(())
    }

    /// Writes a checkpoint, after syncing the records that it refers to.
    fn save(&mut self) -> Result<(), Error> {
        let started = Instant::now();
        let path = self.folder.join("metrics.jsonl");
        self.metrics.sync_data().map_err(Error::io("write", &path))?;
        self.check_files()?;
        let folder = self.folder.join(on_disk::CHECKPOINTS);
        checkpoint::save(&folder, &self.trainer, &self.progress, &self.config)?;
        self.seconds.checkpoint += started.elapsed().as_secs_f64();
        self.refresh_summary();
        self.write_summary()
    }

    /// Checks that the records and the configuration of this run are still in the folder.
    fn check_files(&self) -> Result<(), Error> {
        let metrics = fs::symlink_metadata(self.folder.join("metrics.jsonl"));
        let has_records = metrics.is_ok_and(|there| there.is_file() && there.len() == self.recorded.0);
        let config = read::all(&self.folder.join("config.toml"), read::MOST_WRITTEN);
        let has_config = config.is_ok_and(|there| there == self.written.as_bytes());
        let lost = match (has_records, has_config) {
            (true, true) => return Ok(()),
            (false, _) => "metrics.jsonl",
            (true, false) => "config.toml",
        };
        Err(Error::Folder {
            path: self.folder.clone(),
            problem: format!(
                "{lost} was removed or changed during training, which stops at step {}. Restore it and resume with \
                 --resume, or start again with --force",
                self.progress.step
            ),
        })
    }

    /// Writes the summary with this status.
    fn end(&mut self, status: Status) -> Result<(), Error> {
        self.summary.status = status;
        self.refresh_summary();
        if let Some(process) = self.summary.process.as_mut().filter(|_| status != Status::Running) {
            process.ended = Some(now());
        }
        self.write_summary()
    }

    fn refresh_summary(&mut self) {
        let clock = self.trainer.clock;
        self.summary.step = self.progress.step;
        self.summary.tokens = self.progress.tokens;
        self.summary.records = self.recorded.1;
        self.summary.divergences.clone_from(&self.progress.divergences);
        self.summary.peak_memory = peak_memory();
        self.summary.seconds = Seconds {
            total: self.started.elapsed().as_secs_f64(),
            forward: clock.forward.as_secs_f64(),
            backward: clock.backward.as_secs_f64(),
            optimizer: clock.optimizer.as_secs_f64(),
            ..self.seconds
        };
    }

    fn write_summary(&mut self) -> Result<(), Error> {
        write_atomically(&self.folder.join("summary.json"), self.summary.sealed().as_bytes())
    }
}

/// A locked folder in which no run has begun yet; dropping it removes what was created.
struct Claim {
    lock: Option<File>,
    folder: PathBuf,
    /// Created folders, innermost first.
    made: Vec<PathBuf>,
}

impl Claim {
    fn take(folder: &Path) -> Result<Self, Error> {
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let made = folder.ancestors().take_while(is_missing).map(Path::to_path_buf).collect();
        let mut claim = Self { lock: None, folder: folder.to_path_buf(), made };
        files::create_folder(folder)?;
        claim.lock = Some(files::lock(folder)?);
        Ok(claim)
    }

    /// Keeps the folder, and returns its lock.
    fn keep(mut self) -> File {
        self.made.clear();
        self.lock.take().unwrap_or_else(|| unreachable!("it was taken with the folder"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.lock.take().is_some() && !self.made.is_empty() {
            let _ = fs::remove_file(self.folder.join(files::LOCK));
        }
        // Removes empty folders only.
        self.made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

/// Warns of settings that are allowed but most likely unintended.
fn warn(config: &RunConfig) -> Result<(), Error> {
    let plan = config.plan()?;
    if has_batch_norm(&plan) && config.train.accumulate > 1 {
        tracing::warn!(
            "batch_norm normalizes each of the train.accumulate = {} micro-batches by its own statistics, so a step \
             differs from one with the larger batch",
            config.train.accumulate
        );
    }
    for rule in plan.warnings() {
        tracing::warn!("{}: {}. {}", rule.pair, rule.reason, rule.fix);
    }
    if plan.parametrization.is_base(plan.shape) {
        tracing::info!(
            "this is the base model of its parametrization: learning rates and multipliers are the standard ones"
        );
    }
    if plan.parametrization.is_unit_scaled()
        && config.optimizer.update() == Update::Normalized
        && config.optimizer.lr() < 0.02
    {
        tracing::warn!(
            "optimizer.lr = {} under parametrization = \"u_mup\", whose learning rates are of size 1 (try 0.5): the model \
             will hardly move",
            config.optimizer.lr()
        );
    }
    Ok(())
}

/// Logs model, data and device at debug level.
fn tell(config: &RunConfig, task: &Task, device: &Device) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let value = |config: &RunConfig| toml::Value::try_from(config);
    let default = RunConfig::default().resolved(task.vocab_size()).unwrap_or_default();
    if let (Ok(default), Ok(own)) = (value(&default), value(config)) {
        let mut changed = Vec::new();
        changed_keys("", &default, &own, &mut changed);
        tracing::debug!("settings that are not the defaults: {}", changed.join(", "));
    }
    let Found { name, target, types, .. } = Found::of(device::backend(&config.backend), device);
    let (types, threads) = (types.join(" "), rayon::current_num_threads());
    tracing::debug!("device: {} ({name}, {target}, {types}), {threads} threads", config.backend);
    tracing::debug!("data: {}", task.amount());
}

/// The scheduled learning rate of `step`, counted from 1, times `rate`.
pub fn lr(config: &RunConfig, rate: f64, step: usize) -> f64 {
    config.optimizer.lr() * config.schedule.factor(step - 1, config.train.steps) * rate
}
