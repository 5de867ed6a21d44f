//! OPT (arXiv:2205.01068): pre_norm, or post_norm for its 350m variant; layer_norm, ReLU, learned positions, tied head. The first
//! two rows of its table of positions are never read.

use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let is_pre: bool = fields.or("do_layer_norm_before", true)?;
    fields.only("_remove_final_layer_norm", false)?;
    fields.only("layer_norm_elementwise_affine", true)?;
    let d: usize = fields.get("hidden_size")?;
    fields.only("word_embed_proj_dim", d)?;
    Ok(ModelConfig {
        vocab_size: Some(fields.get("vocab_size")?),
        context: fields.get("max_position_embeddings")?,
        d_model: d,
        n_layers: fields.get("num_hidden_layers")?,
        n_heads: fields.get("num_attention_heads")?,
        d_ff: Some(fields.get("ffn_dim")?),
        activation: fields.activation("activation_function", false)?,
        bias: fields.or("enable_bias", true)?,
        placement: if is_pre { Placement::PreNorm {} } else { Placement::PostNorm {} },
        tie_embeddings: fields.or("tie_word_embeddings", true)?,
        init: fields.init("init_std")?,
        ..ModelConfig::default()
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let rows = 2..2 + config.context;
    let mut pieces = vec![
        Piece::same("embedding", "model.decoder.embed_tokens.weight"),
        Piece::same("position", "model.decoder.embed_positions.weight").part(0, rows),
    ];
    for l in 0..config.n_layers {
        let (ours, theirs) = (format!("blocks.{l}"), format!("model.decoder.layers.{l}"));
        for (path, name) in [
            ("attention.query", "self_attn.q_proj"),
            ("attention.key", "self_attn.k_proj"),
            ("attention.value", "self_attn.v_proj"),
            ("attention.out", "self_attn.out_proj"),
            ("mlp.up", "fc1"),
            ("mlp.down", "fc2"),
        ] {
            pieces.extend(Piece::linear(&format!("{ours}.{path}"), &format!("{theirs}.{name}"), config.bias));
        }
        for (path, name) in
            [("around_attention.norms.0", "self_attn_layer_norm"), ("around_mlp.norms.0", "final_layer_norm")]
        {
            pieces.extend(Piece::norm(config.norm, &format!("{ours}.{path}"), &format!("{theirs}.{name}")));
        }
    }
    if config.placement == (Placement::PreNorm {}) {
        pieces.extend(Piece::norm(config.norm, "final_norm", "model.decoder.final_layer_norm"));
    }
    pieces.extend((!config.tie_embeddings).then(|| Piece::turned("head.weight", "lm_head.weight")));
    pieces
}
