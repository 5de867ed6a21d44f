//! Shared by the commands that train many runs.

use super::overrides::Overrides;
use super::stop::Stop;
use super::{printable, progress};
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use unitgain_model::Plan;
use unitgain_study::plot::{self, Panel};
use unitgain_study::sweep::{Job, PoolEvent, PoolOptions};
use unitgain_train::Summary;
use unitgain_train::device::memory;
use unitgain_train::folder::metrics::Status;
use unitgain_train::folder::process::command_that_goes_on;

/// How runs are trained and reported.
#[derive(clap::Args)]
pub(crate) struct Runs {
    #[command(flatten)]
    pub(crate) overrides: Overrides,
    /// Maximum number of runs at once [default: the number of cores; one on a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Remove the runs in the folder first
    #[arg(long)]
    force: bool,
    /// Also plot the curves to this file, as SVG, or as PNG with the feature png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON (an object)
    #[arg(long)]
    pub(crate) json: bool,
}

impl Runs {
    /// Reports errors before the first run.
    pub(crate) fn check<'a>(&self, jobs: impl Iterator<Item = &'a Job>) -> anyhow::Result<()> {
        self.plot.as_deref().map_or(Ok(()), plot::check)?;
        let jobs: Vec<&Job> = jobs.collect();
        self.warn(jobs.iter().copied());
        let backends: BTreeSet<&str> = jobs.iter().map(|job| job.config.backend.as_str()).collect();
        backends.into_iter().try_for_each(|backend| self.overrides.self_test(backend))
    }

    /// Logs each distinct warning once, with the first run that has it.
    pub(crate) fn warn<'a>(&self, jobs: impl Iterator<Item = &'a Job>) {
        let mut said = BTreeSet::new();
        for job in jobs {
            for rule in job.config.plan().iter().flat_map(Plan::warnings) {
                if said.insert(rule.pair.to_string()) {
                    tracing::warn!("{}: {}: {}. {}", job.name, rule.pair, rule.reason, rule.fix);
                }
            }
            for idle in job.config.idle_keys(&job.config) {
                if said.insert(idle.clone()) {
                    tracing::warn!("{}: {idle}", job.name);
                }
            }
        }
    }

    /// Prints the results in the requested form, and plots them.
    pub(crate) fn tell(
        &self,
        json: impl FnOnce() -> String,
        print: impl FnOnce() -> anyhow::Result<()>,
        panels: impl FnOnce() -> Vec<Panel>,
    ) -> anyhow::Result<()> {
        if self.json {
            writeln!(printable::raw(), "{}", json())?;
        } else {
            print()?;
        }
        if let Some(path) = &self.plot {
            plot::write(path, &panels())?;
        }
        Ok(())
    }

    /// Prints where table and plot are, below the results for people.
    pub(crate) fn tell_where(&self, out: &Path, name: &str) -> anyhow::Result<()> {
        if !self.json {
            let [table, plot] =
                ["json", "svg"].map(|ending| out.join(format!("{name}.{ending}")).display().to_string());
            writeln!(printable::out(), "\ntable: {table}\nplot:  {plot}")?;
        }
        Ok(())
    }

    /// Options for training these runs in the folder `out`, limited by memory.
    pub(crate) fn options<'a>(
        &self,
        out: &Path,
        jobs: impl Iterator<Item = &'a Job> + Clone,
    ) -> anyhow::Result<PoolOptions> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let at_once = self.jobs.map(|jobs| jobs as usize);
        let threads = at_once.map_or(1, |at_once| (cores / at_once).max(1));
        Ok(PoolOptions {
            program: std::env::current_exe()?,
            out: out.to_path_buf(),
            jobs: at_once,
            fit: memory::at_once(jobs.map(|job| &job.config), threads),
            force: self.force,
        })
    }
}

/// Progress of all runs on standard error: a bar where one can be drawn, otherwise one line per run.
pub(crate) struct View {
    stop: Stop,
    bar: ProgressBar,
    runs: usize,
    ended: usize,
    earlier: usize,
    diverged: usize,
}

impl View {
    /// Also starts to catch signals.
    pub(crate) fn new(runs: usize) -> Self {
        let stop = Stop::default();
        stop.install();
        Self { stop, bar: progress::bar(0, "step ", "{msg} {eta} left"), runs, ended: 0, earlier: 0, diverged: 0 }
    }

    /// Shows an event; breaks after a signal.
    pub(crate) fn show(&mut self, event: &PoolEvent<'_>) -> ControlFlow<()> {
        match event {
            PoolEvent::Steps(made, of) => {
                if self.bar.length() != Some(*of as u64) {
                    self.bar.set_length(*of as u64);
                    self.bar.set_position(*made as u64);
                    // Estimate the remaining time from this process's steps only.
                    self.bar.reset_eta();
                }
                self.bar.set_position(*made as u64);
                self.bar.set_message(format!("{}/{} runs, {} diverged,", self.ended, self.runs, self.diverged));
            }
            PoolEvent::Ended { run, summary, earlier } => {
                self.ended += 1;
                self.diverged += usize::from(summary.status == Status::Diverged);
                self.earlier += usize::from(*earlier);
                if !*earlier && self.bar.is_hidden() {
                    let line = format!("{}/{}  {run}  {}", self.ended, self.runs, describe(summary));
                    let _ = writeln!(printable::err(), "{}", printable::message(&line));
                }
            }
        }
        self.stop.flow()
    }

    /// The signal that stopped the runs, if any, after printing the command that resumes them.
    pub(crate) fn interrupted(&self) -> Option<Stop> {
        if !self.stop.was_asked() || self.ended == self.runs {
            return None;
        }
        progress::line(&format!(
            "interrupted: {} of {} runs have ended, and those that were going on have a checkpoint; go on with:\n  {}",
            self.ended,
            self.runs,
            command_that_goes_on()
        ));
        Some(self.stop.clone())
    }

    /// Removes the bar, and reports how many runs existed already.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
        if self.earlier > 0 {
            let _ = writeln!(printable::err(), "{} of {} runs were there already", self.earlier, self.runs);
        }
    }
}

fn describe(summary: &Summary) -> String {
    match summary.status {
        Status::Diverged => summary.message.clone().unwrap_or_else(|| "diverged".into()),
        Status::Running | Status::Interrupted | Status::Finished => {
            let loss = summary.eval_loss.map_or(String::new(), |loss| format!("evaluation {loss:.4}, "));
            let learned = if summary.learned == Some(false) { "did not learn, " } else { "" };
            format!("{loss}{learned}{:.0} s", summary.seconds.total)
        }
    }
}
