//! Optimizers: one [`Rule`] per file, and one walk over the weights in the order of the [`ParamTable`].
//!
//! burn's own optimizers have one learning rate, weight decay and eps per group; here each weight has its own rule and
//! factors from the table.

mod adam;
mod decay;
mod lion;
mod rule;
mod sgd;

use crate::Gradients;
#[cfg(feature = "flex")]
use crate::step::fused;
use burn::module::{Module, ModuleMapper, Param, ParamMapper};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::sync::Arc;
use unitgain_model::{About, Fault, ParamEntry, ParamTable, Role, Update, Variant};
use unitgain_variant::{proper_fraction, require, shorthand};

pub use adam::Adam;
pub use decay::WeightDecay;
pub use lion::Lion;
pub use rule::{Gradient, Moved, Rates, Rule, Weight, decayed, with_decay};
pub use sgd::Sgd;

/// The optimizer and its settings. Weight decay applies to matrices only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Adam with decoupled decay: `w -= lr decay w`, then `w -= lr m^ / (sqrt(v^) + eps)`
    /// (arXiv:1711.05101, algorithm 2).
    Adamw {
        /// Learning rate. Default 1e-3.
        #[serde(default = "adam::lr")]
        lr: f64,
        /// Decay rates of the averages of the gradient and of its square. Default [0.9, 0.95].
        #[serde(default = "adam::betas")]
        betas: [f64; 2],
        /// Added outside the root, after bias correction. Default 1e-8.
        #[serde(default = "adam::eps")]
        eps: f64,
        /// Weight decay. Default coupled, 0.1.
        #[serde(default = "WeightDecay::default", deserialize_with = "shorthand::number_kind_or_table")]
        weight_decay: WeightDecay,
    },
    /// Adam; the decay is added to the gradient as `decay w` (arXiv:1412.6980, algorithm 1).
    Adam {
        /// Learning rate. Default 1e-3.
        #[serde(default = "adam::lr")]
        lr: f64,
        /// Decay rates of the averages of the gradient and of its square. Default [0.9, 0.95].
        #[serde(default = "adam::betas")]
        betas: [f64; 2],
        /// Added outside the root, after bias correction. Default 1e-8.
        #[serde(default = "adam::eps")]
        eps: f64,
        /// Weight decay. Default 0.
        #[serde(default)]
        weight_decay: f64,
    },
    /// `b = momentum b + g; w -= lr b`, with the decay added to g; with Nesterov, `w -= lr (g + momentum b)`.
    Sgd {
        /// Learning rate. Default 0.1.
        #[serde(default = "sgd::lr")]
        lr: f64,
        /// Momentum. Default 0.9.
        #[serde(default = "sgd::momentum")]
        momentum: f64,
        /// Whether to use Nesterov momentum. Default false.
        #[serde(default)]
        nesterov: bool,
        /// Weight decay. Default 0.
        #[serde(default)]
        weight_decay: f64,
    },
    /// `w -= lr decay w; w -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g`
    /// (arXiv:2302.06675, algorithm 2).
    Lion {
        /// Learning rate. Default 1e-4.
        #[serde(default = "lion::lr")]
        lr: f64,
        /// b1 for the average in the step, and b2 for the stored one. Default [0.9, 0.99].
        #[serde(default = "lion::betas")]
        betas: [f64; 2],
        /// Weight decay. Default coupled, 0.1.
        #[serde(default = "WeightDecay::default", deserialize_with = "shorthand::number_kind_or_table")]
        weight_decay: WeightDecay,
    },
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::Adamw { lr: adam::lr(), betas: adam::betas(), eps: adam::eps(), weight_decay: WeightDecay::default() }
    }
}

impl Variant for OptimizerConfig {
    fn about(&self) -> About {
        About::of(match self {
            Self::Adamw { .. } => {
                ("adamw", "w -= lr (decay w + m^ / (sqrt(v^) + eps))", "arXiv:1711.05101 algorithm 2")
            }
            Self::Adam { .. } => ("adam", "w -= lr m^ / (sqrt(v^) + eps), g += decay w", "arXiv:1412.6980 algorithm 1"),
            Self::Sgd { .. } => ("sgd", "b = momentum b + g + decay w; w -= lr b", "Sutskever et al. 2013"),
            Self::Lion { .. } => {
                ("lion", "w -= lr (decay w + sign(b1 m + (1 - b1) g))", "arXiv:2302.06675 algorithm 2")
            }
        })
    }

    fn check(&self) -> Result<(), Fault> {
        let is_held = |x: f64| (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&x);
        let positive = |key: &str, x: f64| require(is_held(x), key, x, "must be a positive number that f32 can hold");
        let averages = |betas: &[f64; 2]| betas.iter().try_for_each(|&beta| proper_fraction("betas", beta));
        positive("lr", self.lr())?;
        let decay = self.weight_decay();
        let problem = "must be 0 or a positive number that f32 can hold";
        require((0.0..=f64::from(f32::MAX)).contains(&decay.value()), "weight_decay", decay.value(), problem)?;
        let is_part = matches!(decay, WeightDecay::Coupled { .. }) || decay.value() < 1.0;
        let problem = "must be below 1: it is the fraction of a weight that a step removes";
        require(is_part, "weight_decay.value", decay.value(), problem)?;
        match self {
            Self::Adamw { betas, eps, .. } | Self::Adam { betas, eps, .. } => {
                averages(betas).and(positive("eps", *eps))
            }
            Self::Sgd { momentum, nesterov, .. } => {
                proper_fraction("momentum", *momentum)?;
                require(!nesterov || *momentum > 0.0, "nesterov", true, "needs a momentum above 0")
            }
            Self::Lion { betas, .. } => averages(betas),
        }
    }
}

impl OptimizerConfig {
    /// The learning rate, before schedule and factors.
    pub fn lr(self) -> f64 {
        match self {
            Self::Adamw { lr, .. } | Self::Adam { lr, .. } | Self::Sgd { lr, .. } | Self::Lion { lr, .. } => lr,
        }
    }

    /// The weight decay. Adam and SGD add it to the gradient; it is coupled.
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

    /// The weight decay of one weight, as the coefficient in `lr decay w`; 0 for gains, biases and scalars.
    pub fn decay_of(self, entry: &ParamEntry) -> f64 {
        match self.weight_decay() {
            _ if !entry.role().is_matrix() => 0.0,
            WeightDecay::Coupled { value } => value * entry.factors.decay,
            WeightDecay::Independent { value } => value / (self.lr() * entry.factors.lr),
        }
    }

    /// Adam's eps for one weight.
    pub fn eps_of(self, entry: &ParamEntry) -> f64 {
        self.eps() * entry.factors.eps
    }

    /// Maximum number of state tensors per weight.
    pub(crate) fn most_states(self) -> usize {
        Role::ALL.iter().map(|role| self.rule(*role).states().len()).max().unwrap_or(0)
    }

    /// How the update of a hidden matrix depends on the size of its gradient.
    pub fn update(self) -> Update {
        self.rule(Role::MlpIn).update()
    }

    /// The update rule of weights with this role.
    pub fn rule(self, _: Role) -> Arc<dyn Rule> {
        match self {
            Self::Adamw { betas, .. } => Arc::new(Adam { betas, is_decoupled: true }),
            Self::Adam { betas, .. } => Arc::new(Adam { betas, is_decoupled: false }),
            Self::Sgd { momentum, nesterov, .. } => Arc::new(Sgd { momentum, nesterov }),
            Self::Lion { betas, .. } => Arc::new(Lion { betas }),
        }
    }
}

/// An optimizer and its state.
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    /// Number of updates done.
    time: usize,
    /// The rule of each weight, in the order of the table.
    rules: Vec<Arc<dyn Rule>>,
    /// State of each weight, in the order of its [`Rule::states`]; empty before its first gradient.
    states: Vec<Vec<Tensor<1>>>,
}

impl Optimizer {
    /// An optimizer without state for the weights of `table`. Also returns the table with the factors for its rules.
    pub fn new(config: OptimizerConfig, table: ParamTable) -> (Self, ParamTable) {
        Self::with_rules(config, table, |entry| config.rule(entry.role()))
    }

    /// As [`Optimizer::new`], with the rule that `of` gives for each weight; `config` has the learning rate, weight decay and
    /// eps.
    pub fn with_rules(
        config: OptimizerConfig,
        table: ParamTable,
        of: impl Fn(&ParamEntry) -> Arc<dyn Rule>,
    ) -> (Self, ParamTable) {
        let rules: Vec<_> = table.iter().map(&of).collect();
        let states = vec![Vec::new(); rules.len()];
        (Self { config, time: 0, rules, states }, table.for_updates(|entry| of(entry).update()))
    }

    /// The settings.
    pub fn config(&self) -> OptimizerConfig {
        self.config
    }

    /// Number of updates done.
    pub fn time(&self) -> usize {
        self.time
    }

    /// Names and tensors of each weight's state, in the order of the table.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&'static [&'static str], &[Tensor<1>])> {
        self.rules.iter().map(|rule| rule.states()).zip(self.states.iter().map(Vec::as_slice))
    }

    pub(crate) fn restore(&mut self, time: usize, states: Vec<Vec<Tensor<1>>>) {
        (self.time, self.states) = (time, states);
    }

    /// One update at the scheduled learning rate `lr`, which each weight's factors multiply. A weight without a
    /// gradient is unchanged.
    pub fn step<M: Module>(&mut self, model: M, table: &ParamTable, mut gradients: Gradients, lr: f64) -> M {
        self.time += 1;
        let factor = gradients.factor();
        // On the CPU backend the factor can be read without waiting.
        #[cfg(feature = "flex")]
        let on_host = match factor.clone().map(Tensor::try_into_primitive::<burn::backend::Flex>) {
            Some(Ok(factor)) => unitgain_kernels::slice(&unitgain_kernels::contiguous(factor))[0],
            Some(Err(_)) | None => 1.0,
        };
        #[cfg(not(feature = "flex"))]
        let on_host = 1.0;
        let count = table.entries().len();
        let gradients: Vec<Option<Tensor<1>>> = (0..count).map(|index| gradients.take(index)).collect();
        let mut take =
            Take { is_moved: gradients.iter().map(Option::is_some).collect(), values: Vec::new(), rest: Vec::new() };
        let model = model.map(&mut take);
        let Take { values, rest, .. } = take;
        let states: Vec<_> = self.states.iter_mut().map(std::mem::take).collect();
        let moved = |(index, ((values, gradient), states)): Work| -> Done {
            let (Some(values), Some(gradient)) = (values, gradient) else { return (None, states) };
            let (entry, rule) = (&table.entries()[index], &self.rules[index]);
            debug_assert_eq!(entry.update, rule.update(), "{}: the factors of another rule", entry.path);
            let (decay, eps) = (self.config.decay_of(entry), self.config.eps_of(entry));
            let rates = Rates { lr: lr * entry.factors.lr, decay, eps };
            let (shape, spec) = (&entry.shape, &entry.spec);
            let weight = Weight { values, shape, spec, time: self.time, rates, states };
            let Moved { values, states } = rule.step(weight, Gradient::new(gradient, factor.clone(), on_host));
            (Some(values), states)
        };
        let moved = on_all(values.into_iter().zip(gradients).zip(states).enumerate().collect(), moved);
        let (values, states): (Vec<_>, Vec<_>) = moved.into_iter().unzip();
        self.states = states;
        model.map(&mut Put { values: values.into_iter(), rest: rest.into_iter() })
    }
}

/// What moves a weight: its number, values, gradient and states.
type Work = (usize, ((Option<Tensor<1>>, Option<Tensor<1>>), Vec<Tensor<1>>));
/// What is left of it: its values and states.
type Done = (Option<Tensor<1>>, Vec<Tensor<1>>);

/// The updates of all weights: on the CPU backend divided among the threads, elsewhere in order.
fn on_all(work: Vec<Work>, step: impl Fn(Work) -> Done + Sync + Send) -> Vec<Done> {
    #[cfg(feature = "flex")]
    {
        let values = || work.iter().filter_map(|(_, ((values, _), _))| values.as_ref());
        if fused::are_on_host(values()) {
            return fused::on_each(values().map(|values| values.dims()[0]).sum(), work, step);
        }
    }
    work.into_iter().map(step).collect()
}

/// Takes the values of the weights that move out of a model, flattened, so that their buffers can be reused.
struct Take {
    is_moved: Vec<bool>,
    values: Vec<Option<Tensor<1>>>,
    /// The rest of each moved parameter, of its own type.
    rest: Vec<Box<dyn Any>>,
}

impl ModuleMapper for Take {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.is_moved[self.values.len()] {
            self.values.push(None);
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let (device, shape) = (tensor.device(), tensor.shape());
        self.values.push(Some(tensor.inner().reshape([shape.num_elements()])));
        self.rest.push(Box::new(mapper));
        let none = |_: &Device, _| -> Tensor<D> { unreachable!("the weight is put back before anything reads it") };
        Param::uninitialized(id, none, device, false, shape)
    }
}

/// Puts the values of the weights that moved back into the model.
struct Put<V, R> {
    values: V,
    rest: R,
}

impl<V: Iterator<Item = Option<Tensor<1>>>, R: Iterator<Item = Box<dyn Any>>> ModuleMapper for Put<V, R> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.values.next().flatten() else { return param };
        let mapper = self.rest.next().and_then(|rest| rest.downcast::<ParamMapper<Tensor<D>>>().ok());
        let mapper = mapper.unwrap_or_else(|| unreachable!("both walks meet the same parameters"));
        let tensor = Tensor::from_inner(values.reshape(param.lazy_shape())).require_grad();
        Param::from_mapped_value(param.id, tensor, *mapper)
    }
}
