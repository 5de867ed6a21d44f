//! Gemma (arXiv:2403.08295): Llama with unit offset, tanh GeGLU, a tied head, and an embedding times sqrt(d_model).

use super::llama::{GATED, NORMS, pieces, sizes};
use super::{Fields, Piece, PresetError};
use crate::config::{EmbeddingScale, ModelConfig};
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = like_gemma(fields)?;
    Ok(config)
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &NORMS)
}

/// What the Gemmas share.
pub(super) fn like_gemma(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let is_tied = fields.or("tie_word_embeddings", true)?;
    let config = sizes(fields, 1.0)?;
    let NormConfig::RmsNorm { eps, .. } = config.norm else { unreachable!("a model like Llama has rms_norm") };
    let name = if fields.has("hidden_activation") { "hidden_activation" } else { "hidden_act" };
    // The first files say gelu, and mean its tanh form.
    if name == "hidden_act" && !fields.has(name) {
        return Err(fields.refuse("hidden_activation", "is missing"));
    }
    let activation = fields.activation(name, true)?;
    // The older name, whose value says less.
    fields.find::<String>("hidden_act")?;
    Ok(ModelConfig {
        head_dim: Some(config.head_dim.unwrap_or(256)),
        activation,
        norm: NormConfig::RmsNorm { eps, gain: true, unit_offset: true },
        embedding_scale: Some(EmbeddingScale::Constant { value: (config.d_model as f64).sqrt() }),
        tie_embeddings: is_tied,
        ..config
    })
}
