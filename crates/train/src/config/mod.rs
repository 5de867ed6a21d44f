//! The configuration of a run: one TOML file, read strictly.

mod explain;
mod set;

use crate::{DataConfig, Error, OptimizerConfig, ScheduleConfig, Task, device, metrics};
use serde::{Deserialize, Serialize};
use std::path::Path;
use toml::{Table, Value};
use unitgain_model::{ModelConfig, shorthand};

/// A run. Keys that are left out take the defaults given here; unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Seed of weights, batches and dropout. Default 1.
    pub seed: u64,
    /// Where to compute: `flex`, `ndarray`, `wgpu`, `vulkan` or `cuda`, the last three with an
    /// optional `:index`. Default `flex`.
    pub backend: String,
    /// Length and size of the run.
    pub train: TrainConfig,
    /// The model.
    pub model: ModelConfig,
    /// The data. Default `markov`.
    pub data: DataConfig,
    /// The optimizer. Default `adamw`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub optimizer: OptimizerConfig,
    /// The learning rate over the run. Default `cosine`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub schedule: ScheduleConfig,
    /// Records.
    pub log: LogConfig,
    /// Evaluations.
    pub eval: EvalConfig,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Written into a run's `config.toml`; ignored when read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,
}

/// Length and size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Number of updates. Default 1000.
    pub steps: usize,
    /// Sequences in a micro-batch. Default 16.
    pub batch_size: usize,
    /// Micro-batches whose gradients are averaged into one update. Default 1.
    pub accumulate: usize,
    /// Largest norm of all gradients together; above it they are scaled down. Default 1; 0 for none.
    pub clip: f64,
}

/// Records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Steps between records; the first and the last step are always recorded. Default 10.
    pub every: usize,
}

/// Evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalConfig {
    /// Steps between evaluations; there is one after the last step. Default 250; 0 for that one only.
    pub every: usize,
    /// Batches of an evaluation, the same every time. Default 20.
    pub batches: usize,
}

/// Checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Steps between checkpoints; there is one after the last step. Default 500; 0 for that one only.
    pub every: usize,
    /// Number of checkpoints to keep. Default 2.
    pub keep: usize,
}

/// What wrote a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Versions {
    /// Version of unitgain.
    pub unitgain: String,
    /// Version of burn.
    pub burn: String,
    /// Version of the metrics format.
    pub metrics: u32,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            backend: "flex".into(),
            train: TrainConfig::default(),
            model: ModelConfig::default(),
            data: DataConfig::default(),
            optimizer: OptimizerConfig::default(),
            schedule: ScheduleConfig::default(),
            log: LogConfig::default(),
            eval: EvalConfig::default(),
            checkpoint: CheckpointConfig::default(),
            versions: None,
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self { steps: 1000, batch_size: 16, accumulate: 1, clip: 1.0 }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { every: 10 }
    }
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self { every: 250, batches: 20 }
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

impl RunConfig {
    /// Reads a file and applies `key.path=value` settings to it: kinds first, then what is inside them;
    /// of two settings of one key the last counts.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Syntax`], or [`Error::Config`] with the key, the nearest known key and
    /// what is allowed.
    pub fn load(path: &Path, settings: &[String]) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        Self::parse(&text, &path.display().to_string(), settings)
    }

    /// As [`RunConfig::load`], from a string that came from `origin`.
    ///
    /// # Errors
    /// As [`RunConfig::load`].
    pub fn parse(text: &str, origin: &str, settings: &[String]) -> Result<Self, Error> {
        let mut table: Table = toml::from_str(text)
            .map_err(|e| Error::Syntax { origin: origin.into(), problem: e.to_string().trim_end().into() })?;
        // The file alone first, so that its faults are not laid on the settings.
        let config = explain::deserialize(table.clone(), origin)?;
        if settings.is_empty() {
            return Ok(config);
        }
        // A kind before its settings, whatever the order they were given in.
        let mut ordered: Vec<&String> = settings.iter().collect();
        ordered.sort_by_key(|setting| {
            let path = setting.split('=').next().unwrap_or_default().trim();
            let is_tag = path.rsplit('.').next().is_some_and(|last| TAGS.contains(&last));
            path.split('.').count() - usize::from(is_tag)
        });
        for setting in ordered {
            set::set(&mut table, setting)?;
        }
        explain::deserialize(table, &format!("{origin} with --set"))
    }

    /// Checks every value, fits the model to the task's vocabulary, and writes out every default.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Model`] or [`Error::Device`].
    pub fn resolved(&self, vocab_size: usize) -> Result<Self, Error> {
        let mut config = self.clone();
        config.check()?;
        match config.model.vocab_size {
            Some(given) if given != vocab_size => {
                let problem =
                    format!("{given} is not the vocabulary of the data, which is {vocab_size}; leave the key out");
                return Err(Error::config("model.vocab_size", problem));
            }
            Some(_) | None => config.model.vocab_size = Some(vocab_size),
        }
        config.model = config.model.resolved()?;
        config.check_memory()?;
        config.versions = Some(Versions::default());
        Ok(config)
    }

    /// Checks every value, prepares the data, and resolves the configuration against it.
    ///
    /// # Errors
    /// As [`RunConfig::resolved`] and [`DataConfig::load`].
    pub fn prepare(&self) -> Result<(Self, Task), Error> {
        self.check()?;
        self.model.resolved()?;
        let task = self.data.load(self.model.context)?;
        Ok((self.resolved(task.vocab_size())?, task))
    }

    /// As TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|e| unreachable!("a configuration is always valid TOML: {e}"))
    }

    fn check(&self) -> Result<(), Error> {
        device::from_name(&self.backend)?;
        if i64::try_from(self.seed).is_err() {
            return Err(Error::config(
                "seed",
                format!("{} must be at most {}, the largest number of TOML", self.seed, i64::MAX),
            ));
        }
        let sizes = [
            ("train.batch_size", self.train.batch_size),
            ("train.accumulate", self.train.accumulate),
            ("eval.batches", self.eval.batches),
        ];
        if let Some((key, n)) = sizes.iter().find(|(_, n)| *n > MOST) {
            return Err(Error::config(key, format!("{n} must be at most {MOST}")));
        }
        let rows = self.train.batch_size * self.model.context.min(MOST);
        if rows > MOST_TOKENS {
            let problem = format!(
                "{} sequences of model.context = {} tokens are more than {MOST_TOKENS} tokens in one pass",
                self.train.batch_size, self.model.context
            );
            return Err(Error::config("train.batch_size", problem));
        }
        let lengths = [
            ("train.steps", self.train.steps),
            ("schedule.warmup", self.schedule.warmup()),
            ("schedule.decay", self.schedule.decay()),
        ];
        if let Some((key, n)) = lengths.iter().find(|(_, n)| *n > MOST_STEPS) {
            return Err(Error::config(key, format!("{n} must be at most {MOST_STEPS}")));
        }
        let least_one = [
            ("train.steps", self.train.steps),
            ("train.batch_size", self.train.batch_size),
            ("train.accumulate", self.train.accumulate),
            ("log.every", self.log.every),
            ("eval.batches", self.eval.batches),
            ("checkpoint.keep", self.checkpoint.keep),
        ];
        if let Some((key, _)) = least_one.iter().find(|(_, n)| *n == 0) {
            return Err(Error::config(key, "0 must be at least 1"));
        }
        if !(self.train.clip >= 0.0 && self.train.clip.is_finite()) {
            return Err(Error::config(
                "train.clip",
                format!("{} must be a positive number, or 0 for none", self.train.clip),
            ));
        }
        let below = |section: &str, (key, problem): (&str, String)| Error::config(&format!("{section}.{key}"), problem);
        self.optimizer.check().map_err(|e| below("optimizer", e))?;
        self.schedule.check(self.train.steps).map_err(|e| below("schedule", e))
    }

    /// Refuses what cannot fit: the weights with gradient and optimizer, and of the activations only
    /// those that every backward pass needs.
    fn check_memory(&self) -> Result<(), Error> {
        let Some(available) = metrics::total_memory().filter(|_| device::is_host(&self.backend)) else { return Ok(()) };
        let model = &self.model;
        let (d, d_ff) = (model.d_model as f64, model.d_ff.unwrap_or(0) as f64);
        let layers = model.n_layers as f64;
        let tokens = (self.train.batch_size * model.context) as f64;
        let weights = 16.0 * layers * (4.0 * d * d + 2.0 * d * d_ff);
        let activations = 4.0 * tokens * (layers * (6.0 * d + 2.0 * d_ff) + model.vocab_size.unwrap_or(0) as f64);
        if weights + activations <= available as f64 {
            return Ok(());
        }
        let problem = format!(
            "{} sequences of {} tokens need at least {:.0} GB for a model of this size, and there are {:.0} GB; \
             take fewer (and more train.accumulate) or a smaller model",
            self.train.batch_size,
            model.context,
            (weights + activations) / 1e9,
            available as f64 / 1e9
        );
        Err(Error::config("train.batch_size", problem))
    }

    /// Keys whose values differ, but for those that do not change a step: what a resumed run must not
    /// change.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let table = |config: &Self| {
            let mut config = config.clone();
            if let DataConfig::Text { path, .. } = &mut config.data {
                // A text may move; its contents are compared by their fingerprint.
                path.clear();
            }
            (config.log, config.eval, config.checkpoint) = Default::default();
            config.versions = None;
            Value::try_from(config).unwrap_or_else(|e| unreachable!("a configuration is always valid TOML: {e}"))
        };
        let mut keys = Vec::new();
        compare("", &table(self), &table(other), &mut keys);
        keys
    }
}

/// The keys that say which variant a table is.
const TAGS: [&str; 2] = ["kind", "task"];

/// Largest size of anything: far above what can be trained, far below what overflows.
const MOST: usize = 1 << 20;
/// Most tokens in one forward pass.
const MOST_TOKENS: usize = 1 << 24;
/// Longest run.
const MOST_STEPS: usize = 1 << 40;

fn compare(path: &str, a: &Value, b: &Value, keys: &mut Vec<String>) {
    match (a, b) {
        (Value::Table(a), Value::Table(b)) => {
            let all: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in all {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => compare(&path, a, b, keys),
                    (Some(_), None) | (None, Some(_)) | (None, None) => keys.push(path),
                }
            }
        }
        (a, b) if a == b => {}
        (a, b) => keys.push(format!("{path} ({a}, now {b})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unitgain_model::{NormConfig, Parametrization, Placement, ScaleConfig};

    fn parse(text: &str, settings: &[&str]) -> Result<RunConfig, String> {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        RunConfig::parse(text, "run.toml", &settings).map_err(|e| e.to_string())
    }

    #[test]
    fn faults_name_the_key_and_what_is_allowed() {
        for (text, expected) in [
            ("[model]\nd_modle = 3", "model.d_modle: unknown key. Did you mean `d_model`?"),
            ("[model.norm]\nkind = 'rms_norm'\nepz = 1", "model.norm.epz: unknown key. Did you mean `eps`?"),
            ("[model.norm]\nkind = 'none'\neps = 1", "model.norm.eps: unknown key. There are no keys here"),
            ("[model]\nplacement = 'prenorm'", "model.placement: unknown value \"prenorm\". Did you mean `pre_norm`?"),
            ("[model]\nnorm = 'rms'", "model.norm: unknown value \"rms\". Allowed: layer_norm, rms_norm, "),
            (
                "[model]\nd_model = 'wide'",
                "model.d_model: invalid type: string \"wide\", expected a whole number, 0 or more",
            ),
            (
                "[train]\nbatch_size = -1",
                "train.batch_size: invalid value: integer `-1`, expected a whole number, 0 or more",
            ),
            ("[model.parametrization]\nkind = 'mup'", "model.parametrization.base_width: missing: it has no default"),
            ("[[model.block]]\nrange = [0, 1]\nnorn = 1", "model.block[0].norn: unknown key. Did you mean `norm`?"),
            ("[optimizer]\nkind = 'adamw'\nlr = 'x'", "optimizer.lr: invalid type: string \"x\", expected a number"),
            ("[schedule]\nkind = 'cosine'\nwarmup = -1", "schedule.warmup: invalid value: integer `-1`"),
            (
                "[data]\ntask = 'text'\npath = 'x'\ntokenizer = 'word'",
                "data.tokenizer: unknown value \"word\". Allowed: byte, char",
            ),
            ("[optimizer]\nlr = 1.0", "optimizer.kind: missing: say which"),
            ("model = 3", "model: invalid type: integer `3`, expected a table: ModelConfig"),
            ("[optimiser]\nlr = 1", "optimiser: unknown key. Did you mean `optimizer`?"),
            ("[data]\ntask = 'text'", "data.path: missing"),
            ("[model\n", "run.toml is not valid TOML"),
        ] {
            let problem = parse(text, &[]).unwrap_err();
            assert!(problem.contains(expected), "{problem:?} does not say {expected:?}");
        }
    }

    #[test]
    fn a_kind_can_stand_for_its_table() {
        let short =
            parse("optimizer = 'lion'\n[model]\nnorm = 'rms_norm'\nscale = 're_zero'\ninit = 'xavier'", &[]).unwrap();
        assert_eq!(short.model.norm, NormConfig::rms_norm());
        assert_eq!(short.model.scale, ScaleConfig::ReZero {});
        assert_eq!(short.optimizer.about().0, "lion");
    }

    #[test]
    fn settings_reach_every_key() {
        let config = parse(
            "[model]\nnorm = 'rms_norm'\n[[model.block]]\nrange = [0, 1]",
            &[
                "model.norm.eps=1e-3",
                "model.placement=deep_norm",
                "optimizer.lr=0.5",
                "model.block.0.scale=re_zero",
                "seed=7",
            ],
        )
        .unwrap();
        assert_eq!(config.model.norm, NormConfig::RmsNorm { eps: 1e-3, gain: true, unit_offset: false });
        assert_eq!(config.model.placement, Placement::DeepNorm);
        assert_eq!((config.optimizer.lr(), config.seed), (0.5, 7));
        assert_eq!(config.model.block[0].scale, Some(ScaleConfig::ReZero {}));
    }

    #[test]
    fn a_new_kind_starts_from_its_defaults() {
        let text = "[model.parametrization]\nkind = 'mup'\nbase_width = 64\n[optimizer]\nkind = 'adamw'\nlr = 0.5";
        let config = parse(text, &["model.parametrization.kind=standard", "optimizer.kind=adamw"]).unwrap();
        assert_eq!(config.model.parametrization, Parametrization::Standard {});
        assert_eq!(config.optimizer.lr(), 0.5);
    }

    #[test]
    fn a_kind_comes_before_its_settings_in_any_order() {
        let sgd = parse("", &["optimizer.lr=0.5", "optimizer.kind=sgd"]).unwrap();
        assert_eq!((sgd.optimizer.about().0, sgd.optimizer.lr()), ("sgd", 0.5));
        let text = parse("", &["data.path=t.txt", "data.task=text"]).unwrap();
        assert!(matches!(text.data, DataConfig::Text { .. }));
        assert!(parse("", &["optimizer.momntum=0.5", "optimizer.kind=sgd"]).unwrap_err().contains("momentum"));
        assert_eq!(parse("", &["seed=1", "seed=2"]).unwrap().seed, 2);
    }

    #[test]
    fn a_run_that_does_not_fit_into_memory_is_refused() {
        let problem = parse("[train]\nbatch_size = 200000", &[]).unwrap().resolved(32).unwrap_err().to_string();
        assert!(problem.contains("train.batch_size") && problem.contains("GB"), "{problem}");
    }

    #[test]
    fn faulty_settings_are_named() {
        let problem = |setting| parse("", &[setting]).unwrap_err();
        assert!(problem("model.width=3").contains("model.width: unknown key"));
        assert!(problem("seed").contains("--set key.path=value"));
        assert!(problem("seed.x=1").contains("seed"));
        assert!(problem("model.block.0.norm=none").contains("model.block"));
        assert!(problem("model..norm=none").contains("empty part"));
    }

    #[test]
    fn values_out_of_range_are_named() {
        let problem = |text: &str| parse(text, &[]).unwrap().resolved(32).unwrap_err().to_string();
        for (text, expected) in [
            ("[train]\nbatch_size = 0", "train.batch_size: 0 must be at least 1"),
            ("[train]\nclip = -1.0", "train.clip: -1"),
            (
                "[train]\nsteps = 5\n[schedule]\nkind = 'constant'\nwarmup = 6",
                "schedule.warmup: 6 is longer than the run",
            ),
            (
                "[train]\nsteps = 5\n[schedule]\nkind = 'warmup_stable_decay'\nwarmup = 3\ndecay = 3",
                "schedule.decay: 3",
            ),
            ("[optimizer]\nkind = 'adamw'\nbetas = [0.9, 1.0]", "optimizer.betas: 1 must be"),
            ("[optimizer]\nkind = 'sgd'\nlr = 0.0", "optimizer.lr: 0 must be a positive number"),
            ("[model]\nd_model = 130", "model.d_model = 130: must be a multiple of n_heads = 4"),
            ("[model]\nd_model = 12\nposition = 'rope'", "model.head_dim = 3: must be even"),
            ("[model]\nvocab_size = 7", "model.vocab_size: 7 is not the vocabulary of the data, which is 32"),
            ("[model]\ndropout = 1.0", "model.dropout = 1"),
            ("[model.norm]\nkind = 'rms_norm'\neps = 0.0", "model.norm.eps = 0e0: must be a number of at least 1e-18"),
            ("backend = 'gpu'", "unknown backend"),
        ] {
            let problem = problem(text);
            assert!(problem.contains(expected), "{problem:?} does not say {expected:?}");
        }
    }

    #[test]
    fn a_resolved_configuration_is_read_back_as_itself() {
        let text = "[model]\nplacement = 'deep_norm'\nscale = 'layer_scale'\nactivation = 'swi_glu'\nposition = 'rope'\n\
                    [model.parametrization]\nkind = 'mup'\nbase_width = 64\n[[model.block]]\nrange = [1, 2]\nnorm = 'rms_norm'";
        let resolved = parse(text, &[]).unwrap().resolved(32).unwrap();
        let again = parse(&resolved.to_toml(), &[]).unwrap();
        assert_eq!(again, resolved);
        assert_eq!(again.resolved(32).unwrap(), resolved);
        for key in
            ["head_dim = 32", "d_ff = 344", "init = 0.1", "base_head_dim = 16.0", "embedding_std = 0.02", "burn = "]
        {
            assert!(resolved.to_toml().contains(key), "{key} is not in\n{}", resolved.to_toml());
        }
    }

    #[test]
    fn differences_name_the_keys_that_change_a_step() {
        let a = parse("", &[]).unwrap();
        let b = parse("[optimizer]\nkind = 'adamw'\nlr = 0.5\n[log]\nevery = 3", &[]).unwrap();
        assert_eq!(a.differences(&a), Vec::<String>::new());
        assert_eq!(a.differences(&b), ["optimizer.lr (0.001, now 0.5)"]);
    }
}
