//! Mistral (arXiv:2310.06825): Llama with a window.

use super::llama::{GATED, NORMS, in_window, like_llama, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::ModelConfig;

pub(super) fn read(fields: &mut Fields) -> Result<ModelConfig, PresetError> {
    let config = like_llama(fields)?;
    // Models from before the field had a window; later files say null.
    let window = if fields.has("sliding_window") { fields.get("sliding_window")? } else { 0 };
    let windowed = vec![window > 0; config.n_layers];
    Ok(in_window(config, window, &windowed))
}

pub(super) fn places(config: &ModelConfig) -> Vec<Piece> {
    pieces(config, &GATED, &NORMS)
}
