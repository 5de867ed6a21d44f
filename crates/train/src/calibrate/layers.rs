//! Calibrations that use the activations of a forward pass: LSUV, data-dependent init and Admin.

use super::{Measured, Work};
use burn::module::Module;
use burn::module::ParamId;
use burn::tensor::{FloatDType, Tensor};
use std::cell::RefCell;
use std::collections::HashMap;
use unitgain_init::Role;
use unitgain_model::{Activation, BlockPlan, Branch, Point, Probe, Transformer, Walk, weights};

/// Mean and population variance of numbers.
fn moments(x: &[f32]) -> (f64, f64) {
    let n = x.len().max(1) as f64;
    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    (mean, x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n)
}

fn host(x: &Tensor<2>) -> Vec<f32> {
    x.clone().into_data().iter::<f32>().collect()
}

/// LSUV's factor on a weight whose output has this variance: `1 / sqrt(var)`; 1 if the variance is 0 or within the
/// tolerance.
pub fn lsuv_factor(variance: f64, tolerance: f64) -> f64 {
    let is_close = (variance - 1.0).abs() < tolerance;
    if variance > 0.0 && !is_close { variance.powf(-0.5) } else { 1.0 }
}

/// First stage of data-dependent init for a layer with row-major `outputs` of shape `[rows, columns]`: `(1 / sigma,
/// mu)` of each column. With `W_c / sigma_c` and `(b_c - mu_c) / sigma_c` the outputs have mean 0 and variance 1. A
/// constant column is only shifted.
pub fn centred(outputs: &[f32], columns: usize) -> Vec<(f64, f64)> {
    (0..columns)
        .map(|c| {
            let column: Vec<f32> = outputs.iter().skip(c).step_by(columns).copied().collect();
            let (mean, variance) = moments(&column);
            // A smaller variance is rounding in a constant column.
            let varies = variance > 1e-10 * mean * mean;
            (if varies { variance.powf(-0.5) } else { 1.0 }, mean)
        })
        .collect()
}

/// Second stage for a pair: the factor r on the first weight, with 1/r on the second, that gives both the same ratio of
/// gradient to weight. It lowers the ratio of the first by r^2 and raises that of the second by r^2.
pub fn between(first: f64, second: f64) -> f64 {
    let r = (first / second).powf(0.25);
    if r.is_finite() && r > 0.0 { r } else { 1.0 }
}

/// Admin's omegas, from the variances of the first branch's input and of each branch's output.
pub fn admin_omegas(input: f64, branches: &[f64]) -> Vec<f64> {
    let mut sum = input;
    branches
        .iter()
        .map(|variance| {
            let omega = sum.sqrt();
            sum += variance;
            omega
        })
        .collect()
}

/// Maps the id of each weight to its path.
pub fn paths(model: &Transformer) -> HashMap<ParamId, String> {
    let mut paths = HashMap::new();
    model.visit(&mut Walk::new(|path: &str, id, _: Vec<usize>| {
        paths.insert(id, path.to_string());
    }));
    paths
}

/// Divides each layer's output by its standard deviation, and records the factor.
struct Lsuv {
    tolerance: f64,
    /// Weight, variance of its output, and factor, in the order of execution.
    seen: RefCell<Vec<(ParamId, f64, f64)>>,
}

impl Probe for Lsuv {
    fn sees_layers(&self) -> bool {
        true
    }
    fn linear(&self, weight: ParamId, y: Tensor<2>) -> Tensor<2> {
        let (_, variance) = moments(&host(&y));
        let factor = lsuv_factor(variance, self.tolerance);
        self.seen.borrow_mut().push((weight, variance, factor));
        y * factor
    }
}

/// Brings each column of each layer's output to mean 0 and variance 1.
struct Centre(RefCell<Vec<Centred>>);

/// A weight, the variance of its output before, and scale and mean of each column.
type Centred = (ParamId, f64, Vec<(f64, f64)>);

impl Probe for Centre {
    fn sees_layers(&self) -> bool {
        true
    }
    fn linear(&self, weight: ParamId, y: Tensor<2>) -> Tensor<2> {
        let columns = y.dims()[1];
        let values = host(&y);
        let each = centred(&values, columns);
        self.0.borrow_mut().push((weight, moments(&values).1, each.clone()));
        let of = |f: fn(&(f64, f64)) -> f64| {
            let values: Vec<f32> = each.iter().map(|pair| f(pair) as f32).collect();
            let row = Tensor::<1>::from_floats(values.as_slice(), &y.device()).unsqueeze::<2>();
            row.cast(FloatDType::from(y.dtype()))
        };
        (y.clone() - of(|(_, mean)| *mean)) * of(|(scale, _)| *scale)
    }
}

/// Variances of the first branch's input and of each branch's output.
#[derive(Default)]
struct Branches(RefCell<Vec<f64>>);

impl Probe for Branches {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        if point == Point::Embedding {
            self.0.borrow_mut().push(moments(&host(&x)).1);
        }
        x
    }
    fn branch(&self, _: usize, _: Branch, y: Tensor<2>) -> Tensor<2> {
        self.0.borrow_mut().push(moments(&host(&y)).1);
        y
    }
}

impl Work<'_> {
    /// A forward pass of the first batch without a graph.
    fn see(&self, probe: &dyn Probe) {
        let (tokens, _) = (self.batch)(0).tensors(&self.device());
        self.trainer.model.valid().forward_probed(tokens, probe);
    }

    pub(super) fn lsuv(&mut self, tolerance: f64, passes: usize) -> Vec<Measured> {
        let paths = paths(&self.trainer.model);
        let mut first = Vec::new();
        for pass in 0..=passes {
            let probe = Lsuv { tolerance, seen: RefCell::default() };
            self.see(&probe);
            let seen = probe.seen.into_inner();
            if pass == 0 {
                first.clone_from(&seen);
            }
            let holds = seen.iter().all(|(_, _, factor)| *factor == 1.0);
            if holds || pass == passes {
                (self.progress)(passes, passes);
                let missed = seen.iter().filter(|(_, variance, factor)| *factor != 1.0 || *variance == 0.0).count();
                if missed > 0 {
                    tracing::warn!("lsuv: {missed} of {} layers have another variance than 1, or 0", seen.len());
                }
                let named = |id: &ParamId| format!("variance of the output of {}", paths[id]);
                return first
                    .iter()
                    .zip(&seen)
                    .map(|((id, before, _), (_, after, _))| Measured {
                        what: named(id),
                        before: *before,
                        after: *after,
                    })
                    .collect();
            }
            let factors = seen.iter().map(|(id, _, factor)| (paths[id].clone(), *factor)).collect();
            self.rescale(&factors);
            (self.progress)(pass + 1, passes);
        }
        Vec::new()
    }

    pub(super) fn data_dependent(&mut self, second_stage: bool) -> Vec<Measured> {
        let paths = paths(&self.trainer.model);
        let probe = Centre(RefCell::default());
        self.see(&probe);
        (self.progress)(1, 3);
        let seen = probe.0.into_inner();
        let columns: HashMap<String, &Vec<(f64, f64)>> =
            seen.iter().map(|(id, _, each)| (paths[id].clone(), each)).collect();
        self.change(|path, values| {
            if let Some(each) = columns.get(path) {
                for (i, value) in values.iter_mut().enumerate() {
                    *value = (f64::from(*value) * each[i % each.len()].0) as f32;
                }
            }
            // Without a bias, as in a head, columns keep their means.
            if let Some(each) = path.strip_suffix("bias").and_then(|layer| columns.get(&format!("{layer}weight"))) {
                for (value, (scale, mean)) in values.iter_mut().zip(*each) {
                    *value = ((f64::from(*value) - mean) * scale) as f32;
                }
            }
        });
        if second_stage {
            self.between();
        }
        (self.progress)(2, 3);
        let probe = Lsuv { tolerance: f64::INFINITY, seen: RefCell::default() };
        self.see(&probe);
        (self.progress)(3, 3);
        let after: HashMap<ParamId, f64> = probe.seen.into_inner().into_iter().map(|(id, v, _)| (id, v)).collect();
        seen.iter()
            .map(|(id, before, _)| {
                let what = format!("variance of the output of {}", paths[id]);
                Measured { what, before: *before, after: after[id] }
            })
            .collect()
    }

    /// Gives the weights of each pair the same ratio of gradient to weight.
    fn between(&mut self) {
        let (_, gradients) = self.gradients(&self.trainer.model, &(self.batch)(0));
        let squares: Vec<f32> = gradients.squares(&self.device()).into_data().iter::<f32>().collect();
        let lengths: Vec<f64> = weights_of(&self.trainer.model);
        let gated = self.config.model.activation.is_gated();
        let mut factors = HashMap::new();
        let table = &self.trainer.table;
        // A gated MLP has two weights that read the stream, of which the last (up) scales its output.
        let ratio = |role: Role, block: Option<usize>| {
            let index = table.entries().iter().rposition(|e| e.role() == role && e.block() == block)?;
            let ratio = f64::from(squares[index]).sqrt() / lengths[index];
            Some((table.entries()[index].path.clone(), ratio))
        };
        let plan = self.plan.clone();
        for (block, BlockPlan { attention, mlp, .. }) in plan.blocks.iter().enumerate() {
            let block = Some(block);
            let qkv = attention.branch.qkv_norm();
            let pairs = [
                (attention.qk_norm.is_none(), [Role::Query, Role::Key]),
                (!attention.branch.asks_for_inner_norm() && !qkv, [Role::Value, Role::AttentionOutput]),
                (
                    !mlp.branch.asks_for_inner_norm() && (gated || mlp.activation == Activation::Relu),
                    [Role::MlpIn, Role::MlpOut],
                ),
            ];
            for (_, [a, b]) in pairs.into_iter().filter(|(holds, _)| *holds) {
                let (Some(first), Some(second)) = (ratio(a, block), ratio(b, block)) else { continue };
                let r = between(first.1, second.1);
                // The bias of the first layer scales with its output; the bias of the second stays.
                factors.insert(first.0.replace("weight", "bias"), r);
                factors.insert(first.0, r);
                factors.insert(second.0.clone(), 1.0 / r);
                if a == Role::Query {
                    factors.insert(second.0.replace("weight", "bias"), 1.0 / r);
                }
            }
        }
        self.rescale(&factors);
    }

    pub(super) fn admin(&mut self) -> Vec<Measured> {
        let mut first = Vec::new();
        self.change(|path, values| {
            if path.ends_with(".omega") {
                first.push(f64::from(values[0]));
                values.fill(1.0);
            }
        });
        let probe = Branches::default();
        self.see(&probe);
        let seen = probe.0.into_inner();
        let omegas = admin_omegas(seen[0], &seen[1..]);
        let mut index = 0;
        let mut measured = Vec::new();
        self.change(|path, values| {
            if path.ends_with(".omega") {
                let omega = omegas[index];
                index += 1;
                measured.push(Measured { what: path.into(), before: first[index - 1], after: omega });
                values.fill(omega as f32);
            }
        });
        (self.progress)(1, 1);
        measured
    }
}

/// The 2-norm of each weight, in the order of the table.
fn weights_of(model: &Transformer) -> Vec<f64> {
    let length = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    weights::of(model).iter().map(|(_, _, values)| length(values)).collect()
}
