//! Qwen 2 (arXiv:2407.10671): Llama with biases of queries, keys and values alone, and possibly a window in the last layers.

use super::llama::{GATED, NORMS, in_window, like_llama, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    Ok(ModelConfig { qkv_bias: Some(true), ..windowed(fields)? })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &NORMS)
}

/// The windows of Qwen: in the layers from `max_window_layers` on, if `use_sliding_window`.
pub(super) fn windowed(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = like_llama(fields)?;
    let is_used = fields.or("use_sliding_window", false)?;
    let window = fields.or("sliding_window", 4096)?;
    let first: usize = fields.or("max_window_layers", 28)?;
    let windowed = fields.windowed(config.n_layers, |l| is_used && l >= first)?;
    Ok(in_window(config, window, &windowed))
}
