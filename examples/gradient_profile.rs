//! Gradient norm of each block at init, for three placements: post_norm is top-heavy, pre_norm and deep_norm are not.
//!
//! `cargo run --release --example gradient_profile`

#![allow(clippy::print_stdout)]

use burn::tensor::Device;
use unitgain_model::{ModelConfig, ModelError, Placement, Scheme, Variant, cross_entropy};
use unitgain_train::{DataConfig, Gradients};

const LAYERS: usize = 24;

/// Gradient norms of the blocks, first to last.
pub(crate) fn profile(placement: Placement) -> Result<Vec<f32>, ModelError> {
    let task = DataConfig::default().load(32).expect("the default task fits");
    let config = ModelConfig {
        vocab_size: Some(task.vocab_size()),
        context: 32,
        d_model: 64,
        n_layers: LAYERS,
        placement,
        init: Some(Scheme::xavier()),
        ..ModelConfig::default()
    };
    let device = Device::flex().autodiff();
    let (model, table) = config.build(1, &device)?;
    let (tokens, targets) = task.batch(1, 1, 0..8).tensors(&device);
    let loss = cross_entropy(model.forward(tokens), targets, None);

    let squares = Gradients::backward(&loss, &model).squares(&device.inner());
    let squares: Vec<f32> = squares.into_data().iter::<f32>().collect();
    let mut blocks = vec![0.0; LAYERS];
    for (entry, square) in table.iter().zip(squares) {
        if let Some(block) = entry.block() {
            blocks[block] += square;
        }
    }
    Ok(blocks.into_iter().map(f32::sqrt).collect())
}

#[allow(dead_code)]
fn main() -> Result<(), ModelError> {
    for placement in [Placement::PreNorm {}, Placement::PostNorm {}, Placement::DeepNorm {}] {
        let norms = profile(placement)?;
        let ratio = norms[LAYERS - 1] / norms[0];
        let shown: Vec<String> = norms.iter().step_by(4).map(|n| format!("{n:.4}")).collect();
        println!("{:10} last/first {ratio:6.2}   every fourth block: {}", placement.about().name, shown.join(" "));
    }
    Ok(())
}
