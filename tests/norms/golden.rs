//! Norms against float64, forward and all gradients.

use crate::common::golden::{Array, Case, Json, walk};
use crate::common::{host, parameter_gradients, test_device};
use burn::module::{Module, Param};
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor, TensorData, module};
use std::cell::RefCell;
use std::collections::HashMap;
use unitgain_model::weights::{Builder, Source, assign, of as weights};
use unitgain_model::{AttentionScale, ModelConfig, QkNorm, QkNormOver};
use unitgain_norms::weight::{Flavour, LengthOver, WeightNorm, WeightNormConfig};
use unitgain_norms::{BatchNorm, GroupNorm, Norm, NormConfig, NormSite, SingleRow};

#[test]
fn norms_match_the_reference_forward_and_backward() {
    walk("norms", check);
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    let eps = || case.number("eps");
    let layer_norm = |gain, bias| NormConfig::LayerNorm { eps: eps(), gain, bias };
    let rms_norm = |unit_offset| NormConfig::RmsNorm { eps: eps(), gain: true, unit_offset };
    let config = match kind {
        "layernorm" | "layernorm_bfloat16" | "layernorm_float16" => layer_norm(true, true),
        "layernorm_nobias" => layer_norm(true, false),
        "layernorm_noaffine" => layer_norm(false, false),
        "rmsnorm" | "rmsnorm_bfloat16" | "rmsnorm_float16" => rms_norm(false),
        "rmsnorm_gemma" | "rmsnorm_gemma_bfloat16" | "rmsnorm_gemma_float16" => rms_norm(true),
        "prmsnorm" => NormConfig::PartialRmsNorm { eps: eps(), fraction: case.number("p") },
        "scalenorm" => NormConfig::ScaleNorm { eps: eps() },
        "dyt" => {
            case.skip("settings/eps", "no part of the formula");
            NormConfig::Dyt { alpha: None, bias: true }
        }
        "batchnorm" => {
            batch_norm(case, eps());
            return true;
        }
        "groupnorm" | "instancenorm" => {
            group_norm(case, kind, eps());
            return true;
        }
        "weightnorm" | "scaled_weight_standardization" => {
            weight_norm(case, kind);
            return true;
        }
        _ if kind.starts_with("qknorm_") => {
            qk_norm(case, kind, eps());
            return true;
        }
        _ => return false,
    };
    let low = match kind.rsplit('_').next() {
        Some("bfloat16") => Some(FloatDType::BF16),
        Some("float16") => Some(FloatDType::F16),
        _ => None,
    };
    let prefixes: Vec<String> = match case.part("subcases").given() {
        Some(cases) => cases.table().into_iter().map(|(name, _)| format!("{name}.")).collect(),
        None => vec![String::new()],
    };
    for key in ["why", "torch_f32/**", "torch_f32_finite", "naive_one_pass_variance_f32/*"] {
        case.skip(&format!("subcases/*/{key}"), "words, and what PyTorch's own float32 makes of it");
    }
    for prefix in prefixes {
        reference_case(case, &prefix, config, low);
        for name in ["y_torch_f32", "grad_torch_f32.x"] {
            case.skip(&format!("tensors/{prefix}{name}"), "what PyTorch's float32 gives where it overflows");
        }
    }
    true
}

/// The norm with the parameters of a case.
fn with_parameters(case: &Case, prefix: &str, config: NormConfig, width: usize, device: &Device) -> Norm {
    let built = config.build(NormSite::of(width), device);
    let variant = format!("{built:?}").split('(').next().unwrap().to_string();
    let own: HashMap<_, _> = weights(&built)
        .into_iter()
        .map(|(path, shape, _)| {
            let name = path.rsplit('.').next().unwrap();
            let given = case
                .find(&format!("{prefix}{name}"))
                .unwrap_or_else(|| panic!("{}: {variant} has no {name}", case.name));
            (path.clone(), (shape, given.f32()))
        })
        .collect();
    assign(built, &own).unwrap()
}

fn reference_case(case: &Case, prefix: &str, config: NormConfig, low: Option<FloatDType>) {
    let device = test_device().autodiff();
    let array = |name: &str| case.find(&format!("{prefix}{name}"));
    let x = array("x").expect("an input");
    let width = *x.shape.last().unwrap();
    case.same_size("dim", width);
    let rows = x.values.len() / width;
    let matrix = |a: &Array| Tensor::<2>::from_data(TensorData::new(a.f32(), [rows, width]), &device);
    if let Some(wants) = case.part("subcases").at(prefix.trim_end_matches('.')).at("true_variance").given() {
        for (row, want) in x.values.chunks(width).zip(wants.numbers()) {
            let mean = row.iter().sum::<f64>() / width as f64;
            let got = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            assert!((got / want - 1.0).abs() < 1e-6, "{}: {prefix}: the variance is {got}, not {want}", case.name);
        }
    }
    let norm = with_parameters(case, prefix, config, width, &device);
    if let NormConfig::PartialRmsNorm { fraction, .. } = config {
        case.same_size("k", (width as f64 * fraction) as usize);
    }

    if let Some(low) = low {
        low_precision(case, &norm, matrix(x).inner(), low);
        return;
    }
    let x = matrix(x).require_grad();
    let y = norm.forward(x.clone());
    if let Some(first) = array("y_row0") {
        // The other row contains a NaN.
        let y = f64s(host(y));
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
        assert!(y[..width].iter().zip(&first.values).all(is_close), "{}: {prefix}: another row noticed", case.name);
        assert!(y[width..].iter().any(|v| v.is_nan()), "{}: {prefix}: a NaN was lost", case.name);
        return;
    }
    let plain = norm.valid().forward(x.clone().inner());
    assert_eq!(host(y.clone()), host(plain), "{}: {prefix}: training and evaluation differ", case.name);
    let cot = array("cot").expect("a cotangent");
    let gradients = (y.clone() * matrix(cot)).sum().backward();
    let check = |name: &str, got: Vec<f32>| {
        let key = format!("{prefix}{name}");
        let want = &case.array(&key).values;
        case.close(&key, &key, &f64s(got), want);
    };
    loss(case, &format!("{prefix}loss"), &[(&f64s(host(y.clone())), cot)]);
    check("y", host(y));
    check("grad.x", host(x.grad(&gradients).expect("a gradient of x")));
    for (path, gradient) in parameter_gradients(&norm, &gradients) {
        check(&format!("grad.{}", path.rsplit('.').next().unwrap()), gradient);
    }
}

/// `sum(y cot)` over all outputs, in f64 as in the reference.
fn loss(case: &Case, key: &str, outputs: &[(&[f64], &Array)]) {
    let dot = |(y, cot): &(&[f64], &Array)| y.iter().zip(&cot.values).map(|(y, cot)| y * cot).sum::<f64>();
    if let Some(want) = case.expected().at(key).given() {
        case.equal(key, key, outputs.iter().map(dot).sum(), want);
    }
}

/// A norm of low precision inputs, with statistics in f32.
fn low_precision(case: &Case, norm: &Norm, x: Tensor<2>, low: FloatDType) {
    let name = if low == FloatDType::BF16 { "torch.bfloat16" } else { "torch.float16" };
    assert_eq!(case.text("input_dtype"), name, "{}: input_dtype", case.name);
    let rms = f64::from(x.clone().square().mean().sqrt().into_scalar::<f32>());
    let scale = case.number("scale");
    assert!((rms / scale - 1.0).abs() < 0.1, "{}: an input of scale {scale} has rms {rms}", case.name);
    case.skip("tensors/y_llama_order", "rounded before the gain; ours is rounded once, behind it");
    case.skip(
        "expected/low_precision_accumulation_error/*",
        "the error of sums in low precision, which ours are not: y is held to the unit in its last place",
    );
    let in_f32 = norm.valid().forward(x.clone());
    case.close("y_exact", "y in f32", &f64s(host(in_f32)), &case.array("y_exact").values);
    if !has_type(low) {
        case.skip("tensors/y", "the backend does not compute in this type");
        return;
    }
    let y = norm.valid().forward(x.cast(low));
    assert_eq!(y.dtype(), DType::from(low), "{}", case.name);
    case.close("y", "y", &f64s(host(y.cast(FloatDType::F32))), &case.array("y").values);
}

/// Whether the backend computes with this type; ndarray also reports types that it can only store.
fn has_type(dtype: FloatDType) -> bool {
    let is_ndarray = std::env::var("UNITGAIN_TEST_BACKEND").is_ok_and(|name| name == "ndarray");
    test_device().supports_dtype(DType::from(dtype)) && !is_ndarray
}

fn f64s(x: Vec<f32>) -> Vec<f64> {
    x.into_iter().map(f64::from).collect()
}

/// `[samples, channels, ..]` as rows `[samples * .., channels]`.
fn rows(array: &Array, device: &Device) -> Tensor<2> {
    let (n, c) = (array.shape[0], array.shape[1]);
    let rest: usize = array.shape[2..].iter().product();
    let x = Tensor::<3>::from_data(TensorData::new(array.f32(), [n, c, rest]), device);
    x.swap_dims(1, 2).reshape([n * rest, c])
}

/// The inverse, in the reference's order.
fn unrows(x: Tensor<2>, like: &Array) -> Vec<f64> {
    let (n, c) = (like.shape[0], like.shape[1]);
    let rest: usize = like.shape[2..].iter().product();
    f64s(host(x.reshape([n, rest, c]).swap_dims(1, 2)))
}

/// Fills a module with tensors of the case, by the last part of their path.
fn filled<M: Module>(module: M, case: &Case, of: impl Fn(&str) -> Option<Vec<f32>>) -> M {
    let values: HashMap<_, _> = weights(&module)
        .into_iter()
        .map(|(path, shape, _)| {
            let name = path.rsplit('.').next().unwrap().to_string();
            let given = of(&name).unwrap_or_else(|| case.array(&name).f32());
            (path, (shape, given))
        })
        .collect();
    assign(module, &values).unwrap()
}

fn gradient_of<M: Module>(module: &M, gradients: &Gradients, name: &str) -> Vec<f64> {
    let all = parameter_gradients(module, gradients);
    let found = all.into_iter().find(|(path, _)| path.rsplit('.').next() == Some(name));
    f64s(found.unwrap_or_else(|| panic!("{name} has no gradient")).1)
}

fn batch_norm(case: &Case, eps: f64) {
    let device = test_device().autodiff();
    let momentum = case.number("momentum");
    let steps = case.setting("steps").given().map(Json::size);
    let array = |name: &str| case.find(name);
    let shape = &array("x").or(array("step0.x")).expect("an input").shape;
    let width = shape[1];
    let channels = case.setting("channels");
    if channels.is_list() {
        // One edge case per channel, described in words.
        assert_eq!(channels.list().len(), width, "{}: channels", case.name);
        case.skip("settings/channels/*", "words");
    } else {
        case.same_size("channels", width);
    }
    if let Some(m) = case.setting("m").given() {
        assert_eq!(m.size(), shape.iter().product::<usize>() / width, "{}: m", case.name);
    }
    let start = |name: &str| match name {
        "running_mean" => Some(array(name).map_or(vec![0.0; width], Array::f32)),
        "running_var" => Some(array(name).map_or(vec![1.0; width], Array::f32)),
        "gamma" if array(name).is_none() => Some(vec![1.0; width]),
        "beta" if array(name).is_none() => Some(vec![0.0; width]),
        _ => None,
    };
    let built = NormConfig::BatchNorm { eps, momentum }.build(NormSite::of(width), &device);
    let Norm::BatchNorm(norm) = filled(built, case, start) else { panic!("another kind") };
    let running = |norm: &BatchNorm| (f64s(host(norm.running().0)), f64s(host(norm.running().1)));

    if let Some(error) = case.part("expects_error").given() {
        assert_eq!(error.at("mode").text(), "train", "{}: what has to be refused", case.name);
        case.skip("expects_error/torch_message", "PyTorch's words");
        let x = case.array("x");
        let before = running(&norm);
        assert_eq!(norm.try_forward(rows(x, &device)).err(), Some(SingleRow), "{}", case.name);
        assert_eq!(running(&norm), before, "{}: a refused batch moved the running statistics", case.name);
        let plain = norm.valid().forward(rows(x, &device.clone().inner()));
        case.close("eval_y", "eval_y", &unrows(plain, x), &case.array("eval_y").values);
        return;
    }
    let train = |x: &Array, check: &dyn Fn(&str, &Array, Vec<f64>)| {
        let input = rows(x, &device).require_grad();
        let y = norm.forward(input.clone());
        check("y", x, unrows(y.clone(), x));
        if let Some(cot) = array("cot").filter(|cot| cot.shape == x.shape) {
            let gradients = (y * rows(cot, &device)).sum().backward();
            check("grad.x", x, unrows(input.grad(&gradients).unwrap(), x));
            check("grad.gamma", x, gradient_of(&norm, &gradients, "gamma"));
            check("grad.beta", x, gradient_of(&norm, &gradients, "beta"));
        }
    };
    let Some(steps) = steps else {
        // One edge case per channel, each with its own tolerance.
        train(case.array("x"), &|name, _, got| match case.part("per_channel_atol").at(name).given() {
            Some(bounds) => {
                let bounds = bounds.numbers();
                for (i, (got, want)) in got.iter().zip(&case.array(name).values).enumerate() {
                    let bound = bounds[i % width];
                    assert!((got - want).abs() <= bound, "{}: {name}[{i}] is {got}, not {want}", case.name);
                }
            }
            None => case.close(name, name, &got, &case.array(name).values),
        });
        return;
    };
    let trained = RefCell::new(Vec::new());
    for step in 0..steps {
        let x = case.array(&format!("step{step}.x"));
        let is_last = step + 1 == steps;
        train(x, &|name, _, got| {
            if name == "y" {
                trained.replace(got.clone());
            }
            let key = if name == "y" { format!("step{step}.y") } else { name.to_string() };
            if let Some(want) = array(&key).filter(|_| name == "y" || is_last) {
                case.close(&key, &key, &got, &want.values);
            }
            if let Some(want) = array("y").filter(|_| name == "y" && is_last) {
                case.close("y", "y", &got, &want.values);
            }
        });
        let (mean, var) = running(&norm);
        for (name, got) in [("running_mean", mean), ("running_var", var)] {
            let key = format!("step{step}.{name}");
            case.close(&key, &key, &got, &case.array(&key).values);
        }
    }
    let last = case.array(&format!("step{}.x", steps - 1));
    let plain = norm.valid().forward(rows(last, &device.clone().inner()));
    let plain = unrows(plain, last);
    let apart = trained.borrow().iter().zip(&plain).fold(0f64, |most, (a, b)| most.max((a - b).abs()));
    let (atol, rtol) = case.tolerance("eval_y");
    let want = case.expected().at("train_eval_max_abs_diff").f64();
    assert!((apart - want).abs() <= 2.0 * (atol + rtol * want), "{}: training - evaluation: {apart}", case.name);
    // We do not count batches; the running statistics after this many are compared.
    assert_eq!(case.expected().at("num_batches_tracked").size(), steps, "{}: num_batches_tracked", case.name);
    case.close("eval_y", "eval_y", &plain, &case.array("eval_y").values);
    let input = rows(last, &device).require_grad();
    let gradients = (norm.evaluate(input.clone()) * rows(case.array("cot"), &device)).sum().backward();
    let of_x = unrows(input.grad(&gradients).unwrap(), last);
    let found = [
        ("x", of_x),
        ("gamma", gradient_of(&norm, &gradients, "gamma")),
        ("beta", gradient_of(&norm, &gradients, "beta")),
    ];
    for (name, got) in found {
        let key = format!("eval_grad.{name}");
        case.close(&key, &key, &got, &case.array(&key).values);
    }
}

fn group_norm(case: &Case, kind: &str, eps: f64) {
    let device = test_device().autodiff();
    let x = case.array("x");
    let width = x.shape[1];
    case.same_size("channels", width);
    let groups = if kind == "instancenorm" { width } else { case.size("groups") };
    let over_time = x.shape.len() > 2;
    let affine = case.flag("affine");
    case.skip(
        "single_spatial_element/*",
        "what PyTorch refuses in words; ours are zeros there, as of any single value",
    );
    let norm = filled(GroupNorm::new(width, groups, over_time, eps, affine, &device), case, |_| None);
    let input = rows(x, &device).require_grad();
    let y = norm.forward(input.clone(), x.shape[0]);
    let got = unrows(y.clone(), x);
    loss(case, "loss", &[(&got, case.array("cot"))]);
    case.close("y", "y", &got, &case.array("y").values);
    let gradients = (y * rows(case.array("cot"), &device)).sum().backward();
    case.close("grad.x", "grad.x", &unrows(input.grad(&gradients).unwrap(), x), &case.array("grad.x").values);
    for (path, got) in parameter_gradients(&norm, &gradients) {
        let key = format!("grad.{path}");
        case.close(&key, &key, &f64s(got), &case.array(&key).values);
    }
}

/// The units of linear and convolution weights are rows in the reference and columns here.
fn weight_norm(case: &Case, kind: &str) {
    let device = test_device().autodiff();
    let array = |name: &str| case.array(name);
    let (stored, used) = if kind == "weightnorm" { ("v", "w") } else { ("weight", "w_hat") };
    let shape = array(stored).shape.clone();
    let fan_out = shape[0];
    case.same_size("out", fan_out);
    if kind == "weightnorm" {
        case.same_size("in", shape[1]);
    } else {
        let fan_in: usize = shape[1..].iter().product();
        case.same_size("fan_in", fan_in);
        let groups = case.setting("groups").given().map_or(1, Json::size);
        case.same_size("in", shape[1] * groups);
        let layer = ["linear", "conv1d", "conv2d"][shape.len() - 2];
        assert_eq!(case.text("layer"), layer, "{}: layer", case.name);
        if let Some(kernel) = case.setting("kernel").given() {
            assert!(shape[2..].iter().all(|k| *k == kernel.size()), "{}: kernel", case.name);
        }
        case.setting("padding").given();
    }
    let columns =
        |a: &Array| Array { shape: vec![fan_out, a.values.len() / fan_out], values: a.values.clone() }.transposed();
    let config = match kind {
        "weightnorm" => WeightNormConfig::WeightNorm {
            over: if case.flag("per_row") { LengthOver::Unit } else { LengthOver::Matrix },
        },
        _ => WeightNormConfig::ScaledWeightStandardization {
            flavour: match case.text("flavour") {
                "timm" => Flavour::Timm,
                "nfnet" => Flavour::Nfnet,
                other => panic!("{}: unknown flavour {other}", case.name),
            },
            eps: Some(case.number("eps")),
        },
    };
    let gamma = case.setting("gamma_act").given().map_or(1.0, Json::f64);
    let matrix = columns(array(stored));
    let norm = config.build(&matrix.f32(), fan_out, gamma, 1.0, &device);
    // At init a length is that of its direction, so that the weight is unchanged.
    if let WeightNorm::WeightNorm(_) = &norm {
        let same = norm.forward(Tensor::from_data(TensorData::new(matrix.f32(), [matrix.shape[0], fan_out]), &device));
        let difference = crate::common::max_difference(&host(same), &matrix.f32());
        assert!(difference < 1e-6, "{}: {difference}", case.name);
    }
    let norm = filled(norm, case, |_| None);
    let weight = Param::from_tensor(Tensor::<2>::from_data(
        TensorData::new(matrix.f32(), [matrix.shape[0], matrix.shape[1]]),
        &device,
    ));
    let bias = Tensor::<1>::from_data(array("bias").f32().as_slice(), &device).require_grad();
    let w = norm.forward(weight.val());
    let as_rows = |x: Tensor<2>| f64s(host(x.transpose()));
    case.close(used, used, &as_rows(w.clone()), &array(used).values);
    if kind != "weightnorm" {
        standardized(case, &as_rows(w.clone()), gamma);
    }

    let x = array("x");
    let flat = Tensor::<1>::from_data(x.f32().as_slice(), &device).require_grad();
    let cot = Tensor::<1>::from_data(array("cot.y").f32().as_slice(), &device);
    let y: Tensor<1> = match shape.len() {
        2 => {
            module::linear(flat.clone().reshape([x.shape[0], x.shape[1]]), w.clone(), Some(bias.clone())).flatten(0, 1)
        }
        3 => {
            let kernel = w.clone().transpose().reshape([shape[0], shape[1], shape[2]]);
            let input = flat.clone().reshape([x.shape[0], x.shape[1], x.shape[2]]);
            let options = ConvOptions::new([1], [case.size("padding")], [1], case.size("groups"));
            module::conv1d(input, kernel, Some(bias.clone()), options).flatten(0, 2)
        }
        4 => {
            let kernel = w.clone().transpose().reshape([shape[0], shape[1], shape[2], shape[3]]);
            let input = flat.clone().reshape([x.shape[0], x.shape[1], x.shape[2], x.shape[3]]);
            let padding = case.size("padding");
            let options = ConvOptions::new([1, 1], [padding, padding], [1, 1], case.size("groups"));
            module::conv2d(input, kernel, Some(bias.clone()), options).flatten(0, 3)
        }
        _ => panic!("{}: a weight of shape {shape:?}", case.name),
    };
    let got = f64s(host(y.clone()));
    loss(case, "loss", &[(&got, array("cot.y")), (&as_rows(w.clone()), array(&format!("cot.{used}")))]);
    case.close("y", "y", &got, &array("y").values);
    let of_weight = columns(array(&format!("cot.{used}")));
    let of_weight = Tensor::<2>::from_data(TensorData::new(of_weight.f32(), [matrix.shape[0], fan_out]), &device);
    let gradients = ((y * cot).sum() + (w * of_weight).sum()).backward();
    case.close("grad.x", "grad.x", &f64s(host(flat.grad(&gradients).unwrap())), &array("grad.x").values);
    case.close("grad.bias", "grad.bias", &f64s(host(bias.grad(&gradients).unwrap())), &array("grad.bias").values);
    let key = format!("grad.{stored}");
    case.close(&key, &key, &as_rows(weight.val().grad(&gradients).unwrap()), &array(&key).values);
    for (path, got) in parameter_gradients(&norm, &gradients) {
        let key = format!("grad.{}", path.rsplit('.').next().unwrap());
        case.close(&key, &key, &f64s(got), &array(&key).values);
    }
}

/// Each unit has mean 0 and variance `(gain gamma)^2 / fan_in`.
fn standardized(case: &Case, w: &[f64], gamma: f64) {
    let gains = &case.array("gain").values;
    let fan_in = w.len() / gains.len();
    let wants = case.expected().at("row_variance_times_fan_in_over_gain_sq").numbers();
    assert_eq!(wants.len(), gains.len(), "{}: units", case.name);
    let zero = "zero but for the rounding of the reference's float64; ours is below f32's";
    case.skip("expected/max_abs_row_mean_of_w_hat", zero);
    for ((row, gain), want) in w.chunks(fan_in).zip(gains).zip(wants) {
        let n = fan_in as f64;
        let mean = row.iter().sum::<f64>() / n;
        assert!(mean.abs() < 1e-7 * gain.abs().max(1.0), "{}: the mean of a unit is {mean}", case.name);
        let variance = row.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / n;
        let got = variance * n / (gain * gamma).powi(2);
        assert!((got - want).abs() < 2e-5, "{}: the variance of a unit is {got}, not {want}", case.name);
    }
}

/// Attention with given queries, keys and values.
fn qk_norm(case: &Case, kind: &str, eps: f64) {
    let device = test_device().autodiff();
    let n = |key| case.size(key);
    let (batch, heads, kv_heads, time, head_dim) = (n("B"), n("heads"), n("kv_heads"), n("T"), n("head_dim"));
    let (config, over) = match kind {
        "qknorm_l2" => (NormConfig::L2Norm { eps }, QkNormOver::Head),
        "qknorm_rms" => (NormConfig::RmsNorm { eps, gain: true, unit_offset: false }, QkNormOver::Head),
        "qknorm_gemma_rms" => (NormConfig::RmsNorm { eps, gain: true, unit_offset: true }, QkNormOver::Head),
        "qknorm_layernorm" => (NormConfig::LayerNorm { eps, gain: true, bias: true }, QkNormOver::Head),
        "qknorm_rms_full" => (NormConfig::RmsNorm { eps, gain: true, unit_offset: false }, QkNormOver::Width),
        _ => panic!("{}: unknown kind {kind}", case.name),
    };
    // g = 1 / tau.
    case.skip("settings/attention", "words");
    let tau = case.find("tau").map(|tau| &tau.values);
    if let Some(bound) = case.expected().at("max_abs_logit_bound").given() {
        // Rows of length 1.
        let (bound, tau) = (bound.f64(), tau.expect("a tau").iter().copied().fold(f64::INFINITY, f64::min));
        assert!((bound * tau - 1.0).abs() < 1e-6, "{}: logits are bounded by {bound}", case.name);
    }
    let scale = match tau {
        Some(tau) => AttentionScale::Learned { init: Some(1.0), per_head: tau.len() > 1 },
        None => AttentionScale::HeadDim {},
    };
    let model = ModelConfig {
        d_model: heads * head_dim,
        n_heads: heads,
        n_kv_heads: Some(kv_heads),
        qk_norm: config,
        qk_norm_over: over,
        attention_scale: Some(scale),
        ..ModelConfig::default()
    };
    let plan = model.plan(2).unwrap();
    let norm = QkNorm::new(&plan.blocks[0].attention, &mut Builder::new(&plan, Source::Draw { seed: 1 }, &device));
    let given: HashMap<_, _> = weights(&norm)
        .into_iter()
        .map(|(path, shape, values)| {
            let name = match path.split('.').collect::<Vec<_>>()[..] {
                ["query", _, name] => format!("q_{name}"),
                ["key", _, name] => format!("k_{name}"),
                _ => {
                    let tau = tau.unwrap_or_else(|| panic!("{}: no tau, and a weight {path}", case.name));
                    assert_eq!(values.len(), tau.len(), "{}: a tau for each", case.name);
                    return (path, (shape, tau.iter().map(|tau| (1.0 / tau) as f32).collect()));
                }
            };
            (path, (shape, case.array(&name).f32()))
        })
        .collect();
    let norm = assign(norm, &given).unwrap();
    let input = |name: &str, heads: usize| {
        let data = TensorData::new(case.array(name).f32(), [batch, heads, time, head_dim]);
        Tensor::<4>::from_data(data, &device).require_grad()
    };
    let (q, k, v) = (input("q", heads), input("k", kv_heads), input("v", kv_heads));
    let as_rows = |x: Tensor<4>, heads: usize| x.swap_dims(1, 2).reshape([batch * time, heads * head_dim]);
    let q_hat = norm.query(as_rows(q.clone(), heads), batch, heads).swap_dims(1, 2);
    let k_hat = norm.key(as_rows(k.clone(), kv_heads), batch, kv_heads).swap_dims(1, 2);
    let group = heads / kv_heads;
    let per_query = |x: Tensor<4>| {
        let x = x.unsqueeze_dim::<5>(2).expand([batch, kv_heads, group, time, head_dim]);
        x.reshape([batch, heads, time, head_dim])
    };
    let (k_hat, values) = (per_query(k_hat), per_query(v.clone()));
    let logits = q_hat.clone().matmul(k_hat.clone().swap_dims(2, 3)) * norm.scale();
    let options = AttentionModuleOptions { scale: Some(norm.scale()), softcap: None, is_causal: true };
    let out = module::attention(q_hat, k_hat, values, None, None, options);
    let check = |name: &str, got: Tensor<4>| case.close(name, name, &f64s(host(got)), &case.array(name).values);
    let (of_logits, of_out) = (f64s(host(logits.clone())), f64s(host(out.clone())));
    loss(case, "loss", &[(&of_logits, case.array("cot.logits")), (&of_out, case.array("cot.out"))]);
    check("logits", logits.clone());
    check("out", out.clone());
    let cot = |name: &str| {
        let array = case.array(name);
        let shape = [array.shape[0], array.shape[1], array.shape[2], array.shape[3]];
        Tensor::<4>::from_data(TensorData::new(array.f32(), shape), &device)
    };
    let gradients = ((logits * cot("cot.logits")).sum() + (out * cot("cot.out")).sum()).backward();
    for (name, x) in [("q", q), ("k", k), ("v", v)] {
        check(&format!("grad.{name}"), x.grad(&gradients).unwrap());
    }
    for (path, got) in parameter_gradients(&norm, &gradients) {
        let (name, got) = match path.split('.').collect::<Vec<_>>()[..] {
            ["query", _, name] => (format!("q_{name}"), f64s(got)),
            ["key", _, name] => (format!("k_{name}"), f64s(got)),
            // dL/dtau = -dL/dg / tau^2.
            _ => {
                let of = |(g, tau): (&f32, &f64)| -f64::from(*g) / tau.powi(2);
                ("tau".to_string(), got.iter().zip(tau.unwrap()).map(of).collect())
            }
        };
        let key = format!("grad.{name}");
        case.close(&key, &key, &got, &case.array(&key).values);
    }
}
