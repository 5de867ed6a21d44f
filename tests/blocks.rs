//! Whole stacks of each placement, forward and every gradient, against float64.

use crate::common::golden::{Array, Case, Names, connection, numbers, walk};
use crate::common::{parameter_gradients, test_device};
use burn::tensor::{Tensor, TensorData};
use std::collections::HashMap;
use unitgain_model::{
    Activation, ModelConfig, Observe, ParamTable, Placement, Point, Position, Probe, ScaleConfig, Transformer,
};
use unitgain_train::checkpoint::{assign, weights};

#[test]
fn stacks_match_the_reference_forward_and_backward() {
    walk("blocks", |kind, case| {
        // Weights that the others use.
        if kind == "shared_weights" {
            return true;
        }
        if kind == "hybrid_pre_attn_post_ffn" {
            stack(case, Placement::PreNorm {}, Some(Placement::PostNorm {}), ScaleConfig::One {});
            return true;
        }
        let Some((placement, scale)) = connection(kind, case) else { return false };
        stack(case, placement, None, scale);
        true
    });
}

pub(crate) struct Built {
    model: Transformer,
    table: ParamTable,
    names: Names,
    /// Blocks before those of the case.
    before: usize,
}

/// The model of a case with its weights, and what it was built of.
fn built(case: &Case, placement: Placement, mlp_placement: Option<Placement>, scale: ScaleConfig) -> Built {
    let n = |key| case.size(key);
    // A case may be the l-th block of a deeper stack: the blocks before it then write nothing.
    let before = case.setting("l")[0].as_u64().map_or(0, |l| l as usize - 1);
    let config = ModelConfig {
        vocab_size: Some(2),
        context: n("T"),
        d_model: n("d"),
        n_layers: n("N") + before,
        n_heads: n("heads"),
        d_ff: Some(n("ff")),
        activation: Activation::Gelu,
        position: Position::None {},
        bias: true,
        attention_bias: Some(false),
        norm: case.norm(),
        placement,
        mlp_placement,
        scale,
        // The cases have NormFormer without it.
        head_scale: Some(false),
        final_norm: case.setting("final_norm").as_bool(),
        ..ModelConfig::default()
    };
    let names = Names::decoder(n("N"), before, case.norm());
    let device = test_device().autodiff();
    let (model, table) = config.build(1, &device).unwrap();
    let mut values: HashMap<_, _> = weights(&model)
        .into_iter()
        .map(|(path, shape, mut values)| {
            let writes = (0..before)
                .any(|l| [".attention.out.", ".mlp.down."].iter().any(|w| path.starts_with(&format!("blocks.{l}{w}"))));
            if writes {
                values.fill(0.0);
            }
            (path, (shape, values))
        })
        .collect();
    let uses = case.json["uses"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let mut given = names.ours(case, uses.map(|name| (name, case.array(name))));
    // The cases have one omega a connection, ours is one a channel.
    for (_, (shape, values)) in given.iter_mut().filter(|(path, _)| path.ends_with(".omega")) {
        (*shape, *values) = (vec![n("d")], vec![values[0]; n("d")]);
    }
    let is_own =
        |path: &&String| *path != "embedding" && (0..before).all(|l| !path.starts_with(&format!("blocks.{l}.")));
    assert_eq!(given.len(), values.keys().filter(is_own).count(), "{}: parameters", case.name);
    values.extend(given);
    Built { model: assign(model, &values).unwrap(), table, names, before }
}

/// The stream of a case `x`, `[batch, time, width]`.
fn input(case: &Case, name: &str) -> Tensor<3> {
    let array = case.array(name);
    let shape = [array.shape[0], array.shape[1], array.shape[2]];
    Tensor::from_data(TensorData::new(array.f32(), shape), &test_device().autodiff())
}

/// Shows the pass of a case with one placement.
pub(crate) fn show(case: &Case, placement: Placement, probe: &dyn Probe) {
    let Built { model, .. } = built(case, placement, None, ScaleConfig::One {});
    model.forward_stream(input(case, "x"), probe);
}

fn stack(case: &Case, placement: Placement, mlp_placement: Option<Placement>, scale: ScaleConfig) {
    let Built { model, table, names, before } = built(case, placement, mlp_placement, scale);
    let x = input(case, "x").require_grad();
    let mut rms = Vec::new();
    let mut note = |point, x: &Tensor<2>| {
        if matches!(point, Point::Block(l) if l >= before) {
            rms.push(f64::from(x.clone().square().mean().sqrt().into_scalar::<f32>()));
        }
    };
    let y = model.forward_stream(x.clone(), &Observe::new(&mut note));
    let host = |x: Tensor<1>| -> Vec<f64> { x.into_data().iter::<f32>().map(f64::from).collect() };
    case.close("y", "y", &host(y.clone().flatten(0, 2)), &case.array("y").values);
    let per_block = numbers(&case.json["expected"]["rms_of_stream_after_each_sublayer"]);
    // A block of parallel branches writes once.
    let writes = if placement.is_parallel() { 1 } else { 2 };
    let per_block: Vec<f64> = per_block.chunks(writes).map(|pair| pair[pair.len() - 1]).collect();
    case.close("rms_of_stream_after_each_sublayer", "stream rms", &rms, &per_block);

    let loss = (y * input(case, "cot")).sum();
    case.close("loss", "loss", &host(loss.clone().inner()), &[case.json["expected"]["loss"].as_f64().unwrap()]);
    let gradients = loss.backward();
    let of_x = host(x.grad(&gradients).unwrap().flatten(0, 2));
    let by_path: HashMap<String, Vec<f32>> = parameter_gradients(&model, &gradients).into_iter().collect();
    let gradient = |name: &str| -> Vec<f64> {
        if name == "x" {
            return of_x.clone();
        }
        let (path, turned) = &names.0[name];
        let shape = table.iter().find(|e| e.path == *path).unwrap().shape.clone();
        let array = Array { shape, values: by_path[path].iter().map(|g| f64::from(*g)).collect() };
        if path.ends_with(".omega") {
            return vec![array.values.iter().sum()];
        }
        if *turned { array.transposed().values } else { array.values }
    };
    for (name, want) in case.tensors.iter().filter_map(|(n, a)| Some((n.strip_prefix("grad.")?, a))) {
        case.close(&format!("grad.{name}"), name, &gradient(name), &want.values);
    }
    for (name, want) in case.json["expected"]["grad_norms"].as_object().unwrap() {
        let norm = gradient(name).iter().map(|g| g * g).sum::<f64>().sqrt();
        case.close("grad_norms", &format!("gradient norm of {name}"), &[norm], &[want.as_f64().unwrap()]);
    }
}
