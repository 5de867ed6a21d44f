//! Parameters, operations and memory of a model.

use super::{AttentionPlan, BlockPlan, MlpPlan, Plan};
use crate::config::Position;
use crate::ops::Precision;
use unitgain_norms::NormConfig;
use unitgain_residual::ScaleConfig;

/// The execution mode of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Whether attention, linear layers and activations are fused.
    pub fused: bool,
    /// Whether layer_norm and rms_norm are fused.
    pub fused_norms: bool,
    /// Precision of the branches.
    pub precision: Precision,
}

impl AttentionPlan {
    /// Widths of all query heads and of all key heads.
    pub fn widths(&self) -> [usize; 2] {
        [self.heads * self.head_dim, self.kv_heads * self.head_dim]
    }

    /// Number of elements of the matrices.
    pub fn weights(&self) -> usize {
        let [queries, keys] = self.widths();
        2 * self.branch.site.width * (queries + keys)
    }
}

impl MlpPlan {
    /// Number of matrices.
    pub fn matrices(&self) -> usize {
        if self.activation.is_gated() { 3 } else { 2 }
    }

    /// Number of elements of the matrices.
    pub fn weights(&self) -> usize {
        self.matrices() * self.branch.site.width * self.d_ff
    }
}

impl Plan {
    /// Number of elements of the matrices of all blocks. This and the next two are floats, as absurd sizes overflow an
    /// integer before they are refused.
    pub fn block_weights(&self) -> f64 {
        self.blocks.iter().map(|block| block.attention.weights() as f64 + block.mlp.weights() as f64).sum()
    }

    /// Number of elements of embedding, position table and head.
    pub fn table_weights(&self) -> f64 {
        let tokens = self.vocabulary * if self.tie_embeddings { 1 } else { 2 };
        let positions = if self.position == (Position::Learned {}) { self.context } else { 0 };
        self.shape.width as f64 * (tokens + positions) as f64
    }

    /// Number of elements of all matrices: all parameters except gains, biases and scales.
    pub fn weights(&self) -> f64 {
        self.block_weights() + self.table_weights()
    }

    /// Operations of a training step per token: 6 for every weight of a matrix product, 2 forward and 4 backward, and
    /// `12 keys heads head_dim` per block for the two products of attention, over the keys that a token sees on average: half
    /// of the context T, or `w - w^2 / 2T` in a window of w.
    pub fn flops_per_token(&self) -> f64 {
        let attention = |block: &BlockPlan| {
            let time = self.context as f64;
            let window = block.attention.window.map_or(time, |window| time.min(window as f64));
            2.0 * (window - window * window / (2.0 * time)) * block.attention.widths()[0] as f64
        };
        let head = (self.shape.width * self.vocabulary) as f64;
        6.0 * (self.block_weights() + head + self.blocks.iter().map(attention).sum::<f64>())
    }

    /// An upper bound on the number of parameter tensors of the blocks.
    pub fn tensors(&self) -> f64 {
        let of = |block: &BlockPlan| {
            let matrices = 4 + block.mlp.matrices();
            let biases = if block.attention.bias || block.attention.qkv_bias || block.mlp.bias { matrices } else { 0 };
            (matrices + biases) as f64 + 2.0 * norms(block).0
        };
        self.blocks.iter().map(of).sum()
    }

    /// Numbers kept per token for the backward pass, over all blocks. The factors here and in the next two functions were
    /// fitted to measured peaks of memory.
    pub fn activations(&self, compute: Compute) -> f64 {
        let of_norm = |norm: NormConfig| {
            let has_kernel = matches!(norm, NormConfig::LayerNorm { .. } | NormConfig::RmsNorm { .. });
            if norm.is_none() {
                0.0
            } else if has_kernel && compute.fused_norms {
                1.25
            } else {
                3.2
            }
        };
        let of = |block: &BlockPlan| {
            let BlockPlan { attention, mlp, .. } = block;
            let (d, time) = (self.shape.width as f64, self.context as f64);
            let [queries, keys] = attention.widths().map(|n| n as f64);
            let qk_norm = if attention.branch.qkv_norm() { 0.0 } else { of_norm(attention.qk_norm) };
            let norm = f64::max(of_norm(attention.branch.norm), of_norm(mlp.branch.norm));
            let is_scaled = [attention.branch, mlp.branch].iter().any(|b| b.scale != ScaleConfig::One {});
            let dropout = if block.dropout > 0.0 { 2.5 * d } else { 0.0 };
            let scaled = if is_scaled { 2.5 * d } else { 0.0 };
            let hidden = (mlp.matrices() * mlp.d_ff) as f64;
            let plain = 4.0 * d + 2.0 * (queries + keys) + hidden + dropout + scaled;
            let scores = 5.0 * attention.heads as f64 * time;
            let (composed, scores) = match (compute.fused, compute.precision) {
                (true, _) => (1.0, 0.0),
                (false, Precision::F32) => (1.35, scores),
                (false, Precision::Bf16) => (0.9, scores),
            };
            composed * plain + norm * norms(block).1 + qk_norm * (queries + keys) + scores
        };
        self.blocks.iter().map(of).sum()
    }

    /// Peak of numbers held per token by a forward pass without a graph.
    pub fn forward_activations(&self, compute: Compute) -> f64 {
        let of = |BlockPlan { attention, mlp, .. }: &BlockPlan| {
            let [queries, keys] = attention.widths().map(|n| n as f64);
            let scores = if compute.fused { 0.0 } else { 3.0 * (attention.heads * self.context) as f64 };
            6.0 * self.shape.width as f64 + 2.0 * (queries + keys) + 3.0 * mlp.d_ff as f64 + scores
        };
        self.blocks.iter().map(of).fold(0.0, f64::max)
    }

    /// Numbers held per token for the logits and their loss.
    pub fn logits(&self, compute: Compute) -> f64 {
        let capped = if self.logit_softcap > 0.0 { 1.0 } else { 0.0 };
        self.vocabulary as f64 * (capped + if compute.fused { 2.4 } else { 3.3 })
    }
}

/// The number of norms around the branches of a block plus one, and the number of entries that all its norms read.
fn norms(block: &BlockPlan) -> (f64, f64) {
    let BlockPlan { attention, mlp, .. } = block;
    let [queries, keys] = attention.widths();
    let d = attention.branch.site.width;
    let around = |branch: &super::BranchPlan| branch.placement.norms(branch.site.branch).len();
    let number = around(&attention.branch) + around(&mlp.branch);
    let inside = |asks: bool, width: usize| if asks { width } else { 0 };
    let width = d * number
        + inside(attention.branch.asks_for_inner_norm(), queries)
        + inside(mlp.branch.asks_for_inner_norm(), mlp.d_ff)
        + inside(attention.branch.qkv_norm(), queries + 2 * keys)
        + inside(attention.branch.placement.is_dual() || mlp.branch.placement.is_dual(), d);
    ((number + 1) as f64, width as f64)
}
