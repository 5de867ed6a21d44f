//! Comparisons: several configurations on the same batches, over the same seeds. Documented in `docs/sweeps.md`.

mod differences;
mod file;
mod report;

pub use differences::Difference;
pub use report::{CompareReport, Compared, OfSeed};

use crate::plot;
use crate::sweep::{Folder, Job, Mark, OnPoolEvent, PoolOptions, Resolver};
use report::Run;
use std::path::{Path, PathBuf};
use toml::{Table, Value};
use unitgain_train::config::changed_keys;
use unitgain_train::folder::files::{self, write_atomically};
use unitgain_train::{Error, Record, RunConfig, folder::metrics};

/// A comparison whose runs have all been checked.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// All runs: the seeds of the first configuration, then those of the second, and so on.
    pub jobs: Vec<Job>,
    /// Differences between the configurations.
    pub differences: Vec<Difference>,
    names: Vec<String>,
    seeds: Vec<u64>,
    set: String,
    mark: String,
}

impl Comparison {
    /// Loads the files of runs or of comparisons (a run and its variants), and checks everything that can be checked
    /// without a run. All use the same seeds: the first configuration's seed and those after it.
    ///
    /// # Errors
    /// As [`RunConfig::load`] and [`RunConfig::prepare`], and [`Error::Config`] with the keys that differ although the
    /// data depend on them.
    pub fn load(paths: &[PathBuf], settings: &[String], seeds: u64) -> Result<Self, Error> {
        let mut resolver = Resolver::default();
        let (mut jobs, mut names): (Vec<Job>, Vec<String>) = (Vec::new(), Vec::new());
        let mut all_seeds = Vec::new();
        let (mut written, mut all_resolved) = (Vec::new(), Vec::new());
        let mut configurations = Vec::new();
        for path in paths {
            let of_file = file::configurations(path, settings)?;
            configurations.extend(of_file.into_iter().map(|(name, config)| (path, name, config)));
        }
        for (path, name, config) in configurations {
            let in_file = |e: Error| Error::of_file(path, e);
            let resolved = resolver.job(String::new(), &config).map_err(in_file)?.config;
            let first = jobs.first().map_or(&resolved, |job| &job.config);
            let mut keys = Vec::new();
            changed_keys("", &of_data(first), &of_data(&resolved), &mut keys);
            if !keys.is_empty() {
                return Err(Error::Config {
                    origin: path.display().to_string(),
                    key: keys.join(", ").replace(", now ", ", here "),
                    problem: format!(
                        "differs from that of {}: configurations are compared on the same data over the same steps. Give \
                         all of them one value with --set",
                        paths[0].display()
                    ),
                });
            }
            if all_seeds.is_empty() {
                all_seeds = (0..seeds).map(|i| resolved.seed.saturating_add(i)).collect();
            }
            let name = different(&name, &names);
            for seed in &all_seeds {
                let config = RunConfig { seed: *seed, ..resolved.clone() };
                jobs.push(resolver.job(format!("{name},seed={seed}"), &config).map_err(in_file)?);
            }
            names.push(name);
            written.push(config);
            all_resolved.push(resolved);
        }
        let set = name_of_set(&names, &all_resolved);
        let differences = differences::between(&written, &all_resolved);
        let files: Vec<String> = paths.iter().map(|path| format!("{:?}", path.display().to_string())).collect();
        let mark = format!(
            "# What was compared.\nset_of = {set:?}\nconfigs = [{}]\nset = {settings:?}\nseeds = {all_seeds:?}\n",
            files.join(", ")
        );
        Ok(Self { jobs, differences, names, seeds: all_seeds, set, mark })
    }

    /// Name of this set of configurations and settings, independent of the seeds. Different sets have different names,
    /// so that their folders differ.
    pub fn name(&self) -> &str {
        &self.set
    }

    /// Trains the missing runs and writes `compare.toml`, `compare.json` and `compare.svg` next to them. `reach` is the
    /// loss to which steps are counted; by default the highest final loss among configurations that learned.
    ///
    /// # Errors
    /// Errors of the folder or a process; a folder of another set; [`Error::Run`] with the run that failed, after
    /// writing `compare.json` of the others. Divergence is a result, not an error.
    pub fn run(
        &self,
        options: &PoolOptions,
        reach: Option<f64>,
        on_event: &mut OnPoolEvent<'_>,
    ) -> Result<CompareReport, Error> {
        let set = self.set.clone();
        let is_same = move |there: &str| {
            let there: Option<Table> = toml::from_str(there).ok();
            there.and_then(|there| Some(there.get("set_of")?.as_str()? == set)).unwrap_or(false)
        };
        let mark = Mark { file: "compare.toml", text: &self.mark, is_same: &is_same };
        let folder = Folder::open(options, mark)?;
        let ended = folder.make(&self.jobs, on_event)?;
        let mut runs = Vec::with_capacity(self.jobs.len());
        for (job, summary) in self.jobs.iter().zip(ended.summaries) {
            let run = folder.run(&job.name);
            let records = if summary.is_some() { metrics::read(&run)? } else { Vec::new() };
            check_blocks(&records, job.config.model.n_layers, &run)?;
            runs.push(Run { summary, records });
        }
        let configs: Vec<(String, &[Run])> =
            self.names.iter().cloned().zip(runs.chunks(self.seeds.len().max(1))).collect();
        let report = CompareReport::new(&configs, &self.seeds, reach, self.differences.clone());
        write_atomically(&options.out.join("compare.json"), format!("{}\n", report.to_json()).as_bytes())?;
        match ended.failure {
            Some(failure) => Err(failure),
            None => plot::write(&options.out.join("compare.svg"), &report.panels()).map(|()| report),
        }
    }
}

/// Checks that the records have the run's number of blocks.
fn check_blocks(records: &[Record], blocks: usize, run: &Path) -> Result<(), Error> {
    let Some(record) = records.iter().find(|record| record.grad_norm_block.len() != blocks) else { return Ok(()) };
    let problem = format!(
        "the record of step {} has gradient norms of {} blocks, and the model of its configuration has {blocks}: \
         metrics.jsonl was changed. Remove this folder, and the run is made again",
        record.step,
        record.grad_norm_block.len()
    );
    Err(Error::Folder { path: run.to_path_buf(), problem })
}

/// The settings that the data of a run depend on, besides the seed.
fn of_data(config: &RunConfig) -> Value {
    let value = |x: usize| Value::Integer(i64::try_from(x).unwrap_or(i64::MAX));
    let table = |entries: Vec<(&str, Value)>| {
        Value::Table(entries.into_iter().map(|(key, value)| (key.to_string(), value)).collect::<Table>())
    };
    let whole = config.to_value();
    let of = |key: &str| whole.get(key).cloned().unwrap_or(Value::Boolean(false));
    table(vec![
        ("data", of("data")),
        ("eval", of("eval")),
        ("model", table(vec![("context", value(config.model.context))])),
        (
            "train",
            table(vec![
                ("steps", value(config.train.steps)),
                // A step has the same sequences for any split into micro-batches.
                ("batch_size * accumulate", value(config.train.batch_size * config.train.accumulate)),
            ]),
        ),
    ])
}

/// Maximum length of the configurations' names in the name of a folder.
const LONGEST_SET: usize = 80;

/// As many names of configurations as fit, and a hash of the resolved configurations without the seed.
fn name_of_set(names: &[String], resolved: &[RunConfig]) -> String {
    let hash = names.iter().zip(resolved).fold(files::HASH_START, |hash, (name, config)| {
        let hash = files::hash(hash, name.as_bytes());
        files::hash(hash, RunConfig { seed: 0, ..config.clone() }.identity().as_bytes())
    });
    let fit = (1..=names.len()).rev().find(|n| names[..*n].join("+").len() <= LONGEST_SET).unwrap_or(0);
    let mut parts = names[..fit].to_vec();
    parts.extend((fit < names.len()).then(|| format!("{}_more", names.len() - fit)));
    format!("{}-{hash:08x}", parts.join("+"), hash = hash as u32)
}

/// Maximum length of a configuration's name, leaving room for a suffix.
const LONGEST_NAME: usize = 100;

/// Makes a name that differs from the others, also on a file system that ignores case.
fn different(name: &str, others: &[String]) -> String {
    let name: String = if name.is_empty() { "configuration" } else { name }.chars().take(LONGEST_NAME).collect();
    let is_free = |name: &String| others.iter().all(|other| !other.eq_ignore_ascii_case(name));
    let numbered = (2..).map(|i| format!("{name}-{i}"));
    std::iter::once(name.clone()).chain(numbered).find(is_free).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_a_name_of_its_own() {
        let of = |names: &[&str], settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
            let config = RunConfig::parse("", "test", &settings).unwrap().resolved(32).unwrap();
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            name_of_set(&names, &vec![config; names.len()])
        };
        let base = of(&["a", "b"], &[]);
        assert!(base.starts_with("a+b-"), "{base}");
        assert_eq!(base, of(&["a", "b"], &["seed=7"]), "more seeds are the same comparison");
        for other in [of(&["a"], &[]), of(&["b", "a"], &[]), of(&["a", "b"], &["train.steps=7"])] {
            assert_ne!(base, other);
        }
        let long = "x".repeat(60);
        let many = of(&[&long, &long, "c"], &[]);
        assert!(many.starts_with(&format!("{long}+2_more-")), "{many}");
    }

    #[test]
    fn names_are_different() {
        assert_eq!(different("a", &["b".into()]), "a");
        assert_eq!(different("a", &["A".into(), "a-2".into()]), "a-3");
    }
}
