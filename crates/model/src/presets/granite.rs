//! Granite 3 (IBM 2024): Llama with factors of the embedding, the branches, the attention logits and the output logits.

use super::llama::{GATED, NORMS, like_llama, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::{AttentionScale, EmbeddingScale, ModelConfig};
use unitgain_residual::ScaleConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let logits: f64 = fields.or("logits_scaling", 1.0)?;
    Ok(ModelConfig {
        bias: fields.or("mlp_bias", false)?,
        embedding_scale: Some(EmbeddingScale::Constant { value: fields.or("embedding_multiplier", 1.0)? }),
        scale: ScaleConfig::Constant { value: fields.or("residual_multiplier", 1.0)? },
        attention_scale: Some(AttentionScale::Constant { value: fields.or("attention_multiplier", 1.0)? }),
        logit_scale: 1.0 / logits,
        ..like_llama(fields)?
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &NORMS)
}
