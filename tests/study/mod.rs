//! Tests of the studies.

pub(crate) mod comparisons;
pub(crate) mod sanity;
pub(crate) mod signal;
