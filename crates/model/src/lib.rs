//! A decoder-only Transformer whose norm placement, residual scaling, init and parametrization are values.
//!
//! [`ModelConfig::build`] returns a [`Transformer`] and its [`ParamTable`] with the role, init and factors of learning rate,
//! weight decay and eps of every parameter. This is the only crate that knows all four axes.
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

mod config;
mod error;
mod layers;
mod linear;
pub mod ops;
mod plan;
pub mod presets;
mod probe;
mod transformer;
pub mod weights;

pub use burn;

pub use config::{
    Activation, AttentionScale, BlockConfig, EmbeddingScale, ModelConfig, Position, QkNormOver, RopeScaling,
};
pub use error::{ModelError, few};
pub use layers::{Attention, Block, BlockCache, Cache, Mlp, Pass, QkNorm};
pub use linear::Linear;
pub use ops::{Precision, cross_entropy};
pub use plan::{
    AttentionPlan, BlockPlan, BranchPlan, COMBINATIONS, Combination, Compute, Idle, LogitScale, MlpPlan, Plan,
    Severity, TokenScale,
};
pub use probe::{Observe, Point, Probe};
pub use transformer::{LanguageModel, Transformer};
pub use weights::{ParamEntry, ParamTable, Walk};

pub use unitgain_init::{Role, Scheme, Spec};
pub use unitgain_mup::{Factors, Form, Parametrization, Shape, UnitScaling, Update};
pub use unitgain_norms::weight::{LengthOver, WeightNormConfig};
pub use unitgain_norms::{Norm, NormConfig};
pub use unitgain_residual::{Branch, Placement, Residual, ScaleConfig, Stream};
pub use unitgain_variant::{About, Fault, Variant};
