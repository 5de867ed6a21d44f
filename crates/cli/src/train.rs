use super::overrides::Overrides;
use super::progress::{self, Count};
use super::stop::{self, Stop};
use super::{Outcome, table};
use indicatif::ProgressBar;
use std::io::{IsTerminal, stdout};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use unitgain_train::folder::metrics::Status;
use unitgain_train::folder::process::quoted;
use unitgain_train::{Event, Measured, Record, RunConfig, Start, Summary, train};

/// Train a model from a TOML file into a run folder
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain train configs/pre_norm.toml\n  \
    unitgain train configs/pre_norm.toml --set model.placement=post_norm --set optimizer.lr=3e-4 --out runs/post\n  \
    unitgain train --resume runs/post")]
pub(crate) struct Args {
    /// The run's TOML file; with --resume, the run folder's by default
    #[arg(required_unless_present = "resume")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    /// The run folder [default: runs/NAME of the TOML file]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,
    /// Number of updates, instead of train.steps
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Seed, instead of the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Resume the run in this folder from its newest checkpoint
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Replace the run in the folder
    #[arg(long, conflicts_with = "resume")]
    force: bool,
    /// Stop as by SIGTERM when this process exits: it started this one and holds its standard input
    #[arg(long, hide = true, value_name = "PID")]
    parent: Option<u32>,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let mut settings = self.overrides.settings();
        settings.extend(self.steps.map(|n| format!("train.steps={n}")));
        let (mut config, folder, start) = match (&self.config, &self.resume) {
            (Some(config), Some(folder)) => (RunConfig::load(config, &settings)?, folder.clone(), Start::Resume),
            (None, Some(folder)) => (RunConfig::of_run(folder, &settings)?, folder.clone(), Start::Resume),
            (Some(config), None) => {
                let name = config.file_stem().unwrap_or_default();
                let folder = self.out.clone().unwrap_or_else(|| Path::new("runs").join(name));
                let start = if self.force { Start::Replace } else { Start::New };
                (RunConfig::load(config, &settings)?, folder, start)
            }
            (None, None) => unreachable!("clap asks for one of both"),
        };
        config.seed = self.seed.unwrap_or(config.seed);
        self.overrides.self_test(&config.backend)?;
        let stop = Stop::default();
        if self.parent.is_some() {
            stop.with_input();
        }
        let mut view = View::new(&folder);
        let summary = train(&config, &folder, start, &mut |event| {
            match event {
                // A parent that was killed meanwhile may already have a successor working in the folder.
                Event::Claimed if self.parent.is_some_and(stop::is_orphan_of) => return ControlFlow::Break(()),
                // From here on files are written; a calibration, which writes none, ends at once.
                Event::Claimed if config.init.calibrate.is_none() => stop.install(),
                Event::Calibrated(_) | Event::Started { .. } => stop.install(),
                Event::Claimed
                | Event::Calibrating(..)
                | Event::Step(_)
                | Event::Recorded(_)
                | Event::Saved(_)
                | Event::Diverged(_) => {}
            }
            view.show(&event);
            stop.flow()
        })?;
        view.finish(&summary);
        Ok(match summary.status {
            Status::Diverged => Outcome::Negative,
            Status::Interrupted => Outcome::Interrupted(stop),
            Status::Running | Status::Finished => Outcome::Success,
        })
    }
}

/// Progress as lines on standard output; beside a bar on a terminal, only what the bar does not show.
struct View {
    folder: PathBuf,
    calibration: Option<Count>,
    bar: ProgressBar,
}

impl View {
    fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), calibration: None, bar: ProgressBar::hidden() }
    }

    fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Started { config, parameters, floor, step } => {
                let floor = floor.map_or(String::new(), |floor| format!(", floor {floor:.4}"));
                let from = if *step > 0 { format!(" from step {step}") } else { String::new() };
                progress::line(&format!(
                    "{}: {} parameters, {} steps{from} of {} tokens on {}{floor}",
                    self.folder.display(),
                    parameters,
                    config.train.steps,
                    config.tokens_of_step(),
                    config.backend,
                ));
                let steps = config.train.steps as u64;
                self.bar = progress::bar_among_lines(steps, "", "{msg} {eta} left").with_position(*step as u64);
                // Estimate the remaining time from this process's steps only.
                self.bar.reset_eta();
            }
            Event::Calibrating(step, of) => {
                let count = self.calibration.get_or_insert_with(|| Count::new(*of as u64, "calibrating"));
                count.set(*step as u64);
            }
            Event::Calibrated(measured) => {
                self.calibration.take().iter().for_each(Count::finish);
                for Measured { what, before, after } in *measured {
                    let [before, after] = [*before, *after].map(table::number);
                    progress::line(&format!("calibrated: {what} {before} to {after}"));
                }
            }
            Event::Step(step) => self.bar.set_position(*step as u64),
            Event::Recorded(record) => {
                self.bar.set_message(format!("loss {:.4}, {:.0} tokens/s,", record.loss, record.tokens_per_second));
                let is_seen = !self.bar.is_hidden() && stdout().is_terminal();
                if !is_seen || record.eval_loss.is_some() {
                    progress::line(&describe(record));
                }
            }
            Event::Claimed | Event::Saved(_) => {}
            Event::Diverged(divergence) => progress::line(&divergence.describe()),
        }
    }

    fn finish(&mut self, summary: &Summary) {
        self.bar.finish_and_clear();
        match (&summary.status, &summary.message) {
            (Status::Diverged, Some(message)) => progress::line(message),
            (Status::Interrupted, _) => progress::line(&format!(
                "interrupted after step {} of {}, with a checkpoint; go on with:\n  unitgain train --resume{}{}",
                summary.step,
                summary.steps,
                // A value with a leading dash would be parsed as an option.
                if self.folder.to_string_lossy().starts_with('-') { "=" } else { " " },
                quoted(&self.folder.display().to_string())
            )),
            _ => {
                let eval = summary.eval_loss.map_or(String::new(), |loss| format!(", evaluation {loss:.4}"));
                let excess = summary.excess.map_or(String::new(), |excess| format!(", {excess:.4} above the floor"));
                let (steps, seconds) = (summary.step, summary.seconds.total);
                progress::line(&format!("finished {steps} steps in {seconds:.0} s{eval}{excess}"));
                if let (Some(false), Some(unigram)) = (summary.learned, summary.unigram_loss) {
                    progress::line(&format!(
                        "did not learn: it ends no better than the frequencies of the symbols alone ({unigram:.4}), or than \
                         its start"
                    ));
                }
            }
        }
    }
}

fn describe(record: &Record) -> String {
    let mut line = format!(
        "step {:>6}  loss {:.4}  lr {:.2e}  grad norm {:.3}  {:.0} tokens/s",
        record.step, record.loss, record.lr, record.grad_norm, record.tokens_per_second
    );
    if let Some(loss) = record.eval_loss {
        line += &format!("  evaluation {loss:.4}");
    }
    if let Some(excess) = record.excess {
        line += &format!(", {excess:.4} above the floor");
    }
    line
}
