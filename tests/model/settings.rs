//! Output multiplier, bias of the head, per-head attention scale, and gains of activations.

use crate::common::{host, max_difference, parameter_gradients, values};
use crate::train::run::resumed_equals_unbroken;
use burn::tensor::{Device, Int, Tensor, TensorData};
use unitgain_init::Gain;
use unitgain_init::gain::Function;
use unitgain_model::weights::of as weights;
use unitgain_model::{
    Activation, AttentionScale, Form, ModelConfig, NormConfig, Observe, Parametrization, Point, Role, Scheme,
    UnitScaling, Update, Variant, cross_entropy,
};
use unitgain_train::{Batch, ClipConfig, OptimizerConfig, RunConfig, Trainer, read_rows};

#[test]
fn a_gain_of_a_configuration_is_in_the_weights() {
    let std = |init: &str| {
        let text = format!("[model]\nd_model = 64\nn_layers = 1\nvocab_size = 8\ninit = {init}\n[data]\ntask = 'copy'");
        let scheme = RunConfig::parse(&text, "test", &[]).map_err(|e| e.to_string())?.model.init.unwrap();
        scheme.check().map_err(|fault| fault.to_string())?;
        let spec = unitgain_init::Spec {
            role: Role::MlpIn,
            fan_in: 64.0,
            fan_out: 256.0,
            blocks: 1,
            block: Some(0),
            width: 64.0,
        };
        Ok::<f64, String>(scheme.std(&spec).unwrap())
    };
    let close = |init: &str, want: f64| {
        let got = std(init).unwrap();
        assert!((got / want - 1.0).abs() < 1e-9, "{init}: {got} {want}");
    };
    let elu = "{ kind = 'elu', alpha = 0.5 }";
    close(
        &format!("{{ kind = 'lecun', gain = {{ kind = 'second_moment', activation = {elu} }} }}"),
        1.365594858838 / 8.0,
    );
    let backward = format!("gain = {{ kind = 'backward', activation = {elu} }}");
    close(&format!("{{ kind = 'kaiming', fan = 'fan_out', {backward} }}"), 1.358282610083 / 16.0);
    close("{ kind = 'kaiming', gain = { kind = 'torch', activation = { kind = 'leaky_relu', slope = 1.0 } } }", 0.125);
    close("{ kind = 'kaiming', gain = 3 }", 3.0 / 8.0);
    close("{ kind = 'kaiming', slope = 1.0 }", 0.125);
    for (init, expected) in [
        ("{ kind = 'kaiming', slope = 0.5, gain = 2 }".to_string(), "slope = 0.5: must be left out"),
        ("{ kind = 'lecun', gain = { kind = 'torch', activation = 'relu6' } }".into(), "PyTorch's table"),
        ("{ kind = 'lecun', gain = { kind = 'backward', activation = 'relu7' } }".into(), "relu6"),
        (
            "{ kind = 'lecun', gain = { kind = 'backward', activation = { kind = 'gelu', slope = 1.0 } } }".into(),
            "activation.slope: unknown key. There are no keys here",
        ),
        ("{ kind = 'lecun', gain = { kind = 'backward', activation = { kind = 'elu', beta = 1.0 } } }".into(), "beta"),
        (
            "{ kind = 'lecun', gain = { kind = 'backward', activation = { kind = 'dyt', alpha = 0.0 } } }".into(),
            "alpha = 0",
        ),
        (
            "{ kind = 'lecun', gain = { kind = 'backward', activation = { kind = 'elu', alpha = nan } } }".into(),
            "alpha = NaN",
        ),
    ] {
        let said = std(&init).unwrap_err();
        assert!(said.contains(expected), "{init}: {said:?} does not say {expected:?}");
    }
}

fn tiny() -> ModelConfig {
    ModelConfig {
        vocab_size: Some(11),
        context: 12,
        d_model: 32,
        n_layers: 2,
        n_heads: 4,
        init: Some(Scheme::TorchLinear { embedding_std: 1.0 }),
        ..ModelConfig::default()
    }
}

/// All parametrizations with an output multiplier, with base width 8 and one block.
fn with_multiplier(output_multiplier: f64) -> [Parametrization; 6] {
    let (base_width, base_depth, base_head_dim) = (8, 1, None);
    let mup = |form| Parametrization::Mup { base_width, base_head_dim, output_multiplier, form };
    [
        mup(Form::Table8),
        mup(Form::Table3),
        mup(Form::Table9),
        Parametrization::Spectral { base_width, base_head_dim, output_multiplier },
        Parametrization::DepthMup { base_width, base_depth, base_head_dim, output_multiplier },
        Parametrization::CompleteP { base_width, base_depth, base_head_dim, output_multiplier, alpha: 0.75 },
    ]
}

fn batch(step: i32) -> Batch {
    let ids = |shift: i32| (0..36).map(|i| (i * i + 3 * i * step + shift) % 11).collect();
    Batch { rows: 3, time: 12, tokens: ids(0), targets: ids(1 + step), weights: None }
}

/// `output_mult x / m W + b`, as microsoft/mup's `MuReadout`, and the gradient of the bias.
#[test]
fn logits_are_the_multiplied_head_and_its_bias() {
    let device = Device::flex();
    let all = with_multiplier(2.5).into_iter().map(|p| (p, 2.5)).chain([(Parametrization::Standard {}, 1.0)]);
    for ((parametrization, alpha), tie_embeddings) in all.flat_map(|p| [(p, false), (p, true)]) {
        if tie_embeddings && !parametrization.ties_embeddings() {
            continue;
        }
        let config = ModelConfig { parametrization, tie_embeddings, head_bias: true, ..tiny() };
        let (model, table) = config.build(3, &device.clone().autodiff()).unwrap();
        let plain = ModelConfig { head_bias: false, ..config.clone() }.build(3, &device).unwrap().1;
        let extra: Vec<_> = table.iter().filter(|e| !plain.iter().any(|p| p.path == e.path)).collect();
        let [bias] = extra[..] else { panic!("{extra:?}") };
        assert_eq!((bias.role(), bias.shape.as_slice(), bias.block()), (Role::Bias, [11].as_slice(), None));
        let b = values(&model, &bias.path);
        assert!(b.iter().any(|b| *b != 0.0), "torch_linear draws biases");

        let head_path = if tie_embeddings { "embedding" } else { "head.weight" };
        let head = values(&model, head_path);
        let w = |i: usize, token: usize| if tie_embeddings { head[token * 32 + i] } else { head[i * 11 + token] };
        // 32 over the base width of 8.
        let of_form = match parametrization {
            Parametrization::Mup { form: Form::Table9, .. } => 0.5,
            Parametrization::Mup { form: Form::Table3, .. } | Parametrization::Spectral { .. } => 1.0,
            Parametrization::Standard {} => 1.0,
            _ => 0.25,
        };
        let Batch { tokens, targets, .. } = batch(0);
        let ids = |ids: Vec<i32>| Tensor::<2, Int>::from_data(TensorData::new(ids, [3, 12]), &device);
        let (mut x, mut seen) = (Vec::new(), Vec::new());
        let mut observe = |point: Point, t: &Tensor<2>| match point {
            Point::FinalNorm => x = host(t.clone()),
            Point::Logits => seen = host(t.clone()),
            Point::Embedding | Point::Block(_) => {}
        };
        let logits = model.forward_probed(ids(tokens), &Observe::new(&mut observe));
        let mut softmax_minus_one_hot = [0.0f64; 11];
        for (row, target) in targets.iter().enumerate() {
            let want: Vec<f64> = (0..11)
                .map(|token| {
                    let sum: f64 = (0..32).map(|i| f64::from(x[row * 32 + i]) * f64::from(w(i, token))).sum();
                    alpha * of_form * sum + f64::from(b[token])
                })
                .collect();
            let normalizer: f64 = want.iter().map(|z| z.exp()).sum();
            for (token, z) in want.iter().enumerate() {
                let got = f64::from(seen[row * 11 + token]);
                assert!((got - z).abs() < 1e-5, "{parametrization:?} {tie_embeddings}: {got} {z}");
                let hit = f64::from(u8::from(*target == token as i32));
                softmax_minus_one_hot[token] += (z.exp() / normalizer - hit) / targets.len() as f64;
            }
        }
        let gradients = cross_entropy(logits, ids(targets), None).backward();
        let of_bias = parameter_gradients(&model, &gradients).into_iter().find(|(p, _)| *p == bias.path).unwrap().1;
        for (got, want) in of_bias.iter().zip(softmax_minus_one_hot) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{parametrization:?}: {got} {want}");
        }
    }
}

/// The rows of microsoft/mup 1.0.0 for `MuReadout.bias`, which has no width dimension: factor 1 on learning rate and
/// decay under Adam and SGD and, after `set_base_shapes`, the base model's size.
#[test]
fn the_bias_of_the_head_has_the_factors_of_no_width() {
    let at = |d_model: usize, parametrization, more: fn(ModelConfig) -> ModelConfig| {
        let config = ModelConfig { parametrization, d_model, head_bias: true, tie_embeddings: false, ..tiny() };
        let (model, table) = more(config).build(1, &Device::flex()).unwrap();
        (values(&model, "head.bias"), table)
    };
    let same = |c: ModelConfig| c;
    for parametrization in with_multiplier(3.0) {
        let (narrow, _) = at(8, parametrization, same);
        let (wide, table) = at(64, parametrization, same);
        assert_eq!(narrow, wide, "{parametrization:?}: its start does not depend on the width");
        assert!(narrow.iter().all(|b| b.abs() <= 8f32.powf(-0.5)) && narrow.iter().any(|b| b.abs() > 64f32.powf(-0.5)));
        for update in [Update::Normalized, Update::Proportional] {
            let table = table.clone().for_updates(|_| update);
            let entry = table.iter().find(|e| e.path == "head.bias").unwrap();
            let f = entry.factors;
            assert_eq!((f.init, f.forward, f.lr, f.decay, f.eps), (1.0, 1.0, 1.0, 1.0, 1.0), "{parametrization:?}");
        }
        let zeros = at(64, parametrization, |c| ModelConfig { zero_readout: true, ..c }).0;
        assert!(zeros.iter().all(|b| *b == 0.0), "{parametrization:?}: the first logits are 0");
    }
    // A bias inside a block grows with the width.
    let hidden = ModelConfig { parametrization: Parametrization::mup(8), bias: true, d_model: 64, ..tiny() };
    let table = hidden.build(1, &Device::flex()).unwrap().1.for_updates(|_| Update::Proportional);
    assert_eq!(table.iter().find(|e| e.path == "blocks.0.mlp.up.bias").unwrap().factors.lr, 8.0);
}

#[test]
fn the_adaptive_clip_leaves_the_bias_of_the_head_out() {
    for tie_embeddings in [false, true] {
        let config = ModelConfig { head_bias: true, tie_embeddings, ..tiny() };
        let moved = |clip: ClipConfig| {
            let sgd = OptimizerConfig::Sgd { lr: 0.5, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
            let trainer = Trainer::new(&config, sgd, clip, 1, &Device::flex()).unwrap();
            let path = if tie_embeddings { "tied_head_bias" } else { "head.bias" };
            let up = "blocks.0.mlp.up.weight";
            let (trainer, _) = trainer.step(&[batch(0)], 0.5, false);
            (values(&trainer.model, path), values(&trainer.model, up))
        };
        let (free, hidden) = moved(ClipConfig::None {});
        let (clipped, clipped_hidden) = moved(ClipConfig::Adaptive { lambda: 1e-6, eps: 1e-3 });
        assert_eq!(free, clipped);
        assert_ne!(hidden, clipped_hidden);
    }
}

fn losses(model: &ModelConfig, optimizer: OptimizerConfig) -> Vec<f32> {
    let mut trainer = Trainer::new(model, optimizer, 0.0.into(), 1, &Device::flex()).unwrap();
    let mut rows = Vec::new();
    for step in 0..4 {
        let (next, row) = trainer.step(&[batch(step)], optimizer.lr(), false);
        trainer = next;
        rows.push(row);
    }
    read_rows(&rows).iter().map(|row| row.loss).collect()
}

/// At four times the base width all factors are powers of two, so equality is exact.
#[test]
fn the_tables_of_mup_train_alike_with_an_output_multiplier_and_a_bias() {
    let optimizers = [
        OptimizerConfig::Sgd { lr: 0.05, momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        OptimizerConfig::Adam { lr: 1e-2, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.0 },
    ];
    for optimizer in optimizers {
        let of = |alpha: f64, index: usize| {
            let parametrization = with_multiplier(alpha)[index];
            losses(&ModelConfig { parametrization, tie_embeddings: false, head_bias: true, ..tiny() }, optimizer)
        };
        let table_8 = of(3.0, 0);
        assert!(table_8.iter().all(|loss| loss.is_finite()));
        assert_eq!([of(3.0, 1), of(3.0, 2)], [table_8.clone(), table_8.clone()]);
        assert_ne!(of(1.0, 0), table_8, "the multiplier does something");
    }
}

#[test]
fn what_has_no_output_multiplier_says_why() {
    let parse = |table: &str| {
        let text = format!(
            "[model]\nvocab_size = 8\ntie_embeddings = false\nparametrization = {table}\n[data]\ntask = 'copy'"
        );
        let config = RunConfig::parse(&text, "test", &[]).map_err(|e| e.to_string())?;
        config.plan().map(|model| model.parametrization).map_err(|e| e.to_string())
    };
    for (table, parts) in [
        ("{ kind = 'u_mup', output_multiplier = 2.0 }", ["output_multiplier", "set loss"]),
        ("{ kind = 'standard', output_multiplier = 2.0 }", ["output_multiplier", "every factor of it is 1"]),
        ("{ kind = 'u_mup', los = 2.0 }", ["unknown key", "loss"]),
        ("{ kind = 'standard', base_width = 2 }", ["unknown key", "base_width"]),
        ("{ kind = 'mup', base_width = 8, output_multiplier = 0.0 }", ["output_multiplier = 0", "must be"]),
        ("{ kind = 'mup', base_width = 8, output_multiplier = nan }", ["output_multiplier", "must be"]),
    ] {
        let said = parse(table).unwrap_err();
        assert!(parts.iter().all(|part| said.contains(part)), "{table}: {said:?}");
    }
    let unit = parse("{ kind = 'u_mup', loss = 2 }").unwrap();
    assert_eq!(unit, Parametrization::UMup(UnitScaling { loss: 2.0, ..UnitScaling::default() }));
    assert_eq!(parse("'standard'").unwrap(), Parametrization::Standard {});
    let mup = parse("{ kind = 'mup', base_width = 64, output_multiplier = 4 }").unwrap();
    assert_eq!(mup.output_multiplier(), 4.0);
}

/// Until training, per-head scales equal the shared one.
#[test]
fn a_plan_has_the_vocabulary_of_its_configuration() {
    let config = ModelConfig { vocab_size: Some(11), ..ModelConfig::default() };
    assert_eq!(config.plan(11).unwrap().vocabulary, 11);
    assert_eq!(ModelConfig { vocab_size: None, ..config.clone() }.plan(12).unwrap().vocabulary, 12);
    let message = config.plan(12).unwrap_err().to_string();
    assert!(message.contains("vocab_size = 11") && message.contains("the vocabulary of the plan, 12"), "{message}");
}

#[test]
fn an_attention_scale_of_each_head_starts_as_that_of_the_block() {
    let with = |per_head| {
        let attention_scale = Some(AttentionScale::Learned { init: Some(3.0), per_head });
        let qk_norm = NormConfig::L2Norm { eps: 1e-6 };
        let parametrization = Parametrization::mup(8);
        ModelConfig { attention_scale, qk_norm, parametrization, n_kv_heads: Some(2), ..tiny() }
    };
    let one = with(false).build(1, &Device::flex()).unwrap();
    let each = with(true).build(1, &Device::flex()).unwrap();
    let tokens = || Tensor::<2, Int>::from_data(TensorData::new(batch(0).tokens, [3, 12]), &Device::flex());
    assert_eq!(host(one.0.forward(tokens())), host(each.0.forward(tokens())));
    let path = "blocks.1.attention.qk_norm.logit_scale";
    let entry = |table: &unitgain_model::ParamTable| table.iter().find(|e| e.path == path).unwrap().clone();
    assert_eq!(entry(&one.1).shape, [1]);
    let own = entry(&each.1);
    assert_eq!((own.shape.as_slice(), own.role()), ([4].as_slice(), Role::HeadScale));
    // A constant number of heads does not grow with the width; with a constant head size it does.
    assert_eq!(own.factors.lr, 1.0);
    let parametrization =
        Parametrization::Mup { base_width: 8, base_head_dim: Some(8.0), output_multiplier: 1.0, form: Form::Table8 };
    let (_, table) = ModelConfig { parametrization, ..with(true) }.build(1, &Device::flex()).unwrap();
    assert_eq!(entry(&table.for_updates(|_| Update::Proportional)).factors.lr, 4.0);
    // Composed operations agree with fused ones, and the heads diverge.
    let sgd = OptimizerConfig::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let fused = losses(&with(true), sgd);
    let composed = unitgain_kernels::composed(|| losses(&with(true), sgd));
    assert!(max_difference(&fused, &composed) < 1e-4, "{fused:?} {composed:?}");
    assert_ne!(fused, losses(&with(false), sgd));
}

/// The new weights are trained and saved, and an interrupted run resumes to the same numbers.
#[test]
fn the_new_weights_train_and_resume() {
    for tied in [true, false] {
        let settings = [
            format!("model.tie_embeddings={tied}"),
            "model.head_bias=true".into(),
            "model.attention_scale={ kind = 'learned', per_head = true }".into(),
            "model.weight_norm={ kind = 'weight_norm', over = 'matrix' }".into(),
        ];
        let (config, checkpoint) = resumed_equals_unbroken(&format!("new-weights-{tied}"), &settings);
        let (config, _) = config.prepare().unwrap();
        let (model, table) = config.model.build(config.seed, &Device::flex()).unwrap();
        let start = weights(&model);
        let end = weights(&checkpoint.load_model(model, &table).unwrap());
        let bias = if tied { "tied_head_bias" } else { "head.bias" };
        for path in [bias, "blocks.0.attention.qk_norm.logit_scale", "blocks.0.mlp.up.norm.WeightNorm.g"] {
            let of = |all: &[(String, Vec<usize>, Vec<f32>)]| all.iter().find(|(p, ..)| p == path).unwrap().clone();
            let ((_, shape, before), (.., after)) = (of(&start), of(&end));
            let moved = before.iter().zip(&after).all(|(a, b)| a != b);
            assert!(moved, "{path} {shape:?}: {before:?} {after:?}");
        }
    }
}

#[test]
fn gains_of_activations_are_those_of_their_moments() {
    for activation in Activation::all() {
        let phi = |z: f64| match activation {
            Activation::Relu => z.max(0.0),
            Activation::ReluSquared => z.max(0.0).powi(2),
            Activation::Gelu | Activation::GeGlu => z / 2.0 * (1.0 + libm::erf(z / 2f64.sqrt())),
            Activation::GeluTanh | Activation::GeGluTanh => {
                z / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z.powi(3))).tanh())
            }
            Activation::Silu | Activation::SwiGlu => z / (1.0 + (-z).exp()),
        };
        let mean = |f: &dyn Fn(f64) -> f64| {
            let density = |z: f64| (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
            (-12_000..=12_000).map(|i| f64::from(i) / 1000.0).map(|z| f(phi(z)) * density(z) / 1000.0).sum::<f64>()
        };
        let (first, second) = (mean(&|y| y), mean(&|y| y * y));
        let variance = if activation.is_gated() { second } else { second - first * first };
        // The table of timm has fewer digits, and one gain for both forms of gelu.
        let bound = if activation.is_gated() || activation == Activation::ReluSquared { 1e-6 } else { 1e-3 };
        assert!((activation.gain() * variance.sqrt() - 1.0).abs() < bound, "{activation:?}: {}", variance.powf(-0.5));
        assert!((activation.unit_gain(1.0) * second.sqrt() - 1.0).abs() < 1e-6, "{activation:?}");
    }
}

/// The inverse direction: moments under a normal distribution, and closed forms where they exist.
#[test]
fn gains_are_their_closed_forms() {
    let erf = libm::erf;
    let cdf = |x: f64| 0.5 * (1.0 + erf(x / 2f64.sqrt()));
    let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let close = |what: &str, got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-11, "{what}: {got} {want}");
    let tail = 1.0 - cdf(6.0);
    let relu6 = Function::Relu6 {};
    close("relu6", relu6.moments().second, cdf(6.0) - 0.5 - 6.0 * density(6.0) + 36.0 * tail);
    close("relu6'", relu6.second_moment_of_slope(), cdf(6.0) - 0.5);
    for slope in [-1.0, 0.0, 0.3, 2.0] {
        let leaky = Function::LeakyRelu { slope };
        close("leaky", leaky.moments().second, (1.0 + slope * slope) / 2.0);
        close("leaky'", leaky.second_moment_of_slope(), (1.0 + slope * slope) / 2.0);
        close("torch", Gain::Torch { activation: leaky }.value().unwrap(), leaky.moments().second.powf(-0.5));
    }
    for alpha in [0.1f64, 1.0, 3.0] {
        let elu = Function::Elu { alpha };
        let (once, twice) = (0.5f64.exp() * cdf(-1.0), 2f64.exp() * cdf(-2.0));
        close("elu", elu.moments().second, 0.5 + alpha * alpha * (twice - 2.0 * once + 0.5));
        close("elu'", elu.second_moment_of_slope(), 0.5 + alpha * alpha * twice);
    }
    let (p, second) = (2.0 * cdf(3.0) - 1.0, 2.0 * cdf(3.0) - 1.0 - 6.0 * density(3.0));
    let fourth = 3.0 * second - 54.0 * density(3.0);
    let above = 1.0 - cdf(3.0) + 3.0 * density(3.0);
    close("hardswish", Function::Hardswish {}.moments().second, (fourth + 9.0 * second) / 36.0 + above);
    close(
        "hardswish'",
        Function::Hardswish {}.second_moment_of_slope(),
        (4.0 * second + 9.0 * p) / 36.0 + 1.0 - cdf(3.0),
    );
    // A steep tanh is a step: E f^2 = 1 - 2 phi(0) / alpha, E f'^2 = 4/3 alpha phi(0), up to 1 / alpha^2.
    let step = Function::Dyt { alpha: 1e5 };
    assert!((step.moments().second - (1.0 - 2.0 * density(0.0) / 1e5)).abs() < 1e-13);
    assert!((step.second_moment_of_slope() / (4.0 / 3.0 * 1e5 * density(0.0)) - 1.0).abs() < 1e-9);
    assert_eq!(Function::Dyt { alpha: 1.0 }.at(0.7), Function::Tanh {}.at(0.7));
}

/// Away from kinks, f'(z) is the limit of (f(z + h) - f(z - h)) / 2h.
#[test]
fn slopes_are_those_of_the_functions() {
    let more = [Function::LeakyRelu { slope: -0.4 }, Function::Elu { alpha: 2.5 }, Function::Dyt { alpha: 3.0 }];
    for function in Function::all().into_iter().chain(more) {
        for z in [-7.3, -3.1, -2.9, -1.0, -0.2, 0.1, 0.9, 2.8, 3.2, 5.9, 6.1] {
            let h = 1e-5;
            let difference = (function.at(z + h) - function.at(z - h)) / (2.0 * h);
            let slope = function.slope(z);
            assert!((slope - difference).abs() < 1e-8 * (1.0 + slope.abs()), "{function:?} {z}: {slope} {difference}");
        }
        let json = serde_json::to_string(&function).unwrap();
        assert_eq!(serde_json::from_str::<Function>(&json).unwrap(), function, "{json}");
    }
}
