//! Signal statistics of a model on one batch, before or after training: sizes of stream, branches, gradients and
//! attention logits, block by block.

use burn::tensor::{Bool, FloatDType, Tensor, activation};
use serde::Serialize;
use std::cell::RefCell;
use unitgain_init::matrix::singular_values;
use unitgain_model::{Branch, ParamEntry, Point, Probe, ops::unseen, weights};
use unitgain_train::folder::checkpoint::Checkpoint;
use unitgain_train::{Error, Gradients, RunConfig, Task, Trainer, calibrate, device, loss};

/// Signal statistics of a block.
#[derive(Clone, Debug, Serialize)]
pub struct BlockSignal {
    /// rms of the stream after the block.
    pub stream: f64,
    /// rms of the attention branch's output, after its scale.
    pub attention: f64,
    /// rms of the MLP branch's output, after its scale.
    pub mlp: f64,
    /// `attention` relative to the rms of the stream before it.
    pub attention_share: f64,
    /// `mlp` relative to the rms of the stream before the block.
    pub mlp_share: f64,
    /// rms of the loss's gradient with respect to the stream after the block, times the number of target tokens,
    /// as for a loss summed over tokens.
    pub stream_gradient: f64,
    /// Norm of the gradients of the block's parameters.
    pub gradient: f64,
    /// Mean entropy of the attention weights relative to uniform weights over the tokens seen, over all positions except the
    /// first; NaN for a context or a window of one token.
    pub entropy: f64,
    /// Maximum absolute value of the unmasked attention logits.
    pub largest_logit: f64,
    /// Largest and smallest singular value over the block's matrices; None if not computed.
    pub singular_values: Option<[f64; 2]>,
}

/// Singular values s of a stored matrix, before any weight norm and multiplier.
#[derive(Clone, Debug, Serialize)]
pub struct Spectrum {
    /// Path of the parameter.
    pub path: String,
    /// Name of its role.
    pub role: &'static str,
    /// Shape, `[fan_in, fan_out]`.
    pub shape: [usize; 2],
    /// Largest singular value.
    pub largest: f64,
    /// Smallest singular value.
    pub smallest: f64,
    /// Stable rank `sum s^2 / max s^2`, from 1 (rank one) to the smaller dimension (all equal); 0 for a zero matrix.
    pub stable_rank: f64,
}

impl Spectrum {
    fn of(entry: &ParamEntry, values: &[f32]) -> Option<Self> {
        let [rows, columns] = *entry.shape.as_slice() else { return None };
        let all = singular_values(values, rows, columns);
        let (largest, smallest) = (*all.first()?, *all.last()?);
        let squares = all.iter().map(|s| (s / largest).powi(2)).sum::<f64>();
        Some(Self {
            path: entry.path.clone(),
            role: entry.role().name(),
            shape: [rows, columns],
            largest,
            smallest,
            stable_rank: if largest == 0.0 { 0.0 } else { squares },
        })
    }
}

/// Signal statistics of a model.
#[derive(Clone, Debug, Serialize)]
pub struct Signal {
    /// Seed of the run, and of the batch.
    pub seed: u64,
    /// Number of training steps.
    pub step: usize,
    /// Loss of the batch.
    pub loss: f64,
    /// rms of the stream before the first block.
    pub embedding: f64,
    /// rms of the head's input.
    pub final_norm: f64,
    /// rms of the logits.
    pub logits: f64,
    /// Statistics of each block, from the first.
    pub blocks: Vec<BlockSignal>,
    /// Spectrum of every weight matrix; empty if not computed.
    pub matrices: Vec<Spectrum>,
    /// Norm of the gradient of each parameter, by path.
    pub gradients: Vec<(String, f64)>,
    /// Gradient norm of the last block relative to the first.
    pub last_over_first: f64,
    /// Exponent a of the stream's growth, rms ~ l^a: slope of log rms over the logarithm of the block's number.
    pub growth: f64,
}

impl Signal {
    /// Whether all statistics are finite, except those that need two tokens or two blocks.
    pub fn is_finite(&self) -> bool {
        let whole = [self.loss, self.embedding, self.final_norm, self.logits];
        let of = |b: &BlockSignal| [b.stream, b.attention, b.mlp, b.stream_gradient, b.gradient, b.largest_logit];
        let mut all = self.blocks.iter().flat_map(of).chain(whole).chain(self.gradients.iter().map(|(_, norm)| *norm));
        all.all(f64::is_finite)
    }

    /// Indices of the blocks without any gradient at step 0.
    pub fn without_gradient(&self) -> Vec<usize> {
        (0..self.blocks.len()).filter(|l| self.blocks[*l].gradient == 0.0).collect()
    }
}

/// Slope of the least-squares line through points; NaN for fewer than two.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let over: f64 = points.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    over / points.iter().map(|(x, _)| (x - mx).powi(2)).sum::<f64>()
}

/// Mean and sample standard deviation; the latter is NaN for one value.
pub fn mean_and_std(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (mean, if values.len() > 1 { (square / (count - 1.0)).sqrt() } else { f64::NAN })
}

/// Measures a model at step 0 on the batch of its first step, after calibration if configured, without dropout.
/// `spectrum` adds the singular values of every weight matrix.
///
/// # Errors
/// As [`RunConfig::prepare`] and [`calibrate()`].
pub fn measure(config: &RunConfig, spectrum: bool) -> Result<Signal, Error> {
    device::compute(config, || {
        let (config, task) = config.prepare()?;
        let trainer = Trainer::of(&config, &config.device()?)?;
        let (trainer, _) = calibrate(trainer, &config, &task, &mut |_, _| ())?;
        measured(&config, &task, trainer, 0, spectrum)
    })
}

/// Measures the model of a checkpoint on the same batch as [`measure`], so that both can be compared. `config` is the
/// checkpoint's, except for seed (of the batch), backend, batch, and path of the data.
///
/// # Errors
/// As [`RunConfig::prepare`], and [`Error::Checkpoint`] for a configuration of another model or other data.
pub fn measure_trained(checkpoint: &Checkpoint, config: &RunConfig, spectrum: bool) -> Result<Signal, Error> {
    device::compute(config, || {
        let mut config = config.clone();
        // The data set the vocabulary again; it is compared below.
        config.model.vocab_size = None;
        let (config, task) = config.prepare()?;
        checkpoint.check_data(&task)?;
        checkpoint.check_model(&config.model)?;
        let trainer = checkpoint.trainer(&config, &config.device()?)?;
        measured(&config, &task, trainer, checkpoint.progress.step, spectrum)
    })
}

fn measured(config: &RunConfig, task: &Task, trainer: Trainer, step: usize, spectrum: bool) -> Result<Signal, Error> {
    let plain = trainer.device().clone();
    let trainer = trainer.with_dropout(0.0);
    let batch = task.batch(config.seed, 1, 0..config.train.batch_size);
    let seen = Seen { softcap: config.model.attention_softcap, ..Seen::default() };
    let loss = loss(&trainer.model, &batch, &plain, &seen);
    let value = f64::from(loss.clone().into_scalar::<f32>());
    let mut graph = loss.backward();
    let squares = Gradients::taken(&mut graph, &trainer.model).squares(&plain);
    let squares: Vec<f64> = squares.into_data().iter::<f32>().map(f64::from).collect();
    let leaves = seen.leaves.into_inner();
    let of_stream: Vec<Tensor<1>> = leaves
        .iter()
        .map(|leaf| leaf.grad(&graph).map_or_else(|| Tensor::zeros([1], &plain), |g| g.square().mean()))
        .collect();
    // The denominator of the mean loss.
    let tokens = batch.asked();
    let read = |all: Vec<Tensor<1>>| -> Vec<f64> {
        if all.is_empty() {
            return Vec::new();
        }
        Tensor::cat(all, 0).into_data().iter::<f32>().map(|x| f64::from(x).sqrt()).collect()
    };
    let stream = read(seen.stream.into_inner());
    let branches = read(seen.branches.into_inner());
    let of_stream = read(of_stream);
    let attention: Vec<f64> = match seen.attention.into_inner() {
        all if all.is_empty() => Vec::new(),
        all => Tensor::cat(all, 0).into_data().iter::<f32>().map(f64::from).collect(),
    };
    let layers = config.model.n_layers;
    let spectra: Vec<(Option<usize>, Spectrum)> = trainer
        .table
        .iter()
        .zip(if spectrum { weights::of(&trainer.model) } else { Vec::new() })
        .filter(|(entry, _)| entry.role().is_matrix())
        .filter_map(|(entry, (.., values))| Some((entry.block(), Spectrum::of(entry, &values)?)))
        .collect();
    let blocks = (0..layers)
        .map(|l| {
            let own = trainer.table.iter().zip(&squares).filter(|(entry, _)| entry.block() == Some(l));
            let gradient = own.map(|(_, square)| square).sum::<f64>().sqrt();
            let of_block = spectra.iter().filter(|(block, _)| *block == Some(l));
            let range = of_block.fold(None, |range: Option<[f64; 2]>, (_, of)| {
                Some(range.map_or([of.largest, of.smallest], |[a, b]| [a.max(of.largest), b.min(of.smallest)]))
            });
            BlockSignal {
                stream: stream[l + 1],
                attention: branches[2 * l],
                mlp: branches[2 * l + 1],
                attention_share: branches[2 * l] / stream[l],
                mlp_share: branches[2 * l + 1] / stream[l],
                stream_gradient: of_stream[l + 1] * tokens,
                gradient,
                entropy: attention[2 * l],
                largest_logit: attention[2 * l + 1],
                singular_values: range,
            }
        })
        .collect::<Vec<_>>();
    let by_depth: Vec<(f64, f64)> =
        blocks.iter().enumerate().map(|(l, block)| (((l + 1) as f64).ln(), block.stream.ln())).collect();
    Ok(Signal {
        seed: config.seed,
        step,
        loss: value,
        embedding: stream[0],
        final_norm: stream[layers + 1],
        logits: stream[layers + 2],
        matrices: spectra.into_iter().map(|(_, of)| of).collect(),
        gradients: trainer.table.iter().zip(&squares).map(|(e, square)| (e.path.clone(), square.sqrt())).collect(),
        last_over_first: blocks[layers - 1].gradient / blocks[0].gradient,
        growth: slope(&by_depth),
        blocks,
    })
}

/// Records mean squares on the device, and adds a zero to the stream in order to get the stream's gradient.
#[derive(Default)]
struct Seen {
    softcap: f64,
    stream: RefCell<Vec<Tensor<1>>>,
    branches: RefCell<Vec<Tensor<1>>>,
    leaves: RefCell<Vec<Tensor<2>>>,
    /// Entropy and largest logit of each block.
    attention: RefCell<Vec<Tensor<1>>>,
}

impl Probe for Seen {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        self.stream.borrow_mut().push(x.clone().inner().square().mean());
        if point == Point::Logits || point == Point::FinalNorm {
            return x;
        }
        let leaf = Tensor::zeros(x.shape(), &x.device()).require_grad();
        self.leaves.borrow_mut().push(leaf.clone());
        x + leaf
    }

    fn branch(&self, _: usize, _: Branch, y: Tensor<2>) -> Tensor<2> {
        self.branches.borrow_mut().push(y.clone().inner().square().mean());
        y
    }

    fn attention(&self, _: usize, q: &Tensor<4>, k: &Tensor<4>, scale: f64, window: Option<usize>) {
        let (logits, unseen) = attention_logits(q.clone().inner(), k.clone().inner(), scale, window);
        let [batch, heads, time, _] = logits.dims();
        let logits = if self.softcap > 0.0 { (logits / self.softcap).tanh() * self.softcap } else { logits };
        let largest = logits.clone().abs().mask_fill(unseen.clone(), 0.0).max();
        let weights = activation::softmax(logits.mask_fill(unseen, f32::NEG_INFINITY), 3);
        // 0 ln 0 is 0.
        let entropy = -(weights.clone() * (weights + 1e-30).log()).sum_dim(3);
        let entropy = entropy.reshape([batch * heads, time]).mean_dim(0).reshape([time]);
        let share: Vec<f32> = (0..time)
            .map(|t| {
                let seen = window.map_or(t + 1, |window| window.min(t + 1));
                if time == 1 || window == Some(1) {
                    f32::NAN
                } else if t == 0 {
                    0.0
                } else {
                    1.0 / ((seen as f32).ln() * (time - 1).max(1) as f32)
                }
            })
            .collect();
        let share = Tensor::<1>::from_floats(share.as_slice(), &entropy.device());
        self.attention.borrow_mut().extend([(entropy * share).sum(), largest]);
    }
}

/// `scale q k^T` in f32, `[batch, heads, time, time]`, for queries and keys `[batch, time, heads, head_dim]` (keys
/// repeated for the query heads of their group), and the mask of what a query does not see.
pub(crate) fn attention_logits(
    q: Tensor<4>,
    k: Tensor<4>,
    scale: f64,
    window: Option<usize>,
) -> (Tensor<4>, Tensor<4, Bool>) {
    let [q, k] = [q, k].map(|x| x.cast(FloatDType::F32).swap_dims(1, 2));
    let ([batch, heads, time, head_dim], [_, kv_heads, ..]) = (q.dims(), k.dims());
    let k = k.unsqueeze_dim::<5>(2).expand([batch, kv_heads, heads / kv_heads, time, head_dim]);
    let logits = q.matmul(k.reshape([batch, heads, time, head_dim]).transpose()) * scale;
    let unseen = unseen(time, time, window, &logits.device()).unsqueeze::<4>();
    (logits, unseen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_that_of_the_line() {
        assert!((slope(&[(0.0, 1.0), (1.0, 1.5), (2.0, 2.0)]) - 0.5).abs() < 1e-12);
        assert!(slope(&[(0.0, 1.0)]).is_nan());
    }
}
