//! Inits: tables of constants, deterministic matrices, and statistics of random ones.

use crate::common::golden::{Case, Json, walk};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor, TensorData, module};
use unitgain_init::gain::{Function, leaky_gain, moments};
use unitgain_init::matrix::{self, ZeroConstant};
use unitgain_init::{
    Distribution, Draw, Fan, Fans, Form, Gain, Role, Scheme, Spec, TFixupConstants, bias, fixup_scale,
};
use unitgain_init::{truncated_moments, truncated_std};
use unitgain_model::{EmbeddingScale, ModelConfig, Parametrization, Shape, TokenScale, Update, Variant};
use unitgain_norms::weight::activation_gain;
use unitgain_residual::constants::{DeepNorm, nfnet_betas, sub_norm_gains};
use unitgain_residual::{Placement, ScaleConfig};

#[test]
fn inits_match_the_reference() {
    walk("init", check);
}

pub(crate) fn check(kind: &str, case: &Case) -> bool {
    let expected = case.expected();
    match kind {
        "scalars" => scalars(case, expected),
        "delta_orthogonal" => delta_orthogonal(case),
        "depth_width_tables" => {
            let (depths, widths) = (case.setting("N").sizes(), case.setting("d").sizes());
            let pairs: Vec<_> = depths.iter().flat_map(|n| widths.iter().map(|d| (*n, *d))).collect();
            let rows = rows(expected);
            let of_rows: Vec<_> = rows.iter().map(|row| (size(*row, "N"), size(*row, "d"))).collect();
            assert_eq!(of_rows, pairs, "{}: rows", case.name);
            case.skip("expected/rows/*/*/applies_to", "words");
            rows.into_iter().for_each(|row| depth_width(case, row));
            constants(case, expected);
        }
        "deterministic_matrices" => deterministic(case),
        "fan_table" => rows(expected).into_iter().for_each(fans),
        "orthogonal_from_gaussian" => orthogonal(case, expected),
        "quadrature_gains" => quadrature(case, expected.at("gains")),
        "scheme_table" => {
            case.skip("expected/rows/*/torch_linear_default/is", "words");
            rows(expected).into_iter().for_each(|row| schemes(case, row));
            measured(case, expected.at("measured_by_torch"));
        }
        "sparse_init" => rows(expected).into_iter().for_each(sparse),
        "gain_table" => torch_gains(case, expected),
        "truncated_normal" => truncated(case, expected),
        _ => return false,
    }
    true
}

fn rows(expected: Json<'_>) -> Vec<Json<'_>> {
    expected.at("rows").list()
}

fn number(value: Json<'_>, key: &str) -> f64 {
    value.at(key).f64()
}

fn size(value: Json<'_>, key: &str) -> usize {
    value.at(key).size()
}

/// Compares with a tolerance relative to the expected number.
fn close(case: &Case, what: &str, got: f64, want: f64, rtol: f64) {
    assert!((got - want).abs() <= rtol * want.abs(), "{}: {what} is {got}, not {want}", case.name);
}

fn scalars(case: &Case, expected: Json<'_>) {
    let close = |what: &str, got, want| close(case, what, got, want, 1e-9);
    for (p, want) in expected.at("focal_bias").table() {
        let got = bias::focal_prior(p.parse().unwrap());
        assert!((got - want.f64()).abs() < 1e-9, "{}: the focal bias of {p} is {got}, not {want}", case.name);
    }
    // With so many tokens that the smoothing does not matter.
    let wants = expected.at("log_prior_bias").numbers();
    let counts: Vec<u64> = wants.iter().map(|want| (want.exp() * 1e9).round() as u64).collect();
    for (got, want) in bias::log_prior(&counts).iter().zip(&wants) {
        assert!((f64::from(*got) - want).abs() < 1e-6, "{}: the log prior is {got}, not {want}", case.name);
    }
    case.skip("expected/lstm_forget_bias/*", "the product has no LSTM");
    for key in ["zero_gamma", "siren/first_layer_bound", "siren/hidden_bound", "nfnet_betas/note"] {
        case.skip(&format!("expected/{key}"), "words");
    }
    for key in ["WQ WK^T", "WV Wproj", "Z"] {
        case.skip(&format!("expected/mimetic/{key}"), "words");
    }
    let uniform = expected.at("uniform_from_mean_std");
    let bounds = Distribution::uniform_bounds(number(uniform, "mean"), number(uniform, "std"));
    close("lower bound", bounds[0], number(uniform, "a"));
    close("upper bound", bounds[1], number(uniform, "b"));
    let kaiming = expected.at("kaiming_uniform_a_sqrt5");
    let fan_in = number(kaiming, "fan_in");
    let spec = spec(Role::MlpIn, fan_in, 10.0);
    let scheme = Scheme::TorchLinear { embedding_std: 1.0 };
    close("std of PyTorch's Linear", scheme.std(&spec).unwrap(), number(kaiming, "std"));
    let Draw::Entries(Distribution::Uniform { bound }) = scheme.draw(&spec) else { panic!("not uniform") };
    close("bound of PyTorch's Linear", bound, number(kaiming, "bound"));
    close("kaiming of slope sqrt(5)", 3f64.sqrt() * leaky_gain(5f64.sqrt()) / fan_in.sqrt(), number(kaiming, "bound"));
    let siren = expected.at("siren");
    let hidden = Scheme::Siren { omega: number(siren, "omega0"), embedding_std: 0.02 };
    let n = number(siren, "n_in");
    let Draw::Entries(Distribution::Uniform { bound }) = hidden.draw(&self::spec(Role::MlpIn, n, n)) else {
        panic!("not uniform")
    };
    close("siren", bound, number(siren, "hidden"));
    // The first layer's bound is 1 / n, as for an omega of sqrt(6 n).
    let first = Scheme::Siren { omega: (6.0 * n).sqrt(), embedding_std: 0.02 };
    let Draw::Entries(Distribution::Uniform { bound }) = first.draw(&self::spec(Role::MlpIn, n, n)) else {
        panic!("not uniform")
    };
    close("siren's first layer", bound, number(siren, "first"));
    let betas = expected.at("nfnet_betas");
    let wants = betas.at("expected_std_before_block").numbers();
    assert_eq!(size(betas, "blocks"), wants.len(), "{}: NFNet's blocks", case.name);
    for (got, want) in nfnet_betas(number(betas, "alpha"), &[wants.len()]).into_iter().zip(wants) {
        close("nfnet's beta", got, want);
    }
    let relu = Function::Relu {}.moments();
    close("E relu^2", relu.second, number(expected.at("relu_moments"), "E_y2"));
    close("E relu", relu.mean, number(expected.at("relu_moments"), "E_y"));
    close("Var relu", relu.variance() * 2.0, number(expected.at("relu_moments"), "Var_y_after_kaiming"));
    let mimetic = expected.at("mimetic");
    let (noise, diagonal) = (number(mimetic, "alpha1"), number(mimetic, "beta1"));
    let scheme = Scheme::named("mimetic").unwrap();
    let query = Draw::Mimetic { noise, diagonal, factor: 0, gain: 1.0 };
    assert_eq!(scheme.draw(&self::spec(Role::Query, 8.0, 8.0)), query);
    let (noise, diagonal) = (number(mimetic, "alpha2"), -number(mimetic, "beta2"));
    let output = Draw::Mimetic { noise, diagonal, factor: 1, gain: 1.0 };
    assert_eq!(scheme.draw(&self::spec(Role::AttentionOutput, 8.0, 8.0)), output);
}

fn spec(role: Role, fan_in: f64, fan_out: f64) -> Spec {
    Spec { role, fan_in, fan_out, blocks: 6, block: Some(0), width: fan_in }
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// The reference's weight gives the layer's `y`, and ours is an isometry.
fn delta_orthogonal(case: &Case) {
    let (outputs, inputs, k) = (case.size("out"), case.size("in"), case.size("kernel"));
    let (dims, gain) = (case.size("dims"), case.number("gain"));
    let kernel = vec![k; dims];
    let ours = matrix::delta_orthogonal(3, "delta", outputs, inputs, &kernel, gain).unwrap();
    let x = case.array("x");
    let positions: usize = x.shape[2..].iter().product();
    let batch = x.shape[0];
    let convolve = |weight: Vec<f32>| -> Vec<f32> {
        // A 1D convolution is a 2D one with a kernel of one row.
        let (rows, columns) = if dims == 1 { (1, x.shape[2]) } else { (x.shape[2], x.shape[3]) };
        let (kernel_rows, padding) = if dims == 1 { (1, [0, k / 2]) } else { (k, [k / 2, k / 2]) };
        let x = tensor(x.f32(), [batch, inputs, rows, columns]);
        let w = tensor(weight, [outputs, inputs, kernel_rows, k]);
        module::conv2d(x, w, None, ConvOptions::new([1, 1], padding, [1, 1], 1)).into_data().iter().collect()
    };
    let taps = k.pow(dims as u32);
    let used = (0..taps).filter(|tap| ours.iter().skip(*tap).step_by(taps).any(|w| *w != 0.0)).count();
    assert_eq!(used, size(case.expected(), "nonzero_taps"), "{}: taps that are not 0", case.name);
    let [least, most] = ["norm_ratio_min", "norm_ratio_max"].map(|key| number(case.expected(), key));
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
            assert!(ratio > least - 1e-5 && ratio < most + 1e-5, "{}: {ratio} at {p}", case.name);
            assert!((least - gain).abs() < 1e-5 && (most - gain).abs() < 1e-5, "{}: ratios of norms", case.name);
        }
    }
}

/// Constants by depth and width, from our schemes, placements and scales.
fn depth_width(case: &Case, row: Json<'_>) {
    let (layers, d, ff) = (size(row, "N"), number(row, "d"), number(row, "ff"));
    let close = |what: &str, got: f64, want: f64| close(case, what, got, want, 1e-9);
    let spec = |role, fan_in, fan_out| Spec { role, fan_in, fan_out, blocks: layers, block: Some(0), width: d };
    let std = |scheme: Scheme, role| {
        let (fan_in, fan_out) = match role {
            Role::MlpIn => (d, ff),
            Role::MlpOut => (ff, d),
            _ => (d, d),
        };
        scheme.std(&spec(role, fan_in, fan_out)).unwrap()
    };
    let deep = row.at("deepnorm");
    let (placement, xavier) = (Placement::DeepNorm {}, Scheme::xavier());
    close("DeepNorm's alpha", placement.constant(0, layers), number(deep, "alpha"));
    let beta = placement.branch_gain(layers);
    close("DeepNorm's beta", beta, number(deep, "beta"));
    close("DeepNorm, value", std(xavier, Role::Value) * beta, number(deep, "std_square_dxd_v_o"));
    close("DeepNorm, MLP", std(xavier, Role::MlpOut) * beta, number(deep, "std_ffn"));
    close("DeepNorm, query", std(xavier, Role::Query), number(deep, "std_q_k"));
    let sub = Placement::SubNorm {}.branch_gain(layers);
    close("Sub-LN's gamma", sub, number(row.at("sub_ln"), "gamma_decoder_or_encoder_only"));
    for (constants, key) in [(TFixupConstants::Encoder, "encoder_scale"), (TFixupConstants::Decoder, "decoder_scale")] {
        let scheme = Scheme::TFixup { constants };
        for role in [Role::Value, Role::AttentionOutput, Role::MlpIn, Role::MlpOut] {
            close(key, std(scheme, role) / std(xavier, role), number(row.at("t_fixup"), key));
        }
        close("T-Fixup, key", std(scheme, Role::Key), std(xavier, Role::Key));
        close("T-Fixup, embedding", std(scheme, Role::Embedding), number(row.at("t_fixup"), "embedding_std_decoder"));
    }
    close("gpt2", std(Scheme::gpt2(), Role::Key), number(row.at("gpt2"), "std"));
    close("gpt2, writer", std(Scheme::gpt2(), Role::MlpOut), number(row.at("gpt2"), "std_residual_projection"));
    close("small", std(Scheme::Small {}, Role::MlpIn), number(row, "small_init_std"));
    close("wang", std(Scheme::Wang { numerator: 2.0 }, Role::AttentionOutput), number(row, "wang_init_std"));
    close("wang, query", std(Scheme::Wang { numerator: 2.0 }, Role::Query), number(row, "small_init_std"));
    close("linear", std(Scheme::TorchLinear { embedding_std: 1.0 }, Role::Query), number(row, "linear_default_std"));
    assert_eq!(ScaleConfig::LayerScale { init: None }.resolved(layers), {
        ScaleConfig::LayerScale { init: Some(number(row, "layerscale_init")) }
    });
    let scaled = row.at("layernorm_scaling").numbers();
    // The first six.
    assert_eq!(scaled.len(), layers.min(6), "{}: LayerNorm Scaling", case.name);
    for (layer, want) in scaled.into_iter().enumerate() {
        close("LayerNorm Scaling", Placement::ScaledPreNorm {}.constant(layer, layers), want);
    }
    close("1 / sqrt(2L)", gpt2_factor(layers), number(row, "residual_1_over_sqrt_2N"));

    // Relative to a base model of one block.
    let (base_width, base_depth, base_head_dim) = (d as usize, 1, None);
    let depth_mup = Parametrization::DepthMup { base_width, base_depth, base_head_dim, output_multiplier: 1.0 };
    let complete_p =
        Parametrization::CompleteP { base_width, base_depth, base_head_dim, output_multiplier: 1.0, alpha: 1.0 };
    for (parametrization, key) in [(depth_mup, "depth_mup"), (complete_p, "completep")] {
        let want = row.at(key);
        close(key, parametrization.branch(0, layers).gain, number(want, "branch_multiplier"));
        let shape = Shape { width: base_width, head_dim: base_width, blocks: layers };
        for role in [Role::Query, Role::MlpOut] {
            let factors = parametrization.factors(&spec(role, d, d), shape, Update::Normalized);
            close(key, factors.lr, number(want, "adam_lr_factor_hidden"));
        }
    }
    close("1 / sqrt(L)", depth_mup.branch(0, layers).gain, number(row, "residual_1_over_sqrt_N"));
    let options = row.at("skipinit_alpha_options").numbers();
    assert_eq!(options.len(), 2, "{}: SkipInit", case.name);
    assert!(ScaleConfig::all().contains(&ScaleConfig::SkipInit { init: options[0] }), "{}: SkipInit", case.name);
    close("SkipInit", depth_mup.branch(0, layers).gain, options[1]);

    // Embeddings: norm of a row, size of its entries, and both in the original Transformer.
    let embedding = row.at("embedding");
    close("row", std(Scheme::Normal { std: 0.02 }, Role::Embedding) * d.sqrt(), number(embedding, "std_0.02_norm"));
    let learned = EmbeddingScale::Learned { init: None };
    let config = ModelConfig { vocab_size: Some(2), embedding_scale: Some(learned), ..ModelConfig::default() };
    let plan = ModelConfig { d_model: d as usize, n_heads: 1, ..config }.plan(2).unwrap();
    let TokenScale::Learned(scale) = plan.embedding_scale else { panic!("no scale") };
    close("row, times sqrt(d)", scale, number(embedding, "transformer_std1_times_sqrt_d"));
    let decoder = std(Scheme::TFixup { constants: TFixupConstants::Decoder }, Role::Embedding);
    let before = decoder / number(row.at("t_fixup"), "decoder_scale");
    close("T-Fixup, embedding before", before, number(row.at("t_fixup"), "embedding_std_before_scale"));
    close("1 / sqrt(d)", before, number(embedding, "std_1_over_sqrt_d"));
}

/// GPT-2's factor on the weights that write to the stream.
fn gpt2_factor(layers: usize) -> f64 {
    let of = |role| {
        let spec = Spec { role, fan_in: 8.0, fan_out: 8.0, blocks: layers, block: Some(0), width: 8.0 };
        Scheme::gpt2().std(&spec).unwrap()
    };
    of(Role::MlpOut) / of(Role::MlpIn)
}

/// Fixup's factor, and constants of an encoder-decoder.
fn constants(case: &Case, expected: Json<'_>) {
    let close = |what: &str, got: f64, want: f64| close(case, what, got, want, 1e-9);
    for row in expected.at("fixup").list() {
        let got = fixup_scale(number(row, "L_blocks"), size(row, "m_layers_per_branch") as u32);
        close("Fixup", got, number(row, "scale"));
    }
    for row in expected.at("encoder_decoder").list() {
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
    for name in case.names() {
        let array = case.array(name);
        let parts: Vec<&str> = name.split('.').collect();
        let sizes: Vec<usize> =
            parts[1].split('x').map(|n| n.parse().unwrap_or_else(|_| panic!("{name} has no sizes"))).collect();
        let got = match parts[0] {
            "eye" => matrix::identity(sizes[0], sizes[1], 1.0),
            "dirac" => matrix::dirac(sizes[0], sizes[1], &sizes[2..], parts[2][1..].parse().unwrap()),
            "hadamard" => {
                let n = 1 << sizes[0];
                (0..n * n).map(|k| matrix::hadamard(k / n, k % n)).collect()
            }
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

fn fans(row: Json<'_>) {
    let shape = row.at("weight_shape").sizes();
    let taps: usize = match row.at("k").given() {
        Some(k) if k.is_number() => k.size().pow(shape.len() as u32 - 2),
        Some(k) => k.sizes().into_iter().product(),
        None => 1,
    };
    let groups = row.at("groups").given().map_or(1, Json::size);
    let (inputs, outputs) = (size(row, "in"), size(row, "out"));
    let (fans, stored) = match row.at("layer").text() {
        "linear" => (Fans::linear(inputs, outputs), [outputs, inputs]),
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => {
            (Fans::transposed_convolution(inputs, outputs, taps, groups), [inputs, outputs / groups])
        }
        "conv1d" | "conv2d" | "conv3d" => {
            (Fans::convolution(inputs, outputs, taps, groups), [outputs, inputs / groups])
        }
        other => panic!("unknown layer {other}"),
    };
    assert_eq!(shape[..2], stored, "{row}");
    assert_eq!(shape[2..].iter().product::<usize>(), taps, "{row}");
    // A linear layer has PyTorch's numbers only.
    let connections = ["connections_in", "connections_out"].map(|key| row.at(key).given().map(Json::size));
    if let [Some(fan_in), Some(fan_out)] = connections {
        assert_eq!(fans, Fans { fan_in, fan_out }, "{row}");
    }
    let want = Fans { fan_in: size(row, "torch_fan_in"), fan_out: size(row, "torch_fan_out") };
    assert_eq!(Fans::torch(&shape), Some(want), "{row}");
}

fn orthogonal(case: &Case, expected: Json<'_>) {
    case.skip("expected/*/max_abs_diff_to_torch_orthogonal_", "the distance of two programs of the reference");
    for (name, expected) in expected.table() {
        let a = case.array(&format!("a.{name}"));
        let got = matrix::orthogonal_factor(&a.f32(), a.shape[0], a.shape[1], number(expected, "gain"));
        let values = matrix::singular_values(&got, a.shape[0], a.shape[1]);
        assert!(values.iter().all(|s| (s - number(expected, "singular_values_all")).abs() < 1e-6), "{name}");
        let got: Vec<f64> = got.into_iter().map(f64::from).collect();
        case.close("q.*", name, &got, &case.array(&format!("q.{name}")).values);
    }
}

fn quadrature(case: &Case, gains: Json<'_>) {
    case.says("x", &["N(0,1)"]);
    // Three digits fewer than given; a mean of 0 has no digits.
    let bound = 10f64.powi(3 - case.size("digits") as i32);
    for (name, want) in gains.table() {
        let function = function(name).unwrap_or_else(|| panic!("{}: no test of the function {name}", case.name));
        let moments = function.moments();
        let near = |what: &str, got: f64, want: f64, bound: f64| {
            assert!((got - want).abs() <= bound * want.abs().max(1e-3), "{}: {name}: {what} {got} {want}", case.name);
        };
        let close = |what: &str, got: f64, want: f64| near(what, got, want, bound);
        close("E f", moments.mean, number(want, "E_f"));
        close("E f^2", moments.second, number(want, "E_f2"));
        close("Var f", moments.variance(), number(want, "Var_f"));
        close("E f'^2", function.second_moment_of_slope(), number(want, "E_df2"));
        close("1 / sqrt(E f^2)", moments.second.powf(-0.5), number(want, "lambda"));
        close("1 / std f", moments.variance().powf(-0.5), number(want, "nfnet_gamma_1_over_std"));
        // From four million samples, as in the reference and in timm.
        if let Some(sampled) = want.at("monte_carlo_E_f2_4e6").given() {
            near("E f^2 of samples", moments.second, sampled.f64(), 1e-2);
        }
        if let Some(sampled) = want.at("timm_nonlin_gamma").given() {
            near("timm's 1 / std f", moments.variance().powf(-0.5), sampled.f64(), 3e-3);
            let table = name.strip_suffix("_erf").unwrap_or(name);
            let table = if matches!(function, Function::LeakyRelu { .. }) { "leaky_relu" } else { table };
            close("timm's table", activation_gain(table).expect("a gain of timm's"), sampled.f64());
        }
        if let Some(torch) = want.at("torch_calculate_gain").given() {
            close("PyTorch's gain", function.torch_gain().expect("a gain of PyTorch's"), torch.f64());
        }
        let gain = |gain: Gain| gain.value().unwrap();
        close("gain", gain(Gain::SecondMoment { activation: function }), number(want, "lambda"));
        close("gain", gain(Gain::Backward { activation: function }), number(want, "gain_backward"));
        close("gain", gain(Gain::Nfnet { activation: function }), number(want, "nfnet_gamma_1_over_std"));
    }
}

fn function(name: &str) -> Option<Function> {
    if let Some(slope) = name.strip_prefix("leaky_relu_") {
        return Some(Function::LeakyRelu { slope: slope.parse().ok()? });
    }
    if let Some(alpha) = name.strip_prefix("dyt_") {
        return Some(Function::Dyt { alpha: alpha.parse().ok()? });
    }
    if let Some(alpha) = name.strip_prefix("elu_") {
        return Some(Function::Elu { alpha: alpha.parse().ok()? });
    }
    Some(match name {
        "identity" | "linear" => Function::Linear {},
        "relu" => Function::Relu {},
        "leaky_relu" => Function::LeakyRelu { slope: 0.01 },
        "tanh" => Function::Tanh {},
        "sigmoid" => Function::Sigmoid {},
        "gelu_erf" | "gelu" => Function::Gelu {},
        "gelu_tanh" => Function::GeluTanh {},
        "silu" => Function::Silu {},
        "elu" => Function::Elu { alpha: 1.0 },
        "relu6" => Function::Relu6 {},
        "hardswish" => Function::Hardswish {},
        "softsign" => Function::Softsign {},
        "quick_gelu" => Function::QuickGelu {},
        "selu" => Function::Selu {},
        "mish" => Function::Mish {},
        "softplus" => Function::Softplus {},
        "relu_squared" => Function::ReluSquared {},
        "sin" => Function::Sin {},
        _ => return None,
    })
}

/// The table of schemes, and the measured standard deviation and bound of each form.
fn schemes(case: &Case, row: Json<'_>) {
    let (fan_in, fan_out) = (number(row, "fan_in"), number(row, "fan_out"));
    let gain = Gain::from(number(row, "gain_for_lecun_and_xavier"));
    let kaiming = |slope, fan, form| Scheme::Kaiming { slope, gain: None, fan, form, embedding_std: 0.02 };
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
            let (std, bound) = (number(row.at(key), "std"), number(row.at(key), "uniform_bound"));
            close(case, key, scheme.std(&spec).unwrap(), std, 1e-9);
            let values = scheme.draw(&spec).matrix(5, key, fan_in as usize, fan_out as usize, 1);
            let n = values.len() as f64;
            let measured = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n).sqrt();
            // Five standard errors for the normal distribution, which has the heaviest tails of the three.
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

/// One draw by PyTorch of `[fan_in]x[fan_out]` numbers, against our schemes' sizes.
fn measured(case: &Case, measured: Json<'_>) {
    let kaiming = |fan| Scheme::Kaiming { slope: 0.0, gain: None, fan, form: Form::Normal, embedding_std: 0.02 };
    for (sizes, want) in measured.table() {
        let sizes: Vec<f64> = sizes.split('x').map(|n| n.parse().unwrap()).collect();
        let spec = spec(Role::MlpIn, sizes[0], sizes[1]);
        let std = |scheme: Scheme| scheme.std(&spec).unwrap();
        let bound = |scheme: Scheme| 3f64.sqrt() * std(scheme);
        for (key, want) in want.table() {
            let got = match key {
                "xavier_normal" => std(Scheme::xavier()),
                "xavier_uniform_max" => bound(Scheme::xavier()),
                "kaiming_normal_fan_in" => std(kaiming(Fan::FanIn)),
                "kaiming_normal_fan_out" => std(kaiming(Fan::FanOut)),
                "kaiming_uniform_a5_max" => bound(Scheme::TorchLinear { embedding_std: 1.0 }),
                other => panic!("{}: unknown draw {other}", case.name),
            };
            // Five standard errors; the maximum of this many numbers is slightly below the bound.
            close(case, key, got, want.f64(), 5.0 / (2.0 * sizes[0] * sizes[1]).sqrt());
        }
    }
}

fn sparse(row: Json<'_>) {
    let (outputs, inputs, sparsity) = (size(row, "out"), size(row, "in"), number(row, "sparsity"));
    let rounded_up = |n: usize| (sparsity * n as f64 - 1e-9).ceil() as usize;
    let zeros = |of: usize, units: usize, each: usize| {
        assert_eq!(each, rounded_up(of), "{row}");
        // The reference rounds the number of zeros up; we round the number of the others up.
        let nonzero = (of - each) as f64 / of as f64;
        let draw = |nonzero| Distribution::Sparse { nonzero, std: 1.0 }.draw(1, "sparse", of, units);
        if nonzero > 0.0 {
            let values = draw(nonzero);
            for unit in 0..units {
                let count = (0..of).filter(|input| values[input * units + unit] == 0.0).count();
                assert_eq!(count, each, "unit {unit} of {row}");
            }
        }
        let values = draw(1.0 - sparsity);
        let expected = ((1.0 - sparsity) * of as f64 - 1e-9).ceil() as usize;
        for unit in 0..units {
            let count = (0..of).filter(|input| values[input * units + unit] != 0.0).count();
            assert_eq!(count, expected, "unit {unit} of {row}");
        }
    };
    zeros(inputs, outputs, size(row, "zeros_per_output_row_if_done_per_output"));
    // PyTorch's zeros are per input.
    let of_column = size(row, "torch_zeros_per_column");
    zeros(outputs, inputs, of_column);
    assert_eq!(size(row, "total_zeros_torch"), of_column * inputs, "{row}");
}

fn torch_gains(case: &Case, expected: Json<'_>) {
    for (name, want) in expected.at("gains").table() {
        let got = match name.strip_prefix("leaky_relu:") {
            Some(slope) => leaky_gain(slope.parse().unwrap()),
            None if name.starts_with("conv") => Function::Linear {}.torch_gain().unwrap(),
            None => function(name).and_then(Function::torch_gain).unwrap_or_else(|| panic!("no gain of {name}")),
        };
        close(case, name, got, want.f64(), 1e-9);
    }
    for name in expected.at("value_error_for").list() {
        assert_eq!(function(name.text()).expect("a known function").torch_gain(), None, "{name}");
    }
}

fn truncated(case: &Case, expected: Json<'_>) {
    for row in rows(expected) {
        let (low, high) = (number(row, "a_sigma"), number(row, "b_sigma"));
        let [mean, std] = truncated_moments(low, high);
        let close = |what: &str, got: f64, want: f64| {
            assert!((got - want).abs() <= 1e-9 * want.abs().max(1e-2), "{}: {what} {got} {want}", case.name);
        };
        close("mean", mean, number(row, "mean_over_sigma"));
        close("variance", std * std, number(row, "variance_over_sigma2"));
        close("std", std, number(row, "std_over_sigma"));
        close("sigma of std 1", 1.0 / std, number(row, "sigma_for_unit_std"));
        let mass = (libm::erf(high / 2f64.sqrt()) - libm::erf(low / 2f64.sqrt())) / 2.0;
        close("mass", mass, number(row, "mass_kept"));
        // By parts, from the second moment about 0.
        let ends = |z: f64| z.powi(3) * (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let fourth = 3.0 * (std * std + mean * mean) - (ends(high) - ends(low)) / mass;
        close("fourth moment", fourth, number(row, "fourth_moment_over_sigma4"));
        if low == -high {
            close("std", truncated_std(high), number(row, "std_over_sigma"));
            let n = 100_000;
            let values = Distribution::TruncatedNormal { sigma: 2.0, cut: high }.draw(1, "cut", n, 1);
            let measured = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64).sqrt();
            assert!((measured / 2.0 / std - 1.0).abs() < 5.0 / (2.0 * n as f64).sqrt());
            assert!(values.iter().all(|v| v.abs() <= 2.0 * high as f32));
        }
    }
    // PyTorch's bounds are absolute: the default ones are a hundred sigmas away.
    for (cut, key) in [(2.0, "bounds_2sigma"), (100.0, "default_bounds")] {
        let torch = number(expected, &format!("torch_trunc_normal_std_0_02_{key}"));
        assert!((0.02 * truncated_std(cut) / torch - 1.0).abs() < 2e-3, "{}: {key}", case.name);
    }
}

/// Over 50 ReLU layers Kaiming keeps E[y^2]; Xavier halves it in each.
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
    // In octaves per layer. E[x^2] starts at 1, and the first ReLU halves it either way.
    assert!(growth(Scheme::kaiming()).abs() < 0.05, "{}", growth(Scheme::kaiming()));
    assert!((growth(Scheme::xavier()) + 1.0).abs() < 0.05, "{}", growth(Scheme::xavier()));
}

/// A gain by quadrature makes E[y^2] = 1 an (unstable) fixed point; sqrt(2) loses 15 % (GELU) and 29 % (SiLU) per
/// layer.
#[test]
fn gains_of_gelu_and_silu_hold_the_second_moment() {
    for (function, with_root_two) in [(Function::Gelu {}, 0.850), (Function::Silu {}, 0.712)] {
        let gain = Gain::SecondMoment { activation: function }.value().unwrap();
        let next = |q: f64, gain: f64| gain * gain * moments(|z| function.at(q.sqrt() * z)).second;
        assert!((next(1.0, gain) - 1.0).abs() < 1e-12);
        assert!((next(1.0, 2f64.sqrt()) - with_root_two).abs() < 1e-3);
        assert!(next(1.1, gain) > 1.1 && next(0.9, gain) < 0.9);
    }
}
