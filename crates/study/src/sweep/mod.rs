//! Sweeps: runs at all combinations of some axes' values, and the optimal learning rate at each size. Documented in
//! `docs/sweeps.md`.

mod analysis;
mod config;
mod plan;
mod pool;
mod report;

pub use analysis::{Analysis, AtSize, Cell, Edge, Layout, Optimum, Point, Verdict, Why, analyse, optimum};
pub(crate) use config::keys_in_order;
pub use config::{Axis, LR, Loss, SEED, SweepConfig};
pub use plan::{Job, Planned, plan, shortest};
pub(crate) use plan::{Resolver, file_safe};
pub(crate) use pool::{Folder, Mark};
pub use pool::{OnPoolEvent, PoolEvent, PoolOptions};
pub use report::{FORMAT, RunEntry, SweepReport};

use crate::plot;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use unitgain_train::folder::files::write_atomically;
use unitgain_train::folder::metrics::{self, Status};
use unitgain_train::{Error, folder::read};

/// A sweep whose runs have all been checked.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The file's contents.
    pub config: SweepConfig,
    /// All runs; the last axis changes fastest.
    pub plan: Vec<Planned>,
    path: PathBuf,
    text: String,
}

impl Sweep {
    /// Loads a sweep and checks everything that can be checked without a run. `settings` are `key.path=value` settings
    /// for all runs, applied after the file's.
    ///
    /// # Errors
    /// [`Error::Io`], errors of [`SweepConfig::parse`], and errors of [`plan()`], which name the run.
    pub fn load(path: &Path, settings: &[String]) -> Result<Self, Error> {
        let text = read::text(path, read::MOST_WRITTEN)?;
        let config = SweepConfig::parse(&text, path)?;
        let plan = plan(&config, path, settings)?;
        Ok(Self { config, plan, path: path.to_path_buf(), text })
    }

    /// Status of each planned run in the folder `out`, whatever its name there; None if it has not ended. Nothing is
    /// written.
    pub fn ended(&self, out: &Path) -> Vec<Option<Status>> {
        let made = pool::existing_runs(out, |_| true).filter(|run| run.status.has_ended());
        let there: HashMap<String, Status> = made.map(|run| (run.identity, run.status)).collect();
        self.plan.iter().map(|run| there.get(&run.job.config.identity()).copied()).collect()
    }

    /// Trains the missing runs and writes `sweep.toml`, `sweep.json` and `sweep.svg` next to them.
    ///
    /// # Errors
    /// Errors of the folder or a process; [`Error::Run`] with the run that failed, after writing `sweep.json` of the
    /// others. Divergence is a result, not an error; so is an incomplete report after `on_event` breaks.
    pub fn run(&self, options: &PoolOptions, on_event: &mut OnPoolEvent<'_>) -> Result<SweepReport, Error> {
        // A sweep may change its axes and their values, because its runs are found by their settings.
        let mark = Mark { file: "sweep.toml", text: &self.text, is_same: &|_| true };
        let folder = Folder::open(options, mark)?;
        let jobs: Vec<Job> = self.plan.iter().map(|run| run.job.clone()).collect();
        let ended = folder.make(&jobs, on_event)?;
        let mut made = Vec::with_capacity(jobs.len());
        for (planned, summary) in self.plan.iter().zip(ended.summaries) {
            let loss = match &summary {
                Some(summary) if summary.status == Status::Finished => match self.config.loss {
                    Loss::Evaluation {} => summary.eval_loss.map(f64::from),
                    Loss::Window { records } => Some(window(&folder.run(&planned.job.name), records)?),
                },
                Some(_) | None => None,
            };
            made.push(RunEntry::new(&self.config, planned, summary.as_ref(), loss));
        }
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let report = SweepReport::new(name, self, made);
        write_atomically(&options.out.join("sweep.json"), format!("{}\n", report.to_json()).as_bytes())?;
        match ended.failure {
            Some(failure) => Err(failure),
            None => plot::write(&options.out.join("sweep.svg"), &report.panels()).map(|()| report),
        }
    }
}

/// Mean loss of a run's last records.
fn window(run: &Path, records: usize) -> Result<f64, Error> {
    let all = metrics::read(run)?;
    let last = &all[all.len().saturating_sub(records)..];
    if last.is_empty() {
        let problem = "has no records in metrics.jsonl; remove the folder to repeat the run".into();
        return Err(Error::Folder { path: run.to_path_buf(), problem });
    }
    Ok(last.iter().map(|record| f64::from(record.loss)).sum::<f64>() / last.len() as f64)
}
