//! Coordinate check (arXiv:2203.03466, appendix D.1): whether the change of each activation over a few steps depends on
//! the width or the depth. Under a parametrization that transfers hyperparameters it does not.
//!
//! The steps have no weight decay and no dropout, so that all changes come from gradients.

use crate::signal::{attention_logits, mean_and_std, slope};
use burn::tensor::{FloatDType, Tensor};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use unitgain_model::{Branch, LanguageModel, Point, Precision, Probe, Transformer};
use unitgain_train::device::memory::Need;
use unitgain_train::{Batch, Error, RunConfig, Trainer, calibrate, device};

/// The size that is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// `model.d_model`, and the widths derived from it.
    Width,
    /// `model.n_layers`.
    Depth,
}

/// Settings of a coordinate check.
#[derive(Clone, Debug)]
pub struct CoordCheckOptions {
    /// The size that is varied.
    pub axis: Axis,
    /// Values of the size, at least two.
    pub sizes: Vec<usize>,
    /// Number of updates.
    pub steps: usize,
    /// Number of seeds, counting up from the configuration's.
    pub seeds: u64,
    /// Maximum slope that does not count as growth, in octaves of change per octave of size.
    pub tolerance: f64,
}

/// Results for one activation.
#[derive(Clone, Debug, Serialize)]
pub struct Layer {
    /// Name of the activation.
    pub name: String,
    /// rms change since step 0 over the seeds, by size and step (from step 1).
    pub changes: Vec<Vec<f64>>,
    /// Slope of log2(change) over log2(size) after each step, mean over seeds; NaN while the activation has not moved
    /// at every size and seed.
    pub slopes: Vec<f64>,
    /// Standard deviation of the slopes over the seeds; NaN for one seed.
    pub spread: Vec<f64>,
    /// Whether the changes grow with the size.
    pub verdict: Growth,
}

/// Growth of an activation's changes with the size, ignoring steps after which it has not moved at every size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// The slope never exceeds the tolerance.
    Holds,
    /// The slope exceeds the tolerance after some step: larger models change more.
    Grows,
    /// The slope is below minus the tolerance after every step: larger models change less. Attention logits and output
    /// do so under muP unless query and head start at 0, by at most 1/sqrt(width).
    Shrinks,
    /// At some size the change is within rounding, so there is no slope.
    Still,
    /// A slope's standard deviation over seeds exceeds the tolerance, and so does slope plus deviation.
    Undecided,
    /// The activation overflows f32 at some size.
    Overflows,
}

/// Results of a coordinate check.
#[derive(Clone, Debug, Serialize)]
pub struct CoordCheckReport {
    /// Results for each activation.
    pub layers: Vec<Layer>,
    /// Number of distinct target tokens in a batch, minimum over batches. With a single one there is nothing to learn.
    pub targets: usize,
}

/// Conclusion over all activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// All activations changed, and none changed more in larger models.
    Holds,
    /// Some activation changed more in larger models, or overflowed.
    Fails,
    /// Some activation did not change, or varies too much between seeds, or there was nothing to learn.
    Undecided,
    /// No activation changed.
    NothingMoved,
}

impl CoordCheckReport {
    /// The overall conclusion. A check without activations does not hold.
    pub fn conclusion(&self) -> Conclusion {
        let any = |verdicts: &[Growth]| self.layers.iter().any(|layer| verdicts.contains(&layer.verdict));
        if self.layers.iter().all(|layer| layer.verdict == Growth::Still) {
            Conclusion::NothingMoved
        } else if any(&[Growth::Grows, Growth::Overflows]) {
            Conclusion::Fails
        } else if self.targets < 2 || any(&[Growth::Still, Growth::Undecided]) {
            Conclusion::Undecided
        } else {
            Conclusion::Holds
        }
    }

    /// The conclusion as a sentence, with its reason.
    pub fn said(&self, options: &CoordCheckOptions) -> String {
        let over = options.axis.name();
        let names = |verdicts: &[Growth]| -> Vec<&str> {
            let with = self.layers.iter().filter(|layer| verdicts.contains(&layer.verdict));
            with.map(|layer| layer.name.as_str()).collect()
        };
        let (still, spread) = (names(&[Growth::Still]), names(&[Growth::Undecided]));
        let (steps, all) = (options.steps, self.layers.len());
        match self.conclusion() {
            Conclusion::Holds => format!("holds: what {steps} steps change does not grow with the {over}"),
            Conclusion::Fails => {
                let (grow, overflow) = (names(&[Growth::Grows]).len(), names(&[Growth::Overflows]).len());
                let overflow = if overflow > 0 { format!(", and {overflow} overflow") } else { String::new() };
                format!("fails: {grow} of {all} activations change more with the {over}{overflow}")
            }
            Conclusion::NothingMoved => format!(
                "nothing moved: {steps} steps changed no activation by more than rounding at every {over}, so there \
                 is nothing to compare. The learning rate is too small, or the loss has no gradient"
            ),
            Conclusion::Undecided if self.targets < 2 => {
                "undecided: every target token of a batch is the same, so there is nothing to learn; use other data"
                    .into()
            }
            Conclusion::Undecided if !still.is_empty() => format!(
                "undecided: {} of {all} activations did not move at every {over}: {}. Their branch is dead, or its \
                 output is below the precision of the stream, or the learning rate or --steps are too small",
                still.len(),
                still.join("; ")
            ),
            Conclusion::Undecided => format!(
                "undecided: over seeds the slope of {} of {all} activations spreads by more than the tolerance: {}. Take sizes \
                 that are further apart",
                spread.len(),
                spread.join("; ")
            ),
        }
    }
}

impl Axis {
    /// `width` or `depth`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Width => "width",
            Self::Depth => "depth",
        }
    }
}

/// A configuration at another size: the width scales the MLP's width too and, with a constant head size, the number of
/// heads.
///
/// # Errors
/// [`Error::Value`] if a setting does not scale to an integer.
pub fn resized(config: &RunConfig, axis: Axis, size: usize) -> Result<RunConfig, Error> {
    let mut config = config.clone();
    let model = &mut config.model;
    match axis {
        Axis::Depth => model.n_layers = size,
        Axis::Width => {
            let width = model.d_model.max(1);
            let scaled = |key: &str, n: usize, leave: &str| {
                let problem =
                    || format!("at width {width} is not an integer at width {size}; {leave}, or use other widths");
                let all = n.checked_mul(size).filter(|all| all.is_multiple_of(width));
                all.map(|all| all / width).ok_or_else(|| Error::value(key, n, problem()))
            };
            if let Some(head_dim) = model.head_dim {
                let leave = format!("leave out model.head_dim = {head_dim}, so that heads grow in size");
                model.n_kv_heads = model.n_kv_heads.map(|n| scaled("model.n_kv_heads", n, &leave)).transpose()?;
                model.n_heads = scaled("model.n_heads", model.n_heads, &leave)?;
            }
            model.d_ff = model.d_ff.map(|n| scaled("model.d_ff", n, "leave it out")).transpose()?;
            model.d_model = size;
        }
    }
    Ok(config)
}

/// Checks the model of a configuration at all sizes and seeds; calls `progress` after each model.
///
/// # Errors
/// As [`RunConfig::prepare`], and for fewer than two different sizes, no step or no seed.
pub fn run(
    config: &RunConfig,
    options: &CoordCheckOptions,
    progress: &mut (dyn FnMut() + Send),
) -> Result<CoordCheckReport, Error> {
    options.check()?;
    // Report errors of all sizes before the first measurement.
    for size in &options.sizes {
        resized(config, options.axis, *size)?.plan()?;
    }
    device::compute(config, || {
        let build = |size, seed| {
            let mut config = resized(config, options.axis, size)?;
            config.seed += seed;
            subject(&config, options)
        };
        of_models(options, build, progress)
    })
}

/// A model under check.
#[derive(Debug)]
pub struct Subject<M = Transformer> {
    /// The model with an optimizer, without weight decay.
    pub trainer: Trainer<M>,
    /// The batch of every step.
    pub batch: Batch,
    /// Number of blocks.
    pub blocks: usize,
    /// Learning rate of every step.
    pub lr: f64,
    /// Precision of its computation.
    pub precision: Precision,
}

impl CoordCheckOptions {
    fn check(&self) -> Result<(), Error> {
        let different: HashSet<usize> = self.sizes.iter().copied().collect();
        if different.len() < 2 || different.len() < self.sizes.len() {
            return Err(Error::value("--widths or --depths", "", "a slope needs at least two sizes, all different"));
        }
        let counts = [("--steps", self.steps as u64), ("--seeds", self.seeds)];
        if let Some((key, _)) = counts.iter().find(|(_, n)| *n == 0) {
            return Err(Error::value(key, 0, "must be at least 1"));
        }
        if !self.tolerance.is_finite() {
            return Err(Error::value("tolerance", self.tolerance, "must be a number"));
        }
        Ok(())
    }
}

/// Changes of one activation.
struct Movement {
    /// rms change, by step.
    changes: Vec<f64>,
    /// Maximum change that may be rounding, or that is negligible where the activation is added.
    floor: f64,
}

impl Movement {
    fn moved(&self, step: usize) -> bool {
        self.changes[step] > self.floor
    }
}

type Movements = BTreeMap<Name, Movement>;

/// Checks any models: `build` makes the model of a size and a seed (from 0), whose activations are those it shows to a
/// [`Probe`]. Calls `progress` after each model.
///
/// # Errors
/// Errors of `build`, and [`Error::Config`] for fewer than two different sizes, no step or no seed.
pub fn of_models<M: LanguageModel>(
    options: &CoordCheckOptions,
    mut build: impl FnMut(usize, u64) -> Result<Subject<M>, Error>,
    progress: &mut dyn FnMut(),
) -> Result<CoordCheckReport, Error> {
    options.check()?;
    // By seed and size.
    let mut all: Vec<Vec<Movements>> = Vec::new();
    let mut targets = usize::MAX;
    for seed in 0..options.seeds {
        let mut of_seed = Vec::new();
        for size in &options.sizes {
            let (movements, different) = movements(build(*size, seed)?, options);
            of_seed.push(movements);
            targets = targets.min(different);
            progress();
        }
        all.push(of_seed);
    }
    let names: Vec<Name> = all[0][0].keys().copied().collect();
    Ok(CoordCheckReport { layers: names.into_iter().map(|name| layer(name, &all, options)).collect(), targets })
}

fn layer(name: Name, all: &[Vec<Movements>], options: &CoordCheckOptions) -> Layer {
    let seeds = all.len() as f64;
    let of = |size: usize, step: usize| all.iter().map(|seed| seed[size][&name].changes[step]).sum::<f64>() / seeds;
    let changes: Vec<Vec<f64>> =
        (0..options.sizes.len()).map(|size| (0..options.steps).map(|step| of(size, step)).collect()).collect();
    let each = |step: usize| -> Vec<f64> {
        let point =
            |seed: &Vec<Movements>, i: usize| ((options.sizes[i] as f64).log2(), seed[i][&name].changes[step].log2());
        all.iter().map(|seed| slope(&(0..options.sizes.len()).map(|i| point(seed, i)).collect::<Vec<_>>())).collect()
    };
    let has_moved = |step: usize| all.iter().flatten().all(|movements| movements[&name].moved(step));
    let (slopes, spread) = (0..options.steps)
        .map(|step| if has_moved(step) { mean_and_std(&each(step)) } else { (f64::NAN, f64::NAN) })
        .unzip();
    let has_overflown = changes.iter().flatten().any(|change| !change.is_finite());
    let mut layer = Layer { name: name.shown(options.axis), changes, slopes, spread, verdict: Growth::Overflows };
    if !has_overflown {
        layer.verdict = growth(&layer.slopes, &layer.spread, options.tolerance);
    }
    layer
}

/// The growth, from the slope after each step (NaN if there is none) and its spread over the seeds.
fn growth(slopes: &[f64], spread: &[f64], tolerance: f64) -> Growth {
    let steps = || slopes.iter().zip(spread).filter(|(slope, _)| !slope.is_nan());
    if slopes.last().is_none_or(|slope| slope.is_nan()) {
        Growth::Still
    } else if steps().any(|(slope, _)| *slope > tolerance) {
        Growth::Grows
    } else if steps().any(|(slope, spread)| *spread > tolerance && slope + spread > tolerance) {
        Growth::Undecided
    } else if steps().all(|(slope, _)| *slope < -tolerance) {
        Growth::Shrinks
    } else {
        Growth::Holds
    }
}

/// Name of an activation. Over depths, only the first and the last block are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Embedding,
    Logits(usize),
    Branch(usize, bool),
    Stream(usize),
    Last,
    Output,
}

impl Name {
    fn shown(self, axis: Axis) -> String {
        let block = |l: usize| match axis {
            Axis::Width => format!("block {}", l + 1),
            Axis::Depth if l == 0 => "first block".into(),
            Axis::Depth => "last block".into(),
        };
        match self {
            Self::Embedding => "embedding".into(),
            Self::Logits(l) => format!("{}, attention logits", block(l)),
            Self::Branch(l, false) => format!("{}, attention", block(l)),
            Self::Branch(l, true) => format!("{}, mlp", block(l)),
            Self::Stream(l) => format!("{}, stream", block(l)),
            Self::Last => "what the head reads".into(),
            Self::Output => "logits".into(),
        }
    }
}

/// The model of a configuration, calibrated and without dropout.
fn subject(config: &RunConfig, options: &CoordCheckOptions) -> Result<Subject, Error> {
    let (config, task) = config.prepare()?;
    let config = RunConfig { optimizer: config.optimizer.without_decay(), ..config };
    if device::is_host(&config.backend) {
        Need::of_seen(&config, &config.plan()?, options.axis == Axis::Width).check(&config)?;
    }
    let plain = config.device()?;
    let trainer = Trainer::of(&config, &plain)?;
    let (trainer, _) = calibrate(trainer, &config, &task, &mut |_, _| ())?;
    Ok(Subject {
        trainer: trainer.with_dropout(0.0),
        batch: task.batch(config.seed, 1, 0..config.train.batch_size),
        blocks: config.model.n_layers,
        lr: config.optimizer.lr(),
        precision: config.train.precision,
    })
}

/// The change of every activation of a model, and the number of distinct target tokens.
fn movements<M: LanguageModel>(subject: Subject<M>, options: &CoordCheckOptions) -> (Movements, usize) {
    let Subject { mut trainer, batch, blocks, lr, precision } = subject;
    let targets: HashSet<i32> = batch.asked_targets().map(|(_, target)| target).collect();
    let first = seen(&trainer, &batch, blocks, options.axis);
    let still = |name: &Name| Movement { changes: Vec::new(), floor: floor(*name, &first, precision) };
    let mut movements: Movements = first.keys().map(|name| (*name, still(name))).collect();
    for _ in 0..options.steps {
        (trainer, _) = trainer.step(std::slice::from_ref(&batch), lr, false);
        let now = seen(&trainer, &batch, blocks, options.axis);
        for (name, movement) in &mut movements {
            let change = first[name].iter().zip(&now[name]).map(|(a, b)| f64::from(a - b));
            movement.changes.push(rms(change));
        }
    }
    (movements, targets.len())
}

fn rms(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    (values.map(|x| x * x).sum::<f64>() / count).sqrt()
}

/// The maximum change of an activation that counts as rounding. A branch output is measured relative to the stream it
/// is added to, so that it may start at 0; logits relative to 1, the scale of a softmax.
fn floor(name: Name, first: &BTreeMap<Name, Vec<f32>>, precision: Precision) -> f64 {
    // A few f32 rounding errors, or one of bf16; changes at usual learning rates are far larger.
    let rounding = match precision {
        Precision::F32 => 2f64.powi(-20),
        Precision::Bf16 => 2f64.powi(-8),
    };
    let size = |name: Name| first.get(&name).map_or(0.0, |values| rms(values.iter().map(|x| f64::from(*x))));
    let size = match name {
        Name::Embedding | Name::Stream(_) | Name::Last => size(name),
        Name::Branch(block, _) => size(Name::Stream(block)),
        Name::Logits(_) | Name::Output => size(name).max(1.0),
    };
    rounding * size
}

/// All activations of a batch in training mode without dropout: in evaluation mode a batch norm would show its running
/// averages, which move without a gradient.
fn seen<M: LanguageModel>(trainer: &Trainer<M>, batch: &Batch, blocks: usize, axis: Axis) -> BTreeMap<Name, Vec<f32>> {
    let probe = Seen { blocks, axis, all: RefCell::default() };
    let (tokens, _) = batch.tensors(trainer.device());
    trainer.model.logits(tokens, &probe);
    probe.all.into_inner()
}

struct Seen {
    blocks: usize,
    axis: Axis,
    all: RefCell<BTreeMap<Name, Vec<f32>>>,
}

impl Seen {
    /// The names under which a block is compared; a single block is both first and last.
    fn indices(&self, block: usize) -> Vec<usize> {
        match self.axis {
            Axis::Width => vec![block],
            Axis::Depth => {
                let (first, last) = (block == 0, block + 1 == self.blocks);
                [first.then_some(0), last.then_some(1)].into_iter().flatten().collect()
            }
        }
    }

    fn note<const D: usize>(&self, name: Name, x: &Tensor<D>) {
        let values = x.clone().cast(FloatDType::F32).into_data().iter::<f32>().collect();
        self.all.borrow_mut().insert(name, values);
    }
}

impl Probe for Seen {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        let names = match point {
            Point::Embedding => vec![Name::Embedding],
            Point::Block(l) => self.indices(l).into_iter().map(Name::Stream).collect(),
            Point::FinalNorm => vec![Name::Last],
            Point::Logits => vec![Name::Output],
        };
        names.into_iter().for_each(|name| self.note(name, &x));
        x
    }

    fn branch(&self, block: usize, branch: Branch, y: Tensor<2>) -> Tensor<2> {
        self.indices(block).into_iter().for_each(|block| self.note(Name::Branch(block, branch == Branch::Mlp), &y));
        y
    }

    fn attention(&self, block: usize, q: &Tensor<4>, k: &Tensor<4>, scale: f64, window: Option<usize>) {
        let indices = self.indices(block);
        if !indices.is_empty() {
            let (logits, unseen) = attention_logits(q.clone(), k.clone(), scale, window);
            let logits = logits.mask_fill(unseen, 0.0);
            indices.into_iter().for_each(|block| self.note(Name::Logits(block), &logits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: f64 = f64::NAN;

    #[test]
    fn a_verdict_needs_slopes_and_seeds_that_agree() {
        for (slopes, spread, expected) in [
            (&[0.1, 0.2][..], &[0.1, 0.1][..], Growth::Holds),
            (&[0.1, 0.3], &[0.0, 0.0], Growth::Grows),
            (&[0.3, 0.1], &[9.0, 9.0], Growth::Grows),
            (&[-0.3, -0.4], &[0.1, NONE], Growth::Shrinks),
            // Steps before the first change do not count; an activation that never changes is still.
            (&[NONE, 0.2], &[NONE, 0.1], Growth::Holds),
            (&[NONE, 0.3], &[NONE, 0.1], Growth::Grows),
            (&[NONE, NONE], &[NONE, NONE], Growth::Still),
            (&[0.1, NONE], &[0.1, NONE], Growth::Still),
            (&[], &[], Growth::Still),
            // The mean holds but the seeds do not; a spread entirely below the tolerance.
            (&[0.1, 0.1], &[0.1, 0.9], Growth::Undecided),
            (&[-1.0, -1.0], &[0.5, 0.5], Growth::Shrinks),
            // A single seed has no spread.
            (&[0.1], &[NONE], Growth::Holds),
        ] {
            assert_eq!(growth(slopes, spread, 0.25), expected, "{slopes:?} {spread:?}");
        }
    }

    #[test]
    fn every_activation_has_to_hold() {
        let layer = |verdict| Layer {
            name: format!("{verdict:?}"),
            changes: Vec::new(),
            slopes: Vec::new(),
            spread: Vec::new(),
            verdict,
        };
        let options = CoordCheckOptions { axis: Axis::Depth, sizes: vec![1, 2], steps: 4, seeds: 1, tolerance: 0.25 };
        use Growth::{Grows, Holds, Overflows, Shrinks, Still, Undecided};
        for (verdicts, targets, expected, says) in [
            (&[Holds, Shrinks][..], 2, Conclusion::Holds, "holds: what 4 steps change does not grow with the depth"),
            (&[Holds, Grows, Still], 2, Conclusion::Fails, "fails: 1 of 3 activations"),
            (&[Holds, Overflows], 2, Conclusion::Fails, "1 overflow"),
            (&[Holds, Still], 2, Conclusion::Undecided, "1 of 2 activations did not move at every depth"),
            (&[Holds, Undecided], 2, Conclusion::Undecided, "spreads by more than the tolerance: Undecided"),
            (&[Holds, Holds], 1, Conclusion::Undecided, "is the same"),
            (&[Still, Still], 2, Conclusion::NothingMoved, "nothing moved"),
            (&[], 2, Conclusion::NothingMoved, "nothing moved"),
        ] {
            let report = CoordCheckReport { layers: verdicts.iter().copied().map(layer).collect(), targets };
            assert_eq!(report.conclusion(), expected, "{verdicts:?}");
            assert!(report.said(&options).contains(says), "{}", report.said(&options));
        }
    }
}
