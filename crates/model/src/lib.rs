//! A decoder-only Transformer whose norm placement, residual scaling, init and parametrization are
//! values.
//!
//! [`ModelConfig::build`] returns a [`Transformer`] and its [`ParamTable`], which says for every
//! parameter what it is for, how it was drawn, and what its learning rate, weight decay and eps are
//! multiplied by. This is the only crate that knows all four axes.
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! use unitgain_model::{ModelConfig, Placement};
//!
//! let config = ModelConfig { vocab_size: Some(16), placement: Placement::DeepNorm {}, ..ModelConfig::default() };
//! let device = Device::flex();
//! let (model, table) = config.build(1, &device)?;
//! let tokens = Tensor::<2, Int>::zeros([2, 8], &device);
//! assert_eq!(model.forward(tokens).dims(), [2, 8, 16]);
//! assert!(table.iter().all(|entry| entry.factors.lr == 1.0));
//! # Ok::<(), unitgain_model::ModelError>(())
//! ```

mod attention;
mod axes;
mod block;
mod check;
mod combinations;
mod config;
mod embedding;
#[cfg(feature = "flex")]
mod fused;
#[cfg(not(feature = "flex"))]
#[path = "fused/none.rs"]
mod fused;
mod idle;
mod linear;
mod loss;
mod mlp;
mod nursery;
mod position;
mod precision;
mod probe;
mod qk_norm;
pub mod shorthand;
mod table;
mod transformer;

pub use attention::Cache;
pub use axes::BlockConfig;
pub use combinations::{RULES, Rule, Verdict};
pub use config::{ModelConfig, ModelError, short};
pub use embedding::EmbeddingScale;
pub use idle::Idle;
pub use loss::cross_entropy;
pub use mlp::Activation;
pub use position::Position;
pub use precision::Precision;
pub use probe::{Observe, Probe};
pub use qk_norm::{AttentionScale, QkNorm, QkNormOver};
pub use table::{ParamEntry, ParamTable, Walk};
pub use transformer::{Point, Transformer};

pub use unitgain_init::{Role, Scheme, Spec};
pub use unitgain_mup::{Factors, Form, Parametrization, Shape, UnitScaling, Update};
pub use unitgain_norms::weight::{LengthOver, WeightNormConfig};
pub use unitgain_norms::{Norm, NormConfig};
pub use unitgain_residual::{Branch, Placement, ScaleConfig};
