use crate::{About, SCALE, scaled_eps, widened};
use burn::module::{Module, ModuleVisitor, Param, ParamId, RunningState};
use burn::tensor::{Device, Tensor};

pub(crate) const ABOUT: About = About::of((
    "batch_norm",
    "gamma * (x - mean) / sqrt(var + eps) + beta, of a channel over all rows of the batch; running averages in evaluation",
    "arXiv:1502.03167 algorithm 1",
));

pub(crate) fn default_eps() -> f64 {
    1e-5
}

pub(crate) fn default_momentum() -> f64 {
    0.1
}

/// A training batch of a single row, whose variance is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("batch_norm cannot train on a single row: its variance is 0; use a larger batch")]
pub struct SingleRow;

/// BatchNorm (arXiv:1502.03167, algorithm 1): normalizes every channel over all rows of the batch, across sequences and
/// time. On an autodiff device it uses the statistics of the batch and updates the running averages,
/// `(1 - momentum) old + momentum new`, with the unbiased variance. On a plain device it uses the running averages, so that
/// rows are independent.
#[derive(Module, Debug)]
pub struct BatchNorm {
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
    running_mean: RunningState<Tensor<1>>,
    running_var: RunningState<Tensor<1>>,
    eps: f64,
    momentum: f64,
}

/// Differentiable statistics of each channel over a set of rows.
///
/// [Merged](Moments::merge) over micro-batches or replicas, they equal the statistics of all rows, forward and backward:
/// this synchronizes a batch that no single device holds.
#[derive(Clone, Debug)]
pub struct Moments {
    rows: usize,
    /// Mean of the rows times [`SCALE`]. `rest` and `deviations` are scaled too.
    mean: Tensor<1>,
    /// Rounding error of the mean.
    rest: Tensor<1>,
    /// Sum of the squared deviations from the mean.
    deviations: Tensor<1>,
}

impl Moments {
    /// The moments of `x`, `[rows, width]`.
    pub fn of(x: &Tensor<2>) -> Self {
        let x = x.clone().cast(burn::tensor::FloatDType::F32) * SCALE;
        let mean = x.clone().mean_dim(0);
        let left = x.clone() - mean.clone();
        // It is 0 but for rounding, so no gradient flows through it.
        let rest = left.clone().detach().mean_dim(0);
        let deviations = (left - rest.clone()).square().sum_dim(0);
        let [mean, rest, deviations] = [mean, rest, deviations].map(|x| x.squeeze_dim(0));
        Self { rows: x.dims()[0], mean, rest, deviations }
    }

    /// The moments of the union of all rows.
    ///
    /// # Panics
    /// If `all` is empty.
    pub fn merge(all: &[Self]) -> Self {
        let rows: usize = all.iter().map(|m| m.rows).sum();
        let sum = |f: &dyn Fn(&Self) -> Tensor<1>| {
            all.iter().map(f).reduce(|a, b| a + b).expect("moments of at least one batch")
        };
        // Relative to the first mean: a sum of large means would lose their differences.
        let from_first = |m: &Self| m.mean.clone() - all[0].mean.clone() + m.rest.clone();
        let rest = sum(&|m| from_first(m) * (m.rows as f64 / rows as f64));
        let between = |m: &Self| (from_first(m) - rest.clone()).square() * m.rows as f64;
        let deviations = sum(&|m| m.deviations.clone() + between(m));
        Self { rows, mean: all[0].mean.clone(), rest, deviations }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

impl BatchNorm {
    /// `gamma` = 1 and `beta` = 0, running mean 0 and variance 1, all of shape `[width]`.
    pub fn new(width: usize, eps: f64, momentum: f64, device: &Device) -> Self {
        Self {
            gamma: Param::from_tensor(Tensor::ones([width], device)),
            beta: Param::from_tensor(Tensor::zeros([width], device)),
            running_mean: RunningState::new(Tensor::zeros([width], device)),
            running_var: RunningState::new(Tensor::ones([width], device)),
            eps,
            momentum,
        }
    }

    pub(crate) fn gain(&mut self) -> &mut Param<Tensor<1>> {
        &mut self.gamma
    }

    /// `gamma * (x - mean) / sqrt(var + eps) + beta`; all axes but the last are rows.
    ///
    /// # Panics
    /// If there is one row and the device is an autodiff device.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let shape = x.dims();
        let rows = x.reshape([shape[..D - 1].iter().product(), shape[D - 1]]);
        self.try_forward(rows).unwrap_or_else(|e| panic!("{e}")).reshape(shape)
    }

    /// [`BatchNorm::forward`] of `[rows, width]`.
    ///
    /// # Errors
    /// [`SingleRow`] if there is one row and the device is an autodiff device; the running averages are then unchanged.
    pub fn try_forward(&self, x: Tensor<2>) -> Result<Tensor<2>, SingleRow> {
        if !x.device().is_autodiff() {
            return Ok(self.evaluate(x));
        }
        let moments = Moments::of(&x);
        self.track(&moments)?;
        Ok(self.forward_with(x, &moments))
    }

    /// Normalizes rows by the running averages, on any device.
    pub fn evaluate(&self, x: Tensor<2>) -> Tensor<2> {
        let (mean, var) = self.running();
        let rest = mean.zeros_like();
        self.normalized(x, [mean * SCALE, rest], var * SCALE * SCALE)
    }

    /// Normalizes rows by the statistics of a batch that they are part of.
    pub fn forward_with(&self, x: Tensor<2>, batch: &Moments) -> Tensor<2> {
        let var = batch.deviations.clone() / batch.rows as f64;
        self.normalized(x, [batch.mean.clone(), batch.rest.clone()], var)
    }

    /// Updates the running averages with the statistics of a batch; called once per batch, after its parts are merged.
    ///
    /// # Errors
    /// [`SingleRow`] if the batch has fewer than two rows.
    pub fn track(&self, batch: &Moments) -> Result<(), SingleRow> {
        if batch.rows < 2 {
            return Err(SingleRow);
        }
        let follow = |state: &RunningState<Tensor<1>>, value: Tensor<1>| {
            state.update((state.value().detach() * (1.0 - self.momentum) + value.detach() * self.momentum).detach());
            // burn applies an update at the next one; a checkpoint would miss it.
            state.value_sync();
        };
        let unbiased = batch.deviations.clone() / SCALE / (batch.rows - 1) as f64 / SCALE;
        follow(&self.running_mean, (batch.mean.clone() + batch.rest.clone()) / SCALE);
        // From infinity the average would not return.
        follow(&self.running_var, unbiased.clamp_max(f32::MAX / 2.0));
        Ok(())
    }

    /// Running mean and unbiased variance, `[width]` each.
    pub fn running(&self) -> (Tensor<1>, Tensor<1>) {
        (self.running_mean.value(), self.running_var.value())
    }

    /// The ids of the running averages, which no optimizer updates.
    pub(crate) fn statistics(&self) -> Vec<ParamId> {
        struct Ids(Vec<ParamId>);
        impl ModuleVisitor for Ids {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.push(param.id);
            }
        }
        let mut ids = Ids(Vec::new());
        self.running_mean.visit(&mut ids);
        self.running_var.visit(&mut ids);
        ids.0
    }

    /// Mean, in two parts, and variance are of scaled rows.
    fn normalized(&self, x: Tensor<2>, [mean, rest]: [Tensor<1>; 2], var: Tensor<1>) -> Tensor<2> {
        widened(x, |x| {
            let centred = x * SCALE - mean.unsqueeze() - rest.unsqueeze();
            let y = centred / (var + scaled_eps(self.eps)).sqrt().unsqueeze();
            y * self.gamma.val().unsqueeze() + self.beta.val().unsqueeze()
        })
    }
}
