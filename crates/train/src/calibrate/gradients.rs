//! Calibrations that use gradients: MetaInit and GradInit.

use super::{Measured, Work};
use std::collections::HashMap;
use unitgain_kernels::kinks::{self, Pieces};
use unitgain_model::{Precision, weights};
use unitgain_mup::Update;

/// Loss and gradients as a function of the values of some weights.
pub type Objective<'a> = dyn Fn(&[Vec<f32>]) -> (f64, Vec<Vec<f32>>) + 'a;

fn dot(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    a.iter().zip(b).map(|(a, b)| dot_one(a, b)).sum()
}

fn dot_one(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// `w + factor v`.
fn moved(w: &[Vec<f32>], v: &[Vec<f32>], factor: f64) -> Vec<Vec<f32>> {
    let one = |(w, v): (&Vec<f32>, &Vec<f32>)| {
        w.iter().zip(v).map(|(w, v)| (f64::from(*w) + factor * f64::from(*v)) as f32).collect()
    };
    w.iter().zip(v).map(one).collect()
}

/// Step of the finite difference of gradients, relative to the length of the weights. On a two-block model of width 64
/// the relative error of H g is about 3e-4; a tenth of the step gives 2e-3 (f32 rounding), ten times it over 2e-3, and
/// a hundred times it 7e-2 to 0.24.
const STEP: f64 = 1e-4;

/// The gradient at `w`, and the active pieces of piecewise functions there, for [`hessian_product`].
fn at(objective: &Objective<'_>, w: &[Vec<f32>]) -> (Vec<Vec<f32>>, Pieces) {
    let ((_, gradient), pieces) = kinks::observe(|| objective(w));
    (gradient, pieces)
}

/// `H v` by a central difference: `(g(w + s v) - g(w - s v)) / 2s`, s = `step` |w| / |v|. Both gradients use the pieces
/// active at w: a ReLU that changes sides would add its jump divided by 2s, which is not part of H.
fn hessian_product(
    objective: &Objective<'_>,
    pieces: &Pieces,
    w: &[Vec<f32>],
    v: &[Vec<f32>],
    step: f64,
) -> Vec<Vec<f32>> {
    let length = dot(v, v).sqrt();
    if length == 0.0 {
        return v.to_vec();
    }
    let step = step * dot(w, w).sqrt().max(1e-3) / length;
    let gradient = |step: f64| kinks::hold(pieces, || objective(&moved(w, v, step))).1;
    let (above, below) = (gradient(step), gradient(-step));
    let half = (0.5 / step) as f32;
    above.iter().zip(&below).map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b) * half).collect()).collect()
}

/// MetaInit's gradient quotient `1/P sum |(g - H g) / (g + eps) - 1|` over the P elements of `weights`, where eps has
/// size 1e-5 and the sign of g; and `H g`. Costs 3 gradients.
pub fn gradient_quotient(objective: &Objective<'_>, weights: &[Vec<f32>]) -> (f64, Vec<Vec<f32>>) {
    let (g, pieces) = at(objective, weights);
    let hg = hessian_product(objective, &pieces, weights, &g, STEP);
    let (mut sum, mut count) = (0.0, 0usize);
    for (g, hg) in g.iter().flatten().zip(hg.iter().flatten()) {
        let (g, hg) = (f64::from(*g), f64::from(*hg));
        sum += ((g - hg) / (g + 1e-5f64.copysign(if g < 0.0 { -1.0 } else { 1.0 })) - 1.0).abs();
        count += 1;
    }
    // Without any gradient there is no quotient, and nothing to train.
    let is_dead = g.iter().flatten().all(|g| *g == 0.0);
    (if is_dead { f64::INFINITY } else { sum / count.max(1) as f64 }, hg)
}

/// Norm of a gradient in GradInit's constraint: the 1-norm if the optimizer steps along the sign of the gradient, the
/// 2-norm if it steps along the gradient.
pub fn gradient_norm(g: &[Vec<f32>], update: Update) -> f64 {
    match update {
        Update::Normalized => g.iter().flatten().map(|g| f64::from(g.abs())).sum(),
        Update::Proportional => dot(g, g).sqrt(),
    }
}

/// GradInit's loss after one step, `L'(theta - eta U(g))` at `theta = alpha W`, and its derivative by the factor alpha
/// of each tensor. U(g) is g or sign g; L' uses another batch. Costs 2 gradients for sign g, and 4 for g.
pub fn grad_init_slopes(
    objective: &Objective<'_>,
    other: &Objective<'_>,
    w: &[Vec<f32>],
    alpha: &[f64],
    (update, eta): (Update, f64),
) -> (f64, Vec<f64>) {
    let theta = scaled(w, alpha);
    let (g, pieces) = at(objective, &theta);
    let (loss, mut slope) = other(&moved(&theta, &step_of(&g, update), -eta));
    if update == Update::Proportional {
        // The step depends on theta: d/dtheta L'(theta - eta g) = (I - eta H) g'.
        let through = hessian_product(objective, &pieces, &theta, &slope, STEP);
        slope = moved(&slope, &through, -eta);
    }
    (loss, w.iter().zip(&slope).map(|(w, slope)| dot_one(w, slope)).collect())
}

fn step_of(g: &[Vec<f32>], update: Update) -> Vec<Vec<f32>> {
    match update {
        Update::Proportional => g.to_vec(),
        Update::Normalized => {
            let sign = |g: &f32| if *g == 0.0 { 0.0 } else { g.signum() };
            g.iter().map(|g| g.iter().map(sign).collect()).collect()
        }
    }
}

fn scaled(w: &[Vec<f32>], alpha: &[f64]) -> Vec<Vec<f32>> {
    let one = |(w, alpha): (&Vec<f32>, &f64)| w.iter().map(|w| (f64::from(*w) * alpha) as f32).collect();
    w.iter().zip(alpha).map(one).collect()
}

impl Work<'_> {
    /// The values of the matrices, in the order of the table.
    fn matrices(&self) -> Vec<Vec<f32>> {
        let all = weights::of(&self.trainer.model).into_iter().zip(self.trainer.table.iter());
        all.filter(|(_, entry)| entry.role().is_matrix()).map(|((_, _, values), _)| values).collect()
    }

    fn with_matrices(&self, matrices: &[Vec<f32>]) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
        let mut matrices = matrices.iter();
        let all = weights::of(&self.trainer.model).into_iter().zip(self.trainer.table.iter());
        all.map(|((path, shape, values), entry)| {
            let values = if entry.role().is_matrix() { matrices.next().cloned().unwrap_or(values) } else { values };
            (path, (shape, values))
        })
        .collect()
    }

    /// Mean loss and gradients of the matrices over `batches`, in f32: bf16 rounding exceeds the effect of a short
    /// step.
    fn objective(&self, batches: Vec<usize>) -> impl Fn(&[Vec<f32>]) -> (f64, Vec<Vec<f32>>) + '_ {
        move |matrices| {
            let model = match weights::assign(self.trainer.model.clone(), &self.with_matrices(matrices)) {
                Ok(model) => model,
                Err(problem) => unreachable!("the model's own weights: {problem}"),
            };
            let model = model.with_precision(Precision::F32);
            let mut loss = 0.0;
            let mut sum: Vec<Vec<f32>> = matrices.iter().map(|w| vec![0.0; w.len()]).collect();
            let share = 1.0 / batches.len() as f32;
            for batch in &batches {
                let (own, gradients) = self.gradients(&model, &(self.batch)(*batch));
                loss += own * f64::from(share);
                let of_matrices = gradients.iter().zip(self.trainer.table.iter()).filter(|(_, e)| e.role().is_matrix());
                for (sum, (gradient, _)) in sum.iter_mut().zip(of_matrices) {
                    let Some(gradient) = gradient else { continue };
                    let values = gradient.clone().into_data();
                    sum.iter_mut().zip(values.iter::<f32>()).for_each(|(sum, g)| *sum += g * share);
                }
            }
            (loss, sum)
        }
    }

    pub(super) fn meta_init(&mut self, steps: usize, lr: f64, momentum: f64) -> Vec<Measured> {
        let first = self.matrices();
        let mut alpha = vec![1.0; first.len()];
        let mut velocity = vec![0.0; first.len()];
        let mut best: Option<(f64, Vec<f64>)> = None;
        let mut before = 0.0;
        for step in 0..=steps {
            let objective = self.objective(vec![0]);
            let at = |alpha: &[f64]| gradient_quotient(&objective, &scaled(&first, alpha)).0;
            let here = at(&alpha);
            if step == 0 {
                before = here;
            }
            if best.as_ref().is_none_or(|(lowest, _)| here < *lowest && here.is_finite()) {
                best = Some((here, alpha.clone()));
            }
            if step == steps {
                break;
            }
            let mut next = alpha.clone();
            for (i, velocity) in velocity.iter_mut().enumerate() {
                // A zero matrix cannot be rescaled.
                if first[i].iter().all(|w| *w == 0.0) {
                    continue;
                }
                let mut aside = alpha.clone();
                aside[i] *= 1.0 + 1e-2;
                let slope = at(&aside) - here;
                *velocity = momentum * *velocity + if slope > 0.0 { 1.0 } else { -1.0 };
                next[i] = (alpha[i] - lr * *velocity).max(0.01);
            }
            alpha = next;
            drop(objective);
            (self.progress)(step + 1, steps);
        }
        // The quotient is noisy, so the lowest one wins.
        let (after, alpha) = best.unwrap_or((before, alpha));
        self.set(&self.with_matrices(&scaled(&first, &alpha)));
        vec![Measured { what: "gradient quotient".into(), before, after }]
    }

    pub(super) fn grad_init(&mut self, steps: usize, lr: f64, gamma: Option<f64>, eta: Option<f64>) -> Vec<Measured> {
        let update = self.config.optimizer.update();
        let eta = eta.unwrap_or_else(|| self.config.optimizer.lr());
        let first = self.matrices();
        let elements = first.iter().map(Vec::len).sum::<usize>() as f64;
        let gamma = gamma.unwrap_or(match update {
            Update::Proportional => 1.0,
            Update::Normalized => (elements / 1000.0).max(1.0),
        });
        let mut alpha = vec![1.0; first.len()];
        let mut moments = vec![(0.0, 0.0); first.len()];
        // Measured on two batches that the steps do not use.
        let measure = |work: &Self, alpha: &[f64]| {
            let (a, b) = (work.objective(vec![2 * steps + 2]), work.objective(vec![2 * steps + 3]));
            let theta = scaled(&first, alpha);
            let (_, g) = a(&theta);
            let (after, _) = b(&moved(&theta, &step_of(&g, update), -eta));
            (after, gradient_norm(&g, update))
        };
        let before = measure(self, &alpha);
        for step in 0..steps {
            let theta = scaled(&first, &alpha);
            // The first batch is half of the second.
            let (one, two) = (self.objective(vec![2 * step]), self.objective(vec![2 * step, 2 * step + 1]));
            let (g, pieces) = at(&one, &theta);
            let slopes = if gradient_norm(&g, update) > gamma {
                // d|g|/dtheta = H u, u = sign g or g / |g|.
                let length = gradient_norm(&g, Update::Proportional).max(1e-30) as f32;
                let u = match update {
                    Update::Normalized => step_of(&g, update),
                    Update::Proportional => g.iter().map(|g| g.iter().map(|g| g / length).collect()).collect(),
                };
                let hu = hessian_product(&one, &pieces, &theta, &u, STEP);
                first.iter().zip(&hu).map(|(w, hu)| dot_one(w, hu)).collect()
            } else {
                grad_init_slopes(&one, &two, &first, &alpha, (update, eta)).1
            };
            // Adam on the factors, with their gradient clipped to norm 1 as in the authors' code.
            let length = slopes.iter().map(|s| s * s).sum::<f64>().sqrt();
            let clip = if length > 1.0 { 1.0 / length } else { 1.0 };
            for ((alpha, (m, v)), slope) in alpha.iter_mut().zip(&mut moments).zip(&slopes) {
                let slope = slope * clip;
                *m = 0.9 * *m + 0.1 * slope;
                *v = 0.999 * *v + 0.001 * slope * slope;
                let time = step as i32 + 1;
                let (m, v) = (*m / (1.0 - 0.9f64.powi(time)), *v / (1.0 - 0.999f64.powi(time)));
                *alpha = (*alpha - lr * m / (v.sqrt() + 1e-8)).max(0.01);
            }
            drop((one, two));
            (self.progress)(step + 1, steps);
        }
        let after = measure(self, &alpha);
        self.set(&self.with_matrices(&scaled(&first, &alpha)));
        vec![
            Measured { what: "loss after one step".into(), before: before.0, after: after.0 },
            Measured { what: "length of the gradient".into(), before: before.1, after: after.1 },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, DataConfig, RunConfig, Trainer};
    use burn::tensor::Device;
    use unitgain_model::{Activation, ModelConfig, Placement, Variant};

    /// Calls `f` with the objective of a model of width 64 on one batch, and the model's matrices.
    fn with_objective<R>(model: ModelConfig, f: impl FnOnce(&Objective<'_>, &[Vec<f32>]) -> R) -> R {
        let mut config = RunConfig {
            model: ModelConfig { d_model: 64, n_layers: 2, n_heads: 4, context: 32, ..model },
            data: DataConfig::Markov { vocab_size: 32, order: 1, branching: 4, seed: 1 },
            ..RunConfig::default()
        };
        config.train.batch_size = 8;
        let (config, task) = config.prepare().unwrap();
        let device = Device::flex();
        let trainer = Trainer::new(&config.model, config.optimizer, config.train.clip, config.seed, &device).unwrap();
        let batch = |i: usize| -> Batch { task.batch(1, 0, i * 8..(i + 1) * 8) };
        let mut progress = |_, _| ();
        let work =
            Work { trainer, plan: config.plan().unwrap(), config: &config, progress: &mut progress, batch: &batch };
        let matrices = work.matrices();
        f(&work.objective(vec![0]), &matrices)
    }

    /// `|a - b| / |b|`.
    fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
        let difference = moved(a, b, -1.0);
        (dot(&difference, &difference) / dot(b, b)).sqrt()
    }

    #[test]
    fn a_product_with_the_hessian_is_that_of_half_and_of_twice_the_step() {
        for activation in Activation::all() {
            for placement in [Placement::PreNorm {}, Placement::PostNorm {}] {
                let model = ModelConfig { activation, placement, ..ModelConfig::default() };
                with_objective(model, |objective, w| {
                    let (g, pieces) = at(objective, w);
                    let product = |step: f64| hessian_product(objective, &pieces, w, &g, step * STEP);
                    let hg = product(1.0);
                    let apart = [0.5, 2.0].map(|step| distance(&product(step), &hg));
                    assert!(apart.iter().all(|d| *d < 1e-2), "{activation:?} {placement:?}: {apart:?}");
                });
            }
        }
    }

    #[test]
    fn without_its_pieces_a_difference_of_relus_gradients_converges_to_nothing() {
        let model = ModelConfig { activation: Activation::Relu, ..ModelConfig::default() };
        with_objective(model, |objective, w| {
            let (g, pieces) = at(objective, w);
            let hg = hessian_product(objective, &pieces, w, &g, STEP);
            let free = |step: f64| {
                let step = step * (dot(w, w) / dot(&g, &g)).sqrt();
                let [above, below] = [step, -step].map(|step| objective(&moved(w, &g, step)).1);
                scaled(&moved(&above, &below, -1.0), &vec![0.5 / step; w.len()])
            };
            let held = [1e-3, 1e-4, 1e-5].map(|step| distance(&hessian_product(objective, &pieces, w, &g, step), &hg));
            let free = [1e-3, 1e-4, 1e-5].map(|step| distance(&free(step), &hg));
            assert!(held.iter().all(|d| *d < 1e-2), "{held:?}");
            assert!(free[0] > 0.1 && free[0] < free[1] && free[1] < free[2], "{free:?}");
        });
    }
}
