//! Models with bf16 branches against f32.

use crate::common::{generator, host};
use crate::model::whole::{tiny, tokens, varied};
use burn::tensor::{DType, Device, Tensor};
use unitgain_model::{Cache, ModelConfig, Point, Precision, cross_entropy};
use unitgain_train::{ClipConfig, DataConfig, Gradients, OptimizerConfig, Trainer, read_rows};

fn rms(x: &[f32]) -> f32 {
    (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt()
}

/// rms of the difference relative to the rms.
fn error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let difference: Vec<f32> = got.iter().zip(want).map(|(a, b)| a - b).collect();
    rms(&difference) / rms(want)
}

/// bf16 has 8 binary digits: a relative error of up to 2^-9 per rounding.
const ROUNDING: std::ops::Range<f32> = 1e-5..5e-2;

#[test]
fn bf16_is_f32_but_for_its_rounding() {
    let device = Device::flex().autodiff();
    // The two forms of u-muP's head differ by sqrt(vocabulary) / width.
    let unit = ModelConfig {
        d_model: 512,
        n_layers: 1,
        tie_embeddings: false,
        parametrization: unitgain_model::Parametrization::u_mup(),
        ..tiny()
    };
    for config in varied().into_iter().chain([unit]) {
        let gradients = |precision| {
            let (model, _) = config.build(1, &device).unwrap();
            let model = model.with_precision(precision);
            let mut stream = Vec::new();
            let logits = model.forward_observed(tokens(3, 12, &device), &mut |point, x| {
                assert_eq!(x.dtype(), DType::F32);
                if point == Point::FinalNorm {
                    stream = host(x.clone());
                }
            });
            assert_eq!(logits.dtype(), DType::F32);
            let loss = cross_entropy(logits.clone(), tokens(3, 12, &device), None);
            let gradients: Vec<Tensor<1>> = Gradients::backward(&loss, &model).iter().flatten().cloned().collect();
            (host(logits), stream, gradients)
        };
        let (want, got) = (gradients(Precision::F32), gradients(Precision::Bf16));
        assert!(ROUNDING.contains(&error(&got.0, &want.0)), "{config:?}: logits {}", error(&got.0, &want.0));
        assert!(error(&got.1, &want.1) < ROUNDING.end, "{config:?}: stream {}", error(&got.1, &want.1));
        let all = |gradients: Vec<Tensor<1>>| {
            gradients.iter().for_each(|g| assert_eq!(g.dtype(), DType::F32));
            gradients.into_iter().flat_map(host).collect::<Vec<f32>>()
        };
        let (want, got) = (all(want.2), all(got.2));
        assert!(error(&got, &want) < ROUNDING.end, "{config:?}: gradients {}", error(&got, &want));
    }
}

#[test]
fn bf16_sees_the_past_alone_and_all_of_it() {
    let device = Device::flex();
    for config in varied() {
        let model = config.build(1, &device).unwrap().0.with_precision(Precision::Bf16);
        let all = tokens(2, 12, &device);
        let whole = model.forward(all.clone());
        let start = host(model.forward(all.clone().narrow(1, 0, 7)));
        assert_eq!(start, host(whole.clone().narrow(1, 0, 7)), "{config:?}");
        let mut cache = Cache::new();
        let parts = [0..5, 5..6, 6..12].map(|part| {
            let logits = model.forward_cached(all.clone().narrow(1, part.start, part.len()), &mut cache);
            (logits, whole.clone().narrow(1, part.start, part.len()))
        });
        for (got, want) in parts {
            assert!(error(&host(got), &host(want)) < ROUNDING.end, "{config:?}");
        }
    }
}

#[test]
fn bf16_trains_f32_weights() {
    let _turn = generator();
    let model = ModelConfig { dropout: 0.1, ..tiny() };
    let data = DataConfig::Markov { vocab_size: 11, order: 1, branching: 2, seed: 1 };
    let task = data.load(12).unwrap();
    let run = |precision| {
        let device = Device::flex();
        let trainer = Trainer::new(&model, OptimizerConfig::default(), ClipConfig::default(), 1, &device);
        let mut trainer = trainer.unwrap().with_precision(precision);
        let mut rows = Vec::new();
        for step in 0..60 {
            let (next, row) = trainer.step(&[task.batch(1, step, 0..8)], 3e-3, false);
            trainer = next;
            rows.push(row);
        }
        let losses: Vec<f32> = read_rows(&rows).into_iter().map(|row| row.loss).collect();
        (losses, unitgain_model::weights::of(&trainer.model))
    };
    let ((want, _), (got, weights)) = (run(Precision::F32), run(Precision::Bf16));
    assert!(want[0] - want[59] > 0.5, "{want:?}");
    assert_ne!(want, got);
    for (step, (want, got)) in want.iter().zip(&got).enumerate() {
        assert!((want - got).abs() < 0.02, "step {step}: {got} instead of {want}");
    }
    let is_bf16 = |x: &f32| x.to_bits() & 0xffff == 0;
    let matrices: Vec<_> = weights.iter().filter(|(_, shape, _)| shape.len() == 2).collect();
    assert_eq!(matrices.len(), 2 + 3 * 6);
    matrices.iter().for_each(|(path, _, values)| assert!(!values.iter().all(is_bf16), "{path}"));
}
