//! Stacks of each placement against float64, forward and all gradients.

use crate::common::golden::{Array, Case, Json, Names, connection, decoder, walk};
use crate::common::{parameter_gradients, test_device};
use burn::tensor::{Tensor, TensorData};
use std::cell::RefCell;
use std::collections::HashMap;
use unitgain_model::weights::{assign, of as weights};
use unitgain_model::{
    Branch, ModelConfig, ParamTable, Parametrization, Placement, Point, Probe, ScaleConfig, Transformer,
};
use unitgain_residual::{Joint, Residual, Site, Stream};

#[test]
fn stacks_match_the_reference_forward_and_backward() {
    walk("blocks", check);
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    if kind == "shared_weights" {
        case.skip("**", "weights of the cases that name this folder");
        return true;
    }
    if kind == "hybrid_pre_attn_post_ffn" {
        stack(case, Joined { mlp_placement: Some(Placement::PostNorm {}), ..Placement::PreNorm {}.into() });
        return true;
    }
    if let Some(multiplier) = case.setting("branch_multiplier").given() {
        assert_eq!(kind, "pre_ln", "{}: no placement but pre_ln has a multiplier", case.name);
        for joined in multiplied(multiplier.f64(), case.size("N"), case.size("d")) {
            stack(case, joined);
        }
        return true;
    }
    let Some((placement, scale)) = connection(kind, case) else { return false };
    stack(case, Joined { scale, ..placement.into() });
    true
}

/// How the branches of a stack are joined.
#[derive(Clone, Copy)]
pub(crate) struct Joined {
    placement: Placement,
    mlp_placement: Option<Placement>,
    scale: ScaleConfig,
    parametrization: Parametrization,
}

impl From<Placement> for Joined {
    fn from(placement: Placement) -> Self {
        let parametrization = Parametrization::Standard {};
        Self { placement, mlp_placement: None, scale: ScaleConfig::One {}, parametrization }
    }
}

/// All settings that multiply the branches of a pre-norm stack by `multiplier`: a constant, GPT-2's rule where it gives
/// this value, and the two depth parametrizations, with a constant for the rest.
fn multiplied(multiplier: f64, layers: usize, width: usize) -> Vec<Joined> {
    let plain: Joined = Placement::PreNorm {}.into();
    let constant = |value: f64| if value == 1.0 { ScaleConfig::One {} } else { ScaleConfig::Constant { value } };
    let mut all = vec![Joined { scale: constant(multiplier), ..plain }];
    if (multiplier - (2.0 * layers as f64).powf(-0.5)).abs() < 1e-12 {
        all.push(Joined { scale: ScaleConfig::Depth {}, ..plain });
    }
    let (base_width, base_depth, base_head_dim) = (width, 1, None);
    let by_depth = [
        (Parametrization::DepthMup { base_width, base_depth, base_head_dim, output_multiplier: 1.0 }, -0.5),
        (
            Parametrization::CompleteP { base_width, base_depth, base_head_dim, output_multiplier: 1.0, alpha: 1.0 },
            -1.0,
        ),
    ];
    for (parametrization, power) in by_depth {
        let scale = constant(multiplier / (layers as f64).powf(power));
        all.push(Joined { scale, parametrization, ..plain });
    }
    all
}

pub(crate) struct Built {
    model: Transformer,
    table: ParamTable,
    names: Names,
    /// Number of blocks before the case's.
    before: usize,
}

/// Builds the model of a case with its weights.
fn built(case: &Case, joined: Joined) -> Built {
    let Joined { placement, mlp_placement, scale, parametrization } = joined;
    let n = |key| case.size(key);
    // A case may be the l-th block of a deeper stack, whose earlier blocks then write nothing.
    let before = match case.setting("l").given() {
        Some(numbers) => {
            let numbers = numbers.sizes();
            let first = numbers[0];
            let in_order: Vec<usize> = (first..first + n("N")).collect();
            assert_eq!(numbers, in_order, "{}: layers are not in order", case.name);
            first - 1
        }
        None => 0,
    };
    if let Some(alpha) = case.setting("alpha").given().filter(|_| placement == Placement::DeepNorm {}) {
        let of = |what: &str, got: f64, want: f64| {
            assert!((got - want).abs() < 1e-12, "{}: {what} is {got}, not {want}", case.name);
        };
        of("alpha", placement.constant(0, n("N")), alpha.f64());
        of("beta", placement.branch_gain(n("N")), case.number("beta_for_init"));
    }
    let config = ModelConfig {
        n_layers: n("N") + before,
        norm: case.norm(),
        placement,
        mlp_placement,
        scale,
        parametrization,
        // NormFormer has no head scale in the cases.
        head_scale: Some(false),
        final_norm: case.setting("final_norm").given().map(Json::flag),
        ..decoder(case)
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
    let uses: Vec<&str> = case.part("uses").list().into_iter().map(Json::text).collect();
    let mut given = names.ours(case, &uses, "");
    // The cases have one omega per connection, we have one per channel.
    for (_, (shape, values)) in given.iter_mut().filter(|(path, _)| path.ends_with(".omega")) {
        (*shape, *values) = (vec![n("d")], vec![values[0]; n("d")]);
    }
    let is_own =
        |path: &&String| *path != "embedding" && (0..before).all(|l| !path.starts_with(&format!("blocks.{l}.")));
    assert_eq!(given.len(), values.keys().filter(is_own).count(), "{}: parameters", case.name);
    values.extend(given);
    Built { model: assign(model, &values).unwrap(), table, names, before }
}

/// The stream `x` of a case, `[batch, time, width]`.
fn input(case: &Case, name: &str) -> Tensor<3> {
    let array = case.array(name);
    let shape = [case.size("B"), case.size("T"), case.size("d")];
    assert_eq!(array.shape, shape, "{}: {name}", case.name);
    Tensor::from_data(TensorData::new(array.f32(), shape), &test_device().autodiff())
}

fn stack(case: &Case, joined: Joined) {
    let Built { model, table, names, before } = built(case, joined);
    let x = input(case, "x").require_grad();
    let seen = Writes::default();
    let y = model.forward_stream(x.clone(), &seen);
    let writes = rms_of_writes(case, joined, (&model, before), &seen);
    let host = |x: Tensor<1>| -> Vec<f64> { x.into_data().iter::<f32>().map(f64::from).collect() };
    case.close("y", "y", &host(y.clone().flatten(0, 2)), &case.array("y").values);
    let key = "rms_of_stream_after_each_sublayer";
    case.close(key, "stream rms", &writes, &case.expected().at(key).numbers());

    let loss = (y * input(case, "cot")).sum();
    case.close("loss", "loss", &host(loss.clone().inner()), &[case.expected().at("loss").f64()]);
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
    for name in case.names_behind("grad.") {
        let key = format!("grad.{name}");
        case.close(&key, name, &gradient(name), &case.array(&key).values);
    }
    for (name, want) in case.expected().at("grad_norms").table() {
        let norm = gradient(name).iter().map(|g| g * g).sum::<f64>().sqrt();
        case.equal("grad_norms", &format!("gradient norm of {name}"), norm, want);
    }
}

/// Records the stream after each block, and the branch outputs.
#[derive(Default)]
struct Writes {
    streams: RefCell<Vec<Tensor<2>>>,
    branches: RefCell<Vec<Tensor<2>>>,
}

impl Probe for Writes {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        if matches!(point, Point::Embedding | Point::Block(_)) {
            self.streams.borrow_mut().push(x.clone());
        }
        x
    }

    fn branch(&self, _: usize, branch: Branch, y: Tensor<2>) -> Tensor<2> {
        if branch == Branch::Attention {
            self.branches.borrow_mut().push(y.clone());
        }
        y
    }
}

/// rms of the stream after each branch. The stream between the two branches of a block is not probed; it is computed
/// from the stream before, the attention output, and the residual connection.
fn rms_of_writes(case: &Case, joined: Joined, (model, before): (&Transformer, usize), seen: &Writes) -> Vec<f64> {
    let (streams, branches) = (seen.streams.borrow(), seen.branches.borrow());
    let rms = |x: &Tensor<2>| f64::from(x.clone().square().mean().sqrt().into_scalar::<f32>());
    let (blocks, width) = (case.size("N") + before, case.size("d"));
    let all = weights(model);
    let mut writes = Vec::new();
    for block in before..blocks {
        if !joined.placement.is_parallel() {
            let site =
                Site { block, blocks, width, base_width: width, joint: Joint::of(1.0), branch: Branch::Attention };
            let scale = ScaleConfig::One {};
            let residual = Residual::new(joined.placement, &case.norm(), scale, site, &test_device().autodiff());
            let prefix = format!("blocks.{block}.around_attention.");
            let of_block = all.iter().filter_map(|(path, shape, values)| {
                let name = path.strip_prefix(&prefix).filter(|name| !["scale", "bias"].contains(name))?;
                Some((name.to_string(), (shape.clone(), values.clone())))
            });
            let residual = assign(residual, &of_block.collect()).unwrap();
            let stream = Stream::new(streams[block].clone(), case.size("B"), false);
            writes.push(rms(&residual.forward(stream, |_| branches[block].clone()).x));
        }
        writes.push(rms(&streams[block + 1]));
    }
    writes
}
