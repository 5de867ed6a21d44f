//! The fields of a `config.json`.

use super::PresetError;
use crate::config::{Activation, Position, RopeScaling};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use unitgain_init::Scheme;

/// Fields of training, generation and files, which say nothing of the model.
const BESIDE: [&str; 36] = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "bos_token_id",
    "classifier_dropout",
    "cache_implementation",
    "dropout",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "label2id",
    "layerdrop",
    "model_type",
    "output_past",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "residual_dropout",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
];

/// The fields of a `config.json` that have not been read yet.
#[derive(Debug)]
pub struct Fields {
    left: Map<String, Value>,
    /// Values of fields that were read, for messages.
    read: Map<String, Value>,
}

impl Fields {
    pub(super) fn parse(json: &str) -> Result<Self, PresetError> {
        match serde_json::from_str(json) {
            Ok(Value::Object(left)) => Ok(Self { left, read: Map::new() }),
            Ok(_) => Err(PresetError::Json("must be a JSON object".into())),
            Err(e) => Err(PresetError::Json(e.to_string())),
        }
    }

    /// Whether a field has a value that was not read yet.
    pub fn has(&self, field: &str) -> bool {
        self.left.get(field).is_some_and(|value| !value.is_null())
    }

    /// The value of a field; None if it is missing or null.
    ///
    /// # Errors
    /// [`PresetError::Field`] for a value of another type.
    pub fn find<T: DeserializeOwned>(&mut self, field: &str) -> Result<Option<T>, PresetError> {
        let value = match self.left.remove(field) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        self.read.insert(field.into(), value.clone());
        serde_json::from_value(value).map(Some).map_err(|e| self.refuse(field, e.to_string()))
    }

    /// The value of a field that must be there.
    ///
    /// # Errors
    /// [`PresetError::Field`] for a field that is missing or of another type.
    pub fn get<T: DeserializeOwned>(&mut self, field: &str) -> Result<T, PresetError> {
        self.find(field)?.ok_or_else(|| self.refuse(field, "is missing"))
    }

    /// The value of a field, or this one if it is missing.
    ///
    /// # Errors
    /// As [`Fields::find`].
    pub fn or<T: DeserializeOwned>(&mut self, field: &str, default: T) -> Result<T, PresetError> {
        Ok(self.find(field)?.unwrap_or(default))
    }

    /// Refuses a field with another value than the only one that the model can follow, which is also the default.
    ///
    /// # Errors
    /// [`PresetError::Field`].
    pub fn only(&mut self, field: &str, value: impl Into<Value>) -> Result<(), PresetError> {
        let value = value.into();
        let own: Value = self.or(field, value.clone())?;
        if own == value { Ok(()) } else { Err(self.refuse(field, format!("the model has only {value}"))) }
    }

    /// The error for a field.
    pub fn refuse(&self, field: &str, problem: impl Into<String>) -> PresetError {
        let value = self.read.get(field).or(self.left.get(field)).map_or("unset".into(), Value::to_string);
        PresetError::Field { field: field.into(), value, problem: problem.into() }
    }

    /// The activation of an MLP, or of its gate.
    ///
    /// # Errors
    /// As [`Fields::get`], and for an activation that the model does not have.
    pub fn activation(&mut self, field: &str, is_gated: bool) -> Result<Activation, PresetError> {
        let name: String = self.get(field)?;
        self.activation_of(field, &name, is_gated)
    }

    /// The activation of this name, which is the value of a field.
    pub(super) fn activation_of(&self, field: &str, name: &str, is_gated: bool) -> Result<Activation, PresetError> {
        match (name, is_gated) {
            ("relu", false) => Ok(Activation::Relu),
            ("relu2", false) => Ok(Activation::ReluSquared),
            ("gelu", false) => Ok(Activation::Gelu),
            ("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast", false) => Ok(Activation::GeluTanh),
            ("silu" | "swish", false) => Ok(Activation::Silu),
            ("gelu", true) => Ok(Activation::GeGlu),
            ("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast", true) => Ok(Activation::GeGluTanh),
            ("silu" | "swish", true) => Ok(Activation::SwiGlu),
            _ => Err(self.refuse(field, "the model does not have this activation here")),
        }
    }

    /// RoPE with the fields `rope_theta`, `rope_scaling` and `partial_rotary_factor`, by default of this fraction of a head.
    ///
    /// # Errors
    /// As [`Fields::find`], and for a scaling that the model does not have.
    pub fn rope(&mut self, fraction: f64) -> Result<Position, PresetError> {
        let theta = self.or("rope_theta", 10_000.0)?;
        let fraction = self.or("partial_rotary_factor", fraction)?;
        let scaling = match self.find::<Map<String, Value>>("rope_scaling")? {
            None => RopeScaling::None {},
            Some(scaling) => self.scaling(&scaling)?,
        };
        Ok(Position::Rope { theta, fraction, scaling })
    }

    fn scaling(&self, scaling: &Map<String, Value>) -> Result<RopeScaling, PresetError> {
        let number = |key: &str| {
            let missing = || self.refuse("rope_scaling", format!("{key} must be a number"));
            scaling.get(key).and_then(Value::as_f64).ok_or_else(missing)
        };
        let kind = scaling.get("rope_type").or(scaling.get("type")).and_then(Value::as_str).unwrap_or_default();
        match kind {
            "default" => Ok(RopeScaling::None {}),
            "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_context: number("original_max_position_embeddings")? as usize,
            }),
            _ => Err(self.refuse("rope_scaling", "its rope_type must be default, linear or llama3")),
        }
    }

    /// For each of `layers` layers whether it attends to a window, by `layer_types` or else by this rule.
    ///
    /// # Errors
    /// As [`Fields::find`], and for a type or a number of types that the model does not have.
    pub fn windowed(&mut self, layers: usize, rule: impl Fn(usize) -> bool) -> Result<Vec<bool>, PresetError> {
        let Some(kinds) = self.find::<Vec<String>>("layer_types")? else { return Ok((0..layers).map(rule).collect()) };
        let is_windowed = |kind: &String| match kind.as_str() {
            "sliding_attention" => Some(true),
            "full_attention" => Some(false),
            _ => None,
        };
        let windowed: Option<Vec<bool>> = kinds.iter().map(is_windowed).collect();
        let problem = || self.refuse("layer_types", "must name sliding_attention or full_attention for each layer");
        windowed.filter(|windowed| windowed.len() == layers).ok_or_else(problem)
    }

    /// Normal init with the standard deviation of a field, 0.02 if it is missing.
    ///
    /// # Errors
    /// As [`Fields::find`].
    pub fn init(&mut self, field: &str) -> Result<Option<Scheme>, PresetError> {
        Ok(Some(Scheme::Normal { std: self.or(field, 0.02)? }))
    }

    /// Refuses fields that nobody read, unless they are null or say nothing of the model.
    pub(super) fn end(self) -> Result<(), PresetError> {
        let unknown = |(name, value): &(String, Value)| !value.is_null() && !BESIDE.contains(&name.as_str());
        let left: Vec<_> = self.left.into_iter().filter(unknown).collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(PresetError::Fields(left.into_iter().map(|(name, value)| format!("{name} = {value}")).collect()))
    }
}
