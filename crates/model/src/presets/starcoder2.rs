//! StarCoder 2 (arXiv:2402.19173): pre_norm, layer_norm, RoPE, gelu_tanh, grouped heads, biases, a window.

use super::llama::{NORMS, in_window, pieces, sizes};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let is_tied = fields.or("tie_word_embeddings", true)?;
    let bias = fields.or("use_bias", true)?;
    let config = ModelConfig {
        activation: fields.activation("hidden_act", false)?,
        norm: NormConfig::LayerNorm { eps: fields.or("norm_epsilon", 1e-5)?, gain: true, bias: true },
        bias,
        attention_bias: Some(bias),
        tie_embeddings: is_tied,
        ..sizes(fields, 1.0)?
    };
    let window = fields.or("sliding_window", 0)?;
    let windowed = vec![window > 0; config.n_layers];
    Ok(in_window(config, window, &windowed))
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &[("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")], &NORMS)
}
