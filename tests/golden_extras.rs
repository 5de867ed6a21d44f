//! Data-driven inits and what belongs to them, on small networks without our model.

use crate::common::golden::{Array, Case, walk};
use crate::common::{draw, host, max_difference};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use std::collections::HashMap;
use unitgain_init::matrix::{mimetic_factors, singular_values};
use unitgain_model::{Branch, ModelConfig, NormConfig, Placement, Point, Position, Probe, ScaleConfig};
use unitgain_mup::Update;
use unitgain_residual::{Joint, Residual, Site, Stream};
use unitgain_train::calibrate::{
    admin_omegas, centred, grad_init_slopes, gradient_norm, gradient_quotient, lsuv_factor,
};

#[test]
fn extras_match_the_reference() {
    walk("extras", |kind, case| {
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
    });
}

fn tensor(array: &Array) -> Tensor<2> {
    Tensor::from_data(TensorData::new(array.f32(), [array.shape[0], array.shape[1]]), &Device::flex())
}

fn f64s(values: impl IntoIterator<Item = f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}

fn layers(case: &Case) -> usize {
    case.setting("sizes").as_array().unwrap().len() - 1
}

fn apply(name: &str, x: Tensor<2>) -> Tensor<2> {
    match name {
        "relu" => activation::relu(x),
        "tanh" => x.tanh(),
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
    let before = case.json["expected"]["variance_before"].as_array().unwrap();
    for (layer, before) in before.iter().enumerate() {
        let mut w = tensor(case.array(&format!("w{layer}")));
        let z = |w: &Tensor<2>| a.clone().matmul(w.clone().transpose());
        let first = variance(&host(z(&w)));
        // The reference measures a layer behind those that are already rescaled, as we do.
        case.close("variance_before", "variance", &[first], &[before.as_f64().unwrap()]);
        for _ in 0..case.size("max_iterations") {
            w = w.clone() * lsuv_factor(variance(&host(z(&w))), case.number("tol"));
        }
        let key = format!("w{layer}_out");
        case.close(&key, &key, &f64s(host(w.clone())), &case.array(&key).values);
        let after = variance(&host(z(&w)));
        assert!((after - 1.0).abs() < case.number("tol"), "{}: {after}", case.name);
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

/// Loss and gradients of an MLP without biases, by the values of its weights `[out, in]`.
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
    assert!((loss - case.json["expected"]["loss"].as_f64().unwrap()).abs() < 1e-5);
    let (quotient, hg) = gradient_quotient(&objective, &given(case));
    for layer in 0..layers(case) {
        let close = |key: &str, values: &[f32]| {
            let key = format!("{key}{layer}");
            case.close(&key, &key, &f64s(values.iter().copied()), &case.array(&key).values);
        };
        close("grad", &gradient[layer]);
        // A difference of two f32 gradients: a thousandth of the largest entry.
        let want = case.array(&format!("hg{layer}")).f32();
        let largest = want.iter().fold(0f32, |most, v| most.max(v.abs()));
        let error = max_difference(&hg[layer], &want);
        assert!(error < 2e-3 * largest, "{}: H g differs by {error} of {largest}", case.name);
    }
    case.close("GQ", "gradient quotient", &[quotient], &[case.json["expected"]["GQ"].as_f64().unwrap()]);
}

fn grad_init(case: &Case) {
    let (first, second) = (objective(case, "x1", "y1"), objective(case, "x2", "y2"));
    let w = given(case);
    let alpha: Vec<f64> = case.setting("alpha").as_array().unwrap().iter().map(|a| a.as_f64().unwrap()).collect();
    let theta: Vec<Vec<f32>> =
        w.iter().zip(&alpha).map(|(w, a)| w.iter().map(|w| (f64::from(*w) * a) as f32).collect()).collect();
    for (name, update) in [("sgd", Update::Proportional), ("adam_sign", Update::Normalized)] {
        let expected = &case.json["expected"][name];
        let number = |key: &str| expected[key].as_f64().unwrap();
        let (before, gradient) = first(&theta);
        let (after, slopes) = grad_init_slopes(&first, &second, &w, &alpha, (update, number("eta")));
        let close = |what: &str, got: f64, want: f64, rtol: f64| {
            assert!((got - want).abs() <= 1e-5 + rtol * want.abs(), "{}: {name}: {what} {got} {want}", case.name);
        };
        // `loss_before` is the first batch's.
        close("loss before", before, number("loss_before"), 1e-4);
        close("loss after", after, number("loss_after_step"), 1e-4);
        close("length", gradient_norm(&gradient, update), number("gradient_norm_constrained"), 1e-4);
        for (got, want) in slopes.iter().zip(expected["d_loss_after_d_alpha"].as_array().unwrap()) {
            // Through the gradient by a central difference, which is good to a thousandth.
            close("slope", *got, want.as_f64().unwrap(), 2e-3);
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
        assert!((got - case.json["expected"][key].as_f64().unwrap()).abs() < 1e-5, "{key}: {got}");
    }
    let mut target: Vec<f32> = case.array("z1").f32().iter().map(|z| z * case.number("alpha1") as f32).collect();
    (0..d).for_each(|i| target[i * d + i] += case.number("beta1") as f32);
    case.close("singular_values_1", "values", &singular_values(&target, d, d), &case.array("singular_values_1").values);
}

/// The variances of a post-norm stack whose weights are in the folder of the blocks.
fn admin(case: &Case) {
    let mut omegas = Vec::new();
    walk("blocks", |kind, blocks| {
        let shared = blocks.json["settings"]["shared"].as_str();
        if kind == "post_ln" && shared.is_some_and(|name| case.text("shared").ends_with(name)) {
            omegas = profile(blocks);
        }
        true
    });
    let numbers = |key: &str| -> Vec<f64> {
        case.json["expected"][key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (want, variances) = (numbers("omega"), numbers("branch_variance"));
    // The sum alone, of the reference's variances.
    case.close("omega", "omega", &admin_omegas(want[0] * want[0], &variances), &want);
    // And from a forward pass of ours.
    case.close("omega", "omega of our pass", &omegas, &want);
}

fn profile(blocks: &Case) -> Vec<f64> {
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
    let seen = Seen(std::cell::RefCell::default());
    crate::blocks::show(blocks, Placement::PostNorm {}, &seen);
    let seen = seen.0.into_inner();
    admin_omegas(seen[0], &seen[1..])
}

/// Residual branches of two linear layers with Fixup's scalars, by our residual connection and scale.
fn fixup(case: &Case) {
    let device = Device::flex().autodiff();
    let blocks = case.size("blocks_L");
    let (d, m) = (case.size("d"), case.size("layers_per_branch_m"));
    assert_eq!(m, 2, "{}: a branch of a Transformer has two layers", case.name);
    let leaf = |name: &str| -> Tensor<2> {
        let array = case.array(name);
        let shape = if array.shape.len() == 1 { [1, array.shape[0]] } else { [array.shape[0], array.shape[1]] };
        Tensor::from_data(TensorData::new(array.f32(), shape), &device).require_grad()
    };
    let mut leaves: HashMap<String, Tensor<2>> = HashMap::new();
    let names: Vec<&String> = case.tensors.keys().filter(|name| name.starts_with("block") || *name == "x").collect();
    for name in names {
        leaves.insert(name.clone(), leaf(name));
    }
    let mut stream = Stream::new(leaves["x"].clone(), 1, false);
    for block in 0..blocks {
        let of = |name: &str| leaves[&format!("block{block}.{name}")].clone();
        let site =
            Site { layer: block, layers: blocks, width: d, base_width: d, joint: Joint::of(1.0), branch: Branch::Mlp };
        let scale = ScaleConfig::Fixup {};
        let residual = Residual::new(Placement::None {}, &NormConfig::None {}, scale, site, &device);
        // Ours start at 1 and 0; the reference's have other values, which the branch is given instead.
        let branch = |x: Tensor<2>| {
            let hidden = (x + of("bias0_linear")).matmul(of("w0").transpose());
            let hidden = apply(case.text("activation"), hidden + of("bias0_act"));
            (hidden + of("bias1_linear")).matmul(of("w1").transpose()) * of("scale") + of("bias_out")
        };
        stream = residual.forward(stream, branch);
    }
    let y = stream.x;
    let cot: Tensor<2> = Tensor::from_data(tensor(case.array("cot")).into_data(), &device);
    let gradients = (y.clone() * cot).sum().backward();
    let close = |key: &str, got: Vec<f32>| {
        let want = &case.array(key).values;
        let largest = want.iter().fold(1f64, |most, v| most.max(v.abs()));
        for (got, want) in got.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-5 * largest, "{}: {key}: {got} {want}", case.name);
        }
    };
    close("y", host(y));
    for (name, leaf) in &leaves {
        if case.tensors.contains_key(&format!("grad.{name}")) {
            close(&format!("grad.{name}"), host(leaf.grad(&gradients).unwrap()));
        }
    }
}

fn spectral(case: &Case) {
    for row in case.json["expected"]["rows"].as_array().unwrap() {
        let (n_in, n_out) = (row["n_in"].as_u64().unwrap() as usize, row["n_out"].as_u64().unwrap() as usize);
        for kind in ["w", "grad"] {
            let values = singular_values(&case.array(&format!("{kind}.{n_in}x{n_out}")).f32(), n_in, n_out);
            let squares: f64 = values.iter().map(|s| s * s).sum();
            let rank = values.iter().filter(|s| **s > 1e-5 * values[0]).count();
            let want = |key: &str| row[kind][key].as_f64().unwrap();
            case.close("spectral", "largest", &[values[0]], &[want("spectral")]);
            case.close("others", "frobenius", &[squares.sqrt()], &[want("frobenius")]);
            case.close("others", "stable rank", &[squares / values[0] / values[0]], &[want("stable_rank")]);
            assert_eq!(rank as u64, row[kind]["rank"].as_u64().unwrap());
        }
    }
}

/// A calibrated model: see `tests/calibrate.rs` for whole runs.
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

/// Learning rates and init of every weight, and the residual coefficients, of the authors' package. It has one
/// weight for query, key and value.
fn u_mup(case: &Case) {
    use unitgain_model::{Activation, Parametrization};
    let layers = case.size("layers");
    let config = ModelConfig {
        vocab_size: Some(case.size("vocab")),
        d_model: case.size("hidden"),
        n_layers: layers,
        n_heads: case.size("heads"),
        d_ff: Some(4 * case.size("hidden")),
        activation: Activation::SwiGlu,
        position: Position::Rope { theta: 1e4 },
        tie_embeddings: false,
        parametrization: Parametrization::u_mup(),
        ..ModelConfig::default()
    };
    let (_, table) = config.build(1, &Device::flex()).unwrap();
    let (adam, sgd) = (table.clone().for_update(Update::Normalized), table.for_update(Update::Proportional));
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
    for (theirs, want) in case.json["expected"]["params"].as_object().unwrap() {
        for path in ours(theirs) {
            let of = |table: &unitgain_model::ParamTable| table.iter().find(|e| e.path == path).unwrap().clone();
            let got = [of(&adam).factors.lr, of(&sgd).factors.lr, of(&adam).init_std];
            let want = ["adam_lr_factor", "sgd_lr_factor", "init_std"].map(|key| want[key].as_f64().unwrap());
            case.close("all", &path, &got, &want);
        }
    }
    for (settings, want) in case.json["expected"]["residual_tau"].as_object().unwrap() {
        let [alpha, ratio] = [0, 1].map(|i| {
            let setting = settings.split(',').nth(i).and_then(|s| s.split('=').nth(1)).unwrap();
            setting.parse::<f64>().unwrap()
        });
        let tau: Vec<f64> = (0..2 * layers).map(|i| unitgain_mup::u_mup_tau(i, layers, alpha, ratio)).collect();
        let skip: Vec<f64> = tau.iter().map(|tau| (1.0 + tau * tau).powf(-0.5)).collect();
        let branch: Vec<f64> = tau.iter().zip(&skip).map(|(tau, skip)| tau * skip).collect();
        for (key, got) in [("tau", tau), ("skip_coefficient", skip), ("branch_coefficient", branch)] {
            case.close("all", key, &got, &crate::common::golden::numbers(&want[key]));
        }
    }
}
