//! Factors of operations, as opposed to factors of weights.

use crate::{Factors, Parametrization, Shape, Update};
use unitgain_init::Spec;

/// The position embedding that is added to the token embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// A learned table, drawn as the token embedding.
    Learned,
    /// Sines and cosines, with mean square 1/2.
    Fixed,
    /// None is added.
    None,
}

/// The factors of a residual connection: `after (x + gain f(x))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchFactors {
    /// Multiplier of the branch.
    pub gain: f64,
    /// Multiplier of the sum.
    pub after: f64,
    /// Whether the gradient of the branch is multiplied by `gain * after` at the input of the branch instead of its output
    /// (arXiv:2407.17465, appendix F).
    pub delayed: bool,
}

impl Parametrization {
    /// Factors of the token embedding, whose weight is `embedding`, and of the position embedding before they are added. Under
    /// u-muP the sum has size 1.
    pub fn inputs(self, embedding: &Spec, shape: Shape, positions: Positions) -> [f64; 2] {
        let Factors { forward, .. } = self.factors(embedding, shape, Update::Normalized);
        match (self, positions) {
            (Self::UMup(_), Positions::Learned) => [0.5f64.sqrt(); 2],
            (Self::UMup(_), Positions::Fixed) => [0.5f64.sqrt(), 1.0],
            (_, Positions::Fixed) => [forward, 1.0],
            (_, Positions::Learned | Positions::None) => [forward; 2],
        }
    }

    /// Factor of the attention logits `q.k`: `sqrt(base_head_dim) / head_dim`, which is `1 / sqrt(head_dim)` without a base
    /// model; `attention / head_dim` under u-muP.
    pub fn attention_logits(self, shape: Shape) -> f64 {
        let head_dim = shape.head_dim as f64;
        if let Self::UMup(unit) = self {
            return unit.attention / head_dim;
        }
        let base_head_dim = self.resolved(shape).base().and_then(|base| base.head_dim).unwrap_or(head_dim);
        (base_head_dim / head_dim).sqrt() / head_dim.sqrt()
    }

    /// Factor of attention's weighted average of values over `time` tokens: 1, or under u-muP 1 over its size.
    pub fn attention_output(self, shape: Shape, time: usize) -> f64 {
        match self.unit_scaling() {
            Some(unit) => 1.0 / unit.attention_size(shape.head_dim, time),
            None => 1.0,
        }
    }

    /// Factors of the input and the output of the MLP's activation: 1, or under u-muP its multiplier, and the factor that
    /// brings the output to size 1, `unit_gain(multiplier)` for a standard normal input.
    pub fn activation(self, unit_gain: impl FnOnce(f64) -> f64) -> [f64; 2] {
        match self.unit_scaling() {
            Some(unit) => [unit.activation, unit_gain(unit.activation)],
            None => [1.0; 2],
        }
    }

    /// Factors of the residual connection of branch `index` (from 0; attention if even) in a model of `blocks` blocks.
    pub fn branch(self, index: usize, blocks: usize) -> BranchFactors {
        match self.unit_scaling() {
            Some(unit) => {
                let tau = unit.tau(index, blocks);
                BranchFactors { gain: tau, after: (1.0 + tau * tau).powf(-0.5), delayed: true }
            }
            None => BranchFactors { gain: self.branch_multiplier(blocks), after: 1.0, delayed: false },
        }
    }

    /// Whether the parametrization is u-muP: every weight is drawn from N(0, 1), operations are scaled, residual connections
    /// have factors of their own, and learning rates are of order 1.
    pub fn is_unit_scaled(self) -> bool {
        self.unit_scaling().is_some()
    }
}
