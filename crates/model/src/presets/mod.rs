//! Architectures that people know, as values of the axes: from the `config.json` of the reference library (transformers) to a
//! configuration, and from its tensors to weights and back. One file for each architecture.

mod fields;
mod gemma2;
mod gpt2;
mod llama;
mod olmo2;
mod opt;
mod tensors;

use crate::config::ModelConfig;
use crate::error::few;

pub use fields::Fields;
pub use tensors::{Part, Piece};

/// A model of the reference library, as a configuration and a table of tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Its `model_type`.
    pub name: &'static str,
    /// The configuration, with the vocabulary.
    pub config: ModelConfig,
    /// Where each weight is in the tensors of the reference.
    pub pieces: Vec<Piece>,
}

/// What cannot be imported or exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresetError {
    /// The text is not a JSON object.
    #[error("config.json: {0}")]
    Json(String),
    /// No preset has this name.
    #[error("config.json: model_type = {name:?} is not known; known are {}", known())]
    Unknown {
        /// The name.
        name: String,
    },
    /// A field that is missing, wrong, or asks for what the model cannot do.
    #[error("config.json: {field} = {value}: {problem}")]
    Field {
        /// Name of the field.
        field: String,
        /// Its value as JSON.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Fields of which nothing is known.
    #[error("config.json: fields that this architecture does not have: {}", few(.0))]
    Fields(Vec<String>),
    /// Tensors that are missing, of another shape, or unknown.
    #[error("the tensors do not fit the configuration: {}", few(.0))]
    Tensors(Vec<String>),
}

/// Reads the fields of a configuration and places the weights.
type Read = fn(&mut Fields) -> Result<(ModelConfig, Vec<Piece>), PresetError>;

const PRESETS: [(&str, Read); 5] = [
    ("gemma2", gemma2::read),
    ("gpt2", gpt2::read),
    ("llama", llama::read),
    ("olmo2", olmo2::read),
    ("opt", opt::read),
];

/// The names of all presets.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

fn known() -> String {
    names().collect::<Vec<_>>().join(", ")
}

impl Architecture {
    /// The architecture of a `config.json`. A field that the model cannot follow is an error, and so is an unknown one.
    ///
    /// # Errors
    /// [`PresetError`] names the field.
    pub fn of(json: &str) -> Result<Self, PresetError> {
        let mut fields = Fields::parse(json)?;
        let asked: String = fields.get("model_type")?;
        let Some((name, read)) = PRESETS.iter().find(|(name, _)| *name == asked) else {
            return Err(PresetError::Unknown { name: asked });
        };
        let (config, pieces) = read(&mut fields)?;
        fields.end()?;
        Ok(Self { name, config, pieces })
    }
}
