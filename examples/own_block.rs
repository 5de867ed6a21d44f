//! A custom block, whose weights have roles, so that muP knows how they scale: a token reads the mean of the tokens up to
//! it instead of attention. `cargo run --release --example own_block`
#![allow(clippy::print_stdout, dead_code)]

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, activation, module};
use unitgain_model::weights::{Builder, Source, Start};
use unitgain_model::{LanguageModel, Linear, ModelConfig, Parametrization, Point, Precision, Probe, Role};
use unitgain_study::coord_check::{self, Axis, CoordCheckOptions, CoordCheckReport, Subject};
use unitgain_train::{ClipConfig, DataConfig, Error, OptimizerConfig, Task, Trainer, read_rows};

#[derive(Module, Debug)]
struct Block {
    read: Linear,
    write: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct Means {
    embedding: Param<Tensor<2>>,
    blocks: Vec<Block>,
    head: Linear,
}

impl LanguageModel for Means {
    fn logits(&self, tokens: Tensor<2, Int>, probe: &dyn Probe) -> Tensor<3> {
        let ([batch, time], rows) = (tokens.dims(), |x: Tensor<3>| x.flatten::<2>(0, 1));
        let count = Tensor::<1, Int>::arange(1..time as i64 + 1, &tokens.device()).float().reshape([1, time, 1]);
        let mut x: Tensor<3> = module::embedding(self.embedding.val(), tokens);
        for (i, Block { read, write }) in self.blocks.iter().enumerate() {
            let hidden = read.forward(rows(x.clone() + x.clone().cumsum(1) / count.clone()), probe);
            let y = write.forward(activation::relu(hidden), probe);
            x = probe.stream(Point::Block(i), rows(x.clone()) + y).reshape(x.dims());
        }
        probe.stream(Point::Logits, self.head.forward(rows(x), probe)).reshape([batch as i32, time as i32, -1])
    }
}

/// Two blocks of width `d`, under muP with base width 32.
fn trainer(d: usize, seed: u64) -> Result<(Trainer<Means>, Task), Error> {
    let (parametrization, device) = (Parametrization::mup(32), Device::flex().autodiff());
    let plan = ModelConfig { d_model: d, n_layers: 2, parametrization, ..ModelConfig::default() }.plan(16)?;
    let mut weights = Builder::new(&plan, Source::Draw { seed }, &device);
    let block = |weights: &mut Builder<'_>| {
        let read = weights.linear("read", Role::MlpIn, [d, 2 * d], Start::default());
        Block { read, write: weights.linear("write", Role::MlpOut, [2 * d, d], Start::default()) }
    };
    let embedding = weights.matrix("embedding", Role::Embedding, [16, d]);
    let blocks = (0..2).map(|i| weights.within_block(i, block)).collect();
    let model = Means { embedding, blocks, head: weights.linear("head", Role::Head, [d, 16], Start::default()) };
    let (adam, clip) = (OptimizerConfig::default().without_decay(), ClipConfig::default());
    let trainer = Trainer::of_model(weights.finish(model)?, adam, clip, seed, &Device::flex());
    Ok((trainer, DataConfig::Markov { vocab_size: 16, order: 1, branching: 2, seed: 0 }.load(32)?))
}

/// Trains a model, and checks muP over three widths.
pub(crate) fn run() -> Result<(Vec<f32>, CoordCheckReport), Error> {
    let (mut model, task) = trainer(64, 1)?;
    for e in &model.table {
        println!("{:24} {:?} std {:.4}, lr x {}", e.path, e.role(), e.init_std, e.factors.lr);
    }
    let mut rows = Vec::new();
    for step in 0..100 {
        let row;
        (model, row) = model.step(&[task.batch(1, step, 0..16)], 1e-2, false);
        rows.push(row);
    }
    let losses = read_rows(&rows).iter().map(|row| row.loss).collect();
    let options =
        CoordCheckOptions { axis: Axis::Width, sizes: vec![32, 64, 128], steps: 4, seeds: 2, tolerance: 0.25 };
    let build = |width, seed| {
        let (trainer, task) = trainer(width, seed)?;
        Ok(Subject { trainer, batch: task.batch(seed, 0, 0..8), blocks: 2, lr: 1e-2, precision: Precision::F32 })
    };
    Ok((losses, coord_check::of_models(&options, build, &mut || ())?))
}

fn main() -> Result<(), Error> {
    run().map(|(losses, report)| println!("loss {:.3} -> {:.3}, {:?}", losses[0], losses[99], report.conclusion()))
}
