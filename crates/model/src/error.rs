use unitgain_variant::Fault;

/// An error in a configuration or in loaded weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// A value is out of range, or does not fit another value.
    #[error("model.{0}")]
    Value(Fault),
    /// Two settings exclude each other (one of [`COMBINATIONS`](crate::COMBINATIONS)).
    #[error("model: {pair} cannot be combined: {reason}. {fix}")]
    Combination {
        /// The two settings.
        pair: &'static str,
        /// Reason for the refusal.
        reason: &'static str,
        /// Settings to use instead.
        fix: &'static str,
    },
    /// Loaded tensors are not the weights of the model.
    #[error("the weights do not fit the model: {}", few(.problems))]
    Weights {
        /// Paths that are missing, unknown, or of another shape.
        problems: Vec<String>,
    },
}

/// The first 8 items, joined for a message, and the number of the others.
pub fn few(all: &[String]) -> String {
    let shown = all.iter().take(8).cloned().collect::<Vec<_>>().join("; ");
    match all.len() {
        0 => "nothing".into(),
        n if n > 8 => format!("{shown}; and {} more", n - 8),
        _ => shown,
    }
}

impl From<Fault> for ModelError {
    fn from(fault: Fault) -> Self {
        Self::Value(fault)
    }
}
