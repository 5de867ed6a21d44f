//! Norms and residual connections against burn's layers, hard inputs, and their own equations.

use crate::common::golden::{Array, Case, walk};
use crate::common::{max_difference, parameter_gradients};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{LayerNormConfig, RmsNormConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use std::collections::HashMap;
use unitgain_init::sample;
use unitgain_model::{NormConfig, Placement, ScaleConfig};
use unitgain_norms::NormSite;
use unitgain_residual::{Branch, Residual, Site};
use unitgain_train::checkpoint::{assign, weights};

fn draw(path: &str, rows: usize, width: usize, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(sample::normal(1, path, rows * width, 1.0), [rows, width]), device)
}

fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// Gains and biases that are not 1 and 0, the same in every module of the same shapes.
fn shaken<M: Module>(module: M) -> M {
    struct Shake(usize);
    impl ModuleMapper for Shake {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            let (id, tensor, mapper) = param.consume();
            let shape = tensor.shape();
            let noise = sample::normal(1, &format!("shake/{}", self.0), shape.num_elements(), 0.3);
            let noise = Tensor::<D>::from_data(TensorData::new(noise, shape), &tensor.device());
            let device = tensor.device();
            let tensor = (tensor + noise).detach();
            Param::from_mapped_value(id, if device.is_autodiff() { tensor.require_grad() } else { tensor }, mapper)
        }
    }
    module.map(&mut Shake(0))
}

#[test]
fn norms_are_burns_forward_and_backward() {
    let device = Device::flex().autodiff();
    for (rows, width) in [(5, 7), (1, 32), (3, 1)] {
        let (eps, x) = (1e-5, draw("x", rows, width, &device));
        let weights = draw("weights", rows, width, &device);
        let run = |forward: &dyn Fn(Tensor<2>) -> Tensor<2>| {
            let x = x.clone().detach().require_grad();
            let y = forward(x.clone());
            let gradients = (y.clone() * weights.clone()).sum().backward();
            (host(y), host(x.grad(&gradients).unwrap()))
        };
        let ours = shaken(NormConfig::LayerNorm { eps, gain: true, bias: true }.build(NormSite::of(width), &device));
        let theirs = shaken(LayerNormConfig::new(width).with_epsilon(eps).init(&device));
        let (a, b) = (run(&|x| ours.forward(x)), run(&|x| theirs.forward(x)));
        assert!(max_difference(&a.0, &b.0) < 1e-5 && max_difference(&a.1, &b.1) < 1e-4);

        let ours =
            shaken(NormConfig::RmsNorm { eps, gain: true, unit_offset: false }.build(NormSite::of(width), &device));
        let theirs = shaken(RmsNormConfig::new(width).with_epsilon(eps).init(&device));
        let (a, b) = (run(&|x| ours.forward(x)), run(&|x| theirs.forward(x)));
        assert!(max_difference(&a.0, &b.0) < 1e-5 && max_difference(&a.1, &b.1) < 1e-4);
    }
}

#[test]
fn hard_rows_stay_finite_and_right() {
    let device = Device::flex().autodiff();
    let width = 64;
    let noise = sample::normal(2, "noise", width, 1.0);
    let large_mean: Vec<f32> = noise.iter().map(|z| 1e4 + z).collect();
    let rows = [vec![0.0; width], vec![1000.1; width], large_mean.clone()];
    let x = Tensor::<2>::from_data(TensorData::new(rows.concat(), [3, width]), &device).require_grad();
    for config in [NormConfig::layer_norm(), NormConfig::rms_norm()] {
        let norm = config.build(NormSite::of(width), &device);
        let y = norm.forward(x.clone());
        let gradients = (y.clone() * draw("w", 3, width, &device)).sum().backward();
        assert!(host(x.grad(&gradients).unwrap()).iter().all(|g| g.is_finite()));
        let y = host(y);
        assert!(y.iter().all(|v| v.is_finite()));
        if config == NormConfig::layer_norm() {
            // in f64, from the f32 inputs
            let row: Vec<f64> = large_mean.iter().map(|&v| f64::from(v)).collect();
            let mean = row.iter().sum::<f64>() / width as f64;
            let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
            let want: Vec<f32> = row.iter().map(|v| ((v - mean) / (var + 1e-5).sqrt()) as f32).collect();
            let error = max_difference(&y[2 * width..], &want);
            assert!(error < 2e-3, "{error}: statistics in one pass are wrong by 0.1 and more");
            // the same with and without a graph
            let plain = host(norm.valid().forward(x.clone().inner()));
            assert_eq!(y, plain);
        }
    }
}

#[test]
fn rows_past_the_range_are_zero_and_rows_within_it_right() {
    let device = Device::flex();
    let noise = sample::normal(2, "noise", 64, 1.0);
    let at = |size: f32| {
        let row: Vec<f32> = noise.iter().map(|z| z * size).collect();
        Tensor::<2>::from_data(TensorData::new(row, [1, 64]), &device)
    };
    for config in [NormConfig::layer_norm(), NormConfig::rms_norm(), NormConfig::ScaleNorm { eps: 1e-5 }] {
        let norm = config.build(NormSite::of(64), &device);
        let one = host(norm.forward(at(1e3)));
        assert!(max_difference(&host(norm.forward(at(1e26))), &one) < 1e-5, "{config:?}");
        assert!(host(norm.forward(at(1e33))).iter().all(|y| *y == 0.0), "{config:?}");
        let tiny = host(norm.forward(at(1e-30)));
        assert!(tiny.iter().all(|y| y.is_finite()), "{config:?}");
    }
}

#[test]
fn bf16_rows_are_normalized_in_f32() {
    let device = Device::flex();
    let x = (draw("bf16", 4, 256, &device) * 3.0 + 5.0).cast(FloatDType::BF16);
    for config in [NormConfig::layer_norm(), NormConfig::rms_norm()] {
        let norm = config.build(NormSite::of(256), &device);
        let low = norm.forward(x.clone());
        assert_eq!(low.dtype(), x.dtype());
        let want = norm.forward(x.clone().cast(FloatDType::F32)).cast(FloatDType::BF16);
        assert_eq!(host(low.cast(FloatDType::F32)), host(want.cast(FloatDType::F32)));
    }
}

fn residual(placement: Placement, scale: ScaleConfig, device: &Device) -> Residual {
    let site = Site { layer: 1, layers: 3, width: 16, gain: 1.0, branch: Branch::Mlp };
    shaken(Residual::new(placement, &NormConfig::layer_norm(), scale, site, device))
}

#[test]
fn with_a_branch_of_zero_each_placement_does_what_its_equation_says() {
    let device = Device::flex();
    let x = draw("stream", 4, 16, &device);
    for placement in Placement::ALL {
        let residual = residual(placement, ScaleConfig::One {}, &device);
        let y = host(residual.forward(x.clone(), |x| x * 0.0));
        let want = match placement {
            Placement::PreNorm | Placement::ScaledPreNorm | Placement::SubNorm | Placement::None => x.clone(),
            // Of an MLP.
            Placement::Normformer | Placement::Parallel | Placement::ParallelShared => x.clone(),
            Placement::PostNorm => residual.norms()[0].forward(x.clone()),
            Placement::DeepNorm => residual.norms()[0].forward(x.clone() * 6f64.powf(0.25)),
            // What a norm makes of 0 is its bias.
            Placement::Sandwich | Placement::PeriNorm => x.clone() + residual.norms()[1].forward(x.clone() * 0.0),
            Placement::OutputNorm => x.clone() + residual.norms()[0].forward(x.clone() * 0.0),
        };
        assert!(max_difference(&y, &host(want)) < 1e-6, "{placement:?}");
    }
}

#[test]
fn scales_multiply_the_branch_alone() {
    let device = Device::flex();
    let x = draw("stream", 4, 16, &device);
    let branch = |x: Tensor<2>| x * 2.0;
    let site = Site { layer: 0, layers: 8, width: 16, gain: 0.5, branch: Branch::Mlp };
    for (scale, factor) in [
        (ScaleConfig::One {}, 0.5),
        (ScaleConfig::Depth {}, 0.125),
        (ScaleConfig::LayerScale { init: Some(0.1) }, 0.05),
        (ScaleConfig::ReZero { shared: false }, 0.0),
        (ScaleConfig::Constant { value: 3.0 }, 1.5),
        (ScaleConfig::SkipInit { init: 0.25 }, 0.125),
    ] {
        let residual = Residual::new(Placement::PreNorm, &NormConfig::None {}, scale, site, &device);
        let y = host(residual.forward(x.clone(), branch));
        let want = host(x.clone() + x.clone() * (2.0 * factor));
        assert!(max_difference(&y, &want) < 1e-6, "{scale:?}");
    }
}

#[test]
fn norms_match_the_reference_forward_and_backward() {
    walk("norms", |kind, case| {
        let eps = case.setting("eps").as_f64().unwrap_or(0.0);
        let layer_norm = |gain, bias| NormConfig::LayerNorm { eps, gain, bias };
        let rms_norm = |unit_offset| NormConfig::RmsNorm { eps, gain: true, unit_offset };
        let config = match kind {
            "layernorm" | "layernorm_bfloat16" | "layernorm_float16" => layer_norm(true, true),
            "layernorm_nobias" => layer_norm(true, false),
            "layernorm_noaffine" => layer_norm(false, false),
            "rmsnorm" | "rmsnorm_bfloat16" | "rmsnorm_float16" => rms_norm(false),
            "rmsnorm_gemma" | "rmsnorm_gemma_bfloat16" | "rmsnorm_gemma_float16" => rms_norm(true),
            "prmsnorm" => NormConfig::PartialRmsNorm { eps, fraction: case.number("p") },
            "scalenorm" => NormConfig::ScaleNorm { eps },
            "dyt" => NormConfig::Dyt { alpha: None, bias: true },
            _ => return false,
        };
        let low = match kind.rsplit('_').next() {
            Some("bfloat16") => Some(FloatDType::BF16),
            Some("float16") => Some(FloatDType::F16),
            _ => None,
        };
        let prefixes: Vec<String> = match case.json["subcases"].as_object() {
            Some(cases) => cases.keys().map(|name| format!("{name}.")).collect(),
            None => vec![String::new()],
        };
        for prefix in prefixes {
            reference_case(case, &prefix, config, low);
        }
        true
    });
}

fn reference_case(case: &Case, prefix: &str, config: NormConfig, low: Option<FloatDType>) {
    let device = Device::flex().autodiff();
    let array = |name: &str| case.tensors.get(&format!("{prefix}{name}"));
    let x = array("x").expect("an input");
    let width = *x.shape.last().unwrap();
    let rows = x.values.len() / width;
    let matrix = |a: &Array| Tensor::<2>::from_data(TensorData::new(a.f32(), [rows, width]), &device);

    let built = config.build(NormSite::of(width), &device);
    let variant = format!("{built:?}").split('(').next().unwrap().to_string();
    let own: HashMap<_, _> = weights(&built)
        .into_iter()
        .map(|(path, shape, _)| {
            let name = path.rsplit('.').next().unwrap();
            let given = array(name).unwrap_or_else(|| panic!("{}: {variant} has no {name}", case.name));
            (path.clone(), (shape, given.f32()))
        })
        .collect();
    let norm = assign(built, &own).unwrap();

    if let Some(low) = low {
        let y = norm.valid().forward(matrix(x).inner().cast(low));
        assert_eq!(y.dtype(), DType::from(low), "{}", case.name);
        let y: Vec<f64> = host(y.cast(FloatDType::F32)).into_iter().map(f64::from).collect();
        case.close("y", "y", &y, &case.array("y").values);
        return;
    }
    let x = matrix(x).require_grad();
    let y = norm.forward(x.clone());
    let as_f64 = |x: Vec<f32>| -> Vec<f64> { x.into_iter().map(f64::from).collect() };
    if let Some(first) = array("y_row0") {
        // The other row holds a NaN.
        let y = as_f64(host(y));
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
        assert!(y[..width].iter().zip(&first.values).all(is_close), "{}: {prefix}: another row noticed", case.name);
        assert!(y[width..].iter().any(|v| v.is_nan()), "{}: {prefix}: a NaN was lost", case.name);
        return;
    }
    let plain = norm.valid().forward(x.clone().inner());
    assert_eq!(host(y.clone()), host(plain), "{}: {prefix}: training and evaluation differ", case.name);
    let gradients = (y.clone() * matrix(array("cot").expect("a cotangent"))).sum().backward();
    let check = |name: &str, got: Vec<f32>| {
        let key = format!("{prefix}{name}");
        let want = &case.array(&key).values;
        case.close(&key, &key, &as_f64(got), want);
    };
    check("y", host(y));
    check("grad.x", host(x.grad(&gradients).expect("a gradient of x")));
    for (path, gradient) in parameter_gradients(&norm, &gradients) {
        check(&format!("grad.{}", path.rsplit('.').next().unwrap()), gradient);
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = Device::flex().autodiff();
    let (rows, width) = (3, 24);
    for config in NormConfig::all() {
        let norm = shaken(config.build(NormSite::of(width), &device));
        let weights = draw("fd/weights", rows, width, &device);
        let loss = |x: Tensor<2>| (norm.forward(x) * weights.clone()).sum();
        let x = draw("fd/x", rows, width, &device).require_grad();
        let gradient = host(x.grad(&loss(x.clone()).backward()).unwrap());
        let direction = draw("fd/direction", rows, width, &device);
        let step = 1e-3;
        let at = |sign: f64| f64::from(loss(x.clone() + direction.clone() * (sign * step)).into_scalar::<f32>());
        let measured = (at(1.0) - at(-1.0)) / (2.0 * step);
        let exact: f64 = gradient.iter().zip(host(direction)).map(|(g, d)| f64::from(g * d)).sum();
        assert!((measured - exact).abs() < 1e-2 * (1.0 + exact.abs()), "{config:?}: {measured} is not {exact}");
    }
}
