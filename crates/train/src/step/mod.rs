//! A training step: forward and backward pass, clip, and update.

pub mod clip;
#[cfg(feature = "flex")]
mod fused;
pub(crate) mod gradients;
pub mod optim;
pub mod schedule;

use crate::data::Batch;
use crate::{ClipConfig, Gradients, Optimizer, OptimizerConfig, RunConfig};
use burn::tensor::{Device, Tensor};
use std::time::{Duration, Instant};
use unitgain_init::sample;
use unitgain_model::{
    LanguageModel, ModelConfig, ModelError, Observe, ParamTable, Point, Precision, Probe, Transformer, cross_entropy,
};

/// A model with its optimizer.
#[derive(Clone, Debug)]
pub struct Trainer<M = Transformer> {
    /// The model, on the autodiff device.
    pub model: M,
    /// Its weights, with their factors for this optimizer.
    pub table: ParamTable,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// How gradients are clipped.
    pub clip: ClipConfig,
    seed: u64,
    dropout: bool,
    /// The plain device.
    device: Device,
    /// Time spent so far.
    pub clock: Clock,
}

/// Loss and gradients of a step before its update, on the device.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Mean loss of the batches, of shape `[1]`.
    pub loss: Tensor<1>,
    /// Mean gradient of every parameter.
    pub gradients: Gradients,
    /// Mean square of the scaled stream after each block, if observed.
    stream: Vec<Tensor<1>>,
}

/// Time spent, by part. On an asynchronous device these are the times to enqueue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Forward passes and losses.
    pub forward: Duration,
    /// Backward passes.
    pub backward: Duration,
    /// Clipping and updates.
    pub optimizer: Duration,
}

/// Factor on the stream before squaring, so that its mean square overflows no earlier than the norms do.
const STREAM_SCALE: f32 = 1.0 / (1u64 << 32) as f32;

/// The measurements of a step, on the device until [`read_rows`].
#[derive(Debug)]
pub struct Row {
    /// Loss, squared norm after the clip, squared norm of each gradient, mean square of the stream after each block (if
    /// observed).
    values: Tensor<1>,
    parameters: usize,
}

/// A [`Row`] on the host.
#[derive(Clone, Debug)]
pub struct HostRow {
    /// Mean loss of the step's batch.
    pub loss: f32,
    /// Global gradient norm after the clip.
    pub grad_norm_clipped: f32,
    /// Squared norm of each weight's gradient before the clip, in the order of the table.
    pub squares: Vec<f32>,
    /// rms of the stream after each block; empty if not observed.
    pub stream_rms: Vec<f32>,
}

impl HostRow {
    /// Global gradient norm before the clip.
    pub fn grad_norm(&self) -> f32 {
        self.squares.iter().sum::<f32>().sqrt()
    }

    /// Names what is not finite in the step: gradients from first to last, loss, or stream.
    pub fn not_finite(&self, table: &ParamTable) -> Option<String> {
        let not_finite = self.squares.iter().enumerate().filter(|(_, square)| !square.is_finite()).map(|(i, _)| i);
        let which: Vec<&str> = not_finite.map(|i| table.entries()[i].path.as_str()).collect();
        let block = self.stream_rms.iter().position(|rms| !rms.is_finite());
        let problem = match (which.as_slice(), block) {
            ([first, .., last], _) => {
                let (count, all) = (which.len(), self.squares.len());
                format!("{count} of {all} gradients are not finite, the first that of {first}, the last that of {last}")
            }
            ([only], _) => format!("the gradient of {only} is not finite"),
            ([], Some(block)) => format!("the stream after block {block} is not finite"),
            ([], None)
                if self.grad_norm().is_finite() && self.grad_norm_clipped.is_finite() && self.loss.is_finite() =>
            {
                return None;
            }
            ([], None) => {
                format!("norm of all gradients {}, {} after the clip", self.grad_norm(), self.grad_norm_clipped)
            }
        };
        Some(format!("loss {}, {problem}", self.loss))
    }
}

impl Trainer {
    /// Builds the model from `seed` on the autodiff side of `device` (a plain device).
    ///
    /// # Errors
    /// As [`ModelConfig::build`].
    pub fn new(
        model: &ModelConfig,
        optimizer: OptimizerConfig,
        clip: ClipConfig,
        seed: u64,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let dropout = model.dropout > 0.0;
        let built = model.build(seed, &device.clone().autodiff())?;
        Ok(Self { dropout, ..Self::of_model(built, optimizer, clip, seed, device) })
    }

    /// The trainer of a resolved configuration, on the autodiff side of `device`.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn of(config: &RunConfig, device: &Device) -> Result<Self, ModelError> {
        let built = config.model.build(config.seed, &device.clone().autodiff())?;
        Ok(Self::of_built(config, built, device))
    }

    /// As [`Trainer::of`], for a model built on the autodiff side of `device`.
    pub(crate) fn of_built(config: &RunConfig, built: (Transformer, ParamTable), device: &Device) -> Self {
        let dropout = config.model.dropout > 0.0;
        let trainer = Self::of_model(built, config.optimizer, config.train.clip, config.seed, device);
        Self { dropout, ..trainer }.with_precision(config.train.precision)
    }

    /// Changes the precision of the forward and backward pass; the weights stay f32.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { model: self.model.with_precision(precision), ..self }
    }

    /// Changes the dropout probability.
    pub fn with_dropout(self, dropout: f64) -> Self {
        Self { model: self.model.with_dropout(dropout), dropout: dropout > 0.0, ..self }
    }
}

impl<M: LanguageModel> Trainer<M> {
    /// A trainer of any model, built on the autodiff side of `device` (a plain device) with its table
    /// ([`Builder::finish`](unitgain_model::weights::Builder::finish)). Dropout masks depend on `seed`.
    pub fn of_model(
        (model, table): (M, ParamTable),
        optimizer: OptimizerConfig,
        clip: ClipConfig,
        seed: u64,
        device: &Device,
    ) -> Self {
        let (optimizer, table) = Optimizer::new(optimizer, table);
        Self { model, table, optimizer, clip, seed, dropout: true, device: device.clone(), clock: Clock::default() }
    }

    /// One update at the scheduled learning rate `lr`, with the mean gradient of `batches`, the step's micro-batches.
    /// With `observe` the row also holds the rms of the stream.
    ///
    /// # Panics
    /// If there is no batch.
    pub fn step(mut self, batches: &[Batch], lr: f64, observe: bool) -> (Self, Row) {
        let measured = self.measure(batches, observe);
        self.update(measured, lr)
    }

    /// Mean loss and mean gradients of `batches`: a step without its update.
    ///
    /// # Panics
    /// If there is no batch.
    pub fn measure(&mut self, batches: &[Batch], observe: bool) -> Measurement {
        let share = 1.0 / batches.len() as f64;
        let mut total: Option<Measurement> = None;
        for (micro, batch) in batches.iter().enumerate() {
            let started = Instant::now();
            self.seed_dropout(micro);
            let mut stream = Vec::new();
            let mut look = |point, x: &Tensor<2>| {
                if observe && matches!(point, Point::Block(_)) {
                    stream.push((x.clone().inner() * STREAM_SCALE).square().mean() * share);
                }
            };
            let loss = loss(&self.model, batch, &self.device, &Observe::new(&mut look)) * share;
            let forward = Instant::now();
            let gradients = Gradients::backward(&loss, &self.model);
            let loss = loss.inner();
            self.clock.forward += forward - started;
            self.clock.backward += forward.elapsed();
            let own = Measurement { loss, gradients, stream };
            total = Some(match total {
                Some(sum) => sum.plus(own),
                None => own,
            });
        }
        total.unwrap_or_else(|| panic!("a step needs at least one batch"))
    }

    /// Clips the measured gradients and updates the model with them.
    pub fn update(self, Measurement { loss, gradients, stream }: Measurement, lr: f64) -> (Self, Row) {
        let started = Instant::now();
        let squares = gradients.squares(&self.device);
        let (gradients, clipped) = self.clip.apply(gradients, squares.clone(), &self.model, &self.table);
        let Self { model, table, mut optimizer, mut clock, .. } = self;
        let parameters = table.entries().len();
        let model = optimizer.step(model, &table, gradients, lr);
        clock.optimizer += started.elapsed();
        let values = Tensor::cat([vec![loss, clipped, squares], stream].concat(), 0);
        (Self { model, table, optimizer, clock, ..self }, Row { values, parameters })
    }

    /// Mean loss over the target tokens of `batches`, without dropout and without a graph, in one device read. NaN
    /// without any token.
    pub fn evaluate(&self, batches: impl Iterator<Item = Batch>) -> f32 {
        let model = self.model.valid();
        let (losses, asked): (Vec<Tensor<1>>, Vec<f64>) =
            batches.map(|batch| (loss(&model, &batch, &self.device, &()), batch.asked())).unzip();
        if losses.is_empty() {
            return f32::NAN;
        }
        let losses = Tensor::cat(losses, 0).into_data();
        let sum: f64 = losses.iter::<f64>().zip(&asked).map(|(loss, asked)| loss * asked).sum();
        (sum / asked.iter().sum::<f64>()) as f32
    }

    /// The plain device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Seeds the device's global generator by the step, so that a resumed run draws the same dropout masks.
    pub fn seed_dropout(&self, micro: usize) {
        if self.dropout {
            use rand_chacha::rand_core::Rng;
            let path = format!("dropout/{}/{micro}", self.optimizer.time());
            self.device.seed(sample::stream(self.seed, &path).next_u64());
        }
    }
}

impl Measurement {
    fn plus(self, other: Self) -> Self {
        Self {
            loss: self.loss + other.loss,
            gradients: self.gradients.plus(other.gradients),
            stream: self.stream.into_iter().zip(other.stream).map(|(a, b)| a + b).collect(),
        }
    }
}

/// Mean loss over the target tokens of a batch, of shape `[1]`. `device` is the plain device; `probe` observes the
/// forward pass.
pub fn loss<M: LanguageModel>(model: &M, batch: &Batch, device: &Device, probe: &dyn Probe) -> Tensor<1> {
    let (tokens, targets) = batch.tensors(device);
    cross_entropy(model.logits(tokens, probe), targets, batch.weights(device))
}

/// Reads rows from the device in one transfer.
pub fn read_rows(rows: &[Row]) -> Vec<HostRow> {
    if rows.is_empty() {
        return Vec::new();
    }
    let joined = Tensor::cat(rows.iter().map(|row| row.values.clone()).collect(), 0);
    let values: Vec<f32> = joined.into_data().iter::<f32>().collect();
    let mut rest = values.as_slice();
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head
    };
    rows.iter()
        .map(|row| {
            let own = take(row.values.dims()[0]);
            let (squares, stream) = own[2..].split_at(row.parameters);
            HostRow {
                loss: own[0],
                grad_norm_clipped: own[1].sqrt(),
                squares: squares.to_vec(),
                stream_rms: stream.iter().map(|mean_square| mean_square.sqrt() / STREAM_SCALE).collect(),
            }
        })
        .collect()
}
