//! Command R (Cohere 2024): parallel_shared, layer_norm without bias, RoPE, SwiGLU, a tied head and a factor of its logits. RoPE turns
//! neighbouring entries there, so that the rows of queries and keys are in another order.

use super::llama::{GATED, like_llama, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_norms::NormConfig;
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    fields.only("use_qk_norm", false)?;
    let is_tied = fields.or("tie_word_embeddings", true)?;
    Ok(ModelConfig {
        norm: NormConfig::LayerNorm { eps: fields.or("layer_norm_eps", 1e-5)?, gain: true, bias: false },
        placement: Placement::ParallelShared {},
        logit_scale: fields.or("logit_scale", 0.0625)?,
        tie_embeddings: is_tied,
        ..like_llama(fields)?
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let head_dim = config.head_dim.unwrap_or(config.d_model / config.n_heads.max(1));
    let pieces = pieces(config, &GATED, &[("around_attention.norms.0", "input_layernorm")]);
    pieces.into_iter().map(|piece| neighbours_apart(piece, config, head_dim, head_dim)).collect()
}

/// A piece with the rows of each head of queries and keys in the order of half-split RoPE, where those of the reference turn
/// neighbours, of the first `turning` entries of a head.
pub(super) fn neighbours_apart(piece: Piece, config: &ModelConfig, head_dim: usize, turning: usize) -> Piece {
    let heads = if piece.path.contains("attention.query") {
        config.n_heads
    } else if piece.path.contains("attention.key") {
        config.n_kv_heads.unwrap_or(config.n_heads)
    } else {
        return piece;
    };
    let of_head = |head: usize| {
        let first = head * head_dim;
        let every_other = |from: usize| (from..turning).step_by(2);
        let entries = every_other(0).chain(every_other(1)).chain(turning..head_dim);
        entries.map(move |i| first + i).collect::<Vec<usize>>()
    };
    piece.part(0, (0..heads).flat_map(of_head))
}
