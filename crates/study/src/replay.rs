//! Repeats one step of a run and inspects its tensors, to find the first number that is not finite.

use crate::signal::attention_logits;
use burn::module::ParamId;
use burn::tensor::Tensor;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use unitgain_model::{Branch, ParamTable, Point, Probe, weights};
use unitgain_train::folder::CHECKPOINTS;
use unitgain_train::folder::checkpoint::{self, Checkpoint, Progress, host};
use unitgain_train::run::divergence::{Action, Divergence};
use unitgain_train::run::lr;
use unitgain_train::{
    Batch, Error, Gradients, ReplicaCount, RunConfig, Summary, Trainer, calibrate, device, folder::metrics, loss,
    read_rows,
};

/// A part of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The forward pass and the loss.
    Forward,
    /// The backward pass.
    Backward,
    /// The weights after the update.
    Update,
}

impl Phase {
    /// Name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Update => "update",
        }
    }
}

/// Statistics of one tensor of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorStats {
    /// Part of the step.
    pub pass: Phase,
    /// Index of the block, for tensors inside one.
    pub block: Option<usize>,
    /// Role of the weight to which the tensor belongs, as its layer's output, its gradient, or the weight itself.
    pub role: Option<String>,
    /// Name of the tensor.
    pub what: String,
    /// Maximum absolute value of its finite elements.
    pub largest: f64,
    /// Number of elements that are not finite.
    pub not_finite: usize,
    /// Number of elements.
    pub elements: usize,
}

/// Statistics of all tensors of a step, in the order of computation.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// The step.
    pub step: usize,
    /// Step of the checkpoint from which it was repeated; 0 for the initial weights.
    pub from: usize,
    /// Learning rate of the step.
    pub lr: f64,
    /// Loss of the step; `null` in JSON where it is not finite.
    pub loss: f32,
    /// Whether loss and gradients are finite when the step is computed as in the run.
    pub is_finite: bool,
    /// Statistics of each inspected tensor.
    pub looks: Vec<TensorStats>,
}

impl Replay {
    /// The first tensor with elements that are not finite.
    pub fn first(&self) -> Option<&TensorStats> {
        self.looks.iter().find(|look| look.not_finite > 0)
    }
}

/// Repeats a step of the run in a folder, from the newest checkpoint before it or from the first step, and inspects all
/// its tensors. A step that diverged is repeated as it diverged (the last time, if several); any other step as after
/// the run's last rewind. Nothing is written. `on_step` gets the steps done, including the last, and their total.
///
/// # Errors
/// As [`Checkpoint::read`] and [`RunConfig::prepare`]; [`Error::Config`] for a step that the run does not have.
pub fn replay(folder: &Path, step: usize, on_step: &mut (dyn FnMut(usize, usize) + Send)) -> Result<Replay, Error> {
    let mut config = RunConfig::of_run(folder, &[])?;
    if step == 0 || step > config.train.steps {
        let problem = format!("{step} must be from 1 to train.steps = {}", config.train.steps);
        return Err(Error::Config { origin: folder.display().to_string(), key: "--step".into(), problem });
    }
    config.model.vocab_size = None;
    let course = Course::of(folder, step)?;
    // The run may have been resumed with another number.
    if let Some(record) = metrics::of_run(folder).unwrap_or_default().iter().find(|record| record.step >= step) {
        config.train.replicas = ReplicaCount::Count(record.replicas);
    }
    let checkpoint = before(folder, step, course.common)?;
    device::compute(&config, || {
        let (config, task) = config.prepare()?;
        let device = config.device()?;
        let (mut trainer, progress) = match checkpoint {
            Some(checkpoint) => {
                checkpoint.check_data(&task)?;
                (checkpoint.trainer(&config, &device)?, checkpoint.progress)
            }
            None => {
                let trainer = Trainer::of(&config, &device)?;
                (calibrate(trainer, &config, &task, &mut |_, _| ())?.0, Progress::start(&task))
            }
        };
        for made in progress.step + 1..step {
            if !course.is_skipped(made) {
                let lr = lr(&config, course.rate(made), made);
                trainer = trainer.step(&config.batches(&task, made), lr, false).0;
            }
            on_step(made - progress.step, step - progress.step);
        }
        let batches = config.batches(&task, step);
        let mut looks = Vec::new();
        // Inspect a copy: the forward pass updates running averages, and the step itself does so again.
        let before =
            weights::of(&trainer.model).into_iter().map(|(path, shape, values)| (path, (shape, values))).collect();
        let mut first = 0;
        for batch in &batches {
            trainer.with_masks(first, || inspect(&trainer, batch, config.model.attention_softcap, &mut looks));
            first += batch.rows;
        }
        trainer.model = weights::assign(trainer.model, &before)
            .unwrap_or_else(|problem| unreachable!("the model's own weights: {problem}"));
        let lr = lr(&config, course.rate(step), step);
        let (trainer, row) = trainer.step(&batches, lr, false);
        let row = read_rows(&[row]).remove(0);
        let updated = weights::of(&trainer.model);
        for (entry, (_, _, values)) in trainer.table.iter().zip(&updated) {
            let role = Some(entry.role().name().to_string());
            looks.push(stats(Phase::Update, entry.block(), role, entry.path.clone(), values.iter().copied()));
        }
        on_step(step - progress.step, step - progress.step);
        if let Some(recorded) = course.recorded.filter(|loss| loss.to_bits() != row.loss.to_bits()) {
            tracing::warn!("the loss of step {step} is {}, and the run recorded {recorded}", row.loss);
        }
        Ok(Replay {
            step,
            from: progress.step,
            lr,
            loss: row.loss,
            is_finite: row.not_finite(&trainer.table).is_none(),
            looks,
        })
    })
}

/// The history of a run before a step.
struct Course {
    /// Divergences before the step.
    divergences: Vec<Divergence>,
    /// Last step with a checkpoint of this history: later checkpoints may predate a rewind.
    common: usize,
    /// The recorded loss of the step.
    recorded: Option<f32>,
}

impl Course {
    fn of(folder: &Path, step: usize) -> Result<Self, Error> {
        let mut divergences = match Summary::of_run(folder) {
            Ok(summary) => summary.divergences,
            Err(_) => Checkpoint::of_run(folder)?.map_or(Vec::new(), |checkpoint| checkpoint.progress.divergences),
        };
        let records = metrics::of_run(folder).unwrap_or_default();
        let recorded = records.iter().find(|record| record.step == step).map(|record| record.loss);
        let mut common = usize::MAX;
        let diverged = divergences.iter().rposition(|divergence| divergence.step == step);
        if let Some(at) = diverged {
            let later = divergences.split_off(at);
            common = later.iter().filter_map(|divergence| divergence.went_to()).min().unwrap_or(usize::MAX);
        }
        Ok(Self { divergences, common, recorded: recorded.filter(|_| diverged.is_none()) })
    }

    /// Factor on the learning rate of a step, from the last rewind before it.
    fn rate(&self, step: usize) -> f64 {
        let rates = self.divergences.iter().rev().filter_map(|divergence| match divergence.action {
            Action::Rewound { to, rate } if to < step => Some(rate),
            Action::Rewound { .. } | Action::Skipped {} | Action::Stopped {} => None,
        });
        rates.into_iter().next().unwrap_or(1.0)
    }

    fn is_skipped(&self, step: usize) -> bool {
        self.divergences.iter().any(|divergence| divergence.is_skipped() && divergence.step == step)
    }
}

/// The newest checkpoint before `step`, and not after `last`.
fn before(folder: &Path, step: usize, last: usize) -> Result<Option<Checkpoint>, Error> {
    let folder = folder.join(CHECKPOINTS);
    let all = if folder.is_dir() { checkpoint::list(&folder)? } else { Vec::new() };
    let earlier = all.iter().rev().find(|path| checkpoint::number(path).is_some_and(|n| n < step && n <= last));
    earlier.map(|path| Checkpoint::read(path)).transpose()
}

/// Computes the statistics of a tensor.
fn stats(
    pass: Phase,
    block: Option<usize>,
    role: Option<String>,
    what: String,
    values: impl Iterator<Item = f32>,
) -> TensorStats {
    let (mut largest, mut not_finite, mut elements) = (0.0f64, 0, 0);
    for value in values {
        elements += 1;
        if value.is_finite() {
            largest = largest.max(f64::from(value.abs()));
        } else {
            not_finite += 1;
        }
    }
    TensorStats { pass, block, role, what, largest, not_finite, elements }
}

/// Inspects the forward and the backward pass of a micro-batch.
fn inspect(trainer: &Trainer, batch: &Batch, softcap: f64, looks: &mut Vec<TensorStats>) {
    let plain = trainer.device().clone();
    let seen = Seen {
        table: &trainer.table,
        paths: calibrate::paths(&trainer.model),
        softcap,
        looks: RefCell::default(),
        leaves: RefCell::default(),
    };
    let loss = loss(&trainer.model, batch, &plain, &seen);
    looks.extend(seen.looks.take());
    looks.push(stats(Phase::Forward, None, None, "loss".into(), host(loss.clone().inner()).into_iter()));
    let mut graph = loss.backward();
    let gradients = Gradients::taken(&mut graph, &trainer.model);
    let mut each: Vec<TensorStats> = Vec::new();
    for (entry, gradient) in trainer.table.iter().zip(gradients.iter()) {
        let Some(gradient) = gradient else { continue };
        let values = host(gradient.clone());
        let role = Some(entry.role().name().to_string());
        each.push(stats(
            Phase::Backward,
            entry.block(),
            role,
            format!("gradient of {}", entry.path),
            values.into_iter(),
        ));
    }
    // Order of the backward pass, from head to embedding: after the gradient of the stream behind a block come the
    // gradients of the block's weights, last to first.
    let mut in_order: Vec<TensorStats> = Vec::new();
    let (mut inside, outside): (Vec<TensorStats>, Vec<TensorStats>) =
        each.into_iter().partition(|look| look.block.is_some());
    let (before, after): (Vec<TensorStats>, Vec<TensorStats>) =
        outside.into_iter().partition(|look| look.role.as_deref() == Some("embedding"));
    in_order.extend(after.into_iter().rev());
    for (point, leaf) in seen.leaves.into_inner().into_iter().rev() {
        let block = if let Point::Block(block) = point { Some(block) } else { None };
        if let Some(gradient) = leaf.grad(&graph) {
            let values = host(gradient);
            let what = format!("gradient of the {}", named(point));
            in_order.push(stats(Phase::Backward, block, None, what, values.into_iter()));
        }
        let (own, others): (Vec<TensorStats>, Vec<TensorStats>) =
            inside.into_iter().partition(|look| block.is_some() && look.block == block);
        in_order.extend(own.into_iter().rev());
        inside = others;
    }
    in_order.extend(before.into_iter().rev());
    looks.extend(in_order);
}

fn named(point: Point) -> String {
    match point {
        Point::Embedding => "stream before the first block".into(),
        Point::Block(_) => "stream after the block".into(),
        Point::FinalNorm => "input of the head".into(),
        Point::Logits => "logits".into(),
    }
}

/// Inspects the tensors of a forward pass, and adds a zero to the stream in order to get the stream's gradient.
struct Seen<'a> {
    table: &'a ParamTable,
    paths: HashMap<ParamId, String>,
    softcap: f64,
    looks: RefCell<Vec<TensorStats>>,
    leaves: RefCell<Vec<(Point, Tensor<2>)>>,
}

impl Seen<'_> {
    fn push(&self, block: Option<usize>, role: Option<String>, what: String, values: Vec<f32>) {
        self.looks.borrow_mut().push(stats(Phase::Forward, block, role, what, values.into_iter()));
    }
}

impl Probe for Seen<'_> {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        let block = if let Point::Block(block) = point { Some(block) } else { None };
        self.push(block, None, named(point), host(x.clone().inner()));
        if point == Point::Logits || point == Point::FinalNorm {
            return x;
        }
        let leaf = Tensor::zeros(x.shape(), &x.device()).require_grad();
        self.leaves.borrow_mut().push((point, leaf.clone()));
        x + leaf
    }

    fn branch(&self, block: usize, branch: Branch, y: Tensor<2>) -> Tensor<2> {
        let branch = match branch {
            Branch::Attention => "attention",
            Branch::Mlp => "MLP",
        };
        self.push(Some(block), None, format!("what the {branch} branch writes"), host(y.clone().inner()));
        y
    }

    fn sees_layers(&self) -> bool {
        true
    }

    fn linear(&self, weight: ParamId, y: Tensor<2>) -> Tensor<2> {
        let path = self.paths.get(&weight).cloned().unwrap_or_default();
        let entry = self.table.iter().find(|entry| entry.path == path);
        let role = entry.map(|entry| entry.role().name().to_string());
        self.push(entry.and_then(|entry| entry.block()), role, format!("output of {path}"), host(y.clone().inner()));
        y
    }

    fn attention(&self, block: usize, q: &Tensor<4>, k: &Tensor<4>, scale: f64, window: Option<usize>) {
        self.push(Some(block), Some("query".into()), "queries, as they are multiplied".into(), host(q.clone().inner()));
        self.push(Some(block), Some("key".into()), "keys, as they are multiplied".into(), host(k.clone().inner()));
        let (logits, unseen) = attention_logits(q.clone().inner(), k.clone().inner(), scale, window);
        let logits = if self.softcap > 0.0 { (logits / self.softcap).tanh() * self.softcap } else { logits };
        let values = logits.mask_fill(unseen, 0.0).into_data().iter::<f32>().collect();
        self.push(Some(block), None, "attention logits".into(), values);
    }
}
