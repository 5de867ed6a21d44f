//! OLMo 2 (arXiv:2501.00656): Llama with output_norm, and norms of queries and keys over the whole width.

use super::llama::{GATED, like_llama, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::{ModelConfig, QkNormOver};
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = like_llama(fields)?;
    Ok(ModelConfig {
        placement: Placement::OutputNorm {},
        qk_norm: config.norm,
        qk_norm_over: QkNormOver::Width,
        ..config
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let norms = [
        ("attention.qk_norm.query", "self_attn.q_norm"),
        ("attention.qk_norm.key", "self_attn.k_norm"),
        ("around_attention.norms.0", "post_attention_layernorm"),
        ("around_mlp.norms.0", "post_feedforward_layernorm"),
    ];
    pieces(config, &GATED, &norms)
}
