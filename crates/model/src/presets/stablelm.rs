//! StableLM 2 (arXiv:2402.17834): Llama with layer_norm, a quarter of each head turned, and biases of queries, keys and values.

use super::llama::{GATED, NORMS, pieces, sizes};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    fields.only("qk_layernorm", false)?;
    fields.only("use_parallel_residual", false)?;
    Ok(ModelConfig {
        activation: fields.activation("hidden_act", true)?,
        norm: NormConfig::LayerNorm { eps: fields.or("layer_norm_eps", 1e-5)?, gain: true, bias: true },
        qkv_bias: Some(fields.or("use_qkv_bias", false)?),
        ..sizes(fields, 0.25)?
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &NORMS)
}
