//! What is measured of models.

pub(crate) mod comparisons;
pub(crate) mod sanity;
pub(crate) mod signal;
