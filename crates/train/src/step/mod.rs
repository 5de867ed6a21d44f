//! A training step: forward and backward pass, clip, and update.

pub mod clip;
#[cfg(feature = "flex")]
mod fused;
pub(crate) mod gradients;
pub mod optim;
pub mod replicas;
pub mod schedule;

use crate::data::Batch;
use crate::step::replicas::{Replicas, Shard, shards};
use crate::{ClipConfig, Error, Gradients, Optimizer, OptimizerConfig, RunConfig};
use burn::module::{ModuleMapper, Param};
use burn::tensor::{Device, Tensor};
use std::time::{Duration, Instant};
use unitgain_init::sample;
use unitgain_model::{
    LanguageModel, ModelConfig, ModelError, Observe, ParamTable, Point, Precision, Probe, Transformer, cross_entropy,
    ops::with_masks,
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
    replicas: Replicas,
    seed: u64,
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
    /// Backward passes, and sums over replicas and micro-batches.
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
        let built = model.build(seed, &device.clone().autodiff())?;
        Ok(Self::of_model(built, optimizer, clip, seed, device))
    }

    /// The trainer of a resolved configuration, on the autodiff side of `device`.
    ///
    /// # Errors
    /// As [`Trainer::new`], and [`Error::Value`] if the system refuses the threads of the replicas.
    pub fn of(config: &RunConfig, device: &Device) -> Result<Self, Error> {
        let built = config.model.build(config.seed, &device.clone().autodiff())?;
        Self::of_built(config, built, device)
    }

    /// As [`Trainer::of`], for a model built on the autodiff side of `device`.
    pub(crate) fn of_built(
        config: &RunConfig,
        built: (Transformer, ParamTable),
        device: &Device,
    ) -> Result<Self, Error> {
        let replicas = config.replicas(&config.plan()?, device)?;
        let trainer = Self::of_model(built, config.optimizer, config.train.clip, config.seed, device);
        Ok(trainer.with_precision(config.train.precision).with_replicas(replicas))
    }

    /// Changes the precision of the forward and backward pass; the weights stay f32.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { model: self.model.with_precision(precision), ..self }
    }

    /// Changes the dropout probability.
    pub fn with_dropout(self, dropout: f64) -> Self {
        Self { model: self.model.with_dropout(dropout), ..self }
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
        let (replicas, clock) = (Replicas::one(), Clock::default());
        Self { model, table, optimizer, clip, replicas, seed, device: device.clone(), clock }
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

    /// Changes the replicas of [`Trainer::measure`] and [`Trainer::evaluate`]. Default [`Replicas::one`], which a model
    /// needs whose norms take statistics over the batch (`batch_norm`): a replica sees its shard alone.
    pub fn with_replicas(self, replicas: Replicas) -> Self {
        Self { replicas, ..self }
    }

    /// The replicas.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Mean loss over the target tokens of `batches`, and its gradients: a step without its update. Each replica runs on its
    /// shard of each micro-batch; sums are in the order of the shards.
    ///
    /// # Panics
    /// If there is no batch.
    pub fn measure(&mut self, batches: &[Batch], observe: bool) -> Measurement {
        let seed = self.mask_seed();
        let (started, forward) = (Instant::now(), self.clock.forward);
        let mut total: Option<Measurement> = None;
        for mut shards in shards(batches, self.replicas.count()) {
            let passes = if shards.len() == 1 {
                vec![Pass::of(&self.model, &shards.remove(0), seed, observe, &self.device)]
            } else {
                let parts = shards.into_iter().map(|shard| (self.model.clone(), shard)).collect();
                self.replicas.each(parts, |i, (model, shard)| {
                    let device = self.replicas.device(i);
                    // A fork moves what is trained as leaves; `to_device` would make them results of a copy.
                    let model = if *device == self.device { model } else { model.fork(&device.clone().autodiff()) };
                    Pass::of(&model.map(&mut Leaves), &shard, seed, observe, device)
                })
            };
            self.clock.forward += passes.iter().map(|pass| pass.forward).max().unwrap_or_default();
            for Pass { measured, .. } in passes {
                total = Some(match total {
                    Some(sum) => sum.plus(measured.on(&self.device)),
                    None => measured,
                });
            }
        }
        self.clock.backward += started.elapsed().saturating_sub(self.clock.forward - forward);
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

    /// Mean loss over the target tokens of `batches`, without dropout and without a graph, in one device read. Each replica
    /// takes a batch at a time. NaN without any token.
    pub fn evaluate(&self, mut batches: impl Iterator<Item = Batch>) -> f32 {
        let (replicas, home) = (&self.replicas, &self.device);
        let (count, model) = (replicas.count(), self.model.valid());
        let models: Vec<M> = match count {
            1 => vec![model],
            _ => (0..count).map(|i| self.copy(&model, replicas.device(i))).collect(),
        };
        let (mut losses, mut asked) = (Vec::new(), Vec::new());
        loop {
            let next: Vec<Batch> = batches.by_ref().take(count).collect();
            asked.extend(next.iter().map(Batch::asked));
            let of = |model: &M, batch: &Batch, device: &Device| loss(model, batch, device, &()).to_device(home);
            match next.as_slice() {
                [] => break,
                [only] => losses.push(of(&models[0], only, home)),
                _ => {
                    let parts = models.iter().cloned().zip(next).collect();
                    let work = |i, (model, batch): (M, Batch)| of(&model, &batch, replicas.device(i));
                    losses.extend(replicas.each(parts, work));
                }
            }
        }
        if losses.is_empty() {
            return f32::NAN;
        }
        let losses = Tensor::cat(losses, 0).into_data();
        let sum: f64 = losses.iter::<f64>().zip(&asked).map(|(loss, asked)| loss * asked).sum();
        (sum / asked.iter().sum::<f64>()) as f32
    }

    /// The model on another plain device, on the side of the graph on which it is.
    fn copy(&self, model: &M, device: &Device) -> M {
        if *device == self.device { model.clone() } else { model.clone().to_device(device) }
    }

    /// The plain device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Calls `f` with the dropout masks of the next step, for a forward pass on its sequences from number `first` on.
    pub fn with_masks<R>(&self, first: usize, f: impl FnOnce() -> R) -> R {
        with_masks(self.mask_seed(), first, f)
    }

    fn mask_seed(&self) -> u64 {
        use rand_chacha::rand_core::Rng;
        sample::stream(self.seed, &format!("dropout/{}", self.optimizer.time())).next_u64()
    }
}

/// Forward and backward pass of one replica.
struct Pass {
    measured: Measurement,
    forward: Duration,
}

impl Pass {
    fn of<M: LanguageModel>(model: &M, shard: &Shard, seed: u64, observe: bool, device: &Device) -> Self {
        let started = Instant::now();
        let mut stream = Vec::new();
        let mut look = |point, x: &Tensor<2>| {
            if observe && matches!(point, Point::Block(_)) {
                stream.push((x.clone().inner() * STREAM_SCALE).square().mean() * shard.of_tokens);
            }
        };
        let loss = with_masks(seed, shard.first, || loss(model, &shard.batch, device, &Observe::new(&mut look)));
        let (loss, forward) = (loss * shard.of_loss, started.elapsed());
        let gradients = Gradients::backward(&loss, model);
        Self { measured: Measurement { loss: loss.inner(), gradients, stream }, forward }
    }
}

/// Gives a replica leaves of its own, so that its graph meets no other in burn's locks. The numbers are shared.
struct Leaves;

impl ModuleMapper for Leaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let is_trained = tensor.is_require_grad();
        let leaf = Tensor::from_inner(tensor.inner());
        Param::from_mapped_value(id, if is_trained { leaf.require_grad() } else { leaf }, mapper)
    }
}

impl Measurement {
    /// On another device.
    fn on(self, device: &Device) -> Self {
        if self.loss.device() == *device {
            return self;
        }
        Self {
            loss: self.loss.to_device(device),
            gradients: self.gradients.on(device),
            stream: self.stream.into_iter().map(|x| x.to_device(device)).collect(),
        }
    }

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
