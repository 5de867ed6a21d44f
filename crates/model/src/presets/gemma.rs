//! Gemma (arXiv:2403.08295): Llama with unit offset, tanh GeGLU, a tied head, and an embedding times sqrt(d_model).

use super::llama::{GATED, NORMS, pieces, sizes};
use super::{Fields, Piece, PresetError};
use crate::config::{EmbeddingScale, ModelConfig};
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    // The reference reads the older name of the two.
    let newer: Option<String> = fields.find("hidden_activation")?;
    let older: String = fields.or("hidden_act", "gelu_pytorch_tanh".into())?;
    if newer.as_ref().is_some_and(|newer| *newer != older) {
        return Err(fields.refuse("hidden_activation", format!("hidden_act is another one, {older}; give one of them")));
    }
    Ok(ModelConfig { activation: fields.activation_of("hidden_act", &older, true)?, ..like_gemma(fields)? })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &NORMS)
}

/// What the Gemmas share, without the activation.
pub(super) fn like_gemma(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let is_tied = fields.or("tie_word_embeddings", true)?;
    let config = sizes(fields, 1.0)?;
    let NormConfig::RmsNorm { eps, .. } = config.norm else { unreachable!("a model like Llama has rms_norm") };
    Ok(ModelConfig {
        head_dim: Some(config.head_dim.unwrap_or(256)),
        norm: NormConfig::RmsNorm { eps, gain: true, unit_offset: true },
        embedding_scale: Some(EmbeddingScale::Constant { value: (config.d_model as f64).sqrt() }),
        tie_embeddings: is_tied,
        ..config
    })
}
