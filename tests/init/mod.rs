//! How weights are drawn.

pub(crate) mod extras;
pub(crate) mod golden;
