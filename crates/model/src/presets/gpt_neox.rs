//! GPT-NeoX and Pythia (arXiv:2204.06745, arXiv:2304.01373): parallel or pre_norm, layer_norm, RoPE of a quarter of each head.
//! Queries, keys and values of a head follow each other in the rows of one matrix.

use super::{Fields, Piece, PresetError};
use crate::config::{ModelConfig, Position};
use unitgain_norms::NormConfig;
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let fraction = fields.or("rotary_pct", 0.25)?;
    let theta: f64 = fields.or("rotary_emb_base", 10_000.0)?;
    // The name of the same number in later files.
    let theta = fields.or("rope_theta", theta)?;
    let Position::Rope { scaling, .. } = fields.rope(fraction)? else { unreachable!("it is rope") };
    let is_parallel = fields.or("use_parallel_residual", true)?;
    Ok(ModelConfig {
        vocab_size: Some(fields.get("vocab_size")?),
        context: fields.get("max_position_embeddings")?,
        d_model: fields.get("hidden_size")?,
        n_layers: fields.get("num_hidden_layers")?,
        n_heads: fields.get("num_attention_heads")?,
        d_ff: Some(fields.get("intermediate_size")?),
        activation: fields.activation("hidden_act", false)?,
        bias: true,
        attention_bias: Some(fields.or("attention_bias", true)?),
        position: Position::Rope { theta, fraction, scaling },
        norm: NormConfig::LayerNorm { eps: fields.or("layer_norm_eps", 1e-5)?, gain: true, bias: true },
        placement: if is_parallel { Placement::Parallel {} } else { Placement::PreNorm {} },
        tie_embeddings: fields.or("tie_word_embeddings", false)?,
        init: fields.init("initializer_range")?,
        ..ModelConfig::default()
    })
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let (heads, head_dim) = (config.n_heads, config.d_model / config.n_heads.max(1));
    let attention_bias = config.attention_bias.unwrap_or(true);
    let mut pieces = vec![Piece::same("embedding", "gpt_neox.embed_in.weight")];
    for l in 0..config.n_layers {
        let (ours, theirs) = (format!("blocks.{l}"), format!("gpt_neox.layers.{l}"));
        for (i, part) in ["query", "key", "value"].into_iter().enumerate() {
            let of_head = |head: usize| (3 * head + i) * head_dim..(3 * head + i + 1) * head_dim;
            let rows: Vec<usize> = (0..heads).flat_map(of_head).collect();
            let [path, name] = [format!("{ours}.attention.{part}"), format!("{theirs}.attention.query_key_value")];
            pieces.extend(Piece::linear(&path, &name, attention_bias).into_iter().map(|p| p.part(0, rows.clone())));
        }
        for (path, name, bias) in [
            ("attention.out", "attention.dense", attention_bias),
            ("mlp.up", "mlp.dense_h_to_4h", true),
            ("mlp.down", "mlp.dense_4h_to_h", true),
        ] {
            pieces.extend(Piece::linear(&format!("{ours}.{path}"), &format!("{theirs}.{name}"), bias));
        }
        for (path, name) in super::llama::NORMS {
            pieces.extend(Piece::norm(config.norm, &format!("{ours}.{path}"), &format!("{theirs}.{name}")));
        }
    }
    pieces.extend(Piece::norm(config.norm, "final_norm", "gpt_neox.final_layer_norm"));
    pieces.extend((!config.tie_embeddings).then(|| Piece::turned("head.weight", "embed_out.weight")));
    pieces
}
