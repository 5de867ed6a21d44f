//! Gemma 2 (arXiv:2408.00118): Gemma with sandwich, capped logits, and windows in every other block.

use super::gemma::like_gemma;
use super::llama::{GATED, in_window, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::{AttentionScale, ModelConfig};
use unitgain_residual::Placement;

/// The names of the norms of a block with sandwich.
pub(super) const NORMS: [(&str, &str); 4] = [
    ("around_attention.norms.0", "input_layernorm"),
    ("around_attention.norms.1", "post_attention_layernorm"),
    ("around_mlp.norms.0", "pre_feedforward_layernorm"),
    ("around_mlp.norms.1", "post_feedforward_layernorm"),
];

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = like_gemma2(fields)?;
    let window = fields.or("sliding_window", 4096)?;
    let windowed = fields.windowed(config.n_layers, |l| l % 2 == 0)?;
    Ok(in_window(config, window, &windowed))
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &NORMS)
}

/// What Gemma 2 and 3 share.
pub(super) fn like_gemma2(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    // A name of Gemma, which is not read here.
    fields.find::<String>("hidden_act")?;
    let activation: String = fields.or("hidden_activation", "gelu_pytorch_tanh".into())?;
    let scalar: f64 = fields.or("query_pre_attn_scalar", 256.0)?;
    Ok(ModelConfig {
        activation: fields.activation_of("hidden_activation", &activation, true)?,
        placement: Placement::Sandwich {},
        attention_scale: Some(AttentionScale::Constant { value: scalar.powf(-0.5) }),
        attention_softcap: fields.or("attn_logit_softcapping", 0.0)?,
        logit_softcap: fields.or("final_logit_softcapping", 0.0)?,
        ..like_gemma(fields)?
    })
}
