//! Data-driven init: before step 0 the drawn weights are adjusted to measurements on batches of the run's data.
//!
//! Weights are only rescaled, and biases shifted. The batches are those of step 0, which training does not use.

mod gradients;
mod layers;

use crate::{Batch, Error, Gradients, RunConfig, Task, Trainer, loss};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use unitgain_model::weights::Tensors;
use unitgain_model::{About, Fault, Parametrization, Placement, Plan, Transformer, Variant, WeightNormConfig, weights};
use unitgain_variant::{from_one, positive_factor, proper_fraction, require};

pub use gradients::{Objective, grad_init_slopes, gradient_norm, gradient_quotient};
pub use layers::paths;
pub use layers::{admin_omegas, between, centred, lsuv_factor};

/// A data-driven adjustment of the weights before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Calibrate {
    /// LSUV (arXiv:1511.06422): in the order of execution each linear weight is divided by the standard deviation of
    /// its output until the variance is 1. The paper starts from `init = "orthogonal"`. A layer with zero output is
    /// left alone. Cost: one forward pass, and one to check.
    Lsuv {
        /// Tolerance of the variance around 1. Default 0.1, as in the paper.
        #[serde(default = "default_tolerance")]
        tolerance: f64,
        /// Maximum number of passes. Default 10.
        #[serde(default = "default_passes")]
        passes: usize,
    },
    /// Data-dependent init (arXiv:1511.06856): in the order of execution, each output of a linear layer gets mean 0 and
    /// variance 1 over the batch through its column of the weight and its bias. Then the two weights of a pair whose
    /// factors r and 1/r cancel (query and key, value and output, up and down around ReLU or a gate) get the same ratio
    /// of gradient to weight. Needs `bias = true`. Cost: a forward pass, and a backward pass for the second stage.
    DataDependent {
        /// Whether to run the second stage. Default true.
        #[serde(default = "yes")]
        between: bool,
    },
    /// Admin's profiling (arXiv:2004.08249, section 4.2): `omega_i = sqrt(Var x_0 + sum_(j<i) Var f_j)` from one forward
    /// pass with omega = 1. Needs `placement = "admin"`.
    Admin {},
    /// MetaInit (Dauphin and Schoenholz 2019): the norms of the matrices descend the gradient quotient, the mean of `|H
    /// g / g|`, by the sign of its derivative. burn has first derivatives only: H g is a central difference of two
    /// gradients with fixed ReLU sides, and each derivative a difference of two quotients. A step costs 3 (matrices +
    /// 1) gradients.
    MetaInit {
        /// Number of steps. Default 20; the paper has 500, which cost 2 second-order gradients each.
        #[serde(default = "default_meta_steps")]
        steps: usize,
        /// Learning rate of the norms, relative to the initial ones. Default 0.02.
        #[serde(default = "default_meta_lr")]
        lr: f64,
        /// Momentum. Default 0.9.
        #[serde(default = "default_momentum")]
        momentum: f64,
    },
    /// GradInit (arXiv:2102.08098): Adam on one factor per matrix. While the gradient norm exceeds `gamma` the factors
    /// descend that norm, and otherwise the loss after one step of the optimizer, on a batch of which half is new. The
    /// derivatives are the paper's, with `H v` a central difference of two gradients: a step costs up to 6 gradients of
    /// a batch.
    GradInit {
        /// Number of steps. Default 100; the paper has 390.
        #[serde(default = "default_grad_steps")]
        steps: usize,
        /// Learning rate of the factors. Default 0.01.
        #[serde(default = "default_grad_lr")]
        lr: f64,
        /// Maximum gradient norm: the 1-norm for optimizers that step along the sign of the gradient (Adam, Lion), the
        /// 2-norm for SGD. Default 1 for SGD; otherwise 1 per 1000 matrix elements, because the 1-norm grows with their
        /// number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gamma: Option<f64>,
        /// Learning rate of that optimizer step. Default `optimizer.lr`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        eta: Option<f64>,
    },
}

const fn default_tolerance() -> f64 {
    0.1
}
const fn default_passes() -> usize {
    10
}
const fn yes() -> bool {
    true
}
const fn default_meta_steps() -> usize {
    20
}
const fn default_meta_lr() -> f64 {
    0.02
}
const fn default_momentum() -> f64 {
    0.9
}
const fn default_grad_steps() -> usize {
    100
}
const fn default_grad_lr() -> f64 {
    0.01
}

/// A quantity that a calibration changes, before and after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Its name, e.g. `variance of the output of blocks.0.mlp.up.weight`, `gradient quotient`.
    pub what: String,
    /// Value before.
    pub before: f64,
    /// Value after.
    pub after: f64,
}

impl Variant for Calibrate {
    fn about(&self) -> About {
        About::of(match self {
            Self::Lsuv { .. } => ("lsuv", "W / sqrt(Var(W x)), layer by layer", "arXiv:1511.06422"),
            Self::DataDependent { .. } => (
                "data_dependent",
                "W_c / sigma_c, (b_c - mu_c) / sigma_c; pairs to equal |g| / |W|",
                "arXiv:1511.06856",
            ),
            Self::Admin {} => ("admin", "omega_i = sqrt(Var x_0 + sum_(j<i) Var f_j)", "arXiv:2004.08249 section 4.2"),
            Self::MetaInit { .. } => {
                ("meta_init", "lengths of matrices down the slope of mean |H g / g|", "Dauphin and Schoenholz 2019")
            }
            Self::GradInit { .. } => {
                ("grad_init", "factors of matrices down the slope of the loss after a step", "arXiv:2102.08098")
            }
        })
    }

    fn check(&self) -> Result<(), Fault> {
        let some = |key: &str, n: usize| from_one(key, n, 1_000_000);
        match *self {
            Self::Lsuv { tolerance, passes } => positive_factor("tolerance", tolerance).and(some("passes", passes)),
            Self::DataDependent { .. } | Self::Admin {} => Ok(()),
            Self::MetaInit { steps, lr, momentum } => {
                proper_fraction("momentum", momentum).and(some("steps", steps)).and(positive_factor("lr", lr))
            }
            Self::GradInit { steps, lr, gamma, eta } => some("steps", steps)
                .and(positive_factor("lr", lr))
                .and(gamma.map_or(Ok(()), |x| positive_factor("gamma", x)))
                .and(eta.map_or(Ok(()), |x| positive_factor("eta", x))),
        }
    }
}

impl Calibrate {
    /// Checks that this kind can calibrate the model.
    pub(crate) fn check_model(self, plan: &Plan, tokens: usize) -> Result<(), Fault> {
        let fits = |holds, problem: &str| require(holds, "kind", format!("{:?}", self.about().name), problem);
        if self == (Self::Admin {}) {
            let is_admin = plan.branches().all(|branch| matches!(branch.written, Placement::Admin { .. }));
            return fits(is_admin, "sets the omega of model.placement = \"admin\"; set that");
        }
        let problem = "rescales weights, whose size weight_norm divides out or learns; set weight_norm = \"none\"";
        fits(plan.weight_norm == (WeightNormConfig::None {}), problem)?;
        let problem = "sets the sizes of weights by the data at every width, while model.parametrization sets those \
                       that transfer; set parametrization = \"standard\"";
        fits(plan.parametrization == (Parametrization::Standard {}), problem)?;
        if matches!(self, Self::DataDependent { .. }) {
            let has_biases = plan.blocks.iter().all(|block| {
                let attention = &block.attention;
                block.mlp.bias && attention.bias && attention.qkv_bias
            });
            fits(has_biases, "sets biases; set model.bias = true, and leave attention_bias and qkv_bias out")?;
            fits(tokens > 1, "needs more than one token in a batch, to have a variance")?;
        }
        Ok(())
    }
}

/// Calibrates a trainer as `config.init.calibrate` asks, or returns it unchanged. `progress` gets the steps done and
/// their total.
///
/// # Errors
/// [`Error::Value`] if a measurement is not finite.
pub fn calibrate(
    trainer: Trainer,
    config: &RunConfig,
    task: &Task,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Trainer, Vec<Measured>), Error> {
    let Some(kind) = config.init.calibrate else { return Ok((trainer, Vec::new())) };
    let batch = |i: usize| {
        let rows = config.train.batch_size;
        task.batch(config.seed, 0, i * rows..(i + 1) * rows)
    };
    // Two gradients would differ by their dropout masks.
    let dropout = config.model.dropout;
    let trainer = trainer.with_dropout(0.0);
    let mut work = Work { trainer, plan: config.plan()?, config, progress, batch: &batch };
    let measured = match kind {
        Calibrate::Lsuv { tolerance, passes } => work.lsuv(tolerance, passes),
        Calibrate::DataDependent { between } => work.data_dependent(between),
        Calibrate::Admin {} => work.admin(),
        Calibrate::MetaInit { steps, lr, momentum } => work.meta_init(steps, lr, momentum),
        Calibrate::GradInit { steps, lr, gamma, eta } => work.grad_init(steps, lr, gamma, eta),
    };
    let trainer = work.trainer.with_dropout(dropout);
    for Measured { what, before, after } in &measured {
        tracing::debug!("{}: {what} from {before} to {after}", kind.about().name);
    }
    match measured.iter().find(|m| !(m.before.is_finite() && m.after.is_finite())) {
        Some(bad) => {
            let problem = format!(
                "changed {} from {} to {}; the drawn weights are too large or too small to measure, use another \
                 model.init",
                bad.what, bad.before, bad.after
            );
            Err(Error::value("init.calibrate", format!("{:?}", kind.about().name), problem))
        }
        None => Ok((trainer, measured)),
    }
}

/// The state of a calibration.
struct Work<'a> {
    trainer: Trainer,
    plan: Plan,
    config: &'a RunConfig,
    progress: &'a mut dyn FnMut(usize, usize),
    batch: &'a dyn Fn(usize) -> Batch,
}

impl Work<'_> {
    fn device(&self) -> Device {
        self.trainer.device().clone()
    }

    /// Multiplies weights by factors, given by path.
    fn rescale(&mut self, factors: &HashMap<String, f64>) {
        self.change(|path, values| {
            if let Some(factor) = factors.get(path) {
                values.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
            }
        });
    }

    /// Changes the values of weights.
    fn change(&mut self, mut f: impl FnMut(&str, &mut Vec<f32>)) {
        let values = weights::of(&self.trainer.model)
            .into_iter()
            .map(|(path, shape, mut values)| {
                f(&path, &mut values);
                (path, (shape, values))
            })
            .collect();
        self.set(&values);
    }

    fn set(&mut self, values: &Tensors) {
        match weights::assign(self.trainer.model.clone(), values) {
            Ok(model) => self.trainer.model = model,
            Err(problem) => unreachable!("the model's own weights: {problem}"),
        }
    }

    /// Loss and gradients of a model on a batch.
    fn gradients(&self, model: &Transformer, batch: &Batch) -> (f64, Gradients) {
        let loss = loss(model, batch, self.trainer.device(), &());
        let gradients = Gradients::backward(&loss, model);
        (f64::from(loss.into_scalar::<f32>()), gradients)
    }
}
