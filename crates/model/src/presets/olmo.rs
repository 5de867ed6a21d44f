//! OLMo (arXiv:2402.00838): Llama with layer_norm that has neither gain nor bias.

use super::llama::{GATED, like_llama, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use serde_json::Value;
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    if fields.has("clip_qkv") {
        fields.get::<Value>("clip_qkv")?;
        return Err(fields.refuse("clip_qkv", "the model does not clip queries, keys and values; only null"));
    }
    let norm = NormConfig::LayerNorm { eps: 1e-5, gain: false, bias: false };
    Ok(ModelConfig { norm, ..like_llama(fields)? })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &[])
}
