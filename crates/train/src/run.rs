use crate::checkpoint::{self, Checkpoint, Position};
use crate::config::changed_keys;
use crate::device::Found;
use crate::files::{self, write_atomically};
use crate::metrics::{At, FORMAT, Seconds, Status, peak_memory};
use crate::step::{HostRow, Row, read_rows};
use crate::{
    Error, HeldOut, Measured, Record, RunConfig, Summary, Task, Trainer, calibrate, device, folder as on_disk, metrics,
};
use burn::tensor::Device;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use unitgain_model::Update;

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// In a folder that does not exist yet, or is empty.
    New,
    /// In a folder whose earlier run is removed first.
    Replace,
    /// From the newest checkpoint in the folder.
    Resume,
}

/// What a run tells its caller.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// Everything is ready; the first step follows.
    Started {
        /// Resolved.
        config: &'a RunConfig,
        /// Number of trainable elements.
        parameters: usize,
        /// Least loss that can be expected on the held-out tokens, where it is known.
        floor: Option<f64>,
        /// Steps that an earlier process made.
        step: usize,
    },
    /// A calibration made a step, of so many.
    Calibrating(usize, usize),
    /// A calibration has ended: what it is about, before and after it.
    Calibrated(&'a [Measured]),
    /// A step was made.
    Step(usize),
    /// A record was written.
    Recorded(&'a Record),
    /// A checkpoint of this step was written.
    Saved(usize),
}

/// Trains a model and writes `config.toml`, `metrics.jsonl`, `checkpoints/` and `summary.json` into
/// `folder`. Nothing is written before everything that can be checked was checked.
///
/// A run that diverges is not an error: its summary says so, and what it had is kept.
///
/// # Errors
/// Any [`Error`]; what was complete on the disk stays.
pub fn train(
    config: &RunConfig,
    folder: &Path,
    start: Start,
    on_event: &mut (dyn FnMut(Event<'_>) + Send),
) -> Result<Summary, Error> {
    device::compute(config, || Run::open(config, folder, start, on_event)?.go(on_event))
}

struct Run {
    /// Keeps other processes out of the folder.
    _lock: File,
    config: RunConfig,
    folder: PathBuf,
    task: Task,
    held_out: HeldOut,
    trainer: Trainer,
    position: Position,
    metrics: File,
    /// Rows that are still on the device, with their steps.
    pending: Vec<(usize, Row)>,
    summary: Summary,
    seconds: Seconds,
    started: Instant,
    /// Training time and tokens since the last record.
    since_record: (Duration, usize),
}

impl Run {
    fn open(
        config: &RunConfig,
        folder: &Path,
        start: Start,
        on_event: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<Self, Error> {
        let mut config = config.clone();
        if start == Start::Resume {
            // A resolved configuration pins the vocabulary; that of the checkpoint is compared below.
            config.model.vocab_size = None;
        }
        let (config, task) = config.prepare()?;
        if config.has_batch_norm() && config.train.accumulate > 1 {
            tracing::warn!(
                "batch_norm normalizes each of the train.accumulate = {} micro-batches by its own statistics, so that \
                 a step is not that of the larger batch",
                config.train.accumulate
            );
        }
        for rule in config.model.warnings()? {
            tracing::warn!("{}: {}. {}", rule.pair, rule.reason, rule.fix);
        }
        if config.model.parametrization.is_base(config.model.shape()) {
            tracing::info!(
                "this is the base model of its parametrization: learning rates and multipliers are the standard ones"
            );
        }
        if config.model.parametrization.unit_scaling().is_some()
            && config.optimizer.update() == Update::Normalized
            && config.optimizer.lr() < 0.02
        {
            tracing::warn!(
                "optimizer.lr = {} under parametrization = \"u_mup\", whose learning rates are of size 1 (try 0.5): the \
                 model will hardly move",
                config.optimizer.lr()
            );
        }
        let device = device::from_name(&config.backend)?;
        tell(&config, &task, &device);
        let mut trainer = Trainer::of(&config, &device)?;
        let mut position = Position {
            step: 0,
            tokens: 0,
            best_eval_loss: None,
            fingerprint: task.fingerprint(),
            tokenizer: task.tokenizer(),
        };
        let lock;
        let mut measured = Vec::new();
        match start {
            Start::New | Start::Replace => {
                on_disk::check_free(folder, start)?;
                let mut progress = |step, of| on_event(Event::Calibrating(step, of));
                (trainer, measured) = calibrate(trainer, &config, &task, &mut progress)?;
                if !measured.is_empty() {
                    on_event(Event::Calibrated(&measured));
                }
                fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
                lock = files::lock(folder)?;
                on_disk::clear(folder)?;
                tracing::debug!("a new run in {}", folder.display());
            }
            Start::Resume => {
                let checkpoint = Checkpoint::newest(folder)?;
                on_disk::check_same_run(&checkpoint, &config, &position, folder)?;
                let (there, here) = (checkpoint.config.threads, config.threads);
                if there != 0 && there != here {
                    tracing::warn!(
                        "the run was made with threads = {there}, now {here}: the last digits may differ from those of \
                         an unbroken run"
                    );
                }
                trainer = checkpoint.load(trainer)?;
                position = checkpoint.position;
                tracing::debug!("the run in {} goes on from step {}", folder.display(), position.step);
                lock = files::lock(folder)?;
                files::remove_partial(folder)?;
                files::remove_partial(&folder.join("checkpoints"))?;
                on_disk::keep_records(&folder.join("metrics.jsonl"), position.step)?;
            }
        }
        let checkpoints = folder.join("checkpoints");
        fs::create_dir_all(&checkpoints).map_err(Error::io("create", &checkpoints))?;
        write_atomically(&folder.join("config.toml"), config.to_toml().as_bytes())?;
        if !measured.is_empty() {
            let text = serde_json::to_string_pretty(&measured)
                .unwrap_or_else(|e| unreachable!("what was measured is always valid JSON: {e}"));
            write_atomically(&folder.join("init.json"), format!("{text}\n").as_bytes())?;
        }
        let path = folder.join("metrics.jsonl");
        let metrics = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io("open", &path))?;
        let earlier = on_disk::read_summary(folder);
        let held_out = task.held_out(config.eval.tokens);
        let summary = Summary {
            format: FORMAT,
            status: Status::Running,
            message: None,
            step: position.step,
            steps: config.train.steps,
            tokens: position.tokens,
            parameters: trainer.table.elements(),
            loss: earlier.as_ref().and_then(|summary| summary.loss),
            eval_loss: earlier.as_ref().and_then(|summary| summary.eval_loss),
            best_eval_loss: position.best_eval_loss,
            floor: held_out.floor,
            excess: earlier.as_ref().and_then(|summary| summary.excess),
            eval_tokens: Some(held_out.tokens),
            unigram_loss: Some(held_out.unigram_loss),
            learned: None,
            seconds: Seconds::default(),
            peak_memory: None,
        };
        let run = Self {
            _lock: lock,
            config,
            folder: folder.to_path_buf(),
            task,
            held_out,
            trainer,
            position,
            metrics,
            pending: Vec::new(),
            summary,
            seconds: Seconds::default(),
            started: Instant::now(),
            since_record: (Duration::ZERO, 0),
        };
        run.write_summary()?;
        Ok(run)
    }

    fn go(mut self, on_event: &mut (dyn FnMut(Event<'_>) + Send)) -> Result<Summary, Error> {
        on_event(Event::Started {
            config: &self.config,
            parameters: self.summary.parameters,
            floor: self.summary.floor,
            step: self.position.step,
        });
        let steps = self.config.train.steps;
        for step in self.position.step + 1..=steps {
            let due = |every: usize| step == steps || (every > 0 && step.is_multiple_of(every));
            let (evaluate, save) = (due(self.config.eval.every), due(self.config.checkpoint.every));
            let record = step == 1 || evaluate || due(self.config.log.every);

            self = self.step(step, record);
            on_event(Event::Step(step));
            if !(record || save) {
                continue;
            }
            let row = match self.read_pending()? {
                Ok(row) => row,
                Err(message) => return self.diverged(message),
            };
            if record {
                match self.record(step, &row, evaluate)? {
                    Ok(written) => on_event(Event::Recorded(&written)),
                    Err(message) => return self.diverged(message),
                }
            }
            if save {
                self.save()?;
                on_event(Event::Saved(step));
            }
        }
        self.summary.status = Status::Finished;
        let start = metrics::read(&self.folder)?.first().map(|record| record.loss);
        self.summary.learned = self.summary.eval_loss.map(|loss| self.held_out.is_beaten_by(loss, start));
        self.refresh_summary();
        self.write_summary()?;
        Ok(self.summary)
    }

    fn step(mut self, step: usize, observe: bool) -> Self {
        let started = Instant::now();
        let train = self.config.train;
        let batches: Vec<_> = (0..train.accumulate)
            .map(|micro| {
                let rows = micro * train.batch_size..(micro + 1) * train.batch_size;
                self.task.batch(self.config.seed, step, rows)
            })
            .collect();
        let tokens: usize = batches.iter().map(|b| b.rows * b.time).sum();
        let (trainer, row) = self.trainer.step(&batches, lr(&self.config, step), observe);
        self.trainer = trainer;
        self.pending.push((step, row));
        self.position.step = step;
        self.position.tokens += tokens;
        self.since_record.0 += started.elapsed();
        self.since_record.1 += tokens;
        self
    }

    /// Reads what is still on the device and returns the row of the last step, or the message of a
    /// divergence.
    fn read_pending(&mut self) -> Result<Result<HostRow, String>, Error> {
        let started = Instant::now();
        let (steps, rows): (Vec<usize>, Vec<Row>) = std::mem::take(&mut self.pending).into_iter().unzip();
        let rows = read_rows(&rows);
        self.since_record.0 += started.elapsed();
        self.seconds.logging += started.elapsed().as_secs_f64();
        for (step, row) in steps.iter().zip(&rows) {
            if let Some(problem) = self.not_finite(row) {
                return Ok(Err(format!("diverged at step {step}: {problem}")));
            }
        }
        Ok(rows.into_iter().next_back().ok_or_else(|| unreachable!("a step precedes every read")))
    }

    /// What of a step is not finite: the gradients from the first to the last, the loss, the stream.
    fn not_finite(&self, row: &HostRow) -> Option<String> {
        let not_finite = row.squares.iter().enumerate().filter(|(_, square)| !square.is_finite()).map(|(i, _)| i);
        let which: Vec<&str> = not_finite.map(|i| self.trainer.table.entries()[i].path.as_str()).collect();
        let block = row.stream_rms.iter().position(|rms| !rms.is_finite());
        let problem = match (which.as_slice(), block) {
            ([first, .., last], _) => {
                let (count, all) = (which.len(), row.squares.len());
                format!("{count} of {all} gradients are not finite, the first that of {first}, the last that of {last}")
            }
            ([only], _) => format!("the gradient of {only} is not finite"),
            ([], Some(block)) => format!("the stream after block {block} is not finite"),
            ([], None) if row.grad_norm().is_finite() && row.grad_norm_clipped.is_finite() && row.loss.is_finite() => {
                return None;
            }
            ([], None) => {
                format!("norm of all gradients {}, {} after the clip", row.grad_norm(), row.grad_norm_clipped)
            }
        };
        Some(format!("loss {}, {problem}", row.loss))
    }

    /// Writes the record of a step; or gives the message of a divergence that only the evaluation,
    /// which is after the update, has seen.
    fn record(&mut self, step: usize, row: &HostRow, evaluate: bool) -> Result<Result<Record, String>, Error> {
        let (time, tokens) = std::mem::take(&mut self.since_record);
        let at = At {
            step,
            tokens: self.position.tokens,
            lr: lr(&self.config, step),
            tokens_per_second: tokens as f64 / time.as_secs_f64().max(1e-9),
        };
        let mut record = Record::new(at, row, &self.trainer.table, self.config.model.n_layers);
        if evaluate {
            let started = Instant::now();
            let loss = self.trainer.evaluate(self.task.evaluation(self.config.eval.tokens));
            if !loss.is_finite() {
                return Ok(Err(format!(
                    "diverged at step {step}: the evaluation after its update has the loss {loss}"
                )));
            }
            record = record.with_evaluation(loss, self.held_out.tokens, self.held_out.floor);
            tracing::debug!(
                "step {step}: evaluation {loss} on {} tokens in {:.2} s",
                self.held_out.tokens,
                started.elapsed().as_secs_f64()
            );
            let best = self.position.best_eval_loss.map_or(loss, |best| best.min(loss));
            self.position.best_eval_loss = Some(best);
            self.seconds.evaluation += started.elapsed().as_secs_f64();
        }
        let started = Instant::now();
        let mut line =
            serde_json::to_string(&record).unwrap_or_else(|e| unreachable!("a record is always valid JSON: {e}"));
        line.push('\n');
        let path = self.folder.join("metrics.jsonl");
        let before = self.metrics.metadata().map_err(Error::io("read", &path))?.len();
        if let Err(e) = self.metrics.write_all(line.as_bytes()) {
            // Half a line is worse than none; the error that counts is the first one.
            let _ = self.metrics.set_len(before);
            return Err(Error::io("write", &path)(e));
        }
        self.seconds.logging += started.elapsed().as_secs_f64();

        self.summary.loss = Some(record.loss);
        if record.eval_loss.is_some() {
            self.summary.eval_loss = record.eval_loss;
            self.summary.excess = record.excess;
            self.summary.best_eval_loss = self.position.best_eval_loss;
        }
        Ok(Ok(record))
    }

    fn save(&mut self) -> Result<(), Error> {
        let started = Instant::now();
        let folder = self.folder.join("checkpoints");
        checkpoint::save(&folder, &self.trainer, &self.position, &self.config, self.config.checkpoint.keep)?;
        self.seconds.checkpoint += started.elapsed().as_secs_f64();
        self.refresh_summary();
        self.write_summary()
    }

    fn diverged(mut self, message: String) -> Result<Summary, Error> {
        self.summary.status = Status::Diverged;
        self.summary.message = Some(message);
        self.refresh_summary();
        self.write_summary()?;
        Ok(self.summary)
    }

    fn refresh_summary(&mut self) {
        let clock = self.trainer.clock;
        self.summary.step = self.position.step;
        self.summary.tokens = self.position.tokens;
        self.summary.peak_memory = peak_memory();
        self.summary.seconds = Seconds {
            total: self.started.elapsed().as_secs_f64(),
            forward: clock.forward.as_secs_f64(),
            backward: clock.backward.as_secs_f64(),
            optimizer: clock.optimizer.as_secs_f64(),
            ..self.seconds
        };
    }

    fn write_summary(&self) -> Result<(), Error> {
        let mut text = serde_json::to_string_pretty(&self.summary)
            .unwrap_or_else(|e| unreachable!("a summary is always valid JSON: {e}"));
        text.push('\n');
        write_atomically(&self.folder.join("summary.json"), text.as_bytes())
    }
}

/// What a run is made of, for whoever asks for debug messages.
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
    let Found { name, target, types, .. } = Found::of(&config.backend, device);
    let (types, threads) = (types.join(" "), rayon::current_num_threads());
    tracing::debug!("device: {} ({name}, {target}, {types}), {threads} threads", config.backend);
    tracing::debug!("data: {}", task.amount());
}

/// The scheduled learning rate of a step, counted from 1.
fn lr(config: &RunConfig, step: usize) -> f64 {
    config.optimizer.lr() * config.schedule.factor(step - 1, config.train.steps)
}
