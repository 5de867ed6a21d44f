//! Nemotron (arXiv:2402.16819): pre_norm, layer_norm whose gain is stored as its difference from 1, RoPE of a half of each head,
//! squared ReLU, grouped heads.

use super::llama::{NORMS, pieces, sizes};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    Ok(ModelConfig {
        activation: fields.activation("hidden_act", false)?,
        norm: NormConfig::LayerNorm { eps: fields.or("norm_eps", 1e-5)?, gain: true, bias: true },
        bias: fields.or("mlp_bias", false)?,
        ..sizes(fields, 0.5)?
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let offset = |piece: Piece| Piece { is_offset: piece.path.ends_with("gamma"), ..piece };
    let pieces = pieces(config, &[("mlp.up", "mlp.up_proj"), ("mlp.down", "mlp.down_proj")], &NORMS);
    pieces.into_iter().map(offset).collect()
}
