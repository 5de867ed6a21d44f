//! Coordinate check: whether what a few steps change in each activation depends on the width, or on the depth
//! (arXiv:2203.03466, appendix D.1). Under a parametrization that transfers it does not.

use crate::signal::{attention_logits, mean_and_std, slope};
use crate::{Batch, Error, RunConfig, Trainer, calibrate, device};
use burn::tensor::{Device, FloatDType, Tensor};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use unitgain_model::{Branch, Point, Probe};

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// `model.d_model`, with everything that follows from it.
    Width,
    /// `model.n_layers`.
    Depth,
}

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is varied.
    pub axis: Axis,
    /// At least two sizes.
    pub sizes: Vec<usize>,
    /// Number of updates.
    pub steps: usize,
    /// Number of seeds, from that of the configuration on.
    pub seeds: u64,
    /// Largest slope, in octaves of change per octave of size, that is not called growth.
    pub tolerance: f64,
}

/// One activation over the sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Layer {
    /// Which.
    pub name: String,
    /// rms of its change since step 0, over the seeds, by size and step (from step 1).
    pub changes: Vec<Vec<f64>>,
    /// Slope of log2 of the change over log2 of the size, after each step: mean over seeds.
    pub slopes: Vec<f64>,
    /// Standard deviation of the slopes over seeds; NaN for one seed.
    pub spread: Vec<f64>,
    /// What it says.
    pub verdict: Verdict,
}

/// What the slopes of an activation say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// After no step the slope is above the tolerance.
    Holds,
    /// After some step it is: larger models move more.
    Grows,
    /// After every step it is below minus the tolerance: larger models move less. Attention logits and the output do so
    /// under muP where query and head do not start at 0, by 1/sqrt(width) at most.
    Shrinks,
    /// Nothing moved.
    Still,
}

/// The model of a configuration at another size: the width with the MLP's, and with a constant head size the number of
/// heads.
///
/// # Errors
/// [`Error::Config`] where what is set does not grow to a whole number.
pub fn resized(config: &RunConfig, axis: Axis, size: usize) -> Result<RunConfig, Error> {
    let mut config = config.clone();
    let model = &mut config.model;
    match axis {
        Axis::Depth => model.n_layers = size,
        Axis::Width => {
            let width = model.d_model.max(1);
            let scaled = |key: &str, n: usize, leave: &str| {
                let problem = || {
                    format!("{n} at width {width} is no whole number at width {size}; {leave}, or take other widths")
                };
                let all = n.checked_mul(size).filter(|all| all.is_multiple_of(width));
                all.map(|all| all / width).ok_or_else(|| Error::config(key, problem()))
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

/// Runs every size and seed, telling `progress` when one is done.
///
/// # Errors
/// As [`RunConfig::prepare`], and for fewer than two sizes.
pub fn run(config: &RunConfig, options: &Options, progress: &mut (dyn FnMut() + Send)) -> Result<Vec<Layer>, Error> {
    if options.sizes.len() < 2 {
        return Err(Error::config("--widths or --depths", "a slope needs at least two sizes"));
    }
    if !options.tolerance.is_finite() {
        return Err(Error::config("tolerance", format!("{} must be a number", options.tolerance)));
    }
    // Before anything is measured.
    for size in &options.sizes {
        resized(config, options.axis, *size)?.model.resolved()?;
    }
    device::compute(config, || measured(config, options, progress))
}

/// rms of the change of each activation, by step.
type Changes = BTreeMap<Name, Vec<f64>>;

fn measured(config: &RunConfig, options: &Options, progress: &mut (dyn FnMut() + Send)) -> Result<Vec<Layer>, Error> {
    // By seed and size.
    let mut all: Vec<Vec<Changes>> = Vec::new();
    for seed in 0..options.seeds {
        let mut of_seed = Vec::new();
        for size in &options.sizes {
            let mut config = resized(config, options.axis, *size)?;
            config.seed += seed;
            of_seed.push(changes(&config, options)?);
            progress();
        }
        all.push(of_seed);
    }
    let names: Vec<Name> = all[0][0].keys().copied().collect();
    Ok(names.into_iter().map(|name| layer(name, &all, options)).collect())
}

fn layer(name: Name, all: &[Vec<Changes>], options: &Options) -> Layer {
    let seeds = all.len() as f64;
    let of = |size: usize, step: usize| all.iter().map(|seed| seed[size][&name][step]).sum::<f64>() / seeds;
    let changes: Vec<Vec<f64>> =
        (0..options.sizes.len()).map(|size| (0..options.steps).map(|step| of(size, step)).collect()).collect();
    let each = |step: usize| -> Vec<f64> {
        let point = |seed: &Vec<Changes>, i: usize| ((options.sizes[i] as f64).log2(), seed[i][&name][step].log2());
        all.iter().map(|seed| slope(&(0..options.sizes.len()).map(|i| point(seed, i)).collect::<Vec<_>>())).collect()
    };
    let (mut slopes, mut spread) = (Vec::new(), Vec::new());
    for step in 0..options.steps {
        let each = each(step);
        let (mean, std) = mean_and_std(&each);
        slopes.push(mean);
        spread.push(std);
    }
    let verdict = match changes.iter().flatten().all(|change| *change == 0.0) {
        true => Verdict::Still,
        // A slope that is no number comes from a change that is 0 or infinite somewhere: no reason to pass.
        false if slopes.iter().any(|slope| slope.is_nan() || *slope > options.tolerance) => Verdict::Grows,
        false if slopes.iter().all(|slope| *slope < -options.tolerance) => Verdict::Shrinks,
        false => Verdict::Holds,
    };
    Layer { name: name.shown(options.axis), changes, slopes, spread, verdict }
}

/// Which activation; over depth only the first and the last block are compared.
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

fn changes(config: &RunConfig, options: &Options) -> Result<Changes, Error> {
    let (config, task) = config.prepare()?;
    let plain = device::from_name(&config.backend)?;
    let trainer = Trainer::new(&config.model, config.optimizer, config.train.clip, config.seed, &plain)?
        .with_precision(config.train.precision);
    let (mut trainer, _) = calibrate(trainer, &config, &task, &mut |_, _| ())?;
    let batch = task.batch(config.seed, 1, 0..config.train.batch_size);
    let layers = config.model.n_layers;
    let first = seen(&trainer, &batch, layers, options.axis, &plain);
    let mut changes: Changes = first.keys().map(|name| (*name, Vec::new())).collect();
    for _ in 0..options.steps {
        (trainer, _) = trainer.step(std::slice::from_ref(&batch), config.optimizer.lr(), false);
        let now = seen(&trainer, &batch, layers, options.axis, &plain);
        for (name, list) in &mut changes {
            let (before, after) = (&first[name], &now[name]);
            let square: f64 = before.iter().zip(after).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            list.push((square / before.len() as f64).sqrt());
        }
    }
    Ok(changes)
}

/// Every activation of a batch.
fn seen(trainer: &Trainer, batch: &Batch, layers: usize, axis: Axis, device: &Device) -> BTreeMap<Name, Vec<f32>> {
    use burn::module::Module;
    let probe = Seen { layers, axis, all: RefCell::default() };
    let (tokens, _) = batch.tensors(device);
    trainer.model.valid().forward_probed(tokens, &probe);
    probe.all.into_inner()
}

struct Seen {
    layers: usize,
    axis: Axis,
    all: RefCell<BTreeMap<Name, Vec<f32>>>,
}

impl Seen {
    /// The number under which a block is compared, if it is.
    fn index(&self, block: usize) -> Option<usize> {
        match self.axis {
            Axis::Width => Some(block),
            Axis::Depth if block == 0 => Some(0),
            Axis::Depth => (block + 1 == self.layers).then_some(1),
        }
    }

    fn note<const D: usize>(&self, name: Name, x: &Tensor<D>) {
        let values = x.clone().cast(FloatDType::F32).into_data().iter::<f32>().collect();
        self.all.borrow_mut().insert(name, values);
    }
}

impl Probe for Seen {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        let name = match point {
            Point::Embedding => Some(Name::Embedding),
            Point::Block(l) => self.index(l).map(Name::Stream),
            Point::FinalNorm => Some(Name::Last),
            Point::Logits => Some(Name::Output),
        };
        if let Some(name) = name {
            self.note(name, &x);
        }
        x
    }

    fn branch(&self, block: usize, branch: Branch, y: Tensor<2>) -> Tensor<2> {
        if let Some(block) = self.index(block) {
            self.note(Name::Branch(block, branch == Branch::Mlp), &y);
        }
        y
    }

    fn attention(&self, block: usize, q: &Tensor<4>, k: &Tensor<4>, scale: f64) {
        let Some(block) = self.index(block) else { return };
        let (logits, later) = attention_logits(q.clone(), k.clone(), scale);
        self.note(Name::Logits(block), &logits.mask_fill(later, 0.0));
    }
}
