//! Qwen 3 (arXiv:2505.09388): Llama with norms of queries and keys over each head.

use super::llama::{GATED, NORMS, pieces};
use super::qwen2::windowed;
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = windowed(fields)?;
    Ok(ModelConfig { head_dim: Some(config.head_dim.unwrap_or(128)), qk_norm: config.norm, ..config })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let of_heads = [("attention.qk_norm.query", "self_attn.q_norm"), ("attention.qk_norm.key", "self_attn.k_norm")];
    pieces(config, &GATED, &[NORMS, of_heads].concat())
}
