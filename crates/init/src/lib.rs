//! Roles and initialization of weights.
//!
//! A [`Scheme`] maps a [`Spec`] (role, fans, depth), never a name, to a [`Draw`]: a [`Distribution`] of independent entries,
//! or a whole [`matrix`]. [`sample`] draws on the host from one stream per (seed, path), so that a weight does not depend on
//! the backend, the order of construction or the rest of the model. Everything also works on a single tensor.
//!
//! ```
//! use unitgain_init::{Fans, Form, gain::Function, Gain, matrix};
//!
//! let fans = Fans::convolution(64, 128, 3 * 3, 1);
//! let gain = Gain::SecondMoment { activation: Function::Gelu {} }.value().unwrap_or(1.0);
//! let weight = Form::TruncatedNormal.of(gain / (fans.fan_in as f64).sqrt()).draw(1, "conv", fans.fan_in, 128);
//! assert_eq!(weight.len(), 64 * 9 * 128);
//! let square = matrix::orthogonal(1, "recurrent", 32, 32, 1.0);
//! assert!(matrix::singular_values(&square, 32, 32).iter().all(|s| (s - 1.0).abs() < 1e-6));
//! ```

pub mod bias;
mod distribution;
mod fans;
pub mod gain;
pub mod matrix;
pub mod sample;
mod scheme;

use serde::Serialize;

pub use distribution::{Distribution, Form, truncated_moments, truncated_std};
pub use fans::Fans;
pub use gain::Gain;
pub use scheme::{Draw, Fan, Scheme, TFixupConstants, fixup_scale};

/// The purpose of a weight. Init, learning rates and weight decay depend on it, never on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token or position table, `[entries, width]`.
    Embedding,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Output projection of attention.
    AttentionOutput,
    /// Matrices of the MLP that read the stream: up and, if gated, gate.
    MlpIn,
    /// Down projection of the MLP.
    MlpOut,
    /// Readout, `[width, vocabulary]`.
    Head,
    /// Gain or bias of a norm of the stream or of a weight.
    Norm,
    /// Gain or bias of a norm of query, key or value heads; learned scale of the attention logits of a block.
    QkNorm,
    /// Bias of a linear layer of a block, or of the head.
    Bias,
    /// Learned factor of a residual branch or of the embedding; scalar bias.
    Scale,
    /// Learned scale of the output or the attention logits of each head.
    HeadScale,
    /// Running statistic of a norm, which no optimizer updates.
    Statistic,
}

impl Role {
    /// Every role, in the order of a forward pass.
    pub const ALL: [Self; 14] = [
        Self::Embedding,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttentionOutput,
        Self::MlpIn,
        Self::MlpOut,
        Self::Head,
        Self::Norm,
        Self::QkNorm,
        Self::Bias,
        Self::Scale,
        Self::HeadScale,
        Self::Statistic,
    ];

    /// Name in tables and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::AttentionOutput => "attention_output",
            Self::MlpIn => "mlp_in",
            Self::MlpOut => "mlp_out",
            Self::Head => "head",
            Self::Norm => "norm",
            Self::QkNorm => "qk_norm",
            Self::Bias => "bias",
            Self::Scale => "scale",
            Self::HeadScale => "head_scale",
            Self::Statistic => "statistic",
        }
    }

    /// Whether the weight gets gradients.
    pub fn is_trainable(self) -> bool {
        self != Self::Statistic
    }

    /// Whether the weight is a matrix. Weight decay applies to matrices only.
    pub fn is_matrix(self) -> bool {
        match self {
            Self::Norm | Self::QkNorm | Self::Bias | Self::Scale | Self::HeadScale | Self::Statistic => false,
            Self::Embedding | Self::Head => true,
            Self::Query | Self::Key | Self::Value | Self::AttentionOutput | Self::MlpIn | Self::MlpOut => true,
        }
    }

    /// Whether the weight is a matrix of a block, both of whose sides grow with the width.
    pub fn is_hidden(self) -> bool {
        self.is_matrix() && !matches!(self, Self::Embedding | Self::Head)
    }

    /// Whether the output of the weight is added to the stream.
    pub fn writes_stream(self) -> bool {
        matches!(self, Self::AttentionOutput | Self::MlpOut)
    }

    /// Whether the size of the branch is proportional to the weight: all matrices of a block but query and key, which only
    /// shape the attention pattern.
    pub fn is_branch(self) -> bool {
        self.writes_stream() || matches!(self, Self::Value | Self::MlpIn)
    }
}

/// The properties of a weight on which schemes and parametrizations depend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Purpose of the weight.
    pub role: Role,
    /// Number of inputs of one output unit; for an embedding the number of entries. Scaled to the base model of a
    /// parametrization it need not be whole.
    pub fan_in: f64,
    /// Number of output units.
    pub fan_out: f64,
    /// Number of blocks of the model.
    pub blocks: usize,
    /// Index of the block, from 0; None outside the blocks.
    pub block: Option<usize>,
    /// Width of the stream.
    pub width: f64,
}
