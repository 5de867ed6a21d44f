//! Tests of norms of the last axis and of weights.

pub(crate) mod golden;
pub(crate) mod kinds;
