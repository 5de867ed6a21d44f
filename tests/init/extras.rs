//! Data-driven inits and related methods on small networks, without our model.

use crate::common::golden::{Array, Case, Json, Names, decoder, walk};
use crate::common::{draw, host, max_difference, parameter_gradients};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use std::collections::HashMap;
use unitgain_init::fixup_scale;
use unitgain_init::matrix::{mimetic_factors, singular_values};
use unitgain_model::weights::{assign, of as weights};
use unitgain_model::{
    Activation, Branch, ModelConfig, NormConfig, Parametrization, Placement, Point, Position, Probe, Role, ScaleConfig,
    Shape, Spec,
};
use unitgain_mup::Update;
use unitgain_residual::{Joint, Residual, Site, Stream};
use unitgain_train::calibrate::{
    admin_omegas, centred, grad_init_slopes, gradient_norm, gradient_quotient, lsuv_factor,
};

#[test]
fn extras_match_the_reference() {
    walk("extras", check);
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    match kind {
        "lsuv" => lsuv(case),
        "data_dependent_init" => data_dependent(case),
        "metainit_gradient_quotient" => meta_init(case),
        "gradinit_objective" => grad_init(case),
        "mimetic_init" => mimetic(case),
        "admin_profile" => admin(case),
        "fixup_residual_mlp" => fixup(case),
        "spectral_condition" => spectral(case),
        "u_mup_table" => u_mup(case),
        _ => return false,
    }
    true
}

fn tensor(array: &Array) -> Tensor<2> {
    Tensor::from_data(TensorData::new(array.f32(), [array.shape[0], array.shape[1]]), &Device::flex())
}

fn f64s(values: impl IntoIterator<Item = f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}

/// The number of layers; their weights and rows must have the sizes in the settings.
fn layers(case: &Case) -> usize {
    let sizes = case.setting("sizes").sizes();
    for (layer, ends) in sizes.windows(2).enumerate() {
        let shape = &case.array(&format!("w{layer}")).shape;
        assert_eq!(shape[..], [ends[1], ends[0]], "{}: sizes of w{layer}", case.name);
    }
    for x in ["x", "x1", "x2"].into_iter().filter_map(|name| case.find(name)) {
        assert_eq!(x.shape, [case.size("rows"), sizes[0]], "{}: rows", case.name);
    }
    sizes.len() - 1
}

fn apply(name: &str, x: Tensor<2>) -> Tensor<2> {
    match name {
        "identity" | "linear" => x,
        "relu" => unitgain_kernels::kinks::relu(x),
        "relu6" => activation::relu6(x),
        "relu_squared" => activation::relu(x).square(),
        "leaky_relu" => activation::leaky_relu(x, 0.01),
        "tanh" => x.tanh(),
        "sigmoid" => activation::sigmoid(x),
        // From erf, because burn's gelu uses the tanh approximation in its backward pass on some backends.
        "gelu" | "gelu_erf" => x.clone() * ((x / std::f64::consts::SQRT_2).erf() + 1.0) * 0.5,
        "gelu_tanh" => activation::gelu_approximate(x),
        "silu" | "swish" => activation::silu(x),
        "elu" => activation::elu(x, 1.0),
        "selu" => activation::selu(x),
        "mish" => activation::mish(x),
        "softplus" => activation::softplus(x, 1.0),
        "softsign" => activation::softsign(x),
        "hardswish" | "hard_swish" => activation::hard_swish(x),
        "quick_gelu" => x.clone() * activation::sigmoid(x * 1.702),
        "sin" => x.sin(),
        other => panic!("unknown activation {other}"),
    }
}

fn variance(values: &[f32]) -> f64 {
    let n = values.len() as f64;
    let mean = f64s(values.iter().copied()).iter().sum::<f64>() / n;
    values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n
}

fn lsuv(case: &Case) {
    let mut a = tensor(case.array("x"));
    let [before, after] = ["variance_before", "variance_after"].map(|key| case.expected().at(key).numbers());
    assert_eq!([before.len(), after.len()], [layers(case); 2], "{}: layers", case.name);
    for (layer, (before, want)) in before.into_iter().zip(after).enumerate() {
        let mut w = tensor(case.array(&format!("w{layer}")));
        let z = |w: &Tensor<2>| a.clone().matmul(w.clone().transpose());
        let first = variance(&host(z(&w)));
        // Like us, the reference measures a layer after rescaling the previous ones.
        case.close("variance_before", "variance", &[first], &[before]);
        for _ in 0..case.size("max_iterations") {
            w = w.clone() * lsuv_factor(variance(&host(z(&w))), case.number("tol"));
        }
        let key = format!("w{layer}_out");
        case.close(&key, &key, &f64s(host(w.clone())), &case.array(&key).values);
        let after = variance(&host(z(&w)));
        assert!((after - 1.0).abs() < case.number("tol"), "{}: {after}", case.name);
        assert!((after - want).abs() < 1e-4, "{}: {after} behind layer {layer}, not {want}", case.name);
        a = apply(case.text("activation"), z(&w));
    }
    assert_eq!(lsuv_factor(0.0, 0.1), 1.0, "a layer that writes nothing is left alone");
}

fn data_dependent(case: &Case) {
    let mut a = tensor(case.array("x"));
    for layer in 0..layers(case) {
        let w = tensor(case.array(&format!("w{layer}")));
        let [rows, columns] = w.dims();
        let each = centred(&host(a.clone().matmul(w.clone().transpose())), rows);
        let scaled: Vec<f32> =
            host(w).iter().enumerate().map(|(i, w)| (f64::from(*w) * each[i / columns].0) as f32).collect();
        let bias: Vec<f32> = each.iter().map(|(scale, mean)| (-mean * scale) as f32).collect();
        for (key, values) in [(format!("w{layer}_out"), &scaled), (format!("b{layer}_out"), &bias)] {
            case.close(&key, &key, &f64s(values.iter().copied()), &case.array(&key).values);
        }
        let w: Tensor<2> = Tensor::from_data(TensorData::new(scaled, [rows, columns]), &Device::flex());
        let b: Tensor<1> = Tensor::from_data(TensorData::new(bias, [rows]), &Device::flex());
        a = apply(case.text("activation"), a.matmul(w.transpose()) + b.unsqueeze());
    }
}

/// Loss and gradients of an MLP without biases, as a function of its weights `[out, in]`.
fn objective<'a>(case: &'a Case, x: &'a str, y: &'a str) -> impl Fn(&[Vec<f32>]) -> (f64, Vec<Vec<f32>>) + 'a {
    move |weights| {
        let device = Device::flex().autodiff();
        let own: Vec<Tensor<2>> = (0..layers(case))
            .map(|layer| {
                let shape = &case.array(&format!("w{layer}")).shape;
                let data = TensorData::new(weights[layer].clone(), [shape[0], shape[1]]);
                Tensor::from_data(data, &device).require_grad()
            })
            .collect();
        let mut a: Tensor<2> = Tensor::from_data(tensor(case.array(x)).into_data(), &device);
        for (layer, w) in own.iter().enumerate() {
            a = a.matmul(w.clone().transpose());
            if layer + 1 < own.len() {
                a = apply(case.text("activation"), a);
            }
        }
        let labels: Vec<i32> = case.array(y).values.iter().map(|y| *y as i32).collect();
        let n = labels.len();
        let labels: Tensor<2, Int> = Tensor::from_data(TensorData::new(labels, [n, 1]), &device);
        let loss = -activation::log_softmax(a, 1).gather(1, labels).mean();
        let gradients = loss.backward();
        let of = |w: &Tensor<2>| host(w.grad(&gradients).unwrap());
        (f64::from(loss.into_scalar::<f32>()), own.iter().map(of).collect())
    }
}

fn given(case: &Case) -> Vec<Vec<f32>> {
    (0..layers(case)).map(|layer| case.array(&format!("w{layer}")).f32()).collect()
}

fn meta_init(case: &Case) {
    let objective = objective(case, "x", "y");
    let (loss, gradient) = objective(&given(case));
    assert!((loss - case.expected().at("loss").f64()).abs() < 1e-5);
    let count: usize = given(case).iter().map(Vec::len).sum();
    assert_eq!(case.size("parameters"), count, "{}: parameters", case.name);
    assert_eq!(case.number("eps0"), 1e-5, "{}: the eps of our quotient is fixed", case.name);
    case.skip("expected/finite_difference_max_abs_error_of_Hg", "the error of the reference's own check");
    let (quotient, hg) = gradient_quotient(&objective, &given(case));
    for layer in 0..layers(case) {
        let close = |key: &str, values: &[f32]| {
            let key = format!("{key}{layer}");
            case.close(&key, &key, &f64s(values.iter().copied()), &case.array(&key).values);
        };
        close("grad", &gradient[layer]);
        // A difference of two f32 gradients is accurate to a thousandth of the largest entry.
        let want = case.array(&format!("hg{layer}")).f32();
        let largest = want.iter().fold(0f32, |most, v| most.max(v.abs()));
        let error = max_difference(&hg[layer], &want);
        assert!(error < 2e-3 * largest, "{}: H g differs by {error} of {largest}", case.name);
    }
    case.close("GQ", "gradient quotient", &[quotient], &[case.expected().at("GQ").f64()]);
}

fn grad_init(case: &Case) {
    let (first, second) = (objective(case, "x1", "y1"), objective(case, "x2", "y2"));
    let w = given(case);
    let alpha = case.setting("alpha").numbers();
    let theta: Vec<Vec<f32>> =
        w.iter().zip(&alpha).map(|(w, a)| w.iter().map(|w| (f64::from(*w) * a) as f32).collect()).collect();
    for (name, update, norm) in [("sgd", Update::Proportional, "L2"), ("adam_sign", Update::Normalized, "L1")] {
        let expected = case.expected().at(name);
        let number = |key: &str| expected.at(key).f64();
        assert_eq!(expected.at("norm").text(), norm, "{}: {name}", case.name);
        let (before, gradient) = first(&theta);
        let (after, slopes) = grad_init_slopes(&first, &second, &w, &alpha, (update, number("eta")));
        let close = |what: &str, got: f64, want: f64, rtol: f64| {
            assert!((got - want).abs() <= 1e-5 + rtol * want.abs(), "{}: {name}: {what} {got} {want}", case.name);
        };
        // `loss_before` is on the first batch.
        close("loss before", before, number("loss_before"), 1e-4);
        close("loss after", after, number("loss_after_step"), 1e-4);
        close("length", gradient_norm(&gradient, update), number("gradient_norm_constrained"), 1e-4);
        let wants = expected.at("d_loss_after_d_alpha").numbers();
        assert_eq!(wants.len(), slopes.len(), "{}: slopes", case.name);
        for (got, want) in slopes.iter().zip(wants) {
            // Through a central difference of gradients, accurate to a thousandth.
            close("slope", *got, want, 2e-3);
        }
    }
}

fn mimetic(case: &Case) {
    let (d, k) = (case.size("d"), case.size("k"));
    let product = |z: &str, rank: usize, noise: f64, diagonal: f64| -> Vec<f64> {
        let [left, right] = mimetic_factors(&case.array(z).f32(), d, rank, noise, diagonal);
        let of = |values: Vec<f32>| Tensor::<2>::from_data(TensorData::new(values, [d, rank]), &Device::flex());
        f64s(host(of(left).matmul(of(right).transpose())))
    };
    let qk = product("z1", k, case.number("alpha1"), case.number("beta1"));
    case.close("products", "query key^T", &qk, &case.array("qk_product").values);
    let vo = product("z2", d, case.number("alpha2"), -case.number("beta2"));
    case.close("products", "value output", &vo, &case.array("vo_product").values);
    let diagonal = |product: &[f64]| (0..d).map(|i| product[i * d + i]).sum::<f64>() / d as f64;
    for (got, key) in [(diagonal(&qk), "mean_diagonal_qk"), (diagonal(&vo), "mean_diagonal_vo")] {
        assert!((got - case.expected().at(key).f64()).abs() < 1e-5, "{key}: {got}");
    }
    let mut target: Vec<f32> = case.array("z1").f32().iter().map(|z| z * case.number("alpha1") as f32).collect();
    (0..d).for_each(|i| target[i * d + i] += case.number("beta1") as f32);
    case.close("singular_values_1", "values", &singular_values(&target, d, d), &case.array("singular_values_1").values);
}

/// The variances of a post-norm stack with the weights in a folder of blocks, with the case's norm and layers.
fn admin(case: &Case) {
    let [want, variances] = ["omega", "branch_variance"].map(|key| case.expected().at(key).numbers());
    let ours = profile(case);
    assert_eq!([want.len(), variances.len()], [2 * case.size("layers"); 2], "{}: branches", case.name);
    // The sum alone, from the reference's variances.
    case.close("omega", "omega", &admin_omegas(want[0] * want[0], &variances), &want);
    // From our forward pass: the variances of the input and of each branch.
    case.close("omega", "omega of our pass", &admin_omegas(ours[0], &ours[1..]), &want);
    case.close("omega", "variance of our branches", &ours[1..], &variances);
}

fn profile(case: &Case) -> Vec<f64> {
    struct Seen(std::cell::RefCell<Vec<f64>>);
    impl Probe for Seen {
        fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
            if point == Point::Embedding {
                self.0.borrow_mut().push(variance(&host(x.clone())));
            }
            x
        }
        fn branch(&self, _: usize, _: Branch, y: Tensor<2>) -> Tensor<2> {
            self.0.borrow_mut().push(variance(&host(y.clone())));
            y
        }
    }
    let shared = case.other("shared");
    let n = |key| shared.size(key);
    let norm = if case.setting("norm").given().is_some() { case.norm() } else { NormConfig::layer_norm() };
    let config =
        ModelConfig { n_layers: case.size("layers"), norm, placement: Placement::PostNorm {}, ..decoder(&shared) };
    let (model, _) = config.build(1, &Device::flex()).unwrap();
    let names = Names::decoder(n("layers"), 0, norm);
    let mut values: HashMap<_, _> =
        weights(&model).into_iter().map(|(path, shape, values)| (path, (shape, values))).collect();
    let uses: Vec<&str> = shared
        .names()
        .into_iter()
        .filter(|name| names.0.get(*name).is_some_and(|(path, _)| values.contains_key(path)))
        .collect();
    let given = names.ours(&shared, &uses, "");
    assert_eq!(given.len() + 1, values.len(), "{}: every weight but the embedding is given", case.name);
    values.extend(given);
    let model = assign(model, &values).unwrap();
    let data = TensorData::new(shared.array("x").f32(), [n("B"), n("T"), n("d")]);
    let seen = Seen(std::cell::RefCell::default());
    model.forward_stream(Tensor::from_data(data, &Device::flex()), &seen);
    seen.0.into_inner()
}

/// Residual branches of linear layers with Fixup's scalars: scale and bias after a branch belong to our residual
/// connection, the biases inside are added here.
fn fixup(case: &Case) {
    let device = Device::flex().autodiff();
    let blocks = case.size("blocks_L");
    let (d, hidden, m) = (case.size("d"), case.size("hidden"), case.size("layers_per_branch_m"));
    let scale = fixup_scale(blocks as f64, m as u32);
    let want = case.number("init_scale_L^(-1/(2m-2))");
    assert!((scale - want).abs() < 1e-12, "{}: Fixup's factor at init is {scale}, not {want}", case.name);
    let leaf = |name: &str| -> Tensor<2> {
        let array = case.array(name);
        let shape = if array.shape.len() == 1 { [1, array.shape[0]] } else { [array.shape[0], array.shape[1]] };
        Tensor::from_data(TensorData::new(array.f32(), shape), &device).require_grad()
    };
    let mut leaves: HashMap<String, Tensor<2>> = HashMap::from([("x".to_string(), leaf("x"))]);
    let mut residuals = Vec::new();
    let mut stream = Stream::new(leaves["x"].clone(), 1, false);
    assert_eq!(stream.x.dims()[1], d, "{}: d", case.name);
    for block in 0..blocks {
        let site = Site { block, blocks, width: d, base_width: d, joint: Joint::of(1.0), branch: Branch::Mlp };
        let residual = Residual::new(Placement::None {}, &NormConfig::None {}, ScaleConfig::Fixup {}, site, &device);
        let given = [("scale", "scale"), ("bias", "bias_out")]
            .map(|(ours, theirs)| (ours.to_string(), (vec![1], case.array(&format!("block{block}.{theirs}")).f32())));
        let residual = assign(residual, &given.into()).unwrap();
        let mut of = |name: String| {
            let name = format!("block{block}.{name}");
            leaves.entry(name.clone()).or_insert_with(|| leaf(&name)).clone()
        };
        let branch = |x: Tensor<2>| {
            (0..m).fold(x, |x, i| {
                let w = of(format!("w{i}"));
                let ends = [if i + 1 == m { d } else { hidden }, if i == 0 { d } else { hidden }];
                assert_eq!(w.dims(), ends, "{}: sizes of w{i}", case.name);
                let x = (x + of(format!("bias{i}_linear"))).matmul(w.transpose());
                if i + 1 == m { x } else { apply(case.text("activation"), x + of(format!("bias{i}_act"))) }
            })
        };
        stream = residual.forward(stream, branch);
        residuals.push(residual);
    }
    let y = stream.x;
    let cot: Tensor<2> = Tensor::from_data(tensor(case.array("cot")).into_data(), &device);
    let loss = (y.clone() * cot).sum();
    let want = case.expected().at("loss").f64();
    let got = f64::from(loss.clone().into_scalar::<f32>());
    assert!((got - want).abs() < 1e-5 * want.abs().max(1.0), "{}: the loss is {got}, not {want}", case.name);
    let gradients = loss.backward();
    let close = |key: &str, got: Vec<f32>| case.close(key, key, &f64s(got), &case.array(key).values);
    close("y", host(y));
    for (name, leaf) in &leaves {
        close(&format!("grad.{name}"), host(leaf.grad(&gradients).unwrap()));
    }
    for (block, residual) in residuals.iter().enumerate() {
        for (path, gradient) in parameter_gradients(residual, &gradients) {
            let theirs = if path == "bias" { "bias_out" } else { "scale" };
            close(&format!("grad.block{block}.{theirs}"), gradient);
        }
    }
}

fn spectral(case: &Case) {
    for row in case.expected().at("rows").list() {
        let (n_in, n_out) = (row.at("n_in").size(), row.at("n_out").size());
        spectral_factors(case, row, (n_in, n_out));
        for kind in ["w", "grad"] {
            let values = singular_values(&case.array(&format!("{kind}.{n_in}x{n_out}")).f32(), n_in, n_out);
            let squares: f64 = values.iter().map(|s| s * s).sum();
            let rank = values.iter().filter(|s| **s > 1e-5 * values[0]).count();
            let want = |key: &str| row.at(kind).at(key);
            case.equal("spectral", "largest", values[0], want("spectral"));
            case.equal("others", "frobenius", squares.sqrt(), want("frobenius"));
            case.equal("others", "stable rank", squares / values[0] / values[0], want("stable_rank"));
            assert_eq!(rank, want("rank").size());
        }
    }
}

/// Init and learning rates under the spectral condition. Our factors are relative to a base model: for a hidden matrix
/// with both sides `unit` times as large.
fn spectral_factors(case: &Case, row: Json<'_>, (n_in, n_out): (usize, usize)) {
    let unit = n_in.min(n_out);
    let (fan_in, fan_out) = (n_in as f64, n_out as f64);
    let (base_in, base_out) = (fan_in / unit as f64, fan_out / unit as f64);
    let spec = Spec { role: Role::MlpIn, fan_in, fan_out, blocks: 1, block: None, width: unit as f64 };
    let shape = Shape { width: unit, head_dim: unit, blocks: 1 };
    let spectral = Parametrization::Spectral { base_width: 1, base_head_dim: None, output_multiplier: 1.0 };
    let of = |update| spectral.factors(&spec, shape, update);
    let base_std = base_in.powf(-0.5) * (base_out / base_in).sqrt().min(1.0);
    let close = |key: &str, got: f64| {
        let want = row.at(key).f64();
        assert!((got - want).abs() < 1e-9 * want, "{}: {key} of {n_in}x{n_out} is {got}, not {want}", case.name);
    };
    close("init_std", of(Update::Normalized).init * base_std);
    close("adam_lr_factor", of(Update::Normalized).lr / base_in);
    close("sgd_lr_factor", of(Update::Proportional).lr * base_out / base_in);
    close("target_spectral_norm", (fan_out / fan_in).sqrt());
}

/// Calibration of whole runs is tested in `tests/train/calibrate.rs`.
#[test]
fn a_probe_changes_what_follows_and_nothing_else_does() {
    struct Double;
    impl Probe for Double {
        fn sees_layers(&self) -> bool {
            true
        }
        fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
            if point == Point::FinalNorm { x * 2.0 } else { x }
        }
    }
    struct Layers;
    impl Probe for Layers {
        fn sees_layers(&self) -> bool {
            true
        }
    }
    let config = ModelConfig {
        vocab_size: Some(11),
        context: 8,
        d_model: 16,
        n_layers: 2,
        position: Position::None {},
        ..ModelConfig::default()
    };
    let (model, _) = config.build(1, &Device::flex()).unwrap();
    let tokens: Tensor<2, Int> = draw("probe", 2, 8, &Device::flex()).abs().int();
    let plain = host(model.forward(tokens.clone()));
    let seen = host(model.forward_probed(tokens.clone(), &Layers));
    assert!(max_difference(&plain, &seen) < 1e-5);
    let doubled: Vec<f32> = host(model.forward_probed(tokens, &Double));
    let twice: Vec<f32> = plain.iter().map(|x| 2.0 * x).collect();
    assert!(max_difference(&doubled, &twice) < 1e-5);
}

/// Learning rates and init of each weight, and residual coefficients, from the authors' package. It has one weight for
/// query, key and value.
fn u_mup(case: &Case) {
    case.skip("settings/unit_scaling", "words");
    let layers = case.size("layers");
    let config = ModelConfig {
        vocab_size: Some(case.size("vocab")),
        d_model: case.size("hidden"),
        n_layers: layers,
        n_heads: case.size("heads"),
        d_ff: Some(4 * case.size("hidden")),
        activation: Activation::SwiGlu,
        position: Position::rope(1e4),
        tie_embeddings: false,
        parametrization: Parametrization::u_mup(),
        ..ModelConfig::default()
    };
    let (_, table) = config.build(1, &Device::flex()).unwrap();
    let (adam, sgd) = (table.clone().for_updates(|_| Update::Normalized), table.for_updates(|_| Update::Proportional));
    let ours = |theirs: &str| -> Vec<String> {
        match theirs.split('.').collect::<Vec<_>>()[..] {
            ["embedding", _] => vec!["embedding".into()],
            ["projection", _] => vec!["head.weight".into()],
            ["layers", l, _, "linear_qkv", _] => {
                ["query", "key", "value"].map(|name| format!("blocks.{l}.attention.{name}.weight")).to_vec()
            }
            ["layers", l, _, "linear_o", _] => vec![format!("blocks.{l}.attention.out.weight")],
            ["layers", l, _, "linear_1", _] => vec![format!("blocks.{l}.mlp.up.weight")],
            ["layers", l, _, "linear_gate", _] => vec![format!("blocks.{l}.mlp.gate.weight")],
            ["layers", l, _, "linear_2", _] => vec![format!("blocks.{l}.mlp.down.weight")],
            _ => panic!("{}: unknown weight {theirs}", case.name),
        }
    };
    let params = case.expected().at("params").table();
    let named: Vec<String> = params.iter().flat_map(|(theirs, _)| ours(theirs)).collect();
    let weights = adam.iter().filter(|entry| entry.shape.len() == 2);
    let missing: Vec<_> = weights.filter(|entry| !named.contains(&entry.path)).collect();
    assert!(missing.is_empty(), "{}: the table lacks {missing:?}", case.name);
    for (theirs, want) in params {
        let paths = ours(theirs);
        let stored = want.at("shape").sizes();
        for path in &paths {
            let of = |table: &unitgain_model::ParamTable| table.iter().find(|e| e.path == *path).unwrap().clone();
            let entry = of(&adam);
            // Our linear weights are transposed, and theirs hold query, key and value.
            let is_linear = path.ends_with("weight");
            let mut shape = entry.shape.clone();
            if is_linear {
                shape.reverse();
            }
            shape[0] *= paths.len();
            assert_eq!(shape, stored, "{}: shape of {theirs}", case.name);
            let kind = if entry.role() == Role::Head { "output" } else { "weight" };
            assert_eq!(want.at("mup_type").text(), kind, "{}: {theirs}", case.name);
            let depth = entry.block().map(|_| layers);
            assert_eq!(want.at("depth_for_lr").given().map(Json::size), depth, "{}: {theirs}", case.name);
            let got = [of(&adam).factors.lr, of(&sgd).factors.lr, of(&adam).init_std];
            let want = ["adam_lr_factor", "sgd_lr_factor", "init_std"].map(|key| want.at(key).f64());
            case.close("all", path, &got, &want);
        }
    }
    for (settings, want) in case.expected().at("residual_tau").table() {
        let [alpha, ratio] = [0, 1].map(|i| {
            let setting = settings.split(',').nth(i).and_then(|s| s.split('=').nth(1)).unwrap();
            setting.parse::<f64>().unwrap()
        });
        let tau: Vec<f64> = (0..2 * layers).map(|i| unitgain_mup::u_mup_tau(i, layers, alpha, ratio)).collect();
        let skip: Vec<f64> = tau.iter().map(|tau| (1.0 + tau * tau).powf(-0.5)).collect();
        let branch: Vec<f64> = tau.iter().zip(&skip).map(|(tau, skip)| tau * skip).collect();
        for (key, got) in [("tau", tau), ("skip_coefficient", skip), ("branch_coefficient", branch)] {
            case.close("all", key, &got, &want.at(key).numbers());
        }
    }
}
