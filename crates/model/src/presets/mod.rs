//! Architectures that people know, as values of the axes: from the `config.json` of the reference library (transformers) to a
//! configuration, and from its tensors to weights and back. One file for each architecture.

mod cohere;
mod fields;
mod gemma;
mod gemma2;
mod gemma3;
mod glm4;
mod gpt2;
mod gpt_neox;
mod granite;
mod llama;
mod mistral;
mod nemotron;
mod olmo;
mod olmo2;
mod openai_gpt;
mod opt;
mod phi;
mod phi3;
mod qwen2;
mod qwen3;
mod stablelm;
mod starcoder2;
mod tensors;

use crate::config::ModelConfig;
use crate::error::{ModelError, few};

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
    /// The values of the fields do not make a model.
    #[error("config.json: as a configuration of this project, {0}")]
    Model(#[from] ModelError),
    /// Tensors that are missing, of another shape, or unknown.
    #[error("the tensors do not fit the configuration: {}", few(.0))]
    Tensors(Vec<String>),
}

/// Reads the fields of a configuration.
type Read = fn(&mut Fields) -> Result<ModelConfig, PresetError>;
/// Places the weights of a configuration.
type Places = fn(&ModelConfig) -> Vec<Piece>;

const PRESETS: [(&str, Read, Places); 21] = [
    ("cohere", cohere::read, cohere::places),
    ("gemma", gemma::read, gemma::places),
    ("gemma2", gemma2::read, gemma2::places),
    ("gemma3_text", gemma3::read, gemma3::places),
    ("glm4", glm4::read, glm4::places),
    ("gpt2", gpt2::read, gpt2::places),
    ("gpt_neox", gpt_neox::read, gpt_neox::places),
    ("granite", granite::read, granite::places),
    ("llama", llama::read, llama::places),
    ("mistral", mistral::read, mistral::places),
    ("nemotron", nemotron::read, nemotron::places),
    ("olmo", olmo::read, olmo::places),
    ("olmo2", olmo2::read, olmo2::places),
    ("openai-gpt", openai_gpt::read, openai_gpt::places),
    ("opt", opt::read, opt::places),
    ("phi", phi::read, phi::places),
    ("phi3", phi3::read, phi3::places),
    ("qwen2", qwen2::read, qwen2::places),
    ("qwen3", qwen3::read, qwen3::places),
    ("stablelm", stablelm::read, stablelm::places),
    ("starcoder2", starcoder2::read, starcoder2::places),
];

/// The names of all presets.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, ..)| *name)
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
        let Some((name, read, places)) = PRESETS.iter().find(|(name, ..)| *name == asked) else {
            return Err(PresetError::Unknown { name: asked });
        };
        let config = read(&mut fields)?;
        fields.end()?;
        // Before the pieces of sizes that are refused.
        config.plan(config.vocab_size.unwrap_or(1))?;
        let pieces = places(&config);
        Ok(Self { name, config, pieces })
    }
}
