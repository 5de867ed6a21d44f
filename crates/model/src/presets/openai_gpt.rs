//! GPT (Radford et al. 2018): GPT-2 with post_norm. Its `gelu` is the tanh form.

use super::{Fields, Piece, PresetError};
use crate::config::{Activation, ModelConfig};
use unitgain_norms::NormConfig;
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let d = fields.get("n_embd")?;
    let activation = match fields.activation("afn", false)? {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    let config = ModelConfig {
        vocab_size: Some(fields.get("vocab_size")?),
        context: fields.get("n_positions")?,
        d_model: d,
        n_layers: fields.get("n_layer")?,
        n_heads: fields.get("n_head")?,
        d_ff: Some(4 * d),
        activation,
        bias: true,
        tie_embeddings: fields.or("tie_word_embeddings", true)?,
        norm: NormConfig::LayerNorm { eps: fields.or("layer_norm_epsilon", 1e-5)?, gain: true, bias: true },
        placement: Placement::PostNorm {},
        init: fields.init("initializer_range")?,
        ..ModelConfig::default()
    };
    Ok(config)
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let tables = ["transformer.tokens_embed.weight", "transformer.positions_embed.weight"];
    super::gpt2::pieces(config, tables)
}
