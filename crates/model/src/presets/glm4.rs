//! GLM-4-0414 (Zhipu 2025): sandwich, rms_norm, RoPE of a half of each head that turns neighbouring entries, SwiGLU whose gate and up
//! projection are the rows of one matrix, biases of queries, keys and values.

use super::cohere::neighbours_apart;
use super::llama::{around, sizes};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = sizes(fields, 0.5)?;
    Ok(ModelConfig {
        activation: fields.activation("hidden_act", true)?,
        placement: Placement::Sandwich {},
        qkv_bias: config.attention_bias,
        attention_bias: Some(false),
        ..config
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let (hidden, bias) = (config.d_ff.unwrap_or_default(), config.qkv_bias == Some(true));
    let head_dim = config.head_dim.unwrap_or(config.d_model / config.n_heads.max(1));
    let turning = config.position.turning(head_dim);
    let norms = [
        ("around_attention.norms.0", "input_layernorm"),
        ("around_attention.norms.1", "post_self_attn_layernorm"),
        ("around_mlp.norms.0", "post_attention_layernorm"),
        ("around_mlp.norms.1", "post_mlp_layernorm"),
    ];
    let pieces = around(config, &norms, |ours, theirs| {
        let linear = |(path, name, bias): (&str, &str, bool)| {
            Piece::linear(&format!("{ours}.{path}"), &format!("{theirs}.{name}"), bias)
        };
        let of_mlp = |path: &str, first: usize| {
            let [path, name] = [format!("{ours}.mlp.{path}.weight"), format!("{theirs}.mlp.gate_up_proj.weight")];
            Piece::turned(path, name).part(0, first..first + hidden)
        };
        let all = [
            ("attention.query", "self_attn.q_proj", bias),
            ("attention.key", "self_attn.k_proj", bias),
            ("attention.value", "self_attn.v_proj", bias),
            ("attention.out", "self_attn.o_proj", false),
            ("mlp.down", "mlp.down_proj", false),
        ];
        let both = [of_mlp("gate", 0), of_mlp("up", hidden)];
        all.into_iter().flat_map(linear).chain(both).collect()
    });
    pieces.into_iter().map(|piece| neighbours_apart(piece, config, head_dim, turning)).collect()
}
