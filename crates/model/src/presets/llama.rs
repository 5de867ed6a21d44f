//! Llama (arXiv:2302.13971, arXiv:2407.21783): pre_norm, rms_norm, RoPE, SwiGLU, grouped heads, no biases.

use super::{Fields, Piece, PresetError};
use crate::config::{BlockConfig, ModelConfig};
use unitgain_norms::NormConfig;

/// The names of the norms of a block with pre_norm.
pub(super) const NORMS: [(&str, &str); 2] =
    [("around_attention.norms.0", "input_layernorm"), ("around_mlp.norms.0", "post_attention_layernorm")];

/// The names of the linear layers of a gated MLP.
pub(super) const GATED: [(&str, &str); 3] =
    [("mlp.gate", "mlp.gate_proj"), ("mlp.up", "mlp.up_proj"), ("mlp.down", "mlp.down_proj")];

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = like_llama(fields)?;
    Ok(ModelConfig { bias: fields.or("mlp_bias", false)?, ..config })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &NORMS)
}

/// What Llama and the models after it share: sizes, rms_norm, RoPE, a gated MLP without biases.
pub(super) fn like_llama(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    Ok(ModelConfig { activation: fields.activation("hidden_act", true)?, ..sizes(fields, 1.0)? })
}

/// [`like_llama`] without the activation, with RoPE by default of this part of a head.
pub(super) fn sizes(fields: &mut Fields, fraction: f64) -> Result<ModelConfig, PresetError> {
    let heads = fields.get("num_attention_heads")?;
    Ok(ModelConfig {
        vocab_size: Some(fields.get("vocab_size")?),
        context: fields.get("max_position_embeddings")?,
        d_model: fields.get("hidden_size")?,
        n_layers: fields.get("num_hidden_layers")?,
        n_heads: heads,
        n_kv_heads: Some(fields.or("num_key_value_heads", heads)?),
        head_dim: fields.find("head_dim")?,
        d_ff: Some(fields.get("intermediate_size")?),
        attention_bias: Some(fields.or("attention_bias", false)?),
        position: fields.rope(fraction)?,
        norm: NormConfig::RmsNorm { eps: fields.or("rms_norm_eps", 1e-6)?, gain: true, unit_offset: false },
        tie_embeddings: fields.or("tie_word_embeddings", false)?,
        init: fields.init("initializer_range")?,
        ..ModelConfig::default()
    })
}

/// The configuration with this window in the layers of which that is said.
pub(super) fn in_window(config: ModelConfig, window: usize, windowed: &[bool]) -> ModelConfig {
    if !windowed.contains(&true) {
        return config;
    }
    let full = windowed.iter().enumerate().filter(|(_, is_windowed)| !**is_windowed);
    let block = full.map(|(l, _)| BlockConfig { range: [l, l + 1], window: Some(0), ..BlockConfig::default() });
    ModelConfig { window, block: block.collect(), ..config }
}

/// The tensors of a model like Llama, with these names of the linear layers of its MLP and of the norms of a block.
pub(super) fn pieces(config: &ModelConfig, mlp: &[(&str, &str)], norms: &[(&str, &str)]) -> Vec<Piece> {
    let out = config.attention_bias.unwrap_or(config.bias);
    let qkv = config.qkv_bias.unwrap_or(out);
    let attention = [
        ("attention.query", "self_attn.q_proj", qkv),
        ("attention.key", "self_attn.k_proj", qkv),
        ("attention.value", "self_attn.v_proj", qkv),
    ];
    around(config, norms, |ours, theirs| {
        let mlp = mlp.iter().map(|(path, name)| (*path, *name, config.bias));
        let linear = attention.into_iter().chain([("attention.out", "self_attn.o_proj", out)]).chain(mlp);
        linear
            .flat_map(|(path, name, bias)| Piece::linear(&format!("{ours}.{path}"), &format!("{theirs}.{name}"), bias))
            .collect()
    })
}

/// The tensors of a model with the names of Llama outside of the linear layers of a block.
pub(super) fn around(
    config: &ModelConfig,
    norms: &[(&str, &str)],
    linear: impl Fn(&str, &str) -> Vec<Piece>,
) -> Vec<Piece> {
    let mut pieces = vec![Piece::same("embedding", "model.embed_tokens.weight")];
    for l in 0..config.n_layers {
        let (ours, theirs) = (format!("blocks.{l}"), format!("model.layers.{l}"));
        pieces.extend(linear(&ours, &theirs));
        for (path, name) in norms {
            let norm = if path.contains("qk_norm") { config.qk_norm } else { config.norm };
            pieces.extend(Piece::norm(norm, &format!("{ours}.{path}"), &format!("{theirs}.{name}")));
        }
    }
    pieces.extend(Piece::norm(config.norm, "final_norm", "model.norm"));
    pieces.extend((!config.tie_embeddings).then(|| Piece::turned("head.weight", "lm_head.weight")));
    pieces
}
