//! Llama (arXiv:2302.13971, arXiv:2407.21783): pre_norm, rms_norm, RoPE, SwiGLU, grouped heads, no biases.

use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<(ModelConfig, Vec<Piece>), PresetError> {
    let config = like_llama(fields)?;
    let bias = fields.or("mlp_bias", false)?;
    let config = ModelConfig { bias, activation: fields.activation("hidden_act", true)?, ..config };
    let norms = [("around_attention.norms.0", "input_layernorm"), ("around_mlp.norms.0", "post_attention_layernorm")];
    let pieces = pieces(&config, &norms);
    Ok((config, pieces))
}

/// What Llama and the models after it share: sizes, rms_norm, RoPE, a gated MLP without biases.
pub(super) fn like_llama(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
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
        position: fields.rope()?,
        norm: NormConfig::RmsNorm { eps: fields.or("rms_norm_eps", 1e-6)?, gain: true, unit_offset: false },
        tie_embeddings: fields.or("tie_word_embeddings", false)?,
        init: fields.init("initializer_range")?,
        ..ModelConfig::default()
    })
}

/// The tensors of a model like Llama, with these names of the norms of a block.
pub(super) fn pieces(config: &ModelConfig, norms: &[(&str, &str)]) -> Vec<Piece> {
    let mut pieces = vec![Piece::same("embedding", "model.embed_tokens.weight")];
    let attention_bias = config.attention_bias.unwrap_or(config.bias);
    for l in 0..config.n_layers {
        let (ours, theirs) = (format!("blocks.{l}"), format!("model.layers.{l}"));
        for (path, name, bias) in [
            ("attention.query", "self_attn.q_proj", attention_bias),
            ("attention.key", "self_attn.k_proj", attention_bias),
            ("attention.value", "self_attn.v_proj", attention_bias),
            ("attention.out", "self_attn.o_proj", attention_bias),
            ("mlp.gate", "mlp.gate_proj", config.bias),
            ("mlp.up", "mlp.up_proj", config.bias),
            ("mlp.down", "mlp.down_proj", config.bias),
        ] {
            pieces.extend(Piece::linear(&format!("{ours}.{path}"), &format!("{theirs}.{name}"), bias));
        }
        let norms = norms.iter();
        pieces
            .extend(norms.map(|(path, name)| Piece::rms_norm(&format!("{ours}.{path}"), &format!("{theirs}.{name}"))));
    }
    pieces.push(Piece::rms_norm("final_norm", "model.norm"));
    pieces.extend((!config.tie_embeddings).then(|| Piece::turned("head.weight", "lm_head.weight")));
    pieces
}
