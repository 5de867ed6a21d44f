//! Reference data: one folder a case, found by walking.

use crate::common::tests_a_gpu;
use burn::tensor::{DType, TensorData};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use unitgain_model::{NormConfig, Placement, ScaleConfig};

/// Where the reference data are: `UNITGAIN_GOLDEN`, or `tests/golden`.
fn root() -> PathBuf {
    match std::env::var_os("UNITGAIN_GOLDEN") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"),
    }
}

/// One case.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) json: Value,
    pub(crate) tensors: HashMap<String, Array>,
}

/// A tensor on the host.
#[derive(Clone)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

impl Array {
    pub(crate) fn f32(&self) -> Vec<f32> {
        self.values.iter().map(|&x| x as f32).collect()
    }

    /// A matrix with its axes exchanged: linear weights are `[out, in]` in the files.
    pub(crate) fn transposed(&self) -> Self {
        let [rows, columns] = self.shape[..] else { panic!("{:?} is not a matrix", self.shape) };
        let values = (0..rows * columns).map(|k| self.values[k % rows * columns + k / rows]).collect();
        Self { shape: vec![columns, rows], values }
    }
}

/// Runs `check` on every case of a category; it answers false for a kind that it does not know.
pub(crate) fn walk(category: &str, mut check: impl FnMut(&str, &Case) -> bool) {
    let folder = root().join(category);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut folders: Vec<PathBuf> =
        entries.map(|e| e.unwrap().path()).filter(|p| p.join("case.json").exists()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "{} has no cases", folder.display());
    for folder in &folders {
        let case = Case::read(folder);
        let kind = case.json["kind"].as_str().expect("a kind").to_string();
        assert!(check(&kind, &case), "{}: unknown kind {kind:?}", case.name);
    }
    println!("{category}: {} cases", folders.len());
}

impl Case {
    fn read(folder: &Path) -> Self {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).unwrap();
        let mut tensors = read_tensors(folder);
        if let (Some(shared), Some(category)) = (json["settings"]["shared"].as_str(), folder.parent()) {
            let uses: Vec<&str> =
                json["uses"].as_array().map_or(vec![], |all| all.iter().filter_map(Value::as_str).collect());
            let shared = read_tensors(&category.join(shared)).into_iter();
            tensors.extend(shared.filter(|(name, _)| uses.contains(&name.as_str()) || name == "x" || name == "cot"));
        }
        if let Some(other) = json["weights_in"].as_str() {
            tensors.extend(read_tensors(&root().join(other)).into_iter().filter(|(name, _)| name.starts_with("init.")));
        }
        Self { name, json, tensors }
    }

    pub(crate) fn setting(&self, key: &str) -> &Value {
        &self.json["settings"][key]
    }

    pub(crate) fn number(&self, key: &str) -> f64 {
        self.setting(key).as_f64().unwrap_or_else(|| panic!("{}: settings.{key} is not a number", self.name))
    }

    pub(crate) fn size(&self, key: &str) -> usize {
        self.setting(key).as_u64().unwrap_or_else(|| panic!("{}: settings.{key} is not a size", self.name)) as usize
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.setting(key).as_str().unwrap_or_else(|| panic!("{}: settings.{key} is not a text", self.name))
    }

    /// The norm of a case that names one.
    pub(crate) fn norm(&self) -> NormConfig {
        let eps = self.number("norm_eps");
        match self.text("norm") {
            "layernorm" => NormConfig::LayerNorm { eps, gain: true, bias: true },
            "rmsnorm" => NormConfig::RmsNorm { eps, gain: true, unit_offset: false },
            other => panic!("{}: unknown norm {other:?}", self.name),
        }
    }

    pub(crate) fn array(&self, name: &str) -> &Array {
        self.tensors.get(name).unwrap_or_else(|| panic!("{}: no tensor {name}", self.name))
    }

    /// Fails unless `|got - want| <= atol + rtol |want|` everywhere, with the tolerance that the case
    /// gives for `key`.
    pub(crate) fn close(&self, key: &str, what: &str, got: &[f64], want: &[f64]) {
        let tolerance = &self.json["tolerance"][key];
        let bound =
            |name: &str| tolerance[name].as_f64().unwrap_or_else(|| panic!("{}: no tolerance for {key}", self.name));
        // Where PyTorch's own float32 loses more than the bound, ten times its loss is the bound, as
        // everywhere else: a sum that almost cancels has no digits to spare.
        let of_torch = tolerance["torch_f32_worst_relative"].as_f64().unwrap_or(0.0);
        let (atol, rtol) = (bound("atol"), bound("rtol").max(10.0 * of_torch));
        // A GPU's tanh and exp are exact to so much of 1, however small the argument is.
        let atol = if tests_a_gpu() { atol.max(2f64.powi(-23)) } else { atol };
        assert_eq!(got.len(), want.len(), "{}: {what} has another length", self.name);
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let error = (got - want).abs();
            let allowed = atol + rtol * want.abs();
            assert!(
                error <= allowed,
                "{}: {what}[{i}] is {got}, not {want} (error {error:.2e} > {allowed:.2e})",
                self.name
            );
        }
    }
}

fn read_tensors(folder: &Path) -> HashMap<String, Array> {
    let Ok(bytes) = std::fs::read(folder.join("tensors.safetensors")) else { return HashMap::new() };
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            Dtype::F64 => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            Dtype::I32 => data.as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect(),
            Dtype::I64 => data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
            Dtype::BF16 => low_precision(&view, DType::BF16),
            Dtype::F16 => low_precision(&view, DType::F16),
            other => panic!("{name} is {other:?}"),
        };
        (name.to_string(), Array { shape: view.shape().to_vec(), values })
    };
    file.iter().map(read).collect()
}

fn low_precision(view: &safetensors::tensor::TensorView<'_>, dtype: DType) -> Vec<f64> {
    TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype).iter::<f64>().collect()
}

/// The reference's name of each parameter: ours, and whether the matrix is transposed.
#[derive(Default)]
pub(crate) struct Names(pub(crate) HashMap<String, (String, bool)>);

impl Names {
    pub(crate) fn plain(&mut self, theirs: &str, ours: String) {
        self.0.insert(theirs.into(), (ours, false));
    }
    pub(crate) fn turned(&mut self, theirs: &str, ours: String) {
        self.0.insert(theirs.into(), (ours, true));
    }
    pub(crate) fn norm(&mut self, theirs: &str, [gain, bias]: [&str; 2], ours: &str, has_bias: bool) {
        self.plain(&format!("{theirs}.{gain}"), format!("{ours}.gamma"));
        if has_bias {
            self.plain(&format!("{theirs}.{bias}"), format!("{ours}.beta"));
        }
    }

    /// The names of the categories blocks and trajectories, but for embeddings and head.
    /// Their first layer is our block `first`.
    pub(crate) fn decoder(layers: usize, first: usize, norm: NormConfig) -> Self {
        let (variant, beta) = match norm {
            NormConfig::RmsNorm { .. } => ("RmsNorm", false),
            _ => ("LayerNorm", true),
        };
        let mut names = Self::default();
        for l in 0..layers {
            let block = format!("blocks.{}", l + first);
            for (theirs, ours) in [("wq", "query"), ("wk", "key"), ("wv", "value"), ("wo", "out")] {
                names.turned(&format!("layers.{l}.attn.{theirs}"), format!("{block}.attention.{ours}.weight"));
            }
            for (theirs, ours) in [("1", "up"), ("2", "down")] {
                names.turned(&format!("layers.{l}.mlp.w{theirs}"), format!("{block}.mlp.{ours}.weight"));
                names.plain(&format!("layers.{l}.mlp.b{theirs}"), format!("{block}.mlp.{ours}.bias"));
            }
            for (number, branch) in [("1", "around_attention"), ("2", "around_mlp")] {
                for (suffix, index) in [("", 0), ("_post", 1)] {
                    let to = format!("{block}.{branch}.norms.{index}.{variant}");
                    names.norm(&format!("layers.{l}.norm{number}{suffix}"), ["gamma", "beta"], &to, beta);
                }
                names.plain(&format!("layers.{l}.alpha"), format!("{block}.shared_scale"));
                names.plain(&format!("layers.{l}.omega{number}"), format!("{block}.{branch}.omega"));
                for scale in ["ls", "alpha"] {
                    names.plain(&format!("layers.{l}.{scale}{number}"), format!("{block}.{branch}.scale"));
                }
            }
        }
        for l in 0..layers {
            for (theirs, ours) in [("attn", "attention"), ("mlp", "mlp")] {
                let to = format!("blocks.{}.{ours}.inner_norm.{variant}", l + first);
                names.norm(&format!("layers.{l}.{theirs}.inner_norm"), ["gamma", "beta"], &to, beta);
            }
        }
        names.norm("final_norm", ["gamma", "beta"], &format!("final_norm.{variant}"), beta);
        names.norm("emb_norm", ["gamma", "beta"], &format!("embedding_norm.{variant}"), beta);
        names
    }

    /// The names of the category mup.
    pub(crate) fn mup(layers: usize) -> Self {
        let mut names = Self::default();
        names.plain("tok.weight", "embedding".into());
        names.plain("pos.weight", "position".into());
        for l in 0..layers {
            let block = format!("blocks.{l}");
            for (theirs, ours) in [("q", "query"), ("k", "key"), ("v", "value"), ("o", "out")] {
                names.turned(&format!("{block}.attn.{theirs}.weight"), format!("{block}.attention.{ours}.weight"));
            }
            for (theirs, ours) in [("fc1", "up"), ("fc2", "down")] {
                names.turned(&format!("{block}.{theirs}.weight"), format!("{block}.mlp.{ours}.weight"));
                names.plain(&format!("{block}.{theirs}.bias"), format!("{block}.mlp.{ours}.bias"));
            }
            for (theirs, ours) in [("ln1", "around_attention"), ("ln2", "around_mlp")] {
                let to = format!("{block}.{ours}.norms.0.LayerNorm");
                names.norm(&format!("{block}.{theirs}"), ["weight", "bias"], &to, true);
            }
        }
        names.norm("ln_f", ["weight", "bias"], "final_norm.LayerNorm", true);
        names.turned("head.weight", "head.weight".into());
        names
    }

    /// Weights under our names and in our layout.
    pub(crate) fn ours<'a>(
        &self,
        case: &Case,
        weights: impl Iterator<Item = (&'a str, &'a Array)>,
    ) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
        weights
            .map(|(name, array)| {
                let (path, turned) = self.0.get(name).unwrap_or_else(|| panic!("{}: unknown weight {name}", case.name));
                let array = if *turned { array.transposed() } else { array.clone() };
                (path.clone(), (array.shape.clone(), array.f32()))
            })
            .collect()
    }
}

/// A list of numbers.
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// Placement and scale by the reference's name; the settings of the case hold their numbers.
pub(crate) fn connection(name: &str, case: &Case) -> Option<(Placement, ScaleConfig)> {
    let one = ScaleConfig::One {};
    let learned = ScaleConfig::LayerScale { init: None };
    Some(match name {
        "pre_ln" => match case.setting("branch_multiplier").as_f64() {
            Some(value) => (Placement::PreNorm {}, ScaleConfig::Constant { value }),
            None => (Placement::PreNorm {}, one),
        },
        "post_ln" => (Placement::PostNorm {}, one),
        "deepnorm" => (Placement::DeepNorm {}, one),
        "sandwich" => (Placement::Sandwich {}, one),
        "peri_ln" => (Placement::PeriNorm {}, one),
        "output_norm" => (Placement::OutputNorm {}, one),
        "sub_ln" => (Placement::SubNorm {}, one),
        "parallel" => (Placement::Parallel {}, one),
        "parallel_shared_norm" => (Placement::ParallelShared {}, one),
        "normformer" => (Placement::Normformer {}, one),
        "mix_ln" => {
            let layers = case.size("N");
            (Placement::MixNorm { fraction: (layers / 4).max(1) as f64 / layers as f64 }, one)
        }
        "residual_dual" => (Placement::ResDual {}, one),
        "admin" => (Placement::Admin { omega: 1.0 }, one),
        "ln_scaling" => (Placement::ScaledPreNorm {}, one),
        "plain_residual" => (Placement::None {}, one),
        "nfnet_scaled" => (Placement::None {}, ScaleConfig::Nfnet { alpha: case.number("alpha") }),
        "layerscale_nonorm" => (Placement::None {}, learned),
        "preln_layerscale" => (Placement::PreNorm {}, learned),
        "rezero" => (Placement::None {}, ScaleConfig::ReZero { shared: true }),
        "skipinit" => (Placement::None {}, ScaleConfig::SkipInit { init: 0.0 }),
        _ => return None,
    })
}
