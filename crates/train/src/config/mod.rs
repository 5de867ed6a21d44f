//! The configuration of a run: one TOML file; unknown keys are errors.

mod explain;
mod file;
mod idle;
mod names;
mod path;
mod schema;
mod set;
mod values;

pub use file::Written;
pub use file::{ConfigFile, deserialize, read};
pub use path::setting_of;

use crate::{
    Batch, Calibrate, ClipConfig, DataConfig, Error, EvalTokens, OnDivergence, OptimizerConfig, ReplicaCount, Replicas,
    ScheduleConfig, Task, WeightDecay, device, device::memory, folder, folder::metrics,
};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use std::path::Path;
use toml::Value;
use unitgain_model::{Fault, ModelConfig, NormConfig, Plan, Precision, Variant};
use unitgain_variant::{require, shorthand};

/// The configuration of a run. Omitted keys have the defaults given here; unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Seed of weights, batches and dropout. Default 1.
    pub seed: u64,
    /// Compute backend: `flex`, `ndarray`, `wgpu`, `vulkan` or `cuda`; the last three accept an `:index`, and several
    /// devices of one kind, such as `cuda:0,cuda:1`, each for one replica. Default `flex`.
    pub backend: String,
    /// Number of CPU threads; it affects the last digits of a run. Default 0: `RAYON_NUM_THREADS` if set, otherwise all
    /// cores.
    pub threads: usize,
    /// Length and size of the run.
    pub train: TrainConfig,
    /// Adjustment of the drawn weights before the first step.
    pub init: InitConfig,
    /// The model.
    pub model: ModelConfig,
    /// The data. Default `markov`.
    pub data: DataConfig,
    /// The optimizer. Default `adamw`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub optimizer: OptimizerConfig,
    /// The learning rate schedule. Default `cosine`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub schedule: ScheduleConfig,
    /// Settings of records.
    pub log: LogConfig,
    /// Settings of evaluations.
    pub eval: EvalConfig,
    /// Settings of checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Versions, written into a run's `config.toml`; ignored when read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,
    /// The process, written into a run's `config.toml`; ignored when read. The last table, because its checksum covers
    /// everything above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Where the keys were written, for messages.
    #[serde(skip)]
    pub written: Written,
}

/// Length and size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Number of updates. Default 1000.
    pub steps: usize,
    /// Sequences per micro-batch. Default 16.
    pub batch_size: usize,
    /// Micro-batches per update; their gradients are averaged. Default 1.
    pub accumulate: usize,
    /// Copies of the model, each of which runs on its share of the sequences of a micro-batch; it affects the last digits of
    /// a run. Default `"auto"`: one for each CPU thread, where there are the sequences; one for each device on a GPU.
    pub replicas: ReplicaCount,
    /// Gradient clipping; a number is the maximum global norm, and 0 disables the clip. Default 1.
    #[serde(deserialize_with = "shorthand::number_kind_or_table")]
    pub clip: ClipConfig,
    /// Whether norms, and on the CPU backend also activations, linear layers, attention, loss and Adam, are fused
    /// operations. If false they are composed from burn's: slower, and equal up to rounding. Default true.
    pub fused: bool,
    /// What to do about a step whose loss or gradients are not finite. Default `stop`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub on_divergence: OnDivergence,
    /// `f32`, or `bf16` for matrix products and activations of branches and head; weights, stream, norms, softmax and
    /// loss stay f32. Default `f32`.
    pub precision: Precision,
}

/// Adjustment of the drawn weights before the first step. `model.init` is how they are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InitConfig {
    /// Data-driven init. Default none.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub calibrate: Option<Calibrate>,
}

/// Settings of records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Steps between records; the first and the last step are always recorded. Default 10.
    pub every: usize,
}

/// Settings of evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalConfig {
    /// Steps between evaluations, with one after the last step in any case. Default 250; 0 for the last only.
    pub every: usize,
    /// Number of held-out tokens per evaluation, or `"all"` for the whole held-out part of a text. Default 32768.
    pub tokens: EvalTokens,
}

/// Settings of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Steps between checkpoints, with one after the last step in any case. Default 500; 0 for the last only.
    pub every: usize,
    /// Number of checkpoints to keep. Default 2.
    pub keep: usize,
}

/// The versions that wrote a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Versions {
    /// Version of unitgain.
    pub unitgain: String,
    /// Version of burn.
    pub burn: String,
    /// Version of the metrics format.
    pub metrics: u32,
}

/// The process that wrote a run's `config.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Origin {
    /// Command line, quoted for a shell.
    pub command: String,
    /// Name of the processor.
    pub processor: String,
    /// Start time, RFC 3339 in UTC.
    pub started: String,
    /// Hash of everything above this line.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub checksum: String,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            backend: "flex".into(),
            threads: 0,
            train: TrainConfig::default(),
            init: InitConfig::default(),
            model: ModelConfig::default(),
            data: DataConfig::default(),
            optimizer: OptimizerConfig::default(),
            schedule: ScheduleConfig::default(),
            log: LogConfig::default(),
            eval: EvalConfig::default(),
            checkpoint: CheckpointConfig::default(),
            versions: None,
            origin: None,
            written: Written::default(),
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 1000,
            batch_size: 16,
            accumulate: 1,
            replicas: ReplicaCount::Auto,
            clip: ClipConfig::default(),
            fused: true,
            on_divergence: OnDivergence::default(),
            precision: Precision::F32,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { every: 10 }
    }
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self { every: 250, tokens: EvalTokens::Count(1 << 15) }
    }
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every: 500, keep: 2 }
    }
}

impl Default for Versions {
    fn default() -> Self {
        Self { unitgain: crate::VERSION.into(), burn: crate::BURN_VERSION.into(), metrics: metrics::FORMAT }
    }
}

/// Whether a model normalizes over the rows of a batch.
pub(crate) fn has_batch_norm(plan: &Plan) -> bool {
    plan.norms().any(|norm| matches!(norm, NormConfig::BatchNorm { .. }))
}

impl RunConfig {
    /// Reads a file and applies `key.path=value` settings. Kinds are set before their settings; the last of several
    /// settings of a key wins. Paths in the file are relative to the file, paths in settings to the working folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Syntax`], or [`Error::Config`] with the line, the key, the likely intention and what is
    /// allowed; [`Error::Several`] of them.
    pub fn load(path: &Path, settings: &[String]) -> Result<Self, Error> {
        ConfigFile::load(path)?.with(settings)
    }

    /// As [`RunConfig::load`], from a string that came from `origin`. Paths are relative to the working folder.
    ///
    /// # Errors
    /// As [`RunConfig::load`].
    pub fn parse(text: &str, origin: &str, settings: &[String]) -> Result<Self, Error> {
        ConfigFile::parse(text, origin)?.with(settings)
    }

    /// Checks all values, sets the model's vocabulary, and writes out all defaults.
    ///
    /// # Errors
    /// [`Error::Value`], [`Error::Model`] or [`Error::Device`].
    pub fn resolved(&self, vocab_size: usize) -> Result<Self, Error> {
        let mut config = self.clone();
        config.check()?;
        match config.model.vocab_size {
            Some(given) if given != vocab_size => {
                let problem = format!("is not the vocabulary of the data, which is {vocab_size}; leave the key out");
                return Err(Error::value("model.vocab_size", given, problem));
            }
            Some(_) | None => config.model.vocab_size = Some(vocab_size),
        }
        let plan = config.plan()?;
        config.model = config.model.written_out(&plan);
        config.check_batch(&plan)?;
        config.check_replicas(&plan)?;
        config.check_memory(&plan)?;
        if let DataConfig::Text { path, .. } = &mut config.data {
            *path = path::absolute(path);
        }
        config.versions = Some(Versions::default());
        config.origin = None;
        Ok(config)
    }

    /// The plan of the model; with a vocabulary of one token if it is not known yet.
    ///
    /// # Errors
    /// As [`ModelConfig::plan`].
    pub fn plan(&self) -> Result<Plan, Error> {
        Ok(self.model.plan(self.model.vocab_size.unwrap_or(1))?)
    }

    /// Checks all values, loads the data, resolves the configuration for it, and writes out the number of threads.
    ///
    /// # Errors
    /// As [`RunConfig::resolved`] and [`DataConfig::load`]: everything that is wrong with the values, each with its
    /// line.
    pub fn prepare(&self) -> Result<(Self, Task), Error> {
        let (mut config, task) = self.all_faults(|config| {
            config.check()?;
            config.plan()?;
            let task = config.data.load(config.model.context)?;
            Ok((config.resolved(task.vocab_size())?, task))
        })?;
        self.warn_of_idle_keys(&config);
        if config.threads == 0 && device::is_host(&config.backend) {
            config.threads = device::threads()?;
        }
        if config.train.replicas == ReplicaCount::Auto
            && device::is_host(&config.backend)
            && has_batch_norm(&config.plan()?)
        {
            tracing::info!("one replica: batch_norm normalizes by the statistics of the whole batch");
        }
        Ok((config, task))
    }

    /// The configuration of the run in a folder, with `key.path=value` settings: from its `config.toml`, or if that is
    /// missing from its newest checkpoint.
    ///
    /// # Errors
    /// As [`RunConfig::load`], and [`Error::Folder`] for a changed or damaged `config.toml`.
    pub fn of_run(folder: &Path, settings: &[String]) -> Result<Self, Error> {
        folder::configuration(folder, settings)
    }

    /// Tokens per step: `batch_size * accumulate * context`.
    pub fn tokens_of_step(&self) -> usize {
        self.train.batch_size * self.train.accumulate * self.model.context
    }

    /// Whether an action that is due `every` this many steps, and after the last one, is due after `step`. 0 means
    /// after the last one only.
    pub(crate) fn is_due(&self, every: usize, step: usize) -> bool {
        step == self.train.steps || (every > 0 && step.is_multiple_of(every))
    }

    /// The number of replicas of this plan.
    pub(crate) fn replica_count(&self, plan: &Plan) -> usize {
        match self.train.replicas {
            ReplicaCount::Count(n) => n,
            ReplicaCount::Auto if !device::is_host(&self.backend) => device::names(&self.backend).count(),
            ReplicaCount::Auto if has_batch_norm(plan) => 1,
            ReplicaCount::Auto => ReplicaCount::of_threads(self.thread_count(), self.train.batch_size),
        }
    }

    /// The plain device of the model, the first of `backend`.
    ///
    /// # Errors
    /// As [`device::from_name`].
    pub fn device(&self) -> Result<Device, Error> {
        device::from_name(device::names(&self.backend).next().unwrap_or_default())
    }

    /// The replicas of this plan, for a model on `device`.
    ///
    /// # Errors
    /// As [`Replicas::on_threads`] and [`device::all_from_names`].
    pub fn replicas(&self, plan: &Plan, device: &Device) -> Result<Replicas, Error> {
        let count = self.replica_count(plan);
        if device::is_host(&self.backend) {
            return Replicas::on_threads(count, self.thread_count(), device);
        }
        match device::all_from_names(&self.backend)?.as_slice() {
            [_] => Replicas::on_devices(&vec![device.clone(); count]),
            several => Replicas::on_devices(several),
        }
    }

    /// The number of CPU threads.
    fn thread_count(&self) -> usize {
        if self.threads == 0 { device::threads().unwrap_or(1) } else { self.threads }
    }

    /// The micro-batches of a step.
    pub fn batches(&self, task: &Task, step: usize) -> Vec<Batch> {
        let size = self.train.batch_size;
        let rows = |micro: usize| micro * size..(micro + 1) * size;
        (0..self.train.accumulate).map(|micro| task.batch(self.seed, step, rows(micro))).collect()
    }

    /// The configuration as TOML text.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|e| unreachable!("a configuration is always valid TOML: {e}"))
    }

    /// The configuration as a TOML table.
    pub fn to_value(&self) -> Value {
        Value::try_from(self).unwrap_or_else(|e| unreachable!("a configuration is always valid TOML: {e}"))
    }

    /// Checks the values that need no data, as [`RunConfig::prepare`] does first.
    ///
    /// # Errors
    /// [`Error::Config`] for the first invalid value.
    pub fn check(&self) -> Result<(), Error> {
        let devices = device::all_from_names(&self.backend)?;
        let TrainConfig { steps, batch_size, accumulate, clip, on_divergence, precision, .. } = self.train;
        let problem = format!("is not supported by {:?}; use \"f32\"", self.backend);
        let is_supported = devices.iter().all(|device| device.supports_dtype(precision.dtype()));
        require(is_supported, "train.precision", "\"bf16\"", problem)?;
        let problem = format!("must be at most {}, the largest number of TOML", i64::MAX);
        require(i64::try_from(self.seed).is_ok(), "seed", self.seed, problem)?;
        let problem = format!("must be at most {MOST_THREADS}, or 0 for as many as there are");
        require(self.threads <= MOST_THREADS, "threads", self.threads, problem)?;
        for (key, n) in [("train.batch_size", batch_size), ("train.accumulate", accumulate)] {
            require(n <= MOST, key, n, format!("must be at most {MOST}"))?;
        }
        let context = self.model.context;
        let problem =
            format!("sequences of model.context = {context} tokens are more than {MOST_TOKENS} tokens in one pass");
        require(batch_size * context.min(MOST) <= MOST_TOKENS, "train.batch_size", batch_size, problem)?;
        let lengths = [
            ("train.steps", steps),
            ("schedule.warmup", self.schedule.warmup()),
            ("schedule.decay", self.schedule.decay()),
        ];
        for (key, n) in lengths {
            require(n <= MOST_STEPS, key, n, format!("must be at most {MOST_STEPS}"))?;
        }
        let least_one = [
            ("train.steps", steps),
            ("train.batch_size", batch_size),
            ("train.accumulate", accumulate),
            ("log.every", self.log.every),
            ("checkpoint.keep", self.checkpoint.keep),
        ];
        for (key, n) in least_one {
            require(n > 0, key, n, "must be at least 1")?;
        }
        self.check_eval()?;
        // An invalid model is reported when it is planned for the data.
        let plan = self.plan().ok();
        let below = |section: &'static str| move |fault: Fault| fault.below(section);
        if let (Some(calibrate), Some(plan)) = (self.init.calibrate, &plan) {
            let checked = calibrate.check().and_then(|()| calibrate.check_model(plan, batch_size * context));
            checked.map_err(below("init.calibrate"))?;
        }
        clip.check().map_err(below("train.clip"))?;
        on_divergence.check().map_err(below("train.on_divergence"))?;
        let can_undo =
            !matches!(on_divergence, OnDivergence::Skip { .. }) || !plan.as_ref().is_some_and(has_batch_norm);
        let problem = "cannot undo a step's update of batch_norm's running averages; use \"rewind\"";
        require(can_undo, "train.on_divergence", "\"skip\"", problem)?;
        self.optimizer.check().map_err(below("optimizer"))?;
        self.check_unit_decay()?;
        self.schedule.check_length(steps).and(self.schedule.check()).map_err(below("schedule"))?;
        plan.map_or(Ok(()), |plan| self.check_replicas(&plan).map_err(Error::from).and(self.check_memory(&plan)))
    }

    /// Checks the size of the held-out set.
    fn check_eval(&self) -> Result<(), Fault> {
        let key = "eval.tokens";
        match (self.eval.tokens, &self.data) {
            (EvalTokens::Count(n), _) => {
                require(n > 0, key, n, "must be at least 1")?;
                require(n <= MOST_TOKENS, key, n, format!("must be at most {MOST_TOKENS}"))
            }
            (EvalTokens::All, DataConfig::Markov { .. } | DataConfig::Recall { .. } | DataConfig::Copy { .. }) => {
                let problem = "is the whole held-out part of a text, but this task has endless sequences; give a \
                               number";
                Err(Fault::new(key, "\"all\"", problem))
            }
            (EvalTokens::All, DataConfig::Text { .. }) => Ok(()),
        }
    }

    /// Refuses a coupled decay under u-muP, whose learning rates are of size 1.
    fn check_unit_decay(&self) -> Result<(), Fault> {
        let is_unit = self.model.parametrization.is_unit_scaled();
        match self.optimizer.weight_decay() {
            WeightDecay::Coupled { value } if is_unit && value > 0.0 => {
                let problem = "is multiplied by the learning rate, which is of size 1 under parametrization = \
                               \"u_mup\"; write weight_decay = { kind = \"independent\", value = 1e-4 } (adamw, lion), or 0";
                Err(Fault::new("optimizer.weight_decay", value, problem))
            }
            WeightDecay::Coupled { .. } | WeightDecay::Independent { .. } => Ok(()),
        }
    }

    /// Checks that the batch suits BatchNorm.
    fn check_batch(&self, plan: &Plan) -> Result<(), Fault> {
        let problem = "makes a batch of a single token, whose variance is 0, and a norm is batch_norm; take more";
        let is_enough = !has_batch_norm(plan) || self.train.batch_size * self.model.context > 1;
        require(is_enough, "train.batch_size", self.train.batch_size, problem)
    }

    /// Checks that the batch can be split over the replicas.
    fn check_replicas(&self, plan: &Plan) -> Result<(), Fault> {
        let key = "train.replicas";
        let devices = device::names(&self.backend).count();
        let n = match self.train.replicas {
            ReplicaCount::Count(n) => n,
            ReplicaCount::Auto if devices > 1 => devices,
            ReplicaCount::Auto => return Ok(()),
        };
        require(n > 0, key, n, "must be at least 1, or \"auto\"")?;
        require(n <= MOST_THREADS, key, n, format!("must be at most {MOST_THREADS}"))?;
        let problem = format!("must be {devices}, one on each device of backend = {:?}, or \"auto\"", self.backend);
        require(devices == 1 || n == devices, key, n, problem)?;
        let most = self.train.batch_size;
        let given = match devices {
            1 => String::new(),
            _ => format!("; backend = {:?} has one on each device", self.backend),
        };
        let problem = format!("must be at most train.batch_size = {most}: a replica takes whole sequences{given}");
        require(n <= most, key, n, problem)?;
        let problem = format!("must be 1: batch_norm normalizes by the statistics of the whole batch{given}");
        require(n == 1 || !has_batch_norm(plan), key, n, problem)
    }

    /// Refuses a run that needs more memory than is available.
    fn check_memory(&self, plan: &Plan) -> Result<(), Error> {
        if device::is_host(&self.backend) { memory::Need::of(self, plan).check(self) } else { Ok(()) }
    }

    /// Keys with different values, except those that do not change a step. A resumed run must not change them.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let table = |config: &Self| {
            let mut config = config.of_steps();
            config.log = LogConfig::default();
            config.eval.every = EvalConfig::default().every;
            config.to_value()
        };
        let mut keys = Vec::new();
        changed_keys("", &table(self), &table(other), &mut keys);
        keys
    }

    /// Keys with different values that [`RunConfig::differences`] leaves out: intervals of records, evaluations and
    /// checkpoints, length, and handling of divergences.
    pub(crate) fn differences_of_outputs(&self, other: &Self) -> Vec<String> {
        let table = |config: &Self| {
            let mut config = Self { checkpoint: config.checkpoint, ..config.of_steps() };
            config.eval.tokens = EvalConfig::default().tokens;
            config.to_value()
        };
        let mut keys = Vec::new();
        changed_keys("", &table(self), &table(other), &mut keys);
        keys
    }

    /// A text of everything that determines the records of a run: runs with the same identity have the same records.
    pub fn identity(&self) -> String {
        self.of_steps().to_toml()
    }

    /// Without the keys that change neither steps nor records.
    fn of_steps(&self) -> Self {
        let mut config =
            Self { versions: None, origin: None, threads: 0, checkpoint: CheckpointConfig::default(), ..self.clone() };
        config.train.replicas = ReplicaCount::Auto;
        config.backend = device::backend(&self.backend).into();
        if let DataConfig::Text { path, .. } = &mut config.data {
            // A text may move: its contents are compared by fingerprint.
            *path = path.file_name().unwrap_or_default().into();
        }
        config
    }
}

/// The keys that select the variant of a table.
pub const TAGS: [&str; 2] = ["kind", "task"];

/// Maximum of any size: far above what can be trained, far below overflow.
const MOST: usize = 1 << 20;
/// Maximum number of tokens in a forward pass.
const MOST_TOKENS: usize = 1 << 24;
/// Maximum number of threads.
pub(crate) const MOST_THREADS: usize = 1024;
/// Maximum number of steps.
const MOST_STEPS: usize = 1 << 40;

/// Whether `key` is `other` or below it: `model.init.gain` is within `model.init`.
pub fn is_within(key: &str, other: &str) -> bool {
    key.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Keys with different values, each with both values.
pub fn changed_keys(path: &str, a: &Value, b: &Value, keys: &mut Vec<String>) {
    match (a, b) {
        (Value::Table(a), Value::Table(b)) => {
            let all: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in all {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => changed_keys(&path, a, b, keys),
                    (Some(_), None) | (None, Some(_)) | (None, None) => keys.push(path),
                }
            }
        }
        (a, b) if a == b => {}
        (a, b) => keys.push(format!("{path} ({a}, now {b})")),
    }
}
