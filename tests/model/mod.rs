//! Tests of the Transformer, its settings and its operations.

pub(crate) mod blocks;
pub(crate) mod combinations;
pub(crate) mod fused;
pub(crate) mod placements;
pub(crate) mod precision;
pub(crate) mod presets;
pub(crate) mod settings;
pub(crate) mod whole;
