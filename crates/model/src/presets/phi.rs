//! Phi 1, 1.5 and 2 (arXiv:2306.11644): parallel_shared, layer_norm, RoPE of a half of each head, gelu_tanh, biases everywhere.

use super::llama::sizes;
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_norms::NormConfig;
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    fields.only("qk_layernorm", false)?;
    Ok(ModelConfig {
        activation: fields.activation("hidden_act", false)?,
        norm: NormConfig::LayerNorm { eps: fields.or("layer_norm_eps", 1e-5)?, gain: true, bias: true },
        placement: Placement::ParallelShared {},
        bias: true,
        attention_bias: Some(true),
        head_bias: true,
        ..sizes(fields, 0.5)?
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let mut pieces = vec![Piece::same("embedding", "model.embed_tokens.weight")];
    for l in 0..config.n_layers {
        let (ours, theirs) = (format!("blocks.{l}"), format!("model.layers.{l}"));
        for (path, name) in [
            ("attention.query", "self_attn.q_proj"),
            ("attention.key", "self_attn.k_proj"),
            ("attention.value", "self_attn.v_proj"),
            ("attention.out", "self_attn.dense"),
            ("mlp.up", "mlp.fc1"),
            ("mlp.down", "mlp.fc2"),
        ] {
            pieces.extend(Piece::linear(&format!("{ours}.{path}"), &format!("{theirs}.{name}"), true));
        }
        let path = format!("{ours}.around_attention.norms.0");
        pieces.extend(Piece::norm(config.norm, &path, &format!("{theirs}.input_layernorm")));
    }
    pieces.extend(Piece::norm(config.norm, "final_norm", "model.final_layernorm"));
    if config.tie_embeddings {
        pieces.push(Piece::same("tied_head_bias", "lm_head.bias"));
    } else {
        pieces.extend(Piece::linear("head", "lm_head", true));
    }
    pieces
}
