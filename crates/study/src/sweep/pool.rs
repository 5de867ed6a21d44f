//! A pool of runs in separate processes, in a folder from which they can be resumed after any interruption.

use super::plan::Job;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use unitgain_train::folder::files::{self, write_atomically};
use unitgain_train::folder::metrics::Status;
use unitgain_train::{Error, RunConfig, Summary, device, device::memory, folder as on_disk, folder::read};

/// Where and how to train the runs.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// The `unitgain` executable, which trains each run in a process of its own.
    pub program: PathBuf,
    /// The folder for all runs.
    pub out: PathBuf,
    /// Maximum number of runs at once. Default: the number of cores; one on a GPU.
    pub jobs: Option<usize>,
    /// Number of runs that fit into memory at once, if known. A value below `jobs` does not change results: threads per
    /// run stay the same.
    pub fit: Option<usize>,
    /// Whether to remove existing runs first.
    pub force: bool,
}

/// Progress of a pool.
#[derive(Clone, Copy, Debug)]
pub enum PoolEvent<'a> {
    /// Steps of all runs done so far, and the total.
    Steps(usize, usize),
    /// A run has ended.
    Ended {
        /// Name of the run.
        run: &'a str,
        /// Summary of the run.
        summary: &'a Summary,
        /// Whether the run had already ended before this call.
        earlier: bool,
    },
}

/// Receives progress, and can stop the pool: each run then ends after its current step, and is resumed when the pool
/// runs again.
pub type OnPoolEvent<'a> = dyn FnMut(PoolEvent<'_>) -> ControlFlow<()> + 'a;

/// Summaries of the ended runs, and the failure that stopped the others, if any.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) summaries: Vec<Option<Summary>>,
    pub(crate) failure: Option<Error>,
}

/// A folder of runs, locked by this process.
pub(crate) struct Folder<'a> {
    options: &'a PoolOptions,
    mark: Mark<'a>,
    _lock: File,
}

/// The file that identifies a folder's owner.
pub(crate) struct Mark<'a> {
    /// File name.
    pub(crate) file: &'a str,
    /// Contents.
    pub(crate) text: &'a str,
    /// Whether a folder with this text belongs to the same owner.
    pub(crate) is_same: &'a dyn Fn(&str) -> bool,
}

/// Interval between checks of a process.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum time to wait for a process to exit.
const ENDING: Duration = Duration::from_secs(10);
/// Interval between reads of all running processes' records.
const POLL: Duration = Duration::from_millis(250);

/// First line of a mark, to distinguish it from a file of the user with the same name.
const WRITTEN: &str = "# Written by unitgain, which keeps its runs in the folders beside this file.\n";
/// Subfolders of a folder of runs.
const FOLDERS: [&str; 3] = ["configs", "runs", "logs"];

impl<'a> Folder<'a> {
    /// Locks the folder for the owner `mark`.
    ///
    /// # Errors
    /// [`Error::Folder`] for a folder that holds something else, or that another process has locked.
    pub(crate) fn open(options: &'a PoolOptions, mark: Mark<'a>) -> Result<Self, Error> {
        let out = &options.out;
        check(options, &mark)?;
        files::create_folder(out)?;
        let lock = files::lock(out)?;
        // Another process may have changed the folder before it was locked.
        check(options, &mark)?;
        files::remove_unfinished(out, |name| is_result(name, &mark))?;
        let folder = Self { options, mark, _lock: lock };
        // Written first, so that a folder interrupted at any later time is recognized.
        let path = out.join(folder.mark.file);
        if !path.is_file() {
            folder.write_mark()?;
        }
        for name in FOLDERS {
            files::create_folder(&out.join(name))?;
        }
        files::remove_unfinished(&out.join("configs"), |name| name.ends_with(".toml"))?;
        if options.force {
            folder.clear()?;
        }
        Ok(folder)
    }

    fn write_mark(&self) -> Result<(), Error> {
        let text = format!("{WRITTEN}{}", self.mark.text);
        write_atomically(&self.options.out.join(self.mark.file), text.as_bytes())
    }

    /// The run folder of a job.
    pub(crate) fn run(&self, name: &str) -> PathBuf {
        self.options.out.join("runs").join(name)
    }

    /// Removes all runs and no other files.
    fn clear(&self) -> Result<(), Error> {
        // Lock all runs before removing any: a run may outlive the process that started it.
        let held = self.runs()?.into_iter().map(|path| Ok((free(&path)?, path)));
        for (lock, path) in held.collect::<Result<Vec<_>, Error>>()? {
            on_disk::remove(&path)?;
            let _ = fs::remove_file(path.join(files::LOCK));
            drop(lock);
            // Fails if the folder holds anything else, which then stays.
            let _ = fs::remove_dir(path.join(on_disk::CHECKPOINTS));
            let _ = fs::remove_dir(&path);
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            for own in [format!("configs/{name}.toml"), format!("logs/{name}.log")] {
                let own = self.options.out.join(own);
                if own.is_file() {
                    fs::remove_file(&own).map_err(Error::io("remove", &own))?;
                }
            }
        }
        Ok(())
    }

    /// The folders in `runs/` that are runs, without links.
    fn runs(&self) -> Result<Vec<PathBuf>, Error> {
        let runs = self.options.out.join("runs");
        let entries = fs::read_dir(&runs).map_err(Error::io("read", &runs))?.flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        Ok(folders.map(|entry| entry.path()).filter(|path| on_disk::is_begun(path).unwrap_or(false)).collect())
    }

    /// Trains the missing runs, the most expensive first. After a failure no new runs start, and the running ones
    /// continue to their end.
    ///
    /// # Errors
    /// Errors of a run's folder or the system; started processes are then ended.
    pub(crate) fn make(&self, jobs: &[Job], on_event: &mut OnPoolEvent<'_>) -> Result<Ended, Error> {
        let mut summaries: Vec<Option<Summary>> = Vec::with_capacity(jobs.len());
        let mut waiting: Vec<(usize, Standing)> = Vec::new();
        let mut flow = ControlFlow::Continue(());
        self.adopt(jobs)?;
        self.check_same(jobs)?;
        for (i, job) in jobs.iter().enumerate() {
            match self.standing(job)? {
                Standing::Ended(summary) => {
                    flow =
                        either(flow, on_event(PoolEvent::Ended { run: &job.name, summary: &summary, earlier: true }));
                    summaries.push(Some(*summary));
                }
                standing @ (Standing::New | Standing::Replace | Standing::Resume) => {
                    waiting.push((i, standing));
                    summaries.push(None);
                }
            }
        }
        // Update the mark only after all checks.
        self.write_mark()?;
        // Jobs are popped from the end, so the most expensive is last.
        waiting.sort_by(|(a, _), (b, _)| cost(&jobs[*a]).total_cmp(&cost(&jobs[*b])).then(b.cmp(a)));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Count planned, not remaining runs: a run's results depend on its number of threads.
        let on_host = jobs.iter().all(|job| device::is_host(&job.config.backend));
        // If threads are configured, each of the parallel runs has that many.
        let most = jobs.iter().map(|job| job.config.threads).max().unwrap_or(0).max(1);
        let usual = if on_host { (cores / most).max(1) } else { 1 };
        let at_once = self.options.jobs.unwrap_or(usual).min(jobs.len()).max(1);
        let threads = (cores / at_once).max(1);
        let wanted = at_once;
        let at_once = wanted.min(self.options.fit.unwrap_or(wanted)).max(1);
        if at_once < wanted {
            let left = memory::available().map_or(String::new(), |available| format!(": {available}"));
            tracing::warn!("{at_once} at once, not {wanted}, because there is no memory for more{left}");
        }
        let of: usize = jobs.iter().map(|job| job.config.train.steps).sum();
        let mut running: Vec<Running> = Vec::new();
        let mut failure = None;
        let mut polled: Option<Instant> = None;
        loop {
            if flow.is_break() {
                // Closing its input stops a run after its current step.
                running.iter_mut().for_each(|run| drop(run.child.stdin.take()));
            }
            while running.len() < at_once && failure.is_none() && flow.is_continue() {
                let Some((i, standing)) = waiting.pop() else { break };
                running.push(self.start(i, &jobs[i], &standing, threads)?);
            }
            let (mut still, mut ended) = (Vec::new(), Vec::new());
            for mut run in running {
                match run.child.try_wait().map_err(Error::io("wait for", &self.options.program))? {
                    None => still.push(run),
                    Some(status) => ended.push((run, status)),
                }
            }
            running = still;
            if !ended.is_empty() || polled.is_none_or(|at| at.elapsed() >= POLL) || running.is_empty() {
                let made_before = jobs.iter().zip(&summaries).filter(|(_, summary)| summary.is_some());
                let made_before: usize = made_before.map(|(job, _)| job.config.train.steps).sum();
                let of_run = |run: &Running| last_step(&self.run(&jobs[run.job].name).join("metrics.jsonl"));
                let now = running.iter().chain(ended.iter().map(|(run, _)| run)).map(of_run).sum::<usize>();
                flow = either(flow, on_event(PoolEvent::Steps(made_before + now, of)));
                polled = Some(Instant::now());
            }
            for (run, status) in ended {
                let job = &jobs[run.job];
                let path = self.run(&job.name);
                match (status.code(), on_disk::read_summary(&path)) {
                    (Some(0 | 1), Some(summary)) if summary.status.has_ended() => {
                        if let Err(error) = on_disk::check_ended(&path, &summary, &job.config) {
                            failure.get_or_insert(error);
                            continue;
                        }
                        flow = either(
                            flow,
                            on_event(PoolEvent::Ended { run: &job.name, summary: &summary, earlier: false }),
                        );
                        summaries[run.job] = Some(summary);
                    }
                    // The stop was requested, here or by a parent process.
                    _ if flow.is_break() => {}
                    (code, _) => {
                        let is_signal = code.is_some_and(|code| (129..160).contains(&code));
                        let said = last_line(&run.log).filter(|_| code.is_some() && !is_signal);
                        let said = said.unwrap_or_else(|| format!("it was killed ({status})"));
                        let problem = format!("{said}. Its output is in {}", run.log.display());
                        failure.get_or_insert(Error::Run { name: job.name.clone(), problem });
                    }
                }
            }
            if running.is_empty() && (waiting.is_empty() || failure.is_some() || flow.is_break()) {
                self.check_same_ground(jobs, &summaries)?;
                return Ok(Ended { summaries, failure });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Renames runs that have another name, e.g. from a sweep with other axes, to their current name. Runs are
    /// identified by their settings.
    fn adopt(&self, jobs: &[Job]) -> Result<(), Error> {
        let named: HashSet<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        let mut missing: HashMap<String, &Job> =
            jobs.iter().filter(|job| !self.run(&job.name).exists()).map(|job| (job.config.identity(), job)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        for ExistingRun { path, identity, .. } in existing_runs(&self.options.out, |name| !named.contains(name)) {
            let Some(job) = missing.remove(&identity) else { continue };
            // Another process may be training it.
            let lock = free(&path)?;
            let to = self.run(&job.name);
            tracing::info!("{} is the run {}", path.display(), job.name);
            fs::rename(&path, &to).map_err(Error::io("rename", &path))?;
            drop(lock);
        }
        Ok(())
    }

    /// Refuses a folder whose runs are all foreign to this plan.
    fn check_same(&self, jobs: &[Job]) -> Result<(), Error> {
        if !self.runs()?.is_empty() && !jobs.iter().any(|job| self.run(&job.name).exists()) {
            return Err(Error::Folder {
                path: self.options.out.clone(),
                problem: "has runs, and none of those that are asked for. Use --out for another folder, or --force to \
                          remove them"
                    .into(),
            });
        }
        Ok(())
    }

    /// Refuses runs whose summaries disagree about the held-out tokens that they share.
    fn check_same_ground(&self, jobs: &[Job], summaries: &[Option<Summary>]) -> Result<(), Error> {
        let ended: Vec<(&Job, &Summary)> =
            jobs.iter().zip(summaries).filter_map(|(job, summary)| Some((job, summary.as_ref()?))).collect();
        let data = |job: &Job| (job.config.data.clone(), job.config.model.context, job.config.eval.tokens);
        let ground = |summary: &Summary| (summary.unigram_loss, summary.floor, summary.eval_tokens);
        for (i, (job, summary)) in ended.iter().enumerate() {
            let other = ended[..i].iter().find(|(other, _)| data(other) == data(job));
            if let Some((other, _)) = other.filter(|(_, other)| ground(other) != ground(summary)) {
                return Err(Error::Folder {
                    path: self.run(&job.name),
                    problem: format!(
                        "its summary.json has other held-out tokens than that of {}, on the same data: one of them \
                         was changed. Remove this run to repeat it",
                        other.name
                    ),
                });
            }
        }
        Ok(())
    }

    fn standing(&self, job: &Job) -> Result<Standing, Error> {
        let path = self.run(&job.name);
        if !path.exists() {
            return Ok(Standing::New);
        }
        // Wait for a process that outlived its parent.
        let _lock = free(&path)?;
        if !on_disk::is_begun(&path)? {
            return Ok(Standing::New);
        }
        // It was interrupted before it wrote its configuration: start anew.
        let Some(there) = on_disk::configuration_if_any(&path)? else { return Ok(Standing::Replace) };
        let mut changed = there.differences(&job.config);
        // These keys change no step, but they change the records that are compared.
        changed.extend((there.log != job.config.log).then(|| "log".to_string()));
        changed.extend((there.eval != job.config.eval).then(|| "eval".to_string()));
        if !changed.is_empty() {
            let problem = format!(
                "was made with other settings: {}. Use --force to repeat all runs, or --out for another folder",
                changed.join(", ")
            );
            return Err(Error::Folder { path, problem });
        }
        match on_disk::read_summary(&path) {
            Some(summary) if summary.status.has_ended() => {
                on_disk::check_ended(&path, &summary, &job.config)?;
                if summary.fingerprint != job.fingerprint {
                    let problem = "was trained on another text; give the original file, or remove the folder to \
                                   repeat the run";
                    return Err(Error::Folder { path, problem: problem.into() });
                }
                Ok(Standing::Ended(Box::new(summary)))
            }
            Some(_) | None => Ok(Standing::Resume),
        }
    }

    fn start(&self, index: usize, job: &Job, standing: &Standing, threads: usize) -> Result<Running, Error> {
        let out = &self.options.out;
        let config = out.join("configs").join(format!("{}.toml", job.name));
        let log = out.join("logs").join(format!("{}.log", job.name));
        // A run's results depend on its number of threads, so its configuration contains it.
        let threads = if job.config.threads == 0 { threads } else { job.config.threads };
        let resolved = RunConfig { threads, versions: None, ..job.config.clone() };
        write_atomically(&config, resolved.to_toml().as_bytes())?;
        let output = files::open_own(&log).map_err(Error::io("open", &log))?;
        let errors = output.try_clone().map_err(Error::io("open", &log))?;
        let mut command = Command::new(&self.options.program);
        // The device was tested before the first run, or the test was skipped.
        command.arg("train").arg(&config).args(["--skip-self-test", "--parent", &std::process::id().to_string()]);
        command.arg(if matches!(standing, Standing::Resume) { "--resume" } else { "--out" }).arg(self.run(&job.name));
        if matches!(standing, Standing::Replace) {
            command.arg("--force");
        }
        command.env("RAYON_NUM_THREADS", threads.to_string());
        // When this process ends for whatever reason, the pipe closes and the run stops.
        command.stdin(Stdio::piped()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(Error::io("start", &self.options.program))?;
        Ok(Running { job: index, child, log })
    }
}

/// Refuses a folder that does not belong to these runs.
fn check(options: &PoolOptions, mark: &Mark<'_>) -> Result<(), Error> {
    let out = &options.out;
    let refuse = |problem: String| Err(Error::Folder { path: out.clone(), problem });
    let entries = match fs::read_dir(out) {
        Ok(entries) => entries,
        Err(_) if out.is_file() => return refuse("is a file. Use --out for a folder that does not exist yet".into()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("read", out)(e)),
    };
    let path = out.join(mark.file);
    let there = if path.is_file() { read::text(&path, 2 * read::MOST_WRITTEN)? } else { String::new() };
    if there.starts_with(WRITTEN) {
        if options.force {
            return Ok(());
        }
        return match (mark.is_same)(&there) {
            true => Ok(()),
            false => refuse(format!(
                "holds results of other configurations ({} says which). Use --out for another folder, or --force to \
                 replace them",
                mark.file
            )),
        };
    }
    // Without a mark, only empty subfolders are accepted, because their contents could be the user's.
    let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    let is_own = |entry: &fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name == files::LOCK
            || files::unfinished(&name).is_some_and(|name| is_result(name, mark))
            || (FOLDERS.contains(&name.as_str()) && is_empty(&entry.path()))
    };
    match entries.flatten().all(|entry| is_own(&entry)) {
        true => Ok(()),
        false => {
            refuse(format!("is not empty and has no {} that unitgain wrote. Use --out for another folder", mark.file))
        }
    }
}

/// Whether a file of this name is written next to the runs.
fn is_result(name: &str, mark: &Mark<'_>) -> bool {
    let own = mark.file.trim_end_matches(".toml");
    name == mark.file || name == format!("{own}.json") || name == format!("{own}.svg")
}

/// A run in a folder.
pub(super) struct ExistingRun {
    path: PathBuf,
    /// Its settings ([`RunConfig::identity`]).
    pub(super) identity: String,
    /// Its status.
    pub(super) status: Status,
}

/// The runs in the folder `out` with wanted names.
pub(super) fn existing_runs(out: &Path, is_wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = ExistingRun> {
    let entries = fs::read_dir(out.join("runs")).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter(move |entry| is_wanted(&entry.file_name().to_string_lossy())).filter_map(|entry| {
        let path = entry.path();
        let status = on_disk::read_summary(&path)?.status;
        let identity = RunConfig::of_run(&path, &[]).ok()?.identity();
        Some(ExistingRun { path, identity, status })
    })
}

/// State of a run before it is trained.
enum Standing {
    New,
    Replace,
    Resume,
    Ended(Box<Summary>),
}

/// Break if either breaks.
fn either(a: ControlFlow<()>, b: ControlFlow<()>) -> ControlFlow<()> {
    if a.is_break() { a } else { b }
}

/// A process that ends when its owner is dropped.
struct Running {
    job: usize,
    child: Child,
    log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Closing its input ends it after its current step, with a checkpoint.
        drop(self.child.stdin.take());
        let started = Instant::now();
        while started.elapsed() < ENDING && self.child.try_wait().is_ok_and(|status| status.is_none()) {
            std::thread::sleep(LOOK);
        }
        // Killing an exited child fails harmlessly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Locks a run folder, waiting briefly for a process that is about to exit.
fn free(path: &Path) -> Result<File, Error> {
    let started = Instant::now();
    loop {
        match files::lock(path) {
            Err(Error::Folder { .. }) if started.elapsed() < ENDING => std::thread::sleep(LOOK),
            result => return result,
        }
    }
}

/// Relative cost of a run: tokens times operations per token.
fn cost(job: &Job) -> f64 {
    let tokens = job.config.tokens_of_step() as f64 * job.config.train.steps as f64;
    tokens * job.config.plan().map_or(0.0, |plan| plan.flops_per_token())
}

/// The last part of a file.
fn tail(path: &Path) -> Option<String> {
    const BYTES: u64 = 64 << 10;
    let (mut file, length) = read::open(path, u64::MAX).ok()?;
    file.seek(SeekFrom::Start(length.saturating_sub(BYTES))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last line of a log.
fn last_line(log: &Path) -> Option<String> {
    let text = tail(log)?;
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim().trim_start_matches("error: ").trim_end_matches('.').to_string())
}

/// The step of the last complete record.
fn last_step(metrics: &Path) -> usize {
    #[derive(serde::Deserialize)]
    struct OfStep {
        step: usize,
    }
    let text = tail(metrics).unwrap_or_default();
    text.lines().rev().find_map(|line| serde_json::from_str::<OfStep>(line).ok()).map_or(0, |record| record.step)
}
