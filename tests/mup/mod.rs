//! Tests of parametrizations.

pub(crate) mod golden;
pub(crate) mod parametrizations;
