//! Gemma 2 (arXiv:2408.00118): sandwich, rms_norm with unit offset, tanh GeGLU, capped logits, windows in every other block,
//! an embedding times sqrt(d_model).

use super::llama::{like_llama, pieces};
use super::{Fields, Piece, PresetError};
use crate::config::{AttentionScale, BlockConfig, EmbeddingScale, ModelConfig};
use unitgain_norms::NormConfig;
use unitgain_residual::Placement;

pub(super) fn read(fields: &mut Fields) -> Result<(ModelConfig, Vec<Piece>), PresetError> {
    let config = like_llama(fields)?;
    let NormConfig::RmsNorm { eps, .. } = config.norm else { unreachable!("a model like Llama has rms_norm") };
    let head_dim = config.head_dim.unwrap_or(256);
    let name = if fields.has("hidden_activation") { "hidden_activation" } else { "hidden_act" };
    let activation = fields.activation(name, true)?;
    // The older name, whose value says less.
    fields.find::<String>("hidden_act")?;
    let scalar: f64 = fields.or("query_pre_attn_scalar", 256.0)?;
    let window: usize = fields.or("sliding_window", 4096)?;
    let alternating = || (0..config.n_layers).map(|l| if l % 2 == 0 { "sliding_attention" } else { "full_attention" });
    let kinds: Vec<String> = fields.or("layer_types", alternating().map(String::from).collect())?;
    if kinds.len() != config.n_layers || kinds.iter().any(|k| k != "sliding_attention" && k != "full_attention") {
        return Err(fields.refuse("layer_types", "must name sliding_attention or full_attention for each layer"));
    }
    let is_full = |(_, kind): &(usize, &String)| *kind == "full_attention";
    let full = kinds.iter().enumerate().filter(is_full);
    let config = ModelConfig {
        head_dim: Some(head_dim),
        activation,
        norm: NormConfig::RmsNorm { eps, gain: true, unit_offset: true },
        placement: Placement::Sandwich {},
        embedding_scale: Some(EmbeddingScale::Constant { value: (config.d_model as f64).sqrt() }),
        attention_scale: Some(AttentionScale::Constant { value: scalar.powf(-0.5) }),
        attention_softcap: fields.or("attn_logit_softcapping", 0.0)?,
        logit_softcap: fields.or("final_logit_softcapping", 0.0)?,
        window,
        block: full
            .map(|(l, _)| BlockConfig { range: [l, l + 1], window: Some(0), ..BlockConfig::default() })
            .collect(),
        ..config
    };
    let norms = [
        ("around_attention.norms.0", "input_layernorm"),
        ("around_attention.norms.1", "post_attention_layernorm"),
        ("around_mlp.norms.0", "pre_feedforward_layernorm"),
        ("around_mlp.norms.1", "post_feedforward_layernorm"),
    ];
    let pieces = pieces(&config, &norms);
    Ok((config, pieces))
}
