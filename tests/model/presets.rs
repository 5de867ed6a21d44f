//! Known architectures against their reference library.

use crate::common::golden::{Case, cases, is_own, walk};
use crate::common::{host, test_device};
use burn::tensor::{Int, Tensor, TensorData};
use safetensors::SafeTensors;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use unitgain_model::cross_entropy;
use unitgain_model::presets::{self, Architecture, PresetError};
use unitgain_model::weights::{Source, Tensors};
use unitgain_train::Gradients;

#[test]
fn models_are_those_of_the_reference_library() {
    walk("models", check);
}

fn read(folder: &Path) -> (String, Tensors) {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        (name.to_string(), (view.shape().to_vec(), values(view.data())))
    };
    (std::fs::read_to_string(folder.join("config.json")).unwrap(), file.iter().map(tensor).collect())
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    if kind != "hf_model" {
        return false;
    }
    let (json, tensors) = read(&case.folder("models"));
    let architecture = Architecture::of(&json).unwrap();
    assert_eq!(architecture.name, case.text("model_type"));
    case.says("class", &["LM"]);
    case.says("transformers", &["4."]);
    case.says("attention", &["eager"]);
    case.says("dtype", &["float32"]);
    case.skip("settings/seed", "the weights are given");
    case.skip("weights/**", "names of the tensors, all of which must be read");
    case.skip("float64_copy/**", "an error of the reference");
    case.skip("mathematically_zero_gradients/**", "covered by the tolerance");
    let [sequences, time] = [case.size("B"), case.size("T")];
    let config = &architecture.config;
    assert_eq!(config.tie_embeddings, case.flag("tied_embeddings"));
    let count: usize = tensors.values().map(|(_, values)| values.len()).sum();
    assert_eq!(count, case.size("parameters"));

    let device = test_device();
    let weights = architecture.weights(&tensors).unwrap();
    let back = architecture.tensors(&weights).unwrap();
    assert_eq!(back.len(), tensors.len());
    for (name, (shape, values)) in &tensors {
        let (own_shape, own) = &back[name];
        assert_eq!(own_shape, shape, "{name}");
        // The first two positions of OPT are no weights, and a gain less 1 is rounded.
        let first = if architecture.name == "opt" && name.contains("embed_positions") { 2 * shape[1] } else { 0 };
        let bound = if architecture.name == "nemotron" { 1e-6 } else { 0.0 };
        let is_same = |(a, b): (&f32, &f32)| (a - b).abs() <= bound;
        assert!(own[first..].iter().zip(&values[first..]).all(is_same), "{name}");
    }
    let plan = config.plan(config.vocab_size.unwrap()).unwrap();
    let (model, table) = plan.build(Source::Load(&weights), &device.clone().autodiff()).unwrap();
    let ids: Vec<i32> = case.array("input_ids").values.iter().map(|id| *id as i32).collect();
    let tokens =
        |ids: Vec<i32>, time: usize| Tensor::<2, Int>::from_data(TensorData::new(ids, [sequences, time]), &device);
    let mut stream = Vec::new();
    let logits = model.forward_observed(tokens(ids.clone(), time), &mut |_, x| stream.push(host(x.clone().inner())));
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let all = wide(&host(logits.clone().inner()));
    case.close("logits", "logits", &all, &case.array("logits").values);
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (all.len() - 1) as f64;
    let std = case.expected().at("logits_std").f64();
    assert!((variance.sqrt() / std - 1.0).abs() < 1e-4, "{} {std}", variance.sqrt());
    // The stream after the embedding and after each block but the last, and the input of the head.
    let layers = config.n_layers;
    for (i, seen) in (0..layers).chain([layers + 1]).enumerate() {
        case.close("logits", &format!("hidden.{i}"), &wide(&stream[seen]), &case.array(&format!("hidden.{i}")).values);
    }
    let vocabulary = all.len() / sequences / time;
    let largest = |row: &[f64]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    let greedy: Vec<usize> = all.chunks(vocabulary).map(largest).collect();
    let last: Vec<usize> = (0..sequences).map(|s| greedy[(s + 1) * time - 1]).collect();
    let expected: Vec<usize> = case.expected().at("greedy_next").sizes();
    assert_eq!(if expected.len() == sequences { last } else { greedy }, expected);

    // Each token but the last predicts the next.
    let parts = |ids: &[i32], from: usize| -> Vec<i32> {
        ids.chunks(time).flat_map(|row| row[from..from + time - 1].to_vec()).collect()
    };
    let logits = model.forward(tokens(parts(&ids, 0), time - 1));
    let loss = cross_entropy(logits, tokens(parts(&ids, 1), time - 1), None);
    case.equal("loss", "loss", f64::from(loss.clone().inner().into_scalar::<f32>()), case.expected().at("loss"));
    let gradients = Gradients::backward(&loss, &model);
    let ours: HashMap<&str, Vec<f32>> =
        table.iter().zip(gradients.iter()).map(|(entry, g)| (entry.path.as_str(), host(g.unwrap().clone()))).collect();
    for (name, expected) in case.expected().at("grad_norms").table() {
        let pieces = architecture.pieces.iter().filter(|piece| piece.name == name);
        let square: f64 = pieces.flat_map(|piece| &ours[piece.path.as_str()]).map(|g| f64::from(*g).powi(2)).sum();
        case.equal("grad_norms", name, square.sqrt(), expected);
    }
    for name in case.names_behind("grad.") {
        let piece = architecture.pieces.iter().find(|piece| piece.name == name).unwrap();
        let key = format!("grad.{name}");
        case.close(&key, &key, &wide(&ours[piece.path.as_str()]), &case.array(&key).values);
    }
    true
}

#[test]
fn every_preset_has_a_case() {
    let known: BTreeSet<&str> = presets::names().collect();
    let cases = cases("models");
    let tested: BTreeSet<&str> = cases.iter().map(|case| case.text("model_type")).collect();
    assert!(!is_own() || known == tested, "{known:?} {tested:?}");
}

#[test]
fn what_cannot_be_imported_is_named() {
    let (json, tensors) = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/llama"));
    let with = |field: &str, value: serde_json::Value| {
        let mut all: serde_json::Value = serde_json::from_str(&json).unwrap();
        all[field] = value;
        Architecture::of(&all.to_string()).map(|_| ()).unwrap_err().to_string()
    };
    let yarn = serde_json::json!({ "rope_type": "yarn", "factor": 4.0 });
    for (said, parts) in [
        (
            with("model_type", "mamba".into()),
            ["model_type = \"mamba\"", "known are cohere, gemma, gemma2, gemma3_text, glm4"],
        ),
        (with("num_local_experts", 8.into()), ["num_local_experts = 8", "does not have"]),
        (with("rope_scaling", yarn), ["rope_scaling = {", "default, linear or llama3"]),
        (with("hidden_act", "xielu".into()), ["hidden_act = \"xielu\"", "activation"]),
        (with("hidden_size", "wide".into()), ["hidden_size = \"wide\"", "invalid type"]),
        (with("vocab_size", serde_json::Value::Null), ["vocab_size = unset", "is missing"]),
        (with("num_hidden_layers", 1_000_000_000_000u64.into()), ["model.n_layers = 1000000000000", "at most 1048576"]),
        (with("num_attention_heads", 5.into()), ["model.n_kv_heads", "must divide n_heads = 5"]),
        (Architecture::of("[]").unwrap_err().to_string(), ["config.json", "must be a JSON object"]),
        (Architecture::of("{").unwrap_err().to_string(), ["config.json", "line 1"]),
    ] {
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
    // The two names of Gemma's activation.
    let (gemma, _) = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/gemma"));
    let said = Architecture::of(&gemma.replacen("gelu_pytorch_tanh", "gelu", 1)).unwrap_err().to_string();
    assert!(said.contains("hidden_activation = ") && said.contains("give one of them"), "{said}");
    let architecture = Architecture::of(&json).unwrap();
    let changed = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = tensors.clone();
        change(&mut tensors);
        tensors
    };
    let name = "model.layers.1.mlp.up_proj.weight";
    let missing = changed(&|tensors| drop(tensors.remove(name)));
    let extra = changed(&|tensors| drop(tensors.insert("model.extra".into(), (vec![1], vec![0.0]))));
    for (tensors, expected) in [(missing, format!("{name} is missing")), (extra, "model.extra is not of llama".into())]
    {
        assert_eq!(architecture.weights(&tensors), Err(PresetError::Tensors(vec![expected])));
    }
    let other = changed(&|tensors| drop(tensors.insert(name.into(), (vec![2, 3], vec![0.0; 6]))));
    let mut weights = architecture.weights(&tensors).unwrap();
    weights.remove("head.weight");
    weights.insert("blocks.0.attention.out.weight".into(), (vec![3], vec![0.0; 2]));
    weights.insert("extra".into(), (vec![1], vec![0.0]));
    let said = architecture.tensors(&weights).unwrap_err().to_string();
    for part in ["head.weight is missing", "attention.out.weight is [3], with 2 numbers", "extra is not of llama"] {
        assert!(said.contains(part), "{said}");
    }
    let plan = architecture.config.plan(architecture.config.vocab_size.unwrap()).unwrap();
    let built = plan.build(Source::Load(&architecture.weights(&other).unwrap()), &test_device());
    let said = built.map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("blocks.1.mlp.up.weight") && said.contains("[3, 2]"), "{said}");
}
