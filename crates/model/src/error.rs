use unitgain_variant::Fault;

/// What is wrong with a model's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// One value is out of range, or two values do not fit.
    #[error("model.{0}")]
    Value(Fault),
    /// Two settings exclude each other (one of [`COMBINATIONS`](crate::COMBINATIONS)).
    #[error("model: {pair} cannot be combined: {reason}. {fix}")]
    Combination {
        /// The settings.
        pair: &'static str,
        /// Why not.
        reason: &'static str,
        /// What to do instead.
        fix: &'static str,
    },
    /// Tensors are not those of the model.
    #[error("the weights do not fit the model: {}", few(.problems))]
    Weights {
        /// What is missing, unknown, or of another shape.
        problems: Vec<String>,
    },
}

/// The first few of many, as a message lists them.
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
