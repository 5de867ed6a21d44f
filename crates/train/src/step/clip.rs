//! Gradient clipping, by the global norm or per unit by the size of its weights.

use crate::Gradients;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use unitgain_model::{About, Fault, ParamTable, Role, Variant};
use unitgain_variant::require;

/// How gradients are clipped. A number is the maximum global norm: `clip = 1.0`; `clip = 0` is no clipping.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClipConfig {
    /// No clipping.
    None {},
    /// All gradients are scaled by `min(1, max / (norm + 1e-6))`, which keeps their direction.
    GlobalNorm {
        /// Maximum global norm. Default 1.
        #[serde(default = "default_max")]
        max: f64,
    },
    /// Adaptive gradient clipping: the gradient of each output unit is scaled down to norm `lambda max(|W_i|, eps)`
    /// (arXiv:2102.06171, eq. 3). A unit is a column of a linear layer's `[fan_in, fan_out]` matrix, a row of an
    /// embedding, or a whole vector. As in the paper the final layer (head) is not clipped; a tied embedding is.
    Adaptive {
        /// Ratio of gradient norm to weight norm. Default 0.01.
        #[serde(default = "default_lambda")]
        lambda: f64,
        /// Minimum norm of a unit's weights, so that zero weights can move. Default 1e-3.
        #[serde(default = "default_eps")]
        eps: f64,
    },
}

fn default_max() -> f64 {
    1.0
}
fn default_lambda() -> f64 {
    0.01
}
fn default_eps() -> f64 {
    1e-3
}

impl Default for ClipConfig {
    fn default() -> Self {
        Self::GlobalNorm { max: default_max() }
    }
}

impl From<f64> for ClipConfig {
    fn from(max: f64) -> Self {
        if max == 0.0 { Self::None {} } else { Self::GlobalNorm { max } }
    }
}

impl Variant for ClipConfig {
    fn about(&self) -> About {
        About::of(match self {
            Self::None {} => ("none", "g", "no clip"),
            Self::GlobalNorm { .. } => ("global_norm", "g min(1, max / (|all g| + 1e-6))", "arXiv:1211.5063"),
            Self::Adaptive { .. } => {
                ("adaptive", "g_i min(1, lambda max(|W_i|, eps) / |g_i|) per output unit", "arXiv:2102.06171 eq. 3")
            }
        })
    }

    fn check(&self) -> Result<(), Fault> {
        let positive = |key: &str, x: f64| {
            require((1e-15..=1e15).contains(&x), key, x, "must be a positive number, from 1e-15 to 1e15")
        };
        match *self {
            Self::None {} => Ok(()),
            Self::GlobalNorm { max } => positive("max", max),
            Self::Adaptive { lambda, eps } => positive("lambda", lambda).and(positive("eps", eps)),
        }
    }
}

impl ClipConfig {
    /// Clips on the device, without a transfer. `squares` are the gradients' sums of squares. Returns the gradients and
    /// their squared global norm, of shape `[1]`.
    pub fn apply<M: Module>(
        self,
        gradients: Gradients,
        squares: Tensor<1>,
        model: &M,
        table: &ParamTable,
    ) -> (Gradients, Tensor<1>) {
        match self {
            Self::None {} => (gradients, squares.sum()),
            Self::GlobalNorm { max } => {
                let square = squares.sum();
                let coefficient = coefficient(square.clone(), max);
                (gradients.times(coefficient.clone()), square * coefficient.square())
            }
            Self::Adaptive { lambda, eps } => {
                let weights = weights(model);
                let device = squares.device();
                let clipped = gradients.map(|i, g| {
                    let entry = &table.entries()[i];
                    match entry.role() {
                        Role::Head => g,
                        // The bias of the head belongs to the head.
                        Role::Bias if entry.block().is_none() => g,
                        role => units(g, weights[i].clone(), &entry.shape, unit_axis(role), lambda, eps),
                    }
                });
                let square = clipped.squares(&device).sum();
                (clipped, square)
            }
        }
    }
}

/// Factor of the global clip, `min(1, max / (norm + 1e-6))`, from the squared global norm; both of shape `[1]`. 1e-6 as
/// in PyTorch's `clip_grad_norm_`, against a division by zero.
pub fn coefficient(square: Tensor<1>, max: f64) -> Tensor<1> {
    ((square.sqrt() + 1e-6).recip() * max).clamp_max(1.0)
}

/// The axis over which the norm of a unit is taken; None if the whole tensor is one unit.
fn unit_axis(role: Role) -> Option<usize> {
    match role {
        Role::Embedding => Some(1),
        Role::Query | Role::Key | Role::Value | Role::AttentionOutput | Role::MlpIn | Role::MlpOut | Role::Head => {
            Some(0)
        }
        Role::Norm | Role::QkNorm | Role::Bias | Role::Scale | Role::HeadScale | Role::Statistic => None,
    }
}

/// `g_i min(1, lambda max(|w_i|, eps) / |g_i|)` for each unit i of a flattened tensor of `shape`, with norms over
/// `axis`, or over the whole tensor.
pub fn units(g: Tensor<1>, w: Tensor<1>, shape: &[usize], axis: Option<usize>, lambda: f64, eps: f64) -> Tensor<1> {
    let n = g.dims()[0];
    let (rows, axis) = match axis {
        Some(axis) => (shape[0], axis),
        None => (1, 1),
    };
    let matrix = |x: Tensor<1>| x.reshape([rows, n / rows]);
    let norm = |x: Tensor<2>| x.square().sum_dim(axis).sqrt();
    let g = matrix(g);
    let most = norm(matrix(w)).clamp_min(eps) * lambda;
    // most / max(|g|, most) is min(1, most / |g|), and finite where g is 0.
    let factor = most.clone() / norm(g.clone()).max_pair(most);
    (g * factor).reshape([n])
}

/// The weights, flattened and outside the graph, in the order of the table.
fn weights<M: Module>(model: &M) -> Vec<Tensor<1>> {
    struct Collect(Vec<Tensor<1>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val().inner();
            let n = tensor.shape().num_elements();
            self.0.push(tensor.reshape([n]));
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}
