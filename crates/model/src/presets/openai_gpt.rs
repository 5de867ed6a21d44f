//! GPT (Radford et al. 2018): GPT-2 with post_norm. Its `gelu` is the tanh form.

use super::gpt2::{like_gpt, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::{Activation, ModelConfig};
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let activation = match fields.activation("afn", false)? {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    Ok(ModelConfig { activation, placement: Placement::PostNorm {}, ..like_gpt(fields)? })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let tables = ["transformer.tokens_embed.weight", "transformer.positions_embed.weight"];
    pieces(config, tables)
}
