//! Training on the device `UNITGAIN_TEST_BACKEND`.

use crate::common::test_device;
use crate::model::whole::tiny;
use burn::tensor::Device;
use unitgain_kernels::composed;
use unitgain_model::{ModelConfig, Placement, Variant};
use unitgain_train::{ClipConfig, DataConfig, HostRow, OptimizerConfig, Trainer, read_rows};

/// Two steps of a model; the second depends on the optimizer's first update.
fn two_steps(model: &ModelConfig, device: &Device) -> Vec<HostRow> {
    let task = DataConfig::Markov { vocab_size: 11, order: 1, branching: 2, seed: 0 }.load(12).unwrap();
    let mut trainer = Trainer::new(model, OptimizerConfig::default(), ClipConfig::default(), 1, device).unwrap();
    let mut rows = Vec::new();
    for step in 0..2 {
        let (next, row) = trainer.step(&[task.batch(1, step, 0..2)], 1e-2, true);
        trainer = next;
        rows.push(row);
    }
    read_rows(&rows)
}

#[test]
fn two_steps_of_every_placement_are_those_of_the_cpu() {
    let device = test_device();
    for placement in Placement::all() {
        let model = ModelConfig { placement, n_layers: 2, ..tiny() };
        let want = composed(|| two_steps(&model, &Device::flex()));
        let got = two_steps(&model, &device);
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert!(want.loss > 0.0 && want.grad_norm() > 0.0, "{placement:?}: there is nothing to compare");
            assert!(want.stream_rms.len() == 2 && want.stream_rms.iter().all(|rms| *rms > 0.0), "{placement:?}");
            assert_eq!(got.stream_rms.len(), want.stream_rms.len());
            let close = |got: f32, want: f32| (got - want).abs() <= 1e-3 * want.abs().max(1e-3);
            assert!(close(got.loss, want.loss), "{placement:?}: loss {} instead of {}", got.loss, want.loss);
            assert!(close(got.grad_norm(), want.grad_norm()), "{placement:?}: gradient norm");
            let streams = got.stream_rms.iter().zip(&want.stream_rms);
            streams.for_each(|(got, want)| assert!(close(*got, *want), "{placement:?}: stream {got} {want}"));
        }
    }
}

#[test]
fn the_version_of_burn_is_the_one_that_is_built() {
    let lock = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock")).unwrap();
    let burn = lock.split("[[package]]").find(|package| package.contains("name = \"burn\"\n")).expect("burn is locked");
    assert!(burn.contains(&format!("version = \"{}\"\n", unitgain_train::BURN_VERSION)), "{burn}");
}
