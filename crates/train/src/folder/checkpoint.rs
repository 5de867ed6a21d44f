//! Checkpoints: one safetensors file from which the model can be rebuilt and the run resumed.
//!
//! Tensors are `model.PATH` and `optimizer.first.PATH`, `optimizer.second.PATH` (flattened), f32. The metadata hold the
//! progress of the run, its resolved configuration (with the parametrization and its base shape), and the vocabulary.

use crate::data::Tokenizer;
use crate::folder::files::{self, write_atomically};
use crate::folder::{self, CHECKPOINTS};
use crate::{Digest, Divergence, Error, Record, RunConfig, Task, Trainer, folder::read};
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use unitgain_model::weights::{self, Source, Tensors};
use unitgain_model::{LanguageModel, ModelConfig, ModelError, ParamTable, Parametrization, Plan, Transformer, few};

/// Name and version of the format.
const FORMAT: &str = "unitgain-checkpoint-3";
/// Memory needed to read a checkpoint, as a multiple of its length: the file and its tensors.
const HELD: f64 = 2.0;
/// Our key in the metadata of the file.
const METADATA: &str = "unitgain";

/// Our entry in the metadata of the file.
#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    #[serde(rename = "position")]
    progress: Progress,
    config: String,
    /// Hash of the other fields and of the tensors.
    checksum: u64,
}

/// Progress of a run: what a checkpoint holds beside configuration and tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: usize,
    /// Tokens seen.
    pub tokens: usize,
    /// Best evaluation loss so far.
    pub best_eval_loss: Option<f32>,
    /// Identity of the data.
    pub fingerprint: u64,
    /// Vocabulary of the data.
    pub tokenizer: Tokenizer,
    /// Number and hash of the records, without their times.
    pub records: Digest,
    /// Factor on the configured learning rate: below 1 after a rewind.
    pub rate: f64,
    /// Steps with a loss or gradient that was not finite.
    pub divergences: Vec<Divergence>,
    /// Steps since the last record. They are recorded if the run diverges before the next record.
    pub recent: Vec<Record>,
}

impl Progress {
    /// Progress of a run on these data before its first step.
    pub fn start(task: &Task) -> Self {
        Self {
            step: 0,
            tokens: 0,
            best_eval_loss: None,
            fingerprint: task.fingerprint(),
            tokenizer: task.tokenizer(),
            records: Digest::default(),
            rate: 1.0,
            divergences: Vec::new(),
            recent: Vec::new(),
        }
    }

    /// Number of updates: all steps but the skipped ones.
    pub(crate) fn updates(&self) -> usize {
        self.step - self.skipped()
    }

    /// Number of skipped steps.
    pub(crate) fn skipped(&self) -> usize {
        self.divergences.iter().filter(|divergence| divergence.is_skipped()).count()
    }
}

/// A checkpoint in memory.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// Progress of the run.
    pub progress: Progress,
    /// Resolved configuration of the run.
    pub config: RunConfig,
    tensors: Tensors,
}

/// Writes a checkpoint of `trainer`, whose model may be one's own, into `folder` and removes the checkpoints that need not be kept.
///
/// # Errors
/// [`Error::Io`]; the earlier checkpoints are then unchanged.
pub fn save<M: LanguageModel>(
    folder: &Path,
    trainer: &Trainer<M>,
    progress: &Progress,
    config: &RunConfig,
) -> Result<(), Error> {
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (path, shape, values) in weights::of(&trainer.model) {
        tensors.insert(format!("model.{path}"), (shape, bytes(&values)));
    }
    for (entry, (names, states)) in trainer.table.iter().zip(trainer.optimizer.states()) {
        for (name, state) in names.iter().zip(states) {
            let values = host(state.clone());
            tensors.insert(format!("optimizer.{name}.{}", entry.path), (vec![values.len()], bytes(&values)));
        }
    }
    let path = folder.join(format!("step_{:08}.safetensors", progress.step));
    let failed = |problem: String| Error::Checkpoint { path: path.clone(), problem };
    let text = config.to_toml();
    let named = tensors.iter().map(|(name, (_, bytes))| (name.as_str(), bytes.as_slice()));
    let checksum = checksum(progress, &text, named);
    let header = Header { format: FORMAT.into(), progress: progress.clone(), config: text, checksum };
    let header = serde_json::to_string(&header).map_err(|e| failed(e.to_string()))?;
    // A single entry, because the order of several entries would vary from run to run.
    let metadata = HashMap::from([(METADATA.to_string(), header)]);
    let views = tensors
        .iter()
        .map(|(name, (shape, bytes))| TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name, view)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| failed(e.to_string()))?;
    let contents = safetensors::serialize(views, Some(metadata)).map_err(|e| failed(e.to_string()))?;
    write_atomically(&path, &contents)?;
    tracing::debug!("wrote {}, {} bytes", path.display(), contents.len());
    prune(folder, config)
}

/// Removes all but the newest `checkpoint.keep` checkpoints. A checkpoint written off schedule, because the run was
/// stopped, is removed as soon as there is a newer one.
pub(crate) fn prune(folder: &Path, config: &RunConfig) -> Result<(), Error> {
    let mut all = list(folder)?;
    let newest = all.pop();
    let (due, out_of_turn): (Vec<PathBuf>, Vec<PathBuf>) = all.into_iter().partition(|path| is_due(path, config));
    let others = config.checkpoint.keep - usize::from(newest.is_some_and(|path| is_due(&path, config)));
    for old in due.iter().rev().skip(others).chain(&out_of_turn) {
        tracing::debug!("removes {}: {} are kept", old.display(), config.checkpoint.keep);
        std::fs::remove_file(old).map_err(Error::io("remove", old))?;
    }
    Ok(())
}

/// The checkpoints of a folder, oldest first.
///
/// # Errors
/// [`Error::Io`].
pub fn list(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("read", folder))?.path();
        let step = path.file_name().and_then(|name| step_of(name.to_str()?));
        all.extend(step.map(|step| (step, path)));
    }
    all.sort();
    Ok(all.into_iter().map(|(_, path)| path).collect())
}

/// Removes the checkpoints of steps after `step`.
pub(crate) fn remove_after(folder: &Path, step: usize) -> Result<(), Error> {
    for later in list(folder)?.iter().rev().take_while(|path| number(path).is_some_and(|n| n > step)) {
        std::fs::remove_file(later).map_err(Error::io("remove", later))?;
    }
    Ok(())
}

/// The step in the name of a checkpoint file.
pub fn number(path: &Path) -> Option<usize> {
    usize::try_from(step_of(path.file_name()?.to_str()?)?).ok()
}

/// Whether `checkpoint.every` asks for this checkpoint, so that an uninterrupted run writes it too.
fn is_due(path: &Path, config: &RunConfig) -> bool {
    number(path).is_some_and(|step| config.is_due(config.checkpoint.every, step) || step == 0)
}

/// The step in a file name; None if it is not the name of a checkpoint.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step_")?.strip_suffix(".safetensors")?;
    (digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

impl Checkpoint {
    /// Reads the newest checkpoint of a run folder.
    ///
    /// # Errors
    /// [`Error::Folder`] if there is none, [`Error::Checkpoint`] if it belongs to another run, and as
    /// [`Checkpoint::read`].
    pub fn newest(run: &Path) -> Result<Self, Error> {
        let checkpoint = Self::of_run(run)?.ok_or_else(|| Error::Folder {
            path: run.to_path_buf(),
            problem: "has no checkpoint in checkpoints/; give the folder of a run with one".into(),
        })?;
        let own = folder::config_file(run).ok().flatten().and_then(|file| file.with(&[]).ok());
        match own.map(|config| folder::of_another_run(&checkpoint.config, &config)) {
            Some(changed) if !changed.is_empty() => {
                let problem = format!("is of another run than the config.toml of its folder: {}", changed.join(", "));
                Err(Error::Checkpoint { path: checkpoint.path, problem })
            }
            Some(_) | None => Ok(checkpoint),
        }
    }

    /// The newest checkpoint of a run folder; None if the run was killed before it wrote one.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn of_run(run: &Path) -> Result<Option<Self>, Error> {
        let folder = run.join(CHECKPOINTS);
        let newest = if folder.is_dir() { list(&folder)?.pop() } else { None };
        newest.map(|path| Self::read(&path)).transpose()
    }

    /// The newest checkpoint that an uninterrupted run would have written too; without one, the newest.
    ///
    /// # Errors
    /// As [`Checkpoint::newest`].
    pub(crate) fn newest_due(run: &Path, config: &RunConfig) -> Result<Self, Error> {
        let all = list(&run.join(CHECKPOINTS))?;
        match all.iter().rev().find(|path| is_due(path, config)).or(all.last()) {
            Some(path) => Self::read(path),
            None => Self::newest(run),
        }
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a truncated file, or one that unitgain did not write.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let contents = read::fitting(path, HELD).map_err(Error::io("read", path))?;
        Self::of_bytes(path, &contents, true)
    }

    /// As [`Checkpoint::read`], from the bytes of a file. `is_checked = false` skips the checksum, so that a fuzzer
    /// reaches the code behind it.
    #[doc(hidden)]
    pub fn of_bytes(path: &Path, contents: &[u8], is_checked: bool) -> Result<Self, Error> {
        let failed = |problem: String| Error::Checkpoint { path: path.to_path_buf(), problem };
        let damaged = |e: &dyn std::fmt::Display| {
            failed(format!("is truncated or damaged ({e}); delete it to resume from the one before"))
        };
        let file = match SafeTensors::deserialize(contents) {
            Ok(file) => file,
            Err(e) => {
                return Err(match cut_off(contents) {
                    Some(names) => damaged(&format!("{e:?}; cut off: {}", few(&names))),
                    None => damaged(&format!("{e:?}")),
                });
            }
        };
        let (_, header) = SafeTensors::read_metadata(contents).map_err(|e| damaged(&e))?;
        let own = header.metadata().as_ref().and_then(|metadata| metadata.get(METADATA));
        let Some(Ok(Header { format, progress, config, checksum: expected })) =
            own.map(|own| serde_json::from_str(own))
        else {
            let names: Vec<String> = file.names().into_iter().map(ToString::to_string).collect();
            return Err(failed(format!("was not written by unitgain; it holds {}", few(&names))));
        };
        if format != FORMAT {
            return Err(failed(format!("has the format {format:?}; this version reads {FORMAT:?}")));
        }
        let mut views: Vec<_> = file.iter().collect();
        views.sort_by_key(|(name, _)| *name);
        let found = checksum(&progress, &config, views.iter().map(|(name, view)| (*name, view.data())));
        if is_checked && found != expected {
            return Err(damaged(&"its checksum is wrong"));
        }
        let config = RunConfig::parse(&config, &path.display().to_string(), &[])?;
        if let Some(problem) = contradiction(path, &progress, &config) {
            return Err(failed(format!("contradicts itself: {problem}; delete it to resume from the one before")));
        }
        let mut tensors = HashMap::new();
        for (name, view) in views {
            if view.dtype() != Dtype::F32 {
                return Err(failed(format!("{name} is {:?}, not F32", view.dtype())));
            }
            let values = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            tensors.insert(name.to_string(), (view.shape().to_vec(), values));
        }
        Ok(Self { path: path.to_path_buf(), progress, config, tensors })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that a resolved model is the one whose weights these are.
    pub fn check_model(&self, model: &ModelConfig) -> Result<(), Error> {
        let other = RunConfig { model: model.clone(), ..self.config.clone() };
        match self.config.differences(&other).as_slice() {
            [] => Ok(()),
            changed => {
                let problem = format!(
                    "holds the weights of another model: {}. A trained model cannot change",
                    changed.join(", ")
                );
                Err(Error::Checkpoint { path: self.path.clone(), problem })
            }
        }
    }

    /// Checks that `task` has the data on which the weights were trained.
    pub fn check_data(&self, task: &Task) -> Result<(), Error> {
        let is_same = self.progress.tokenizer == task.tokenizer() && self.progress.fingerprint == task.fingerprint();
        let problem =
            "was trained on another text or vocabulary; give the data it was trained on, as with --set data.path";
        if is_same { Ok(()) } else { Err(Error::Checkpoint { path: self.path.clone(), problem: problem.into() }) }
    }

    /// Loads the weights into `model`, whose table is `table`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the parametrization or base model differs, under which the same weights compute
    /// something else; if the vocabulary has another size than the model's; and, with their names, if tensors are
    /// missing, unknown, or of another shape.
    pub fn load_model<M: LanguageModel>(&self, model: M, table: &ParamTable) -> Result<M, Error> {
        let weights = self.weights(table.parametrization())?;
        weights::assign(model, &weights).map_err(|error| self.misfit(error))
    }

    /// Builds the model of a plan from the weights; nothing is drawn.
    ///
    /// # Errors
    /// As [`Checkpoint::load_model`].
    pub fn model(&self, plan: &Plan, device: &Device) -> Result<(Transformer, ParamTable), Error> {
        let weights = self.weights(plan.parametrization)?;
        plan.build(Source::Load(&weights), device).map_err(|error| self.misfit(error))
    }

    /// The trainer of a resolved configuration in its state at this step, on the autodiff side of `device`.
    ///
    /// # Errors
    /// As [`Checkpoint::load_model`].
    pub fn trainer(&self, config: &RunConfig, device: &Device) -> Result<Trainer, Error> {
        let built = self.model(&config.plan()?, &device.clone().autodiff())?;
        self.with_states(Trainer::of_built(config, built, device)?)
    }

    /// The tensors of the model, if its parametrization is `here`.
    fn weights(&self, here: Parametrization) -> Result<Tensors, Error> {
        let there = self.config.model.parametrization;
        if there != here {
            let shown = |p| serde_json::to_string(&p).unwrap_or_default();
            let problem = format!(
                "its weights are those of the parametrization {}, the model's is {}; build the model from the checkpoint's \
                 configuration",
                shown(there),
                shown(here)
            );
            return Err(Error::Checkpoint { path: self.path.clone(), problem });
        }
        if let Some(problem) = other_vocabulary(&self.progress, &self.config) {
            return Err(Error::Checkpoint { path: self.path.clone(), problem });
        }
        let prefix = "model.";
        let own = self
            .tensors
            .iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_string(), tensor.clone())));
        Ok(own.collect())
    }

    fn misfit(&self, error: ModelError) -> Error {
        let problem = match error {
            ModelError::Weights { problems } => shortened(&problems),
            ModelError::Value { .. } | ModelError::Combination { .. } => error.to_string(),
        };
        Error::Checkpoint { path: self.path.clone(), problem }
    }

    /// Loads weights and optimizer state into `trainer`.
    ///
    /// # Errors
    /// As [`Checkpoint::load_model`].
    pub fn load<M: LanguageModel>(&self, mut trainer: Trainer<M>) -> Result<Trainer<M>, Error> {
        trainer.model = self.load_model(trainer.model, &trainer.table)?;
        self.with_states(trainer)
    }

    /// Loads the optimizer state into `trainer`.
    fn with_states<M: LanguageModel>(&self, mut trainer: Trainer<M>) -> Result<Trainer<M>, Error> {
        let device = trainer.device().clone();
        let (mut problems, mut used) = (Vec::new(), 0);
        let mut slot = |slot: &str, path: &str, elements: usize| {
            let name = format!("optimizer.{slot}.{path}");
            match self.tensors.get(&name) {
                Some((_, values)) if values.len() == elements => {
                    used += 1;
                    Some(Tensor::from_data(TensorData::new(values.clone(), [elements]), &device))
                }
                Some((_, values)) => {
                    problems.push(format!("{name} has {} elements, not {elements}", values.len()));
                    None
                }
                None => {
                    problems.push(format!("{name} is missing"));
                    None
                }
            }
        };
        let mut states = Vec::new();
        // Before its first update an optimizer has no state.
        let remembers = self.progress.updates() > 0;
        for (entry, (names, _)) in trainer.table.iter().zip(trainer.optimizer.states()) {
            let names = if remembers && entry.role().is_trainable() { names } else { &[] };
            states.push(names.iter().filter_map(|name| slot(name, &entry.path, entry.elements())).collect());
        }
        if used + trainer.table.entries().len() != self.tensors.len() {
            problems.push(format!(
                "it holds {} tensors, the model and its optimizer have {}",
                self.tensors.len(),
                used + trainer.table.entries().len()
            ));
        }
        if !problems.is_empty() {
            return Err(Error::Checkpoint { path: self.path.clone(), problem: shortened(&problems) });
        }
        trainer.optimizer.restore(self.progress.updates(), states);
        Ok(trainer)
    }
}

/// Says so if tokenizer and model have vocabularies of different sizes.
fn other_vocabulary(progress: &Progress, config: &RunConfig) -> Option<String> {
    let (written, own) = (progress.tokenizer.vocab_size(), config.model.vocab_size);
    let problem = || format!("its tokenizer has {written} tokens, and its model a vocabulary of {}", own.unwrap_or(0));
    (own != Some(written)).then(problem)
}

/// Describes what in `progress` is impossible for this configuration and file name.
fn contradiction(path: &Path, progress: &Progress, config: &RunConfig) -> Option<String> {
    let step = progress.step;
    if let Some(named) = number(path).filter(|named| *named != step) {
        return Some(format!("its name is of step {named}, and its contents of step {step}"));
    }
    let tokens = step.checked_mul(config.tokens_of_step());
    if tokens != Some(progress.tokens) {
        return Some(format!("{} tokens are not those of {step} steps", progress.tokens));
    }
    if let Some(problem) = other_vocabulary(progress, config) {
        return Some(problem);
    }
    let has_rate = progress.rate > 0.0 && progress.rate <= 1.0;
    let in_order = progress.recent.windows(2).all(|pair| pair[0].step < pair[1].step)
        && progress.recent.iter().all(|record| record.step <= step);
    if !has_rate || !in_order || progress.skipped() > step {
        return Some("its rate, skipped steps or records are impossible".into());
    }
    None
}

fn shortened(problems: &[String]) -> String {
    format!("does not fit the model: {}", few(problems))
}

/// Names of the tensors that extend beyond the end of the file, if its header is complete.
fn cut_off(contents: &[u8]) -> Option<Vec<String>> {
    let length = usize::try_from(u64::from_le_bytes(*contents.first_chunk::<8>()?)).ok()?;
    let header = contents.get(8..length.checked_add(8)?)?;
    let available = (contents.len() - 8 - length) as u64;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let is_behind = |entry: &serde_json::Value| entry["data_offsets"][1].as_u64().is_some_and(|end| end > available);
    Some(header.into_iter().filter(|(_, entry)| is_behind(entry)).map(|(name, _)| name).collect())
}

/// Hash of progress, configuration, and names and contents of the tensors in the given order.
fn checksum<'a>(progress: &Progress, config: &str, tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> u64 {
    // The hash of format 3 covers this text, in which the struct was named so.
    let progress = format!("{progress:?}").replacen("Progress", "Position", 1);
    let start = files::hash(files::hash(files::HASH_START, progress.as_bytes()), config.as_bytes());
    tensors.fold(start, |hash, (name, bytes)| files::hash(files::hash(hash, name.as_bytes()), bytes))
}

/// The elements of a tensor, read in one transfer.
pub fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
