//! Our optimizers against burn's, where burn has the same rule.

use crate::common::max_difference;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use unitgain_model::{ModelConfig, NormConfig, Transformer, cross_entropy};
use unitgain_train::checkpoint::weights;
use unitgain_train::{Gradients, Optimizer, OptimizerConfig};

/// Matrices only: burn's optimizers decay every parameter.
fn matrices() -> ModelConfig {
    ModelConfig {
        vocab_size: Some(7),
        context: 8,
        d_model: 16,
        n_layers: 2,
        norm: NormConfig::None {},
        ..ModelConfig::default()
    }
}

fn loss(model: &Transformer, step: usize, device: &Device) -> Tensor<1> {
    let values: Vec<i32> = (0..32).map(|i| ((i * 5 + step * i + step) % 7) as i32).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(values, [4, 8]), device);
    cross_entropy(model.forward(tokens.clone()), tokens, None)
}

fn compare(ours: OptimizerConfig, mut theirs: ModuleOptimizer, lr: f64) {
    let device = Device::flex().autodiff();
    let (mut a, table) = matrices().build(1, &device).unwrap();
    let (mut b, _) = matrices().build(1, &device).unwrap();
    let mut optimizer = Optimizer::new(ours, &table);
    for step in 0..20 {
        let gradients = Gradients::backward(&loss(&a, step, &device), &a);
        a = optimizer.step(a, &table, gradients, None, lr);
        let gradients = GradientsParams::from_grads(loss(&b, step, &device).backward(), &b);
        b = theirs.step(lr, b, gradients);
    }
    for ((path, _, x), (_, _, y)) in weights(&a).into_iter().zip(weights(&b)) {
        let difference = max_difference(&x, &y);
        assert!(difference < 2e-5, "{}: {path} differs by {difference}", ours.about().0);
    }
}

#[test]
fn adamw_is_burns() {
    let ours = OptimizerConfig::Adamw { lr: 1e-2, betas: [0.8, 0.9], eps: 1e-6, weight_decay: 0.3 };
    let theirs = AdamWConfig::new().with_beta_1(0.8).with_beta_2(0.9).with_epsilon(1e-6).with_weight_decay(0.3);
    compare(ours, theirs.init(), 1e-2);
}

#[test]
fn adam_with_l2_is_burns() {
    let ours = OptimizerConfig::Adam { lr: 1e-2, betas: [0.8, 0.9], eps: 1e-5, weight_decay: 0.3 };
    let decay = burn::optim::decay::WeightDecayConfig::new(0.3);
    let theirs = AdamConfig::new().with_beta_1(0.8).with_beta_2(0.9).with_epsilon(1e-5).with_weight_decay(Some(decay));
    compare(ours, theirs.init(), 1e-2);
}

#[test]
fn sgd_is_burns() {
    for nesterov in [false, true] {
        let ours = OptimizerConfig::Sgd { lr: 0.1, momentum: 0.9, nesterov, weight_decay: 0.01 };
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0).with_nesterov(nesterov);
        let decay = burn::optim::decay::WeightDecayConfig::new(0.01);
        let theirs = SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(Some(decay));
        compare(ours, theirs.init(), 0.1);
    }
}

#[test]
fn only_matrices_decay() {
    let config =
        ModelConfig { bias: true, qk_norm: NormConfig::rms_norm(), norm: NormConfig::layer_norm(), ..matrices() };
    let (_, table) = config.build(1, &Device::flex()).unwrap();
    for optimizer in OptimizerConfig::all() {
        for entry in &table {
            let decays = entry.shape.len() == 2;
            assert_eq!(
                optimizer.decay_of(entry),
                if decays { optimizer.weight_decay() } else { 0.0 },
                "{}",
                entry.path
            );
        }
    }
}
