//! Parametrizations.

pub(crate) mod golden;
pub(crate) mod parametrizations;
