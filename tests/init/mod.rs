//! Tests of init.

pub(crate) mod extras;
pub(crate) mod golden;
