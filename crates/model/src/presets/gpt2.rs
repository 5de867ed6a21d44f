//! GPT-2 (Radford et al. 2019): pre_norm, layer_norm, learned positions, gelu_tanh, tied head. Its linear layers are `[in, out]`,
//! and queries, keys and values are the columns of one matrix.

use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    fields.only("scale_attn_weights", true)?;
    fields.only("scale_attn_by_inverse_layer_idx", false)?;
    fields.only("add_cross_attention", false)?;
    // The same number as n_positions in the first files.
    fields.find::<usize>("n_ctx")?;
    let config = like_gpt(fields)?;
    let d_ff = fields.or("n_inner", 4 * config.d_model)?;
    Ok(ModelConfig { d_ff: Some(d_ff), activation: fields.activation("activation_function", false)?, ..config })
}

/// What GPT and GPT-2 share.
pub(super) fn like_gpt(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    Ok(ModelConfig {
        vocab_size: Some(fields.get("vocab_size")?),
        context: fields.get("n_positions")?,
        d_model: fields.get("n_embd")?,
        n_layers: fields.get("n_layer")?,
        n_heads: fields.get("n_head")?,
        bias: true,
        tie_embeddings: fields.or("tie_word_embeddings", true)?,
        norm: NormConfig::LayerNorm { eps: fields.or("layer_norm_epsilon", 1e-5)?, gain: true, bias: true },
        init: fields.init("initializer_range")?,
        ..ModelConfig::default()
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let mut pieces = pieces(config, ["transformer.wte.weight", "transformer.wpe.weight"]);
    pieces.extend(Piece::norm(config.norm, "final_norm", "transformer.ln_f"));
    pieces
}

/// The tensors of a model like GPT, with these names of its tables, without a final norm.
pub(super) fn pieces(config: &ModelConfig, [embedding, position]: [&str; 2]) -> Vec<Piece> {
    let d = config.d_model;
    let mut pieces = vec![Piece::same("embedding", embedding), Piece::same("position", position)];
    for l in 0..config.n_layers {
        let (ours, theirs) = (format!("blocks.{l}"), format!("transformer.h.{l}"));
        for (i, part) in ["query", "key", "value"].into_iter().enumerate() {
            let columns = i * d..(i + 1) * d;
            let [path, name] = [format!("{ours}.attention.{part}"), format!("{theirs}.attn.c_attn")];
            pieces.push(Piece::same(format!("{path}.weight"), format!("{name}.weight")).part(1, columns.clone()));
            pieces.push(Piece::same(format!("{path}.bias"), format!("{name}.bias")).part(0, columns));
        }
        for (path, name) in [("attention.out", "attn.c_proj"), ("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")] {
            for part in ["weight", "bias"] {
                pieces.push(Piece::same(format!("{ours}.{path}.{part}"), format!("{theirs}.{name}.{part}")));
            }
        }
        pieces.extend(Piece::norm(config.norm, &format!("{ours}.around_attention.norms.0"), &format!("{theirs}.ln_1")));
        pieces.extend(Piece::norm(config.norm, &format!("{ours}.around_mlp.norms.0"), &format!("{theirs}.ln_2")));
    }
    pieces.extend((!config.tie_embeddings).then(|| Piece::turned("head.weight", "lm_head.weight")));
    pieces
}
