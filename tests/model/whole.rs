//! The whole model: forward pass, refused settings, init.

use crate::common::{count_parameters, generator, max_difference, values};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use unitgain_model::weights::of as weights;
use unitgain_model::{
    Activation, BlockConfig, Cache, ModelConfig, NormConfig, Parametrization, Placement, Point, Position, Role,
    RopeScaling, ScaleConfig, Scheme, Transformer, Variant, cross_entropy,
};
use unitgain_train::Gradients;

pub(crate) fn tiny() -> ModelConfig {
    ModelConfig { vocab_size: Some(11), context: 12, d_model: 16, n_layers: 3, n_heads: 4, ..ModelConfig::default() }
}

pub(crate) fn tokens(rows: usize, time: usize, device: &Device) -> Tensor<2, Int> {
    let values: Vec<i32> = (0..rows * time).map(|i| ((i * i + 3 * i) % 11) as i32).collect();
    Tensor::from_data(TensorData::new(values, [rows, time]), device)
}

fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// Models that together use all options.
pub(crate) fn varied() -> Vec<ModelConfig> {
    let rope = Position::rope(10_000.0);
    vec![
        tiny(),
        ModelConfig { position: rope, n_kv_heads: Some(2), qk_norm: NormConfig::rms_norm(), ..tiny() },
        ModelConfig { position: Position::Sinusoidal {}, activation: Activation::SwiGlu, bias: true, ..tiny() },
        ModelConfig {
            position: Position::None {},
            head_dim: Some(6),
            attention_softcap: 5.0,
            logit_softcap: 3.0,
            ..tiny()
        },
        ModelConfig {
            tie_embeddings: false,
            embedding_norm: Some(NormConfig::layer_norm()),
            embedding_scale: Some(4.0.into()),
            ..tiny()
        },
        ModelConfig {
            placement: Placement::Sandwich {},
            activation: Activation::GeGlu,
            scale: ScaleConfig::LayerScale { init: None },
            ..tiny()
        },
        ModelConfig { placement: Placement::DeepNorm {}, activation: Activation::Relu, ..tiny() },
        ModelConfig { placement: Placement::Parallel {}, ..tiny() },
        ModelConfig { placement: Placement::None {}, scale: ScaleConfig::ReZero { shared: true }, ..tiny() },
        ModelConfig { placement: Placement::ParallelShared {}, norm: NormConfig::rms_norm(), ..tiny() },
        ModelConfig { placement: Placement::SubNorm {}, activation: Activation::SwiGlu, ..tiny() },
        ModelConfig { placement: Placement::Normformer {}, mlp_placement: Some(Placement::PostNorm {}), ..tiny() },
        ModelConfig {
            placement: Placement::PostNorm {},
            activation: Activation::Silu,
            norm: NormConfig::rms_norm(),
            ..tiny()
        },
        ModelConfig {
            scale: ScaleConfig::ReZero { shared: false },
            norm: NormConfig::None {},
            activation: Activation::GeluTanh,
            ..tiny()
        },
        ModelConfig { parametrization: Parametrization::mup(4), n_kv_heads: Some(1), ..tiny() },
        ModelConfig {
            position: Position::Rope { theta: 100.0, fraction: 0.5, scaling: RopeScaling::Linear { factor: 2.0 } },
            window: 5,
            qkv_bias: Some(true),
            activation: Activation::ReluSquared,
            logit_scale: 0.25,
            ..tiny()
        },
        ModelConfig {
            position: rope,
            activation: Activation::GeGluTanh,
            n_kv_heads: Some(2),
            attention_softcap: 5.0,
            block: vec![
                BlockConfig {
                    range: [0, 1],
                    window: Some(2),
                    position: Some(Position::rope(50.0)),
                    ..BlockConfig::default()
                },
                BlockConfig {
                    range: [2, 3],
                    window: Some(3),
                    position: Some(Position::None {}),
                    ..BlockConfig::default()
                },
            ],
            ..tiny()
        },
    ]
}

fn build(config: &ModelConfig, device: &Device) -> Transformer {
    config.build(1, device).unwrap().0
}

#[test]
fn the_table_covers_every_parameter_once() {
    for config in varied() {
        let (model, table) = config.build(1, &Device::flex()).unwrap();
        assert_eq!(table.elements(), count_parameters(&model));
        let paths: Vec<String> = weights(&model).into_iter().map(|(path, ..)| path).collect();
        assert_eq!(paths, table.iter().map(|e| e.path.clone()).collect::<Vec<_>>());
        for entry in &table {
            assert_eq!(entry.role().is_matrix(), entry.shape.len() == 2, "{}", entry.path);
            assert_eq!(entry.block().is_some(), entry.path.starts_with("blocks."), "{}", entry.path);
        }
    }
}

#[test]
fn no_position_sees_the_future() {
    let device = Device::flex();
    for config in varied() {
        let model = build(&config, &device);
        let (a, vocab) = (tokens(1, 12, &device), 11);
        let mut changed: Vec<i32> = a.clone().into_data().iter::<i32>().collect();
        changed[8] = (changed[8] + 1) % 11;
        let b = Tensor::from_data(TensorData::new(changed, [1, 12]), &device);
        let (a, b) = (host(model.forward(a)), host(model.forward(b)));
        assert_eq!(max_difference(&a[..8 * vocab], &b[..8 * vocab]), 0.0, "{config:?}");
        assert!(max_difference(&a[8 * vocab..], &b[8 * vocab..]) > 0.0);
    }
}

#[test]
fn cached_logits_are_those_of_the_whole_sequence() {
    let device = Device::flex();
    for config in varied() {
        let model = build(&config, &device);
        let all = tokens(2, 12, &device);
        let whole = model.forward(all.clone());
        let mut cache = Cache::new();
        for part in [0..5, 5..6, 6..9, 9..12] {
            let logits = model.forward_cached(all.clone().narrow(1, part.start, part.len()), &mut cache);
            let want = whole.clone().narrow(1, part.start, part.len());
            assert!(max_difference(&host(logits), &host(want)) < 1e-5, "{config:?} at {part:?}");
        }
        assert_eq!(cache.len(), 12);
    }
}

#[test]
fn every_parameter_gets_a_gradient() {
    let device = Device::flex().autodiff();
    for config in varied() {
        let (model, table) = config.build(1, &device).unwrap();
        let loss = cross_entropy(model.forward(tokens(3, 12, &device)), tokens(3, 12, &device), None);
        let gradients = Gradients::backward(&loss, &model);
        for (entry, gradient) in table.iter().zip(gradients.iter()) {
            let norm = gradient.unwrap_or_else(|| panic!("{} has no gradient", entry.path)).clone().abs().sum();
            let norm = norm.into_scalar::<f32>();
            // ReZero starts at 0, so weights inside its branches move only after it does.
            let waits = matches!(config.scale, ScaleConfig::ReZero { .. })
                && entry.block().is_some()
                && entry.role() != Role::Scale;
            assert!(norm.is_finite() && (norm > 0.0) != waits, "{}: {norm} in {config:?}", entry.path);
        }
    }
}

#[test]
fn attention_is_the_formula() {
    // A one-block model with known weights, against the same formula on the host.
    let device = Device::flex();
    let part = Position::Rope { theta: 100.0, fraction: 0.5, scaling: RopeScaling::Linear { factor: 3.0 } };
    for (position, qk_norm, softcap, window) in [
        (Position::None {}, NormConfig::None {}, 0.0, 0),
        (Position::rope(100.0), NormConfig::rms_norm(), 2.0, 0),
        (Position::rope(100.0), NormConfig::None {}, 0.0, 3),
        (part, NormConfig::None {}, 2.0, 2),
        (part, NormConfig::rms_norm(), 0.0, 1),
        (Position::None {}, NormConfig::rms_norm(), 0.0, 6),
    ] {
        let config = ModelConfig {
            n_layers: 1,
            n_heads: 4,
            n_kv_heads: Some(2),
            init: Some(Scheme::lecun()),
            norm: NormConfig::None {},
            position,
            qk_norm,
            attention_softcap: softcap,
            window,
            ..tiny()
        };
        let model = build(&config, &device);
        let mut stream = Vec::new();
        model.forward_observed(tokens(1, 6, &device), &mut |point, x| {
            if matches!(point, Point::Embedding | Point::Block(0)) {
                stream.push(host(x.clone()));
            }
        });
        let x: Vec<Vec<f64>> = stream[0].chunks(16).map(|r| r.iter().map(|&v| f64::from(v)).collect()).collect();
        let project = |x: &[Vec<f64>], name: &str| -> Vec<Vec<f64>> {
            let w = values(&model, &format!("blocks.0.{name}.weight"));
            let columns = w.len() / x[0].len();
            x.iter()
                .map(|row| {
                    (0..columns)
                        .map(|j| row.iter().enumerate().map(|(i, v)| v * f64::from(w[i * columns + j])).sum())
                        .collect()
                })
                .collect()
        };
        let head = |y: &[Vec<f64>], h: usize, is_query_or_key: bool| -> Vec<Vec<f64>> {
            y.iter()
                .enumerate()
                .map(|(t, row)| {
                    let mut v = row[4 * h..4 * h + 4].to_vec();
                    if !is_query_or_key {
                        return v;
                    }
                    if qk_norm != (NormConfig::None {}) {
                        let rms = (v.iter().map(|a| a * a).sum::<f64>() / 4.0 + 1e-6).sqrt();
                        v.iter_mut().for_each(|a| *a /= rms);
                    }
                    if let Position::Rope { theta, fraction, scaling } = position {
                        // Two pairs of a whole head, one of a half.
                        let pairs = (2.0 * fraction) as usize;
                        for i in 0..pairs {
                            let factor = if let RopeScaling::Linear { factor } = scaling { factor } else { 1.0 };
                            let angle = t as f64 * theta.powf(-(i as f64) / pairs as f64) / factor;
                            let (a, b) = (v[i], v[i + pairs]);
                            v[i] = a * angle.cos() - b * angle.sin();
                            v[i + pairs] = a * angle.sin() + b * angle.cos();
                        }
                    }
                    v
                })
                .collect()
        };
        let (q, k, v) = (project(&x, "attention.query"), project(&x, "attention.key"), project(&x, "attention.value"));
        let mut joined = vec![vec![0.0; 16]; 6];
        for h in 0..4 {
            let (q, k, v) = (head(&q, h, true), head(&k, h / 2, true), head(&v, h / 2, false));
            for t in 0..6 {
                let dot = |s: usize| -> f64 { q[t].iter().zip(&k[s]).map(|(a, b)| a * b).sum::<f64>() / 2.0 };
                let score = |s: usize| if softcap > 0.0 { softcap * (dot(s) / softcap).tanh() } else { dot(s) };
                let first = if window == 0 { 0 } else { (t + 1).saturating_sub(window) };
                let weights: Vec<f64> = (0..=t).map(|s| if s < first { 0.0 } else { score(s).exp() }).collect();
                let total: f64 = weights.iter().sum();
                for c in 0..4 {
                    joined[t][4 * h + c] = (0..=t).map(|s| weights[s] / total * v[s][c]).sum();
                }
            }
        }
        let add = |a: &[Vec<f64>], b: Vec<Vec<f64>>| -> Vec<Vec<f64>> {
            a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(x, y)| x + y).collect()).collect()
        };
        let x = add(&x, project(&joined, "attention.out"));
        let up = project(&x, "mlp.up");
        let gelu = |z: f64| z * 0.5 * (1.0 + erf(z / std::f64::consts::SQRT_2));
        let hidden: Vec<Vec<f64>> = up.into_iter().map(|r| r.into_iter().map(gelu).collect()).collect();
        let want: Vec<f32> = add(&x, project(&hidden, "mlp.down")).concat().into_iter().map(|v| v as f32).collect();
        let error = max_difference(&stream[1], &want);
        assert!(error < 1e-4, "{error} with {position:?}, window {window}");
    }
}

/// Against the branches of the published code, which tell the wavelengths apart one by one.
#[test]
fn frequencies_are_those_of_llama_3() {
    let scaling = |factor, original_context| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context,
    };
    let of = |theta, scaling, head_dim| Position::Rope { theta, fraction: 1.0, scaling }.frequencies(head_dim);
    let close = |got: Vec<f64>, want: &[f64]| {
        assert_eq!(got.len(), want.len());
        got.iter().zip(want).for_each(|(a, b)| assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}"));
    };
    let expected = [
        1.0,
        0.19392274474868576,
        0.03760603093086393,
        0.0072926647372171085,
        0.0005248461609929547,
        3.428102195952591e-05,
        6.647869871181236e-06,
        1.2891731721515574e-06,
    ];
    close(of(500_000.0, scaling(8.0, 8192), 16), &expected);
    close(of(10_000.0, scaling(32.0, 64), 8), &[1.0, 0.0037253549056583705, 0.0003125, 3.125e-05]);
    let part = Position::Rope { theta: 100.0, fraction: 0.5, scaling: RopeScaling::None {} };
    close(part.frequencies(8), &[1.0, 0.1]);
}

#[test]
fn a_window_of_the_context_is_none() {
    let config = |window| ModelConfig { window, position: Position::rope(100.0), ..tiny() };
    let logits = |window| host(build(&config(window), &Device::flex()).forward(tokens(2, 12, &Device::flex())));
    let flops = |window| config(window).plan(11).unwrap().flops_per_token();
    assert_eq!((logits(12), flops(12)), (logits(0), flops(0)));
    assert_ne!(logits(11), logits(0), "the first token is not seen by the last");
    // 3 blocks of width 16; a token sees 12 / 2 keys on average, and 3 - 9 / 24 in a window of 3.
    assert_eq!(flops(0) - flops(3), 12.0 * 3.0 * 16.0 * (6.0 - (3.0 - 9.0 / 24.0)));
}

#[test]
fn logits_have_their_factor_and_queries_keys_and_values_their_biases() {
    let device = Device::flex();
    let logits = |logit_scale, tie_embeddings| {
        let config = ModelConfig { logit_scale, tie_embeddings, ..tiny() };
        host(build(&config, &device).forward(tokens(2, 12, &device)))
    };
    for tied in [false, true] {
        let quarter: Vec<f32> = logits(1.0, tied).into_iter().map(|x| x * 0.25).collect();
        assert_eq!(logits(0.25, tied), quarter);
    }
    for (bias, attention_bias, qkv_bias, expected) in [
        (false, None, Some(true), [true, false, false]),
        (true, None, Some(false), [false, true, true]),
        (true, Some(false), None, [false, false, true]),
        (false, Some(true), None, [true, true, false]),
    ] {
        let (_, table) = ModelConfig { bias, attention_bias, qkv_bias, ..tiny() }.build(1, &device).unwrap();
        let has = |name: &str| table.iter().any(|e| e.path == format!("blocks.1.{name}.bias"));
        let [qkv, out, mlp] = expected;
        for (name, expected) in [
            ("attention.query", qkv),
            ("attention.key", qkv),
            ("attention.value", qkv),
            ("attention.out", out),
            ("mlp.up", mlp),
        ] {
            assert_eq!(has(name), expected, "{name} with {bias} {attention_bias:?} {qkv_bias:?}");
        }
    }
}

#[test]
fn what_a_head_cannot_turn_is_refused() {
    let said = |position, block: Option<Position>| {
        let block =
            block.map(|position| BlockConfig { range: [0, 1], position: Some(position), ..BlockConfig::default() });
        let config = ModelConfig { position, block: block.into_iter().collect(), ..tiny() };
        config.plan(11).map(|_| ()).unwrap_err().to_string()
    };
    let part = |fraction| Position::Rope { theta: 100.0, fraction, scaling: RopeScaling::None {} };
    let scaled = |scaling| Position::Rope { theta: 100.0, fraction: 1.0, scaling };
    let llama3 = |factor, high_freq_factor, original_context| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor,
        original_context,
    };
    for (said, parts) in [
        (said(part(0.0), None), ["position.fraction", "above 0 and at most 1"]),
        (said(part(0.3), None), ["position.fraction", "turns 1 of the 4 entries"]),
        (said(Position::rope(100.0), Some(part(0.1))), ["block.0.position.fraction", "turns 0 of the 4 entries"]),
        (said(scaled(RopeScaling::Linear { factor: 0.5 }), None), ["position.scaling.factor", "from 1 to 1e6"]),
        (said(scaled(llama3(8.0, 1.0, 64)), None), ["scaling.high_freq_factor", "above low_freq_factor"]),
        (said(scaled(llama3(8.0, 4.0, 0)), None), ["scaling.original_context", "at least 1"]),
        (said(Position::Learned {}, Some(Position::rope(1e4))), ["block.0.position", "as must be model.position"]),
        (said(Position::rope(1e4), Some(Position::Sinusoidal {})), ["block.0.position", "must be rope or none"]),
    ] {
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

/// Taylor series, accurate for small arguments.
fn erf(z: f64) -> f64 {
    let (mut term, mut sum) = (z, z);
    for n in 1..60 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn placements_start_from_the_same_matrices() {
    let device = Device::flex();
    let xavier = |placement| ModelConfig { placement, init: Some(Scheme::xavier()), ..tiny() };
    let pre = build(&xavier(Placement::PreNorm {}), &device);
    for placement in Placement::all() {
        let other = build(&xavier(placement), &device);
        let beta = placement.branch_gain(3) as f32;
        for (name, gain) in [("query", 1.0), ("key", 1.0), ("value", beta), ("out", beta)] {
            let path = format!("blocks.1.attention.{name}.weight");
            let want: Vec<f32> = values(&pre, &path).iter().map(|w| w * gain).collect();
            assert!(max_difference(&values(&other, &path), &want) < 1e-6, "{placement:?} {name}");
        }
        for name in ["up", "down"] {
            let path = format!("blocks.2.mlp.{name}.weight");
            let want: Vec<f32> = values(&pre, &path).iter().map(|w| w * beta).collect();
            assert!(max_difference(&values(&other, &path), &want) < 1e-6, "{placement:?} {name}");
        }
    }
    // A deeper model begins with the same blocks.
    let deeper = build(&ModelConfig { n_layers: 5, ..xavier(Placement::PreNorm {}) }, &device);
    assert_eq!(values(&deeper, "blocks.2.mlp.up.weight"), values(&pre, "blocks.2.mlp.up.weight"));
}

#[test]
fn weights_have_the_standard_deviation_of_the_table() {
    for init in Scheme::all() {
        for width in [32, 128] {
            let parametrization = match init {
                Scheme::Mimetic { .. } => Parametrization::Standard {},
                _ => Parametrization::mup(32),
            };
            let config = ModelConfig {
                d_model: width,
                vocab_size: Some(300),
                init: Some(init),
                tie_embeddings: false,
                parametrization,
                placement: if init.is_norm_free() { Placement::None {} } else { Placement::PreNorm {} },
                ..tiny()
            };
            let (model, table) = config.build(3, &Device::flex()).unwrap();
            for entry in table.iter().filter(|e| e.role().is_matrix()) {
                if entry.init_std == 0.0 {
                    assert!(init.zeroes_writers() && values(&model, &entry.path).iter().all(|w| *w == 0.0));
                    continue;
                }
                let w = values(&model, &entry.path);
                let std = (w.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / w.len() as f64).sqrt();
                let error = (std / entry.init_std - 1.0).abs();
                assert!(error < 5.0 / (2.0 * w.len() as f64).sqrt(), "{init:?} {}: {std}", entry.path);
            }
        }
    }
}

#[test]
fn under_mup_a_fan_in_scheme_divides_by_the_width_once() {
    let std = |width, init: Scheme| {
        let parametrization = Parametrization::mup(16);
        let placement = if init.is_norm_free() { Placement::None {} } else { Placement::PreNorm {} };
        let init = Some(init);
        let config = ModelConfig { d_model: width, init, parametrization, placement, tie_embeddings: false, ..tiny() };
        let (_, table) = config.build(1, &Device::flex()).unwrap();
        let of = |path: &str| table.iter().find(|e| e.path == path).unwrap().init_std;
        (of("blocks.0.attention.query.weight"), of("head.weight"))
    };
    for init in Scheme::all().into_iter().filter(|init| !matches!(init, Scheme::Mimetic { .. })) {
        let (narrow, wide) = (std(16, init), std(64, init));
        // Entries of a Haar matrix have this size on average only; the number of non-zeros of a sparse one is rounded
        // up.
        let (bound, counts) = match init {
            Scheme::Sparse { .. } => (0.1, false),
            _ => (1e-6, true),
        };
        assert!((wide.0 / narrow.0 - 0.5).abs() < bound, "{init:?}: hidden std must be 1/sqrt(m)");
        let is_zero = wide.1 == 0.0 && narrow.1 == 0.0;
        assert!(
            !counts || is_zero || (wide.1 / narrow.1 - 1.0).abs() < bound,
            "{init:?}: the readout's std does not depend on the width"
        );
    }
}

#[test]
fn at_the_base_width_mup_is_standard_bit_for_bit() {
    let device = Device::flex().autodiff();
    let mup = ModelConfig { parametrization: Parametrization::mup(16), ..tiny() };
    let run = |config: &ModelConfig| {
        let model = build(config, &device);
        let loss = cross_entropy(model.forward(tokens(2, 12, &device)), tokens(2, 12, &device), None);
        let gradients = Gradients::backward(&loss, &model);
        let gradients: Vec<Vec<f32>> = gradients.iter().map(|g| host(g.unwrap().clone())).collect();
        (weights(&model), loss.into_scalar::<f32>(), gradients)
    };
    assert_eq!(run(&mup), run(&tiny()));
}

#[test]
fn blocks_can_differ() {
    let block = |range, placement, norm, scale| BlockConfig { range, placement, norm, scale, ..BlockConfig::default() };
    let config = ModelConfig {
        block: vec![
            block([0, 1], Some(Placement::PostNorm {}), None, None),
            block([2, 3], None, Some(NormConfig::rms_norm()), Some(ScaleConfig::ReZero { shared: false })),
        ],
        ..tiny()
    };
    let (_, table) = config.build(1, &Device::flex()).unwrap();
    let has = |path: &str| table.iter().any(|e| e.path.contains(path));
    assert!(has("blocks.0.around_mlp.norms.0.LayerNorm") && !has("blocks.0.around_mlp.scale"));
    assert!(has("blocks.2.around_mlp.norms.0.RmsNorm") && has("blocks.2.around_mlp.scale"));
    assert!(has("final_norm.LayerNorm"));
    for (range, expected) in
        [([0, 4], "n_layers = 3"), ([2, 2], "first < last + 1"), ([0, 1], "already in another range")]
    {
        let mut bad = config.clone();
        bad.block[1].range = range;
        let problem = bad.plan(11).unwrap_err().to_string();
        assert!(problem.contains("model.block.1.range") && problem.contains(expected), "{problem}");
    }
}

#[test]
fn the_final_norm_follows_the_last_block() {
    let final_norm = |config: ModelConfig| config.plan(11).unwrap().final_norm;
    for placement in Placement::all() {
        assert_eq!(final_norm(ModelConfig { placement, ..tiny() }), placement.final_norm());
    }
    let mixed = ModelConfig {
        block: vec![BlockConfig { range: [2, 3], placement: Some(Placement::PostNorm {}), ..BlockConfig::default() }],
        ..tiny()
    };
    assert!(!final_norm(mixed));
}

#[test]
fn dropout_acts_in_training_alone() {
    let device = Device::flex().autodiff();
    let _one_at_a_time = generator();
    let model = build(&ModelConfig { dropout: 0.5, ..tiny() }, &device);
    let plain = model.valid();
    let x = tokens(2, 12, &Device::flex());
    assert_eq!(host(plain.forward(x.clone())), host(plain.forward(x.clone())));
    assert!(max_difference(&host(model.forward(x.clone()).inner()), &host(plain.forward(x))) > 0.0);
}

#[test]
fn weighted_cross_entropy_asks_only_where_the_weight_is_one() {
    let device = Device::flex();
    let model = build(&tiny(), &device);
    let x = tokens(2, 6, &device);
    let logits = model.forward(x.clone());
    let mut mask = vec![0.0f32; 12];
    mask[3..6].fill(1.0);
    let weights = Tensor::<2>::from_data(TensorData::new(mask, [2, 6]), &device);
    let masked = cross_entropy(logits.clone(), x.clone(), Some(weights)).into_scalar::<f32>();
    let part = cross_entropy(logits.narrow(0, 0, 1).narrow(1, 3, 3), x.narrow(0, 0, 1).narrow(1, 3, 3), None);
    assert!((masked - part.into_scalar::<f32>()).abs() < 1e-6);
}

#[test]
fn what_is_not_set_follows_from_what_is() {
    let init = |config: ModelConfig| config.plan(11).unwrap().init;
    assert_eq!(init(tiny()), Scheme::gpt2());
    assert_eq!(init(ModelConfig { placement: Placement::DeepNorm {}, ..tiny() }), Scheme::xavier());
    assert_eq!(init(ModelConfig { scale: ScaleConfig::Depth {}, ..tiny() }), Scheme::xavier());
    assert_eq!(init(ModelConfig { placement: Placement::ScaledPreNorm {}, ..tiny() }), Scheme::xavier());
    let peri = ModelConfig { placement: Placement::PeriNorm {}, ..tiny() }.plan(11).unwrap();
    assert_eq!(peri.embedding_norm, peri.norm);
    // A stack without norms may have a final norm.
    let skip = ScaleConfig::SkipInit { init: 0.0 };
    let closed = ModelConfig { placement: Placement::None {}, scale: skip, final_norm: Some(true), ..tiny() };
    assert!(closed.plan(11).unwrap().final_norm);
    let free = ModelConfig { norm: NormConfig::None {}, ..tiny() }.plan(11).unwrap();
    assert!(!free.final_norm);
}

#[test]
fn sizes_that_no_machine_has_are_refused() {
    let problem = |config: ModelConfig| config.plan(config.vocab_size.unwrap()).unwrap_err().to_string();
    let huge = usize::MAX / 4;
    for (config, key) in [
        (ModelConfig { d_model: huge, n_heads: 1, ..tiny() }, "d_model"),
        (ModelConfig { n_layers: huge, ..tiny() }, "n_layers"),
        (ModelConfig { context: huge, ..tiny() }, "context"),
        (ModelConfig { d_ff: Some(huge), ..tiny() }, "d_ff"),
        (ModelConfig { vocab_size: Some(huge), ..tiny() }, "vocab_size"),
        (ModelConfig { d_model: 1 << 20, ..tiny() }, "parameters"),
        // So many that their number is 0 in 64 bits.
        (
            ModelConfig {
                d_model: 1 << 20,
                n_heads: 1 << 20,
                n_kv_heads: None,
                head_dim: Some(1 << 20),
                n_layers: 4,
                d_ff: Some(1),
                ..tiny()
            },
            "parameters",
        ),
    ] {
        assert!(problem(config).contains(key), "{key}");
    }
}

#[test]
fn a_base_width_that_divides_nothing_still_gives_finite_weights() {
    let parametrization = Parametrization::mup(1);
    let config = ModelConfig { d_ff: Some(8), init: Some(Scheme::kaiming()), parametrization, ..tiny() };
    let (_, table) = config.build(1, &Device::flex()).unwrap();
    for entry in table.iter().filter(|entry| entry.role().is_matrix()) {
        assert!(entry.init_std.is_finite() && entry.init_std > 0.0, "{}", entry.path);
    }
    // Hidden: the base model's sqrt(2 / (fan_in / m)) times 1/sqrt(m) equals sqrt(2 / fan_in).
    let down = table.iter().find(|entry| entry.path == "blocks.0.mlp.down.weight").unwrap();
    assert!((down.init_std - (2.0f64 / 8.0).sqrt()).abs() < 1e-12);
}

#[test]
fn zero_writers_start_every_block_as_the_identity_and_learn() {
    let device = Device::flex().autodiff();
    let (model, table) = ModelConfig { zero_writers: true, ..tiny() }.build(1, &device).unwrap();
    let mut stream = Vec::new();
    let logits = model.forward_observed(tokens(2, 12, &device), &mut |_, x| stream.push(host(x.clone())));
    assert_eq!(stream[0], stream[3], "three blocks that write nothing");
    let gradients = Gradients::backward(&cross_entropy(logits, tokens(2, 12, &device), None), &model);
    for (entry, gradient) in table.iter().zip(gradients.iter()) {
        let norm = gradient.unwrap().clone().abs().sum().into_scalar::<f32>();
        if entry.role().writes_stream() {
            assert_eq!(entry.init_std, 0.0);
            assert!(norm > 0.0, "{} would never move", entry.path);
        }
    }
}

/// What would give a weight other factors than those of its place does not come out as a table.
#[test]
fn a_weight_made_for_another_place_is_no_weight_of_the_model() {
    use unitgain_model::weights::{Builder, Source, Start};
    use unitgain_model::{Linear, Norm};
    #[derive(Module, Debug)]
    struct Part {
        mix: Linear,
        norm: Norm,
    }
    #[derive(Module, Debug)]
    struct Whole {
        blocks: Vec<Part>,
    }
    let plan = tiny().plan(11).unwrap();
    let device = Device::flex();
    let d = plan.shape.width;
    let mix = |builder: &mut Builder<'_>| builder.linear("mix", Role::MlpOut, [d, d], Start::default());
    let norm = |builder: &mut Builder<'_>| builder.norm(&NormConfig::rms_norm(), d, Role::Norm);
    let said = |build: &dyn Fn(&mut Builder<'_>) -> Part| {
        let mut builder = Builder::new(&plan, Source::Draw { seed: 1 }, &device);
        let finish = std::panic::AssertUnwindSafe(|| {
            let part = build(&mut builder);
            builder.finish(Whole { blocks: vec![part] }).map(|(_, table)| table.entries().len())
        });
        std::panic::catch_unwind(finish).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
        })
    };
    assert_eq!(said(&|b| b.within_block(0, |b| Part { mix: mix(b), norm: norm(b) })), Ok(Ok(2)));
    type Build<'a> = &'a dyn Fn(&mut Builder<'_>) -> Part;
    let cases: [(Build<'_>, &str); 5] = [
        (&|b| b.within("blocks.0", |b| Part { mix: mix(b), norm: norm(b) }), "within_block"),
        (&|b| Part { mix: b.within_block(0, mix), norm: norm(b) }, "within_block"),
        (&|b| b.within_block(1, |b| Part { mix: mix(b), norm: norm(b) }), "blocks.1.mix.weight"),
        (&|b| b.within_block(99, |b| Part { mix: mix(b), norm: norm(b) }), "n_layers"),
        (&|b| b.within_block(0, |b| Part { norm: (mix(b), norm(b)).1, mix: mix(b) }), "not in the model"),
    ];
    for (build, expected) in cases {
        let problem = said(build).unwrap_err();
        assert!(problem.contains(expected), "{problem:?} does not say {expected:?}");
    }
    // And tensors whose numbers are fewer than their shape says are a message.
    let (model, _) = plan.build(Source::Draw { seed: 1 }, &device).unwrap();
    let mut tensors: unitgain_model::weights::Tensors =
        weights(&model).into_iter().map(|(path, shape, values)| (path, (shape, values))).collect();
    tensors.get_mut("embedding").unwrap().1.pop();
    let problem = plan.build(Source::Load(&tensors), &device).map(|_| ()).unwrap_err().to_string();
    assert!(problem.contains("embedding is"), "{problem}");
}
