//! Fused operations against the composed ones: results and all gradients.

use crate::common::{draw, host, max_difference, parameter_gradients, shaken, test_device};
use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use unitgain_kernels::composed;
use unitgain_model::{
    Activation, AttentionScale, ModelConfig, NormConfig, Placement, Position, QkNormOver, RopeScaling, Transformer,
    Variant, cross_entropy,
    ops::{dropout, with_masks},
};
use unitgain_norms::NormSite;
use unitgain_train::{Batch, ClipConfig, DataConfig, Gradients, OptimizerConfig, Trainer, read_rows};

/// Maximum difference relative to the largest value (at least 1).
fn relative(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(1f32, |size, v| size.max(v.abs()));
    max_difference(a, b) / size
}

/// Fused and composed operations must agree on the result and on the gradients of input and parameters.
fn agree<M: Module, const D: usize>(
    what: &str,
    module: &M,
    x: &Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<D>,
    bound: f32,
) {
    let run = || {
        let x = x.clone().detach().require_grad();
        let y = forward(module, x.clone());
        let shape = y.dims();
        let n = shape.iter().product();
        let weights = draw("twins/weights", 1, n, &x.device()).reshape(shape);
        let gradients = (y.clone() * weights).sum().backward();
        let own = parameter_gradients(module, &gradients).into_iter().flat_map(|(_, g)| g).collect::<Vec<f32>>();
        [host(y), host(x.grad(&gradients).unwrap()), own]
    };
    let (fused, reference) = (run(), composed(run));
    assert_ne!(fused, reference, "{what}: nothing was fused");
    for (name, (a, b)) in ["y", "dx", "parameters"].into_iter().zip(fused.iter().zip(&reference)) {
        let difference = relative(a, b);
        assert!(difference < bound, "{what}: {name} differs by {difference}");
    }
}

/// The masks of both are the same hashes, on every backend.
#[test]
fn dropout_agrees_with_the_composed_one() {
    let of = |device: Device, sequences: usize, time: usize, width: usize, first: usize| {
        let x = (draw("twins/dropout", sequences * time, width, &device.autodiff()) + 3.0).detach().require_grad();
        let y = with_masks(7, first, || {
            // The second mask of a pass.
            dropout(x.clone(), 0.5, sequences);
            dropout(x.clone(), 0.3, sequences)
        });
        let gradients = y.clone().powi_scalar(2).sum().backward();
        [host(y), host(x.grad(&gradients).unwrap())]
    };
    for (sequences, time, width, first) in [(1, 1, 1, 0), (3, 5, 7, 2), (2, 64, 129, 1_000_000), (5, 33, 64, 0)] {
        let fused = of(Device::flex(), sequences, time, width, first);
        let dropped = fused[0].iter().filter(|y| **y == 0.0).count() as f32 / fused[0].len() as f32;
        assert!(fused[0].len() < 1000 || (dropped - 0.3).abs() < 0.05, "{dropped} of the entries are 0");
        for composed in [
            composed(|| of(Device::flex(), sequences, time, width, first)),
            of(test_device(), sequences, time, width, first),
        ] {
            for (a, b) in fused.iter().zip(&composed) {
                assert!(a.iter().zip(b).all(|(a, b)| (*a == 0.0) == (*b == 0.0)), "another mask");
                assert!(relative(a, b) < 1e-6, "{}", relative(a, b));
            }
        }
    }
}

#[test]
fn norms_agree_with_the_composed_ones_for_every_shape_and_layout() {
    let device = test_device().autodiff();
    let kinds = [
        NormConfig::LayerNorm { eps: 1e-5, gain: true, bias: true },
        NormConfig::LayerNorm { eps: 1e-5, gain: true, bias: false },
        NormConfig::RmsNorm { eps: 1e-6, gain: true, unit_offset: false },
        NormConfig::RmsNorm { eps: 1e-6, gain: true, unit_offset: true },
    ];
    for (rows, width) in [(1, 5), (3, 7), (64, 31), (517, 64), (1024, 129), (100, 384)] {
        for config in kinds {
            let norm = shaken(config.build(NormSite::of(width), &device));
            let forward = |norm: &unitgain_norms::Norm, x: Tensor<2>| norm.forward(x);
            let x = draw("twins/x", rows, width, &device) * 2.0 + 0.5;
            agree(&format!("{config:?} {rows}x{width}"), &norm, &x, forward, 2e-6);
            // A transposed input, and a gradient broadcast from one number.
            let turned = |norm: &unitgain_norms::Norm, x: Tensor<2>| norm.forward(x.transpose());
            let x = draw("twins/turned", width, rows, &device);
            agree(&format!("{config:?} {width}x{rows} transposed"), &norm, &x, turned, 2e-6);
            let expanded = || {
                let x = x.clone().detach().require_grad();
                host(x.grad(&norm.forward(x.clone().transpose()).mean().backward()).unwrap())
            };
            assert!(relative(&expanded(), &composed(expanded)) < 2e-6);
        }
    }
}

#[test]
fn without_a_graph_the_fused_forward_is_the_same() {
    let device = test_device().autodiff();
    for config in [NormConfig::layer_norm(), NormConfig::rms_norm()] {
        let norm = shaken(config.build(NormSite::of(33), &device));
        let x = draw("twins/plain", 65, 33, &device);
        assert_eq!(host(norm.forward(x.clone())), host(norm.valid().forward(x.inner())));
    }
}

#[test]
fn other_types_than_f32_are_composed() {
    let device = Device::flex();
    let norm = NormConfig::layer_norm().build(NormSite::of(33), &device);
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let x = draw("twins/low", 5, 33, &device).cast(dtype);
        let (a, b) = (norm.forward(x.clone()), composed(|| norm.forward(x)));
        assert_eq!(a.dtype(), DType::from(dtype));
        assert_eq!(host(a.cast(FloatDType::F32)), host(b.cast(FloatDType::F32)));
    }
}

fn tokens(batch: usize, time: usize, vocabulary: usize, device: &Device) -> Tensor<2, Int> {
    let values: Vec<i32> = (0..batch * time).map(|i| ((i * 7 + i * i % 5) % vocabulary) as i32).collect();
    Tensor::from_data(TensorData::new(values, [batch, time]), device)
}

/// Loss and all gradients of a model.
fn gradients(model: &Transformer, batch: usize, time: usize, device: &Device) -> (f32, Vec<Vec<f32>>) {
    let x = tokens(batch, time, 11, device);
    let loss = cross_entropy(model.forward(x.clone()), x, None);
    let gradients = Gradients::backward(&loss, model);
    let gradients = gradients.iter().map(|g| host(g.expect("every parameter has a gradient").clone()));
    (loss.into_scalar::<f32>(), gradients.collect())
}

/// Attention, linear layers, activations and loss, within models of many shapes.
#[test]
fn models_agree_with_the_composed_ones_for_every_shape() {
    let device = Device::flex().autodiff();
    let base = ModelConfig {
        vocab_size: Some(11),
        context: 130,
        d_model: 24,
        n_layers: 1,
        n_heads: 4,
        head_dim: Some(6),
        d_ff: Some(37),
        ..ModelConfig::default()
    };
    let mut configs = vec![base.clone()];
    for activation in Activation::all() {
        for bias in [false, true] {
            configs.push(ModelConfig { activation, bias, tie_embeddings: bias, ..base.clone() });
        }
    }
    for (n_heads, n_kv_heads, head_dim) in [(1, 1, 24), (4, 2, 6), (4, 1, 2), (3, 3, 10), (6, 2, 14)] {
        for attention_softcap in [0.0, 2.0] {
            for position in [Position::rope(100.0), Position::Learned {}] {
                let (n_kv_heads, head_dim) = (Some(n_kv_heads), Some(head_dim));
                configs.push(ModelConfig {
                    n_heads,
                    n_kv_heads,
                    head_dim,
                    attention_softcap,
                    position,
                    d_model: 25,
                    ..base.clone()
                });
            }
        }
    }
    for window in [1, 2, 63, 64, 65, 129] {
        for attention_softcap in [0.0, 2.0] {
            let position = Position::Rope { theta: 100.0, fraction: 0.5, scaling: RopeScaling::Linear { factor: 2.0 } };
            let (n_kv_heads, head_dim) = (Some(2), Some(8));
            configs.push(ModelConfig { window, attention_softcap, position, n_kv_heads, head_dim, ..base.clone() });
        }
    }
    let learned = Some(AttentionScale::Learned { init: Some(3.0), per_head: false });
    for qk_norm_over in [QkNormOver::Head, QkNormOver::Width] {
        let qk_norm = NormConfig::rms_norm();
        let position = Position::rope(100.0);
        configs.push(ModelConfig { qk_norm, qk_norm_over, position, attention_scale: learned, ..base.clone() });
    }
    for config in &configs {
        let (model, table) = config.build(1, &device).unwrap();
        let model = shaken(model);
        for (batch, time) in [(1, 1), (1, 5), (3, 64), (2, 65), (1, 130)] {
            let run = || gradients(&model, batch, time, &device);
            let ((loss, fused), (reference_loss, reference)) = (run(), composed(run));
            assert!((loss - reference_loss).abs() < 1e-5, "{config:?} {batch}x{time}: {loss} {reference_loss}");
            let size = reference.iter().flatten().fold(0f32, |size, g| size.max(g.abs()));
            for ((entry, a), b) in table.iter().zip(&fused).zip(&reference) {
                let difference = max_difference(a, b) / size;
                assert!(difference < 2e-5, "{} {batch}x{time} differs by {difference}: {config:?}", entry.path);
            }
            assert!(time < 64 || fused != reference, "nothing was fused");
        }
    }
}

#[test]
fn a_weighted_loss_agrees_with_the_composed_one() {
    let device = Device::flex().autodiff();
    for (batch, time, vocabulary) in [(1, 1, 2), (3, 7, 65), (4, 64, 1000)] {
        let logits = draw("twins/logits", batch * time, vocabulary, &device) * 3.0;
        let targets = tokens(batch, time, vocabulary, &device);
        let mask: Vec<f32> = (0..batch * time).map(|i| if i % 3 == 1 { 0.0 } else { 1.0 + (i % 2) as f32 }).collect();
        let mask = Tensor::<2>::from_data(TensorData::new(mask, [batch, time]), &device);
        for weights in [None, Some(mask)] {
            let run = || {
                let x = logits.clone().detach().require_grad();
                let shaped = x.clone().reshape([batch, time, vocabulary]);
                let loss = cross_entropy(shaped, targets.clone(), weights.clone()) * 0.5;
                let gradient = host(x.grad(&loss.backward()).unwrap());
                (loss.into_scalar::<f32>(), gradient)
            };
            let ((loss, gradient), (reference_loss, reference)) = (run(), composed(run));
            assert!((loss - reference_loss).abs() < 1e-5 * (1.0 + reference_loss.abs()), "{loss} {reference_loss}");
            assert!(max_difference(&gradient, &reference) < 1e-6);
        }
    }
}

#[test]
fn adams_update_agrees_with_the_composed_one() {
    let config =
        ModelConfig { vocab_size: Some(8), context: 8, d_model: 16, n_layers: 2, n_heads: 2, ..ModelConfig::default() };
    let task = DataConfig::default().load(8).unwrap();
    let config = ModelConfig { vocab_size: Some(task.vocab_size()), ..config };
    let kinds = [
        OptimizerConfig::Adamw { lr: 1e-2, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1.into() },
        OptimizerConfig::Adam { lr: 1e-2, betas: [0.9, 0.999], eps: 1e-6, weight_decay: 0.1 },
        OptimizerConfig::Sgd { lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.1 },
        OptimizerConfig::Lion { lr: 1e-3, betas: [0.9, 0.99], weight_decay: 0.1.into() },
    ];
    for optimizer in kinds {
        for clip in [ClipConfig::None {}, ClipConfig::GlobalNorm { max: 0.05 }] {
            let run = || {
                let mut trainer = Trainer::new(&config, optimizer, clip, 1, &Device::flex()).unwrap();
                let mut rows = Vec::new();
                for step in 0..3 {
                    let (next, row) = trainer.step(&[task.batch(1, step, 0..4)], 1e-2, false);
                    trainer = next;
                    rows.push(row);
                }
                let rows = read_rows(&rows);
                let weights = unitgain_model::weights::of(&trainer.model);
                let squares: Vec<f32> = rows.iter().flat_map(|row| row.squares.clone()).collect();
                let norms: Vec<f32> = rows.iter().map(|row| row.grad_norm_clipped).collect();
                (weights.into_iter().flat_map(|(_, _, values)| values).collect::<Vec<f32>>(), squares, norms)
            };
            let (fused, reference) = (run(), composed(run));
            // Lion steps along the sign of a sum that may almost cancel.
            let bound = if matches!(optimizer, OptimizerConfig::Lion { .. }) { 7e-3 } else { 1e-4 };
            assert!(max_difference(&fused.0, &reference.0) < bound, "{optimizer:?} {clip:?}");
            assert!(
                relative(&fused.1, &reference.1) < 1e-3 && relative(&fused.2, &reference.2) < 1e-3,
                "{optimizer:?} {clip:?}"
            );
        }
    }
}

#[test]
fn over_fifty_steps_the_losses_are_the_same_for_every_placement() {
    let task = DataConfig::Markov { vocab_size: 8, order: 1, branching: 2, seed: 1 }.load(16).unwrap();
    for placement in Placement::all() {
        let config = ModelConfig {
            vocab_size: Some(8),
            context: 16,
            d_model: 16,
            n_layers: 2,
            n_heads: 2,
            placement,
            ..ModelConfig::default()
        };
        let run = || {
            let clip = ClipConfig::default();
            let mut trainer = Trainer::new(&config, OptimizerConfig::default(), clip, 1, &Device::flex()).unwrap();
            let batch = |step| -> Vec<Batch> { vec![task.batch(1, step, 0..4)] };
            let mut rows = Vec::new();
            for step in 0..50 {
                let (next, row) = trainer.step(&batch(step), 3e-3, false);
                trainer = next;
                rows.push(row);
            }
            read_rows(&rows).iter().map(|row| row.loss).collect::<Vec<f32>>()
        };
        let (fused, reference) = (run(), composed(run));
        let difference = max_difference(&fused, &reference);
        assert!(difference < 2e-3, "{placement:?}: {difference}");
        assert!(max_difference(&fused[..5], &reference[..5]) < 1e-5, "{placement:?}");
    }
}
