//! What is measured by gradients, at weights that are moved.

use super::{Measured, Work};
use crate::checkpoint::assign;
use std::collections::HashMap;
use unitgain_mup::Update;

/// Loss and gradients at given values of some tensors.
pub type Objective<'a> = dyn Fn(&[Vec<f32>]) -> (f64, Vec<Vec<f32>>) + 'a;

fn dot(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    a.iter().zip(b).map(|(a, b)| of_one(a, b)).sum()
}

fn of_one(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// `w + factor v`.
fn moved(w: &[Vec<f32>], v: &[Vec<f32>], factor: f64) -> Vec<Vec<f32>> {
    let one = |(w, v): (&Vec<f32>, &Vec<f32>)| {
        w.iter().zip(v).map(|(w, v)| (f64::from(*w) + factor * f64::from(*v)) as f32).collect()
    };
    w.iter().zip(v).map(one).collect()
}

/// `H v`, the change of the gradient along v: a central difference over a step that is short against the weights and
/// long against their last digits.
fn hessian_product(objective: &Objective<'_>, w: &[Vec<f32>], v: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let length = dot(v, v).sqrt();
    if length == 0.0 {
        return v.to_vec();
    }
    let step = 1e-2 * dot(w, w).sqrt().max(1e-3) / length;
    let (_, above) = objective(&moved(w, v, step));
    let (_, below) = objective(&moved(w, v, -step));
    let half = (0.5 / step) as f32;
    above.iter().zip(&below).map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b) * half).collect()).collect()
}

/// MetaInit's gradient quotient, `1/P sum |(g - H g) / (g + eps) - 1|` with eps of the sign of g and of size 1e-5, over
/// the P elements of `weights`, and `H g`. 3 gradients.
pub fn gradient_quotient(objective: &Objective<'_>, weights: &[Vec<f32>]) -> (f64, Vec<Vec<f32>>) {
    let (_, g) = objective(weights);
    let hg = hessian_product(objective, weights, &g);
    let (mut sum, mut count) = (0.0, 0usize);
    for (g, hg) in g.iter().flatten().zip(hg.iter().flatten()) {
        let (g, hg) = (f64::from(*g), f64::from(*hg));
        sum += ((g - hg) / (g + 1e-5f64.copysign(if g < 0.0 { -1.0 } else { 1.0 })) - 1.0).abs();
        count += 1;
    }
    // Where nothing has a gradient there is no quotient, and nothing that could be trained.
    let is_dead = g.iter().flatten().all(|g| *g == 0.0);
    (if is_dead { f64::INFINITY } else { sum / count.max(1) as f64 }, hg)
}

/// The length of a gradient in the norm of GradInit's constraint: the sum of sizes where the step is the sign of the
/// gradient, the root of the sum of squares where it is the gradient.
pub fn gradient_norm(g: &[Vec<f32>], update: Update) -> f64 {
    match update {
        Update::Normalized => g.iter().flatten().map(|g| f64::from(g.abs())).sum(),
        Update::Proportional => dot(g, g).sqrt(),
    }
}

/// GradInit's loss after one step and its derivative by the factor of each tensor, at `theta = alpha W`:
/// `L'(theta - eta U(g))`, U(g) = g or sign g, L' on another batch. 2 gradients for sign g, and 4 for g.
pub fn grad_init_slopes(
    objective: &Objective<'_>,
    other: &Objective<'_>,
    w: &[Vec<f32>],
    alpha: &[f64],
    (update, eta): (Update, f64),
) -> (f64, Vec<f64>) {
    let theta = scaled(w, alpha);
    let (_, g) = objective(&theta);
    let (loss, mut slope) = other(&moved(&theta, &step_of(&g, update), -eta));
    if update == Update::Proportional {
        // The step moves with theta: d/dtheta L'(theta - eta g) = (I - eta H) g'.
        let through = hessian_product(objective, &theta, &slope);
        slope = moved(&slope, &through, -eta);
    }
    (loss, w.iter().zip(&slope).map(|(w, slope)| of_one(w, slope)).collect())
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
        let all = crate::checkpoint::weights(&self.trainer.model).into_iter().zip(self.trainer.table.iter());
        all.filter(|(_, entry)| entry.role().is_matrix()).map(|((_, _, values), _)| values).collect()
    }

    fn with_matrices(&self, matrices: &[Vec<f32>]) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
        let mut matrices = matrices.iter();
        let all = crate::checkpoint::weights(&self.trainer.model).into_iter().zip(self.trainer.table.iter());
        all.map(|((path, shape, values), entry)| {
            let values = if entry.role().is_matrix() { matrices.next().cloned().unwrap_or(values) } else { values };
            (path, (shape, values))
        })
        .collect()
    }

    /// Loss and gradients of the matrices on a batch made of rows of batches.
    fn objective(&self, batches: Vec<usize>) -> impl Fn(&[Vec<f32>]) -> (f64, Vec<Vec<f32>>) + '_ {
        move |matrices| {
            let model = match assign(self.trainer.model.clone(), &self.with_matrices(matrices)) {
                Ok(model) => model,
                Err(problem) => unreachable!("the model's own weights: {problem}"),
            };
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
                // A zero matrix has no length that could change.
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
        // The quotient is noisy: the lowest that was met counts.
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
        // Measured on two batches that are not used.
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
            // Half of the second batch is the first one.
            let (one, two) = (self.objective(vec![2 * step]), self.objective(vec![2 * step, 2 * step + 1]));
            let (_, g) = one(&theta);
            let slopes = if gradient_norm(&g, update) > gamma {
                // d|g|/dtheta = H u, u = sign g or g / |g|.
                let length = gradient_norm(&g, Update::Proportional).max(1e-30) as f32;
                let u = match update {
                    Update::Normalized => step_of(&g, update),
                    Update::Proportional => g.iter().map(|g| g.iter().map(|g| g / length).collect()).collect(),
                };
                let hu = hessian_product(&one, &theta, &u);
                first.iter().zip(&hu).map(|(w, hu)| of_one(w, hu)).collect()
            } else {
                grad_init_slopes(&one, &two, &first, &alpha, (update, eta)).1
            };
            // Adam, with the gradient of the factors clipped to 1 as the authors do.
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
