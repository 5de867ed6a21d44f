//! Gemma 3 (arXiv:2503.19786): Gemma 2 with norms of queries and keys, and another base of RoPE in the blocks with a window, five
//! of six.

use super::gemma2::{NORMS, like_gemma2};
use super::llama::{GATED, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::{BlockConfig, ModelConfig, Position};

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = like_gemma2(fields)?;
    fields.only("use_bidirectional_attention", false)?;
    let local = Position::rope(fields.or("rope_local_base_freq", 10_000.0)?);
    let every: usize = fields.or("_sliding_window_pattern", 6)?;
    let every = fields.or("sliding_window_pattern", every)?;
    let windowed = fields.windowed(config.n_layers, |l| !(l + 1).is_multiple_of(every))?;
    let block = |(l, is_windowed): (usize, &bool)| BlockConfig {
        range: [l, l + 1],
        window: (!is_windowed).then_some(0),
        position: is_windowed.then_some(local),
        ..BlockConfig::default()
    };
    Ok(ModelConfig {
        window: fields.or("sliding_window", 4096)?,
        block: windowed.iter().enumerate().map(block).collect(),
        qk_norm: config.norm,
        ..config
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let of_heads = [("attention.qk_norm.query", "self_attn.q_norm"), ("attention.qk_norm.key", "self_attn.k_norm")];
    pieces(config, &GATED, &[&NORMS[..], &of_heads].concat())
}
