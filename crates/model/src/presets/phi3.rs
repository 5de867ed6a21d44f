//! Phi-3 (arXiv:2404.14219): Llama with a window, whose queries, keys and values are the rows of one matrix, and so are gate and up
//! projection.

use super::llama::{NORMS, around, in_window, like_llama};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;
use unitgain_norms::NormConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let eps = fields.or("rms_norm_eps", 1e-5)?;
    let norm = NormConfig::RmsNorm { eps, gain: true, unit_offset: false };
    let config = ModelConfig { norm, ..like_llama(fields)? };
    // Of a scaling that is refused.
    fields.find::<usize>("original_max_position_embeddings")?;
    let window = fields.or("sliding_window", 0)?;
    let windowed = vec![window > 0; config.n_layers];
    Ok(in_window(config, window, &windowed))
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    let head_dim = config.head_dim.unwrap_or(config.d_model / config.n_heads.max(1));
    let (queries, keys) = (config.n_heads * head_dim, config.n_kv_heads.unwrap_or(config.n_heads) * head_dim);
    let hidden = config.d_ff.unwrap_or_default();
    let parts = [
        ("attention.query", "self_attn.qkv_proj", 0..queries),
        ("attention.key", "self_attn.qkv_proj", queries..queries + keys),
        ("attention.value", "self_attn.qkv_proj", queries + keys..queries + 2 * keys),
        ("attention.out", "self_attn.o_proj", 0..config.d_model),
        ("mlp.gate", "mlp.gate_up_proj", 0..hidden),
        ("mlp.up", "mlp.gate_up_proj", hidden..2 * hidden),
        ("mlp.down", "mlp.down_proj", 0..config.d_model),
    ];
    around(config, &NORMS, |ours, theirs| {
        let piece = |(path, name, rows): &(&str, &str, std::ops::Range<usize>)| {
            Piece::turned(format!("{ours}.{path}.weight"), format!("{theirs}.{name}.weight")).part(0, rows.clone())
        };
        parts.iter().map(piece).collect()
    })
}
