//! Every init: tables of constants, matrices without a random number, and the statistics of those with.

use crate::common::golden::{Case, numbers, walk};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor, TensorData, module};
use serde_json::Value;
use unitgain_init::gain::{Function, leaky_gain, moments};
use unitgain_init::matrix::{self, ZeroConstant};
use unitgain_init::{
    Distribution, Draw, Fan, Fans, Form, Gain, Role, Scheme, Spec, TFixupConstants, bias, fixup_scale,
};
use unitgain_init::{truncated_moments, truncated_std};
use unitgain_residual::constants::{DeepNorm, nfnet_betas, sub_norm_gains};
use unitgain_residual::{Placement, ScaleConfig, Site};

#[test]
fn inits_match_the_reference() {
    walk("init", |kind, case| {
        let expected = &case.json["expected"];
        match kind {
            "scalars" => scalars(case, expected),
            "delta_orthogonal" => delta_orthogonal(case),
            "depth_width_tables" => {
                for row in rows(expected) {
                    depth_width(case, row);
                }
                constants(case, expected);
            }
            "deterministic_matrices" => deterministic(case),
            "fan_table" => rows(expected).iter().for_each(fans),
            "orthogonal_from_gaussian" => orthogonal(case, expected),
            "quadrature_gains" => quadrature(case, &expected["gains"]),
            "scheme_table" => {
                for row in rows(expected) {
                    schemes(case, row);
                }
            }
            "sparse_init" => rows(expected).iter().for_each(sparse),
            "gain_table" => torch_gains(case, expected),
            "truncated_normal" => truncated(case, expected),
            _ => return false,
        }
        true
    });
}

fn rows(expected: &Value) -> &Vec<Value> {
    expected["rows"].as_array().unwrap()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is no number of {value}"))
}

fn size(value: &Value, key: &str) -> usize {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} is no size of {value}")) as usize
}

/// Equal to `digits`, relative to the expected number.
fn close(case: &Case, what: &str, got: f64, want: f64, rtol: f64) {
    assert!((got - want).abs() <= rtol * want.abs(), "{}: {what} is {got}, not {want}", case.name);
}

fn scalars(case: &Case, expected: &Value) {
    let close = |what: &str, got, want| close(case, what, got, want, 1e-9);
    for (p, want) in expected["focal_bias"].as_object().unwrap() {
        close("focal bias", bias::focal_prior(p.parse().unwrap()), want.as_f64().unwrap());
    }
    // Of so many tokens that the added one does not count.
    let prior = bias::log_prior(&[700_000_000, 200_000_000, 100_000_000]);
    for (got, want) in prior.iter().zip(numbers(&expected["log_prior_bias"])) {
        assert!((f64::from(*got) - want).abs() < 1e-6);
    }
    let uniform = &expected["uniform_from_mean_std"];
    let bounds = Distribution::uniform_bounds(number(uniform, "mean"), number(uniform, "std"));
    close("lower bound", bounds[0], number(uniform, "a"));
    close("upper bound", bounds[1], number(uniform, "b"));
    let kaiming = &expected["kaiming_uniform_a_sqrt5"];
    let fan_in = number(kaiming, "fan_in");
    let spec = spec(Role::MlpIn, fan_in, 10.0);
    let scheme = Scheme::TorchLinear { embedding_std: 1.0 };
    close("std of PyTorch's Linear", scheme.std(&spec).unwrap(), number(kaiming, "std"));
    let Draw::Entries(Distribution::Uniform { bound }) = scheme.draw(&spec) else { panic!("not uniform") };
    close("bound of PyTorch's Linear", bound, number(kaiming, "bound"));
    close("kaiming of slope sqrt(5)", 3f64.sqrt() * leaky_gain(5f64.sqrt()) / fan_in.sqrt(), number(kaiming, "bound"));
    let siren = &expected["siren"];
    let hidden = Scheme::Siren { omega: number(siren, "omega0"), embedding_std: 0.02 };
    let n = number(siren, "n_in");
    let Draw::Entries(Distribution::Uniform { bound }) = hidden.draw(&self::spec(Role::MlpIn, n, n)) else {
        panic!("not uniform")
    };
    close("siren", bound, number(siren, "hidden"));
    let betas = &expected["nfnet_betas"];
    let wants = numbers(&betas["expected_std_before_block"]);
    for (got, want) in nfnet_betas(number(betas, "alpha"), &[wants.len()]).into_iter().zip(wants) {
        close("nfnet's beta", got, want);
    }
    let relu = Function::Relu.moments();
    close("E relu^2", relu.second, number(&expected["relu_moments"], "E_y2"));
    close("E relu", relu.mean, number(&expected["relu_moments"], "E_y"));
    close("Var relu", relu.variance() * 2.0, number(&expected["relu_moments"], "Var_y_after_kaiming"));
    let mimetic = &expected["mimetic"];
    let (noise, diagonal) = (number(mimetic, "alpha1"), number(mimetic, "beta1"));
    let scheme = Scheme::all().into_iter().find(|s| s.about().0 == "mimetic").unwrap();
    let query = Draw::Mimetic { noise, diagonal, factor: 0, gain: 1.0 };
    assert_eq!(scheme.draw(&self::spec(Role::Query, 8.0, 8.0)), query);
    let (noise, diagonal) = (number(mimetic, "alpha2"), -number(mimetic, "beta2"));
    let output = Draw::Mimetic { noise, diagonal, factor: 1, gain: 1.0 };
    assert_eq!(scheme.draw(&self::spec(Role::AttentionOutput, 8.0, 8.0)), output);
}

fn spec(role: Role, fan_in: f64, fan_out: f64) -> Spec {
    Spec { role, fan_in, fan_out, layers: 6, layer: Some(0), width: fan_in }
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// The reference's weight makes the layer that its `y` says, and ours is an isometry as it is.
fn delta_orthogonal(case: &Case) {
    let (outputs, inputs, k) = (case.size("out"), case.size("in"), case.size("kernel"));
    let (dims, gain) = (case.size("dims"), case.number("gain"));
    let kernel = vec![k; dims];
    let ours = matrix::delta_orthogonal(3, "delta", outputs, inputs, &kernel, gain).unwrap();
    let x = case.array("x");
    let positions: usize = x.shape[2..].iter().product();
    let batch = x.shape[0];
    let convolve = |weight: Vec<f32>| -> Vec<f32> {
        // A convolution along one axis is one along two with a kernel of one row.
        let (rows, columns) = if dims == 1 { (1, x.shape[2]) } else { (x.shape[2], x.shape[3]) };
        let (kernel_rows, padding) = if dims == 1 { (1, [0, k / 2]) } else { (k, [k / 2, k / 2]) };
        let x = tensor(x.f32(), [batch, inputs, rows, columns]);
        let w = tensor(weight, [outputs, inputs, kernel_rows, k]);
        module::conv2d(x, w, None, ConvOptions::new([1, 1], padding, [1, 1], 1)).into_data().iter().collect()
    };
    let y: Vec<f64> = convolve(case.array("weight").f32()).into_iter().map(f64::from).collect();
    case.close("y", "y", &y, &case.array("y").values);
    let y = convolve(ours);
    let length = |values: &[f32], channels: usize, b: usize, p: usize| -> f64 {
        (0..channels).map(|c| f64::from(values[(b * channels + c) * positions + p]).powi(2)).sum::<f64>().sqrt()
    };
    let x = x.f32();
    for b in 0..batch {
        for p in 0..positions {
            let ratio = length(&y, outputs, b, p) / length(&x, inputs, b, p);
            assert!((ratio - gain).abs() < 1e-5, "{}: {ratio} at {p}", case.name);
        }
    }
}

/// Constants by depth and width, as our schemes, placements and scales have them.
fn depth_width(case: &Case, row: &Value) {
    let (layers, d, ff) = (size(row, "N"), number(row, "d"), number(row, "ff"));
    let close = |what: &str, got: f64, want: f64| close(case, what, got, want, 1e-9);
    let spec = |role, fan_in, fan_out| Spec { role, fan_in, fan_out, layers, layer: Some(0), width: d };
    let std = |scheme: Scheme, role| {
        let (fan_in, fan_out) = match role {
            Role::MlpIn => (d, ff),
            Role::MlpOut => (ff, d),
            _ => (d, d),
        };
        scheme.std(&spec(role, fan_in, fan_out)).unwrap()
    };
    let deep = &row["deepnorm"];
    let (placement, xavier) = (Placement::DeepNorm {}, Scheme::xavier());
    close("DeepNorm's alpha", placement.constant(0, layers), number(deep, "alpha"));
    let beta = placement.branch_gain(layers);
    close("DeepNorm's beta", beta, number(deep, "beta"));
    close("DeepNorm, value", std(xavier, Role::Value) * beta, number(deep, "std_square_dxd_v_o"));
    close("DeepNorm, MLP", std(xavier, Role::MlpOut) * beta, number(deep, "std_ffn"));
    close("DeepNorm, query", std(xavier, Role::Query), number(deep, "std_q_k"));
    let sub = Placement::SubNorm {}.branch_gain(layers);
    close("Sub-LN's gamma", sub, number(&row["sub_ln"], "gamma_decoder_or_encoder_only"));
    for (constants, key) in [(TFixupConstants::Encoder, "encoder_scale"), (TFixupConstants::Decoder, "decoder_scale")] {
        let scheme = Scheme::TFixup { constants };
        for role in [Role::Value, Role::AttentionOutput, Role::MlpIn, Role::MlpOut] {
            close(key, std(scheme, role) / std(xavier, role), number(&row["t_fixup"], key));
        }
        close("T-Fixup, key", std(scheme, Role::Key), std(xavier, Role::Key));
        close("T-Fixup, embedding", std(scheme, Role::Embedding), number(&row["t_fixup"], "embedding_std_decoder"));
    }
    close("gpt2", std(Scheme::gpt2(), Role::Key), number(&row["gpt2"], "std"));
    close("gpt2, writer", std(Scheme::gpt2(), Role::MlpOut), number(&row["gpt2"], "std_residual_projection"));
    close("small", std(Scheme::Small {}, Role::MlpIn), number(row, "small_init_std"));
    close("wang", std(Scheme::Wang { numerator: 2.0 }, Role::AttentionOutput), number(row, "wang_init_std"));
    close("wang, query", std(Scheme::Wang { numerator: 2.0 }, Role::Query), number(row, "small_init_std"));
    close("linear", std(Scheme::TorchLinear { embedding_std: 1.0 }, Role::Query), number(row, "linear_default_std"));
    let site = Site {
        layer: 0,
        layers,
        width: 8,
        base_width: 8,
        joint: unitgain_residual::Joint::of(1.0),
        branch: unitgain_residual::Branch::Mlp,
    };
    assert_eq!(ScaleConfig::LayerScale { init: None }.resolved(layers), {
        ScaleConfig::LayerScale { init: Some(number(row, "layerscale_init")) }
    });
    for (layer, want) in numbers(&row["layernorm_scaling"]).into_iter().enumerate() {
        close("LayerNorm Scaling", Placement::ScaledPreNorm {}.constant(layer, site.layers), want);
    }
    close("1 / sqrt(2L)", (2.0 * layers as f64).powf(-0.5), number(row, "residual_1_over_sqrt_2N"));
}

/// Fixup's factor, and the constants of an encoder with a decoder.
fn constants(case: &Case, expected: &Value) {
    let close = |what: &str, got: f64, want: f64| close(case, what, got, want, 1e-9);
    for row in expected["fixup"].as_array().unwrap() {
        let got = fixup_scale(number(row, "L_blocks"), size(row, "m_layers_per_branch") as u32);
        close("Fixup", got, number(row, "scale"));
    }
    for row in expected["encoder_decoder"].as_array().unwrap() {
        let (encoder, decoder) = (size(row, "encoder_N"), size(row, "decoder_M"));
        let deep = DeepNorm::EncoderDecoder { encoder, decoder };
        let (of_encoder, of_decoder) = (deep.encoder().unwrap(), deep.decoder().unwrap());
        close("encoder's alpha", of_encoder.0, number(row, "encoder_alpha"));
        close("encoder's beta", of_encoder.1, number(row, "encoder_beta"));
        close("decoder's alpha", of_decoder.0, number(row, "decoder_alpha"));
        close("decoder's beta", of_decoder.1, number(row, "decoder_beta"));
        let gains = sub_norm_gains(encoder, decoder);
        close("encoder's gamma", gains.0, number(row, "sub_ln_encoder_gamma"));
        close("decoder's gamma", gains.1, number(row, "sub_ln_decoder_gamma"));
    }
}

fn deterministic(case: &Case) {
    for (name, array) in &case.tensors {
        let parts: Vec<&str> = name.split('.').collect();
        let sizes: Vec<usize> =
            parts[1].split('x').map(|n| n.parse().unwrap_or_else(|_| panic!("{name} has no sizes"))).collect();
        let got = match parts[0] {
            "eye" => matrix::identity(sizes[0], sizes[1], 1.0),
            "dirac" => matrix::dirac(sizes[0], sizes[1], &sizes[2..], parts[2][1..].parse().unwrap()),
            "hadamard" => matrix::hadamard(sizes[0] as u32),
            "zero" => {
                let constant = match parts[2] {
                    "orthonormal" => ZeroConstant::Orthonormal,
                    _ => ZeroConstant::Paper,
                };
                matrix::zero(sizes[0], sizes[1], constant)
            }
            "zero_conv" => matrix::at_centre(&matrix::zero(sizes[0], sizes[1], ZeroConstant::Orthonormal), &sizes[2..]),
            other => panic!("{}: unknown matrix {other}", case.name),
        };
        let got: Vec<f64> = got.into_iter().map(f64::from).collect();
        case.close("all", name, &got, &array.values);
    }
}

fn fans(row: &Value) {
    let taps: usize = match &row["k"] {
        Value::Number(k) => {
            let dims = row["weight_shape"].as_array().unwrap().len() as u32 - 2;
            (k.as_u64().unwrap() as usize).pow(dims)
        }
        Value::Array(k) => k.iter().map(|k| k.as_u64().unwrap() as usize).product(),
        _ => 1,
    };
    let groups = row["groups"].as_u64().unwrap_or(1) as usize;
    let (inputs, outputs) = (size(row, "in"), size(row, "out"));
    let fans = match row["layer"].as_str().unwrap() {
        "linear" => Fans::linear(inputs, outputs),
        layer if layer.starts_with("conv_transpose") => Fans::transposed_convolution(inputs, outputs, taps, groups),
        _ => Fans::convolution(inputs, outputs, taps, groups),
    };
    let want = Fans { fan_in: size(row, "connections_in"), fan_out: size(row, "connections_out") };
    assert_eq!(fans, want, "{row}");
    let shape: Vec<usize> =
        row["weight_shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    let want = Fans { fan_in: size(row, "torch_fan_in"), fan_out: size(row, "torch_fan_out") };
    assert_eq!(Fans::torch(&shape), Some(want), "{row}");
}

fn orthogonal(case: &Case, expected: &Value) {
    for (name, expected) in expected.as_object().unwrap() {
        let a = case.array(&format!("a.{name}"));
        let got = matrix::orthogonal_factor(&a.f32(), a.shape[0], a.shape[1], number(expected, "gain"));
        let values = matrix::singular_values(&got, a.shape[0], a.shape[1]);
        assert!(values.iter().all(|s| (s - number(expected, "singular_values_all")).abs() < 1e-6), "{name}");
        let got: Vec<f64> = got.into_iter().map(f64::from).collect();
        case.close("q.*", name, &got, &case.array(&format!("q.{name}")).values);
    }
}

fn quadrature(case: &Case, gains: &Value) {
    for (name, want) in gains.as_object().unwrap() {
        let (slope, function) = match name.strip_prefix("leaky_relu_") {
            Some(slope) => (slope.parse::<f64>().unwrap(), Function::LeakyRelu),
            None => (0.0, function(name).unwrap_or_else(|| panic!("unknown function {name}"))),
        };
        let own = |z: f64| if function == Function::LeakyRelu { z.max(slope * z) } else { function.at(z) };
        let moments = moments(own);
        // Twelve digits are given; a mean of 0 has none.
        let close = |what: &str, got: f64, want: f64| {
            assert!((got - want).abs() <= 1e-9 * want.abs().max(1e-3), "{}: {name}: {what} {got} {want}", case.name);
        };
        close("E f", moments.mean, number(want, "E_f"));
        close("E f^2", moments.second, number(want, "E_f2"));
        close("Var f", moments.variance(), number(want, "Var_f"));
        close("1 / sqrt(E f^2)", moments.second.powf(-0.5), number(want, "lambda"));
        close("1 / std f", moments.variance().powf(-0.5), number(want, "nfnet_gamma_1_over_std"));
        if function != Function::LeakyRelu {
            let gain = |gain: Gain| gain.value().unwrap();
            close("gain", gain(Gain::SecondMoment { activation: function }), number(want, "lambda"));
            close("gain", gain(Gain::Nfnet { activation: function }), number(want, "nfnet_gamma_1_over_std"));
        }
    }
}

fn function(name: &str) -> Option<Function> {
    Some(match name {
        "identity" | "linear" => Function::Linear,
        "relu" => Function::Relu,
        "leaky_relu" => Function::LeakyRelu,
        "tanh" => Function::Tanh,
        "sigmoid" => Function::Sigmoid,
        "gelu_erf" | "gelu" => Function::Gelu,
        "gelu_tanh" => Function::GeluTanh,
        "silu" => Function::Silu,
        "elu" => Function::Elu,
        "selu" => Function::Selu,
        "mish" => Function::Mish,
        "softplus" => Function::Softplus,
        "relu_squared" => Function::ReluSquared,
        "sin" => Function::Sin,
        _ => return None,
    })
}

/// The table, and the measured standard deviation and bound of each form.
fn schemes(case: &Case, row: &Value) {
    let (fan_in, fan_out) = (number(row, "fan_in"), number(row, "fan_out"));
    let gain = Gain::from(number(row, "gain_for_lecun_and_xavier"));
    let kaiming = |slope, fan, form| Scheme::Kaiming { slope, fan, form, embedding_std: 0.02 };
    for form in [Form::Normal, Form::Uniform, Form::TruncatedNormal] {
        let each = [
            ("lecun", Scheme::Lecun { gain, form, embedding_std: 0.02 }),
            ("xavier", Scheme::Xavier { gain, form, embedding_std: 0.02 }),
            ("kaiming_fan_in_relu", kaiming(0.0, Fan::FanIn, form)),
            ("kaiming_fan_out_relu", kaiming(0.0, Fan::FanOut, form)),
            ("kaiming_fan_in_leaky_0.2", kaiming(0.2, Fan::FanIn, form)),
            ("torch_linear_default", Scheme::TorchLinear { embedding_std: 1.0 }),
        ];
        for (key, scheme) in each {
            let spec = spec(Role::MlpIn, fan_in, fan_out);
            let (std, bound) = (number(&row[key], "std"), number(&row[key], "uniform_bound"));
            close(case, key, scheme.std(&spec).unwrap(), std, 1e-9);
            let values = scheme.draw(&spec).matrix(5, key, fan_in as usize, fan_out as usize, 1);
            let n = values.len() as f64;
            let measured = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n).sqrt();
            // Five standard errors of the normal distribution's, whose tails are the heaviest of the three.
            assert!((measured / std - 1.0).abs() < 5.0 / (2.0 * n).sqrt(), "{key} {form:?}: {measured} for {std}");
            let largest = values.iter().fold(0f64, |most, v| most.max(f64::from(v.abs())));
            match scheme.draw(&spec) {
                Draw::Entries(Distribution::Uniform { bound: own }) => {
                    close(case, key, own, bound, 1e-9);
                    assert!(largest <= bound * (1.0 + 1e-6) && (n < 1e3 || largest > 0.95 * bound), "{key}: {largest}");
                }
                Draw::Entries(Distribution::TruncatedNormal { sigma, cut }) => {
                    let most = sigma * cut;
                    assert!(largest <= most * (1.0 + 1e-6) && (n < 1e3 || largest > 0.9 * most), "{key}: {largest}");
                }
                _ => {}
            }
        }
    }
}

fn sparse(row: &Value) {
    let (outputs, inputs, sparsity) = (size(row, "out"), size(row, "in"), number(row, "sparsity"));
    let zeros = size(row, "zeros_per_output_row_if_done_per_output");
    // As many zeros as the reference counts, which rounds them up; we round the others up.
    let nonzero = (inputs - zeros) as f64 / inputs as f64;
    let draw = |nonzero| Distribution::Sparse { nonzero, std: 1.0 }.draw(1, "sparse", inputs, outputs);
    if nonzero > 0.0 {
        let values = draw(nonzero);
        for unit in 0..outputs {
            let count = (0..inputs).filter(|input| values[input * outputs + unit] == 0.0).count();
            assert_eq!(count, zeros, "unit {unit} of {row}");
        }
    }
    let values = draw(1.0 - sparsity);
    let expected = ((1.0 - sparsity) * inputs as f64).ceil() as usize;
    for unit in 0..outputs {
        let count = (0..inputs).filter(|input| values[input * outputs + unit] != 0.0).count();
        assert_eq!(count, expected, "unit {unit} of {row}");
    }
}

fn torch_gains(case: &Case, expected: &Value) {
    for (name, want) in expected["gains"].as_object().unwrap() {
        let got = match name.strip_prefix("leaky_relu:") {
            Some(slope) => leaky_gain(slope.parse().unwrap()),
            None if name.starts_with("conv") => Function::Linear.torch_gain().unwrap(),
            None => function(name).and_then(Function::torch_gain).unwrap_or_else(|| panic!("no gain of {name}")),
        };
        close(case, name, got, want.as_f64().unwrap(), 1e-9);
    }
    for name in expected["value_error_for"].as_array().unwrap() {
        assert_eq!(function(name.as_str().unwrap()).unwrap().torch_gain(), None, "{name}");
    }
}

fn truncated(case: &Case, expected: &Value) {
    for row in rows(expected) {
        let (low, high) = (number(row, "a_sigma"), number(row, "b_sigma"));
        let [mean, std] = truncated_moments(low, high);
        let close = |what: &str, got: f64, want: f64| {
            assert!((got - want).abs() <= 1e-9 * want.abs().max(1e-2), "{}: {what} {got} {want}", case.name);
        };
        close("mean", mean, number(row, "mean_over_sigma"));
        close("std", std, number(row, "std_over_sigma"));
        close("sigma of std 1", 1.0 / std, number(row, "sigma_for_unit_std"));
        if low == -high {
            close("std", truncated_std(high), number(row, "std_over_sigma"));
            let n = 100_000;
            let values = Distribution::TruncatedNormal { sigma: 2.0, cut: high }.draw(1, "cut", n, 1);
            let measured = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64).sqrt();
            assert!((measured / 2.0 / std - 1.0).abs() < 5.0 / (2.0 * n as f64).sqrt());
            assert!(values.iter().all(|v| v.abs() <= 2.0 * high as f32));
        }
    }
    let torch = number(expected, "torch_trunc_normal_std_0_02_bounds_2sigma");
    assert!((0.02 * truncated_std(2.0) / torch - 1.0).abs() < 2e-3);
}

/// Kaiming keeps E[y^2] over 50 ReLU layers, Xavier halves it in each.
#[test]
fn kaiming_keeps_and_xavier_halves_the_second_moment() {
    let (n, rows, layers) = (256, 128, 50);
    let device = Device::flex();
    let normal = |path: &str, rows: usize, std: f64| {
        tensor(Distribution::Normal { std }.draw(9, path, rows, n), [rows, n]).to_device(&device)
    };
    let growth = |scheme: Scheme| {
        let std = scheme.std(&spec(Role::MlpIn, n as f64, n as f64)).unwrap();
        let mut x = normal("x", rows, 1.0);
        for layer in 0..layers {
            x = burn::tensor::activation::relu(x.matmul(normal(&layer.to_string(), n, std)));
        }
        f64::from(x.square().mean().into_scalar::<f32>()).log2() / f64::from(layers)
    };
    // In octaves a layer; E[x^2] is 1 at first, and half of it is behind the first ReLU either way.
    assert!(growth(Scheme::kaiming()).abs() < 0.05, "{}", growth(Scheme::kaiming()));
    assert!((growth(Scheme::xavier()) + 1.0).abs() < 0.05, "{}", growth(Scheme::xavier()));
}

/// A gain by quadrature makes E[y^2] = 1 a fixed point, an unstable one; sqrt(2) loses 15 % (GELU) and 29 % (SiLU) in
/// one layer.
#[test]
fn gains_of_gelu_and_silu_hold_the_second_moment() {
    for (function, with_root_two) in [(Function::Gelu, 0.850), (Function::Silu, 0.712)] {
        let gain = Gain::SecondMoment { activation: function }.value().unwrap();
        let next = |q: f64, gain: f64| gain * gain * moments(|z| function.at(q.sqrt() * z)).second;
        assert!((next(1.0, gain) - 1.0).abs() < 1e-12);
        assert!((next(1.0, 2f64.sqrt()) - with_root_two).abs() < 1e-3);
        assert!(next(1.1, gain) > 1.1 && next(0.9, gain) < 0.9);
    }
}
