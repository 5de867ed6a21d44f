//! The model crate with a custom training loop and burn's optimizer.
//!
//! `cargo run --release --example custom_loop`

#![allow(clippy::print_stdout)]

use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use unitgain_model::{ModelConfig, NormConfig, Placement, cross_entropy};

/// A counting task: n is followed by n + 1, modulo 16.
fn batch(step: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let sequence = |row: usize| (0..17).map(move |t| ((row * 5 + step + t) % 16) as i32);
    let cut = |from: usize| -> Vec<i32> { (0..8).flat_map(|row| sequence(row).skip(from).take(16)).collect() };
    let tensor = |values| Tensor::from_data(TensorData::new(values, [8, 16]), device);
    (tensor(cut(0)), tensor(cut(1)))
}

/// Trains for 60 steps and returns the first and the last loss.
pub(crate) fn run() -> Result<(f32, f32), unitgain_model::ModelError> {
    let config = ModelConfig {
        vocab_size: Some(16),
        context: 16,
        d_model: 32,
        n_layers: 2,
        placement: Placement::Sandwich {},
        norm: NormConfig::rms_norm(),
        ..ModelConfig::default()
    };
    let device = Device::flex().autodiff();
    let (mut model, table) = config.build(1, &device)?;
    println!("{} parameters in {} tensors", table.elements(), table.entries().len());

    let mut optimizer = AdamConfig::new().with_epsilon(1e-8).init();
    let mut losses = Vec::new();
    for step in 0..60 {
        let (tokens, targets) = batch(step, &device);
        let loss = cross_entropy(model.forward(tokens), targets, None);
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(3e-3, model, gradients);
    }
    Ok((losses[0], losses[losses.len() - 1]))
}

#[allow(dead_code)]
fn main() -> Result<(), unitgain_model::ModelError> {
    let (first, last) = run()?;
    println!("loss {first:.3} -> {last:.3}");
    Ok(())
}
