//! Optimizers, as one pass over the parameters in the order of the [`ParamTable`].
//!
//! burn's own optimizers know one learning rate, weight decay and eps per group; here each weight has
//! its own factors, straight from the table.

use crate::Gradients;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use unitgain_model::{ParamEntry, ParamTable, Update, shorthand};

/// Which optimizer, and its settings. Weight decay is for matrices only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Adam with decoupled decay: `w -= lr decay w`, then `w -= lr m^ / (sqrt(v^) + eps)`
    /// (arXiv:1711.05101, algorithm 2).
    Adamw {
        /// Learning rate. Default 1e-3.
        #[serde(default = "adam_lr")]
        lr: f64,
        /// Averages of the gradient and of its square. Default [0.9, 0.95].
        #[serde(default = "adam_betas")]
        betas: [f64; 2],
        /// Added outside the root, after bias correction. Default 1e-8.
        #[serde(default = "adam_eps")]
        eps: f64,
        /// Default coupled, 0.1.
        #[serde(default = "weight_decay", deserialize_with = "shorthand::number_kind_or_table")]
        weight_decay: WeightDecay,
    },
    /// Adam; the decay is added to the gradient as `decay w` (arXiv:1412.6980, algorithm 1).
    Adam {
        /// Learning rate. Default 1e-3.
        #[serde(default = "adam_lr")]
        lr: f64,
        /// Averages of the gradient and of its square. Default [0.9, 0.95].
        #[serde(default = "adam_betas")]
        betas: [f64; 2],
        /// Added outside the root, after bias correction. Default 1e-8.
        #[serde(default = "adam_eps")]
        eps: f64,
        /// Default 0.
        #[serde(default)]
        weight_decay: f64,
    },
    /// `b = momentum b + g; w -= lr b`, with the decay added to g; Nesterov's form uses
    /// `g + momentum b`.
    Sgd {
        /// Learning rate. Default 0.1.
        #[serde(default = "sgd_lr")]
        lr: f64,
        /// Default 0.9.
        #[serde(default = "sgd_momentum")]
        momentum: f64,
        /// Default false.
        #[serde(default)]
        nesterov: bool,
        /// Default 0.
        #[serde(default)]
        weight_decay: f64,
    },
    /// `w -= lr decay w; w -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g`
    /// (arXiv:2302.06675, algorithm 2).
    Lion {
        /// Learning rate. Default 1e-4.
        #[serde(default = "lion_lr")]
        lr: f64,
        /// The average that is stepped along and the one that is kept. Default [0.9, 0.99].
        #[serde(default = "lion_betas")]
        betas: [f64; 2],
        /// Default coupled, 0.1.
        #[serde(default = "weight_decay", deserialize_with = "shorthand::number_kind_or_table")]
        weight_decay: WeightDecay,
    },
}

fn adam_lr() -> f64 {
    1e-3
}
fn adam_betas() -> [f64; 2] {
    [0.9, 0.95]
}
fn adam_eps() -> f64 {
    1e-8
}
fn weight_decay() -> WeightDecay {
    WeightDecay::Coupled { value: coupled() }
}
const fn coupled() -> f64 {
    0.1
}
const fn independent() -> f64 {
    1e-4
}

/// What a step of AdamW or Lion takes away from a weight, beside its update.
///
/// ```toml
/// weight_decay = 0.1
/// weight_decay = { kind = "independent", value = 1e-4 }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum WeightDecay {
    /// `lr value w`, lr the scheduled learning rate times the weight's factor, value times the weight's decay factor: under a
    /// parametrization that divides a learning rate by the width, decay is multiplied by it, so that what is taken away
    /// does not depend on the width (PyTorch's form, microsoft/mup 1.0.0's rule). A number alone stands for it.
    Coupled {
        /// Default 0.1.
        #[serde(default = "coupled")]
        value: f64,
    },
    /// `s(t) value w`, s(t) the schedule's factor: whatever the learning rate is (arXiv:1711.05101, algorithm 2; the form of
    /// u-muP, arXiv:2407.17465).
    Independent {
        /// Part of the weight that a step takes away at the peak of the schedule. Default 1e-4.
        #[serde(default = "independent")]
        value: f64,
    },
}

impl From<f64> for WeightDecay {
    fn from(value: f64) -> Self {
        Self::Coupled { value }
    }
}

impl WeightDecay {
    /// The number.
    pub fn value(self) -> f64 {
        match self {
            Self::Coupled { value } | Self::Independent { value } => value,
        }
    }
}
fn sgd_lr() -> f64 {
    0.1
}
fn sgd_momentum() -> f64 {
    0.9
}
fn lion_lr() -> f64 {
    1e-4
}
fn lion_betas() -> [f64; 2] {
    [0.9, 0.99]
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::Adamw { lr: adam_lr(), betas: adam_betas(), eps: adam_eps(), weight_decay: weight_decay() }
    }
}

impl OptimizerConfig {
    /// One value of each kind, with its defaults.
    pub fn all() -> Vec<Self> {
        vec![
            Self::default(),
            Self::Adam { lr: adam_lr(), betas: adam_betas(), eps: adam_eps(), weight_decay: 0.0 },
            Self::Sgd { lr: sgd_lr(), momentum: sgd_momentum(), nesterov: false, weight_decay: 0.0 },
            Self::Lion { lr: lion_lr(), betas: lion_betas(), weight_decay: weight_decay() },
        ]
    }

    /// Name, formula and source.
    pub fn about(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Adamw { .. } => {
                ("adamw", "w -= lr (decay w + m^ / (sqrt(v^) + eps))", "arXiv:1711.05101 algorithm 2")
            }
            Self::Adam { .. } => ("adam", "w -= lr m^ / (sqrt(v^) + eps), g += decay w", "arXiv:1412.6980 algorithm 1"),
            Self::Sgd { .. } => ("sgd", "b = momentum b + g + decay w; w -= lr b", "Sutskever et al. 2013"),
            Self::Lion { .. } => {
                ("lion", "w -= lr (decay w + sign(b1 m + (1 - b1) g))", "arXiv:2302.06675 algorithm 2")
            }
        }
    }

    /// The learning rate that schedule and factors multiply.
    pub fn lr(self) -> f64 {
        match self {
            Self::Adamw { lr, .. } | Self::Adam { lr, .. } | Self::Sgd { lr, .. } | Self::Lion { lr, .. } => lr,
        }
    }

    /// The weight decay. That of Adam and SGD, which is added to the gradient, is coupled.
    pub fn weight_decay(self) -> WeightDecay {
        match self {
            Self::Adamw { weight_decay, .. } | Self::Lion { weight_decay, .. } => weight_decay,
            Self::Adam { weight_decay, .. } | Self::Sgd { weight_decay, .. } => weight_decay.into(),
        }
    }

    /// The same without weight decay.
    #[must_use]
    pub fn without_decay(mut self) -> Self {
        match &mut self {
            Self::Adamw { weight_decay, .. } | Self::Lion { weight_decay, .. } => *weight_decay = 0.0.into(),
            Self::Adam { weight_decay, .. } | Self::Sgd { weight_decay, .. } => *weight_decay = 0.0,
        }
        self
    }

    /// Adam's eps; 0 for optimizers without one.
    pub fn eps(self) -> f64 {
        match self {
            Self::Adamw { eps, .. } | Self::Adam { eps, .. } => eps,
            Self::Sgd { .. } | Self::Lion { .. } => 0.0,
        }
    }

    /// The weight decay of one parameter, in the form in which a step takes away `lr decay w`: 0 for gains, biases and
    /// scalars.
    pub fn decay_of(self, entry: &ParamEntry) -> f64 {
        match self.weight_decay() {
            _ if !entry.role().is_matrix() => 0.0,
            WeightDecay::Coupled { value } => value * entry.factors.decay,
            WeightDecay::Independent { value } => value / (self.lr() * entry.factors.lr),
        }
    }

    /// Adam's eps of one parameter.
    pub fn eps_of(self, entry: &ParamEntry) -> f64 {
        self.eps() * entry.factors.eps
    }

    /// Whether it remembers two tensors of every parameter, or one.
    pub(crate) fn has_second(self) -> bool {
        match self {
            Self::Adamw { .. } | Self::Adam { .. } => true,
            Self::Sgd { .. } | Self::Lion { .. } => false,
        }
    }

    /// How the step depends on the gradient's size: what a parametrization has to know.
    pub fn update(self) -> Update {
        match self {
            Self::Adamw { .. } | Self::Adam { .. } | Self::Lion { .. } => Update::Normalized,
            Self::Sgd { .. } => Update::Proportional,
        }
    }

    /// What is wrong with the settings: the key and the problem.
    pub(crate) fn check(self) -> Result<(), (&'static str, String)> {
        let positive = |key, x: f64| match (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&x) {
            true => Ok(()),
            false => Err((key, format!("{x} must be a positive number that f32 can hold"))),
        };
        let fraction = |key, x: f64| match (0.0..1.0).contains(&x) {
            true => Ok(()),
            false => Err((key, format!("{x} must be from 0 up to, but without, 1"))),
        };
        positive("lr", self.lr())?;
        let decay = self.weight_decay();
        if !(0.0..=f64::from(f32::MAX)).contains(&decay.value()) {
            let problem = format!("{} must be 0 or a positive number that f32 can hold", decay.value());
            return Err(("weight_decay", problem));
        }
        if matches!(decay, WeightDecay::Independent { value } if value >= 1.0) {
            let problem =
                format!("{} must be below 1: it is the part of a weight that a step takes away", decay.value());
            return Err(("weight_decay.value", problem));
        }
        match self {
            Self::Adamw { betas, eps, .. } | Self::Adam { betas, eps, .. } => {
                betas.iter().try_for_each(|&beta| fraction("betas", beta))?;
                positive("eps", eps)
            }
            Self::Sgd { momentum, nesterov, .. } => {
                fraction("momentum", momentum)?;
                match nesterov && momentum == 0.0 {
                    true => Err(("nesterov", "true needs a momentum above 0".into())),
                    false => Ok(()),
                }
            }
            Self::Lion { betas, .. } => betas.iter().try_for_each(|&beta| fraction("betas", beta)),
        }
    }
}

/// An optimizer and what it remembers of every parameter.
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    /// Updates made.
    time: usize,
    /// One for each parameter that has had a gradient, in the order of the table, flattened.
    state: Vec<Option<State>>,
}

/// What is remembered of one parameter.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// Average of the gradient, or momentum.
    pub(crate) first: Tensor<1>,
    /// Adam's average of the squared gradient.
    pub(crate) second: Option<Tensor<1>>,
}

/// The settings of one parameter at one step.
#[derive(Clone, Copy, Debug)]
struct Rates {
    lr: f64,
    decay: f64,
    eps: f64,
}

impl Optimizer {
    /// An optimizer that remembers nothing, for the parameters of `table`.
    pub fn new(config: OptimizerConfig, table: &ParamTable) -> Self {
        Self { config, time: 0, state: vec![None; table.entries().len()] }
    }

    /// Its settings.
    pub fn config(&self) -> OptimizerConfig {
        self.config
    }

    /// Number of updates made.
    pub fn time(&self) -> usize {
        self.time
    }

    pub(crate) fn state(&self) -> &[Option<State>] {
        &self.state
    }

    pub(crate) fn restore(&mut self, time: usize, state: Vec<Option<State>>) {
        (self.time, self.state) = (time, state);
    }

    /// One update. `lr` is the scheduled learning rate, which the factors of each weight multiply. A
    /// parameter without a gradient stays.
    pub fn step<M: Module>(&mut self, model: M, table: &ParamTable, gradients: Gradients, lr: f64) -> M {
        self.time += 1;
        let factor = gradients.factor();
        // Read where that waits for nothing.
        #[cfg(feature = "flex")]
        let host_factor = match factor.clone().map(Tensor::try_into_primitive::<burn::backend::Flex>) {
            Some(Ok(factor)) => unitgain_kernels::slice(&unitgain_kernels::contiguous(factor))[0],
            Some(Err(_)) | None => 1.0,
        };
        model.map(&mut Pass {
            optimizer: self,
            table,
            gradients,
            lr,
            index: 0,
            factor,
            #[cfg(feature = "flex")]
            host_factor,
        })
    }
}

impl OptimizerConfig {
    /// The update as one operation, for the kinds that have one.
    #[cfg(feature = "flex")]
    fn fused(self, time: usize, r: Rates) -> Option<crate::fused::Adam> {
        let time = i32::try_from(time).unwrap_or(i32::MAX);
        let (betas, decay, l2) = match self {
            Self::Adamw { betas, .. } => (betas, r.decay, 0.0),
            Self::Adam { betas, .. } => (betas, 0.0, r.decay),
            Self::Sgd { .. } | Self::Lion { .. } => return None,
        };
        Some(crate::fused::Adam { betas, lr: r.lr, decay, l2, eps: r.eps, time })
    }

    /// The rule itself, for the update `time` (from 1) of one flat tensor.
    fn apply(self, time: usize, state: Option<State>, w: Tensor<1>, g: Tensor<1>, r: Rates) -> (Tensor<1>, State) {
        match self {
            OptimizerConfig::Adamw { betas, .. } => {
                let w = decayed(w, r.lr * r.decay);
                adam(time, state, w, g, betas, r)
            }
            OptimizerConfig::Adam { betas, .. } => {
                let g = with_l2(g, &w, r.decay);
                adam(time, state, w, g, betas, r)
            }
            OptimizerConfig::Sgd { momentum, nesterov, .. } => {
                let g = with_l2(g, &w, r.decay);
                let b = match state {
                    Some(state) => state.first * momentum + g.clone(),
                    None => g.clone(),
                };
                let direction = if nesterov { g + b.clone() * momentum } else { b.clone() };
                (w - direction * r.lr, State { first: b, second: None })
            }
            OptimizerConfig::Lion { betas: [b1, b2], .. } => {
                let m = state.map_or_else(|| g.zeros_like(), |state| state.first);
                let direction = (m.clone() * b1 + g.clone() * (1.0 - b1)).sign();
                let w = decayed(w, r.lr * r.decay) - direction * r.lr;
                (w, State { first: m * b2 + g * (1.0 - b2), second: None })
            }
        }
    }
}

/// Adam's part that decoupled and added decay share.
fn adam(
    time: usize,
    state: Option<State>,
    w: Tensor<1>,
    g: Tensor<1>,
    betas: [f64; 2],
    r: Rates,
) -> (Tensor<1>, State) {
    let [b1, b2] = betas;
    let (first, second) = match state {
        Some(State { first, second: Some(second) }) => {
            (first * b1 + g.clone() * (1.0 - b1), second * b2 + g.square() * (1.0 - b2))
        }
        Some(State { second: None, .. }) | None => (g.clone() * (1.0 - b1), g.square() * (1.0 - b2)),
    };
    let t = i32::try_from(time).unwrap_or(i32::MAX);
    let (c1, c2) = (1.0 - b1.powi(t), 1.0 - b2.powi(t));
    let denominator = (second.clone() / c2).sqrt() + r.eps;
    let w = w - first.clone() / denominator * (r.lr / c1);
    (w, State { first, second: Some(second) })
}

/// The rule of an optimizer on a single flat tensor, outside of a model.
#[derive(Clone, Debug)]
pub struct Rule {
    config: OptimizerConfig,
    time: usize,
    state: Option<State>,
}

impl Rule {
    /// A rule that remembers nothing.
    pub fn new(config: OptimizerConfig) -> Self {
        Self { config, time: 0, state: None }
    }

    /// One update of `w` by `g` at the learning rate, weight decay and eps given, which take the place of
    /// those of the configuration.
    pub fn step(&mut self, w: Tensor<1>, g: Tensor<1>, lr: f64, decay: f64, eps: f64) -> Tensor<1> {
        self.time += 1;
        let (w, state) = self.config.apply(self.time, self.state.take(), w, g, Rates { lr, decay, eps });
        self.state = Some(state);
        w
    }
}

/// `w - rate w`.
fn decayed(w: Tensor<1>, rate: f64) -> Tensor<1> {
    if rate == 0.0 { w } else { w * (1.0 - rate) }
}

/// `g + decay w`.
fn with_l2(g: Tensor<1>, w: &Tensor<1>, decay: f64) -> Tensor<1> {
    if decay == 0.0 { g } else { g + w.clone() * decay }
}

struct Pass<'a> {
    optimizer: &'a mut Optimizer,
    table: &'a ParamTable,
    gradients: Gradients,
    lr: f64,
    index: usize,
    /// What gradients are still to be multiplied by.
    factor: Option<Tensor<1>>,
    /// The same, on the host.
    #[cfg(feature = "flex")]
    host_factor: f32,
}

impl Pass<'_> {
    /// The rule of the optimizer, on a gradient that still waits for its factor.
    fn update(&self, state: Option<State>, w: Tensor<1>, g: Tensor<1>, rates: Rates) -> (Tensor<1>, State) {
        let (config, time) = (self.optimizer.config, self.optimizer.time);
        #[cfg(feature = "flex")]
        if let (Some(adam), true) = (config.fused(time, rates), crate::fused::takes(&g, state.as_ref())) {
            return crate::fused::adam(adam, w, g, self.host_factor, state);
        }
        let g = match &self.factor {
            Some(factor) => g * factor.clone(),
            None => g,
        };
        config.apply(time, state, w, g, rates)
    }
}

impl ModuleMapper for Pass<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.index;
        self.index += 1;
        let Some(gradient) = self.gradients.take(index) else { return param };
        let entry = &self.table.entries()[index];
        let config = self.optimizer.config;
        let rates = Rates { lr: self.lr * entry.factors.lr, decay: config.decay_of(entry), eps: config.eps_of(entry) };
        let (id, tensor, mapper) = param.consume();
        let shape = tensor.shape();
        let n = shape.num_elements();
        let state = self.optimizer.state[index].take();
        let (w, state) = self.update(state, tensor.inner().reshape([n]), gradient, rates);
        self.optimizer.state[index] = Some(state);
        let tensor = Tensor::from_inner(w.reshape(shape)).require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}
