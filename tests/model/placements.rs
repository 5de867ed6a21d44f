//! Residual connections: each placement against its equation and finite differences, and three steps with every
//! combination of the axes.

use crate::common::{draw, host, max_difference, shaken, values};
use burn::tensor::{Device, Tensor, TensorData};
use unitgain_model::{
    Activation, AttentionScale, EmbeddingScale, ModelConfig, ModelError, NormConfig, Observe, Placement, Position,
    QkNormOver, ScaleConfig, Scheme, Variant, WeightNormConfig,
};
use unitgain_norms::NormSite;
use unitgain_norms::weight::Flavour;
use unitgain_residual::{Branch, Joint, Residual, Site, Stream};
use unitgain_train::{ClipConfig, DataConfig, OptimizerConfig, Trainer, read_rows};

fn joined(residual: &Residual, x: Tensor<2>, branch: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    residual.forward(Stream::new(x, 1, false), branch).x
}

fn omega(residual: &Residual) -> Tensor<2> {
    Tensor::<1>::from_data(values(residual, "omega").as_slice(), &Device::flex()).unsqueeze()
}

fn residual(placement: Placement, scale: ScaleConfig, device: &Device) -> Residual {
    let site = Site { block: 1, blocks: 3, width: 16, base_width: 16, joint: Joint::of(1.0), branch: Branch::Mlp };
    shaken(Residual::new(placement, &NormConfig::layer_norm(), scale, site, device))
}

#[test]
fn with_a_branch_of_zero_each_placement_does_what_its_equation_says() {
    let device = Device::flex();
    let x = draw("stream", 4, 16, &device);
    let mut known = 0;
    for placement in Placement::all() {
        let residual = residual(placement, ScaleConfig::One {}, &device);
        let y = host(joined(&residual, x.clone(), |x| x * 0.0));
        let want = match placement {
            Placement::PreNorm {} | Placement::ScaledPreNorm {} | Placement::SubNorm {} | Placement::None {} => {
                x.clone()
            }
            // For an MLP branch.
            Placement::Normformer {} | Placement::Parallel {} | Placement::ParallelShared {} => x.clone(),
            Placement::PostNorm {} => residual.norms()[0].forward(x.clone()),
            Placement::DeepNorm {} => residual.norms()[0].forward(x.clone() * 6f64.powf(0.25)),
            Placement::MixNorm { .. } => x.clone(),
            Placement::HybridNorm {} | Placement::HybridNormStar {} => residual.norms()[0].forward(x.clone()),
            Placement::ResDual {} => residual.norms()[0].forward(x.clone()),
            // Here omega is slightly above 1.
            Placement::Admin { .. } => residual.norms()[0].forward(x.clone() * omega(&residual)),
            // A norm maps 0 to its bias.
            Placement::Sandwich {} | Placement::PeriNorm {} => x.clone() + residual.norms()[1].forward(x.clone() * 0.0),
            Placement::OutputNorm {} => x.clone() + residual.norms()[0].forward(x.clone() * 0.0),
            // A new placement is covered by the other tests, and should be added here.
            #[allow(unreachable_patterns)]
            _ => continue,
        };
        assert!(max_difference(&y, &host(want)) < 1e-6, "{placement:?}");
        known += 1;
    }
    assert!(known >= 17);
}

#[test]
fn scales_multiply_the_branch_alone() {
    let device = Device::flex();
    let x = draw("stream", 4, 16, &device);
    let branch = |x: Tensor<2>| x * 2.0;
    let site = Site { block: 0, blocks: 8, width: 16, base_width: 16, joint: Joint::of(0.5), branch: Branch::Mlp };
    for (scale, factor) in [
        (ScaleConfig::One {}, 0.5),
        (ScaleConfig::Depth {}, 0.125),
        (ScaleConfig::LayerScale { init: Some(0.1) }, 0.05),
        (ScaleConfig::ReZero { shared: false }, 0.0),
        (ScaleConfig::Constant { value: 3.0 }, 1.5),
        (ScaleConfig::SkipInit { init: 0.25 }, 0.125),
        // For the second branch: 0.2 f(x / sqrt(1.04)), with linear f.
        (ScaleConfig::Nfnet { alpha: 0.2 }, 0.1 / 1.04f64.sqrt()),
        (ScaleConfig::Fixup {}, 0.5),
    ] {
        let residual = Residual::new(Placement::PreNorm {}, &NormConfig::None {}, scale, site, &device);
        let y = host(joined(&residual, x.clone(), branch));
        let want = host(x.clone() + x.clone() * (2.0 * factor));
        assert!(max_difference(&y, &want) < 1e-6, "{scale:?}");
    }
}

/// A nonlinear branch, different for each index.
fn branch(index: usize, device: &Device) -> impl Fn(Tensor<2>) -> Tensor<2> + use<> {
    let w = draw(&format!("branch/{index}"), 16, 16, device) * 0.25;
    move |x: Tensor<2>| x.matmul(w.clone()).tanh()
}

/// A block of two branches; its second stream is added at the end.
fn block(placement: Placement, scale: ScaleConfig, device: &Device) -> impl Fn(Tensor<2>) -> Tensor<2> + use<> {
    let of = |branch| {
        let site = Site { block: 1, blocks: 3, width: 16, base_width: 16, joint: Joint::of(1.0), branch };
        shaken(Residual::new(placement, &NormConfig::layer_norm(), scale, site, device))
    };
    let (attention, mlp) = (of(Branch::Attention), of(Branch::Mlp));
    let last = shaken(NormConfig::layer_norm().build(NormSite::of(16), device));
    let (f, g) = (branch(1, device), branch(2, device));
    move |x| {
        let stream = Stream::new(x, 1, placement.is_dual());
        let stream = match placement.is_parallel() {
            true => attention.forward_parallel(stream, &f, &mlp, &g, &|_, y| y),
            false => mlp.forward(attention.forward(stream, &f), &g),
        };
        stream.close(&last)
    }
}

#[test]
fn gradients_of_every_placement_and_scale_are_those_of_finite_differences() {
    let device = Device::flex().autodiff();
    let weights = draw("fd/weights", 4, 16, &device);
    let direction = draw("fd/direction", 4, 16, &device);
    for placement in Placement::all() {
        for scale in ScaleConfig::all() {
            let block = block(placement, scale, &device);
            let loss = |x: Tensor<2>| (block(x) * weights.clone()).sum();
            let x = draw("fd/x", 4, 16, &device).require_grad();
            let gradient = host(x.grad(&loss(x.clone()).backward()).unwrap());
            assert!(gradient.iter().any(|g| g.abs() > 1e-2), "{placement:?} {scale:?}: nothing depends on the input");
            let exact: f64 = gradient.iter().zip(host(direction.clone())).map(|(g, d)| f64::from(g * d)).sum();
            // Truncation error (curvature) and rounding error of the step sizes.
            let measured = |step: f64| {
                let at =
                    |sign: f64| f64::from(loss(x.clone() + direction.clone() * (sign * step)).into_scalar::<f32>());
                (at(1.0) - at(-1.0)) / (2.0 * step)
            };
            let error = [1e-3, 3e-3].map(|step| (measured(step) - exact).abs()).into_iter().fold(f64::MAX, f64::min);
            assert!(error < 5e-3 * (1.0 + exact.abs()), "{placement:?} {scale:?}: {error} of {exact}");
        }
    }
}

/// The parameters without a gradient in three steps of a tiny model.
fn without_gradient(model: &ModelConfig) -> Vec<String> {
    let device = Device::flex();
    let task = DataConfig::Markov { vocab_size: 8, order: 1, branching: 2, seed: 0 }.load(8).unwrap();
    let mut trainer = Trainer::new(model, OptimizerConfig::default(), ClipConfig::default(), 1, &device).unwrap();
    let mut squares = vec![0.0f32; trainer.table.entries().len()];
    for step in 0..3 {
        let (next, row) = trainer.step(&[task.batch(1, step, 0..2)], 1e-2, false);
        trainer = next;
        let row = read_rows(&[row]).remove(0);
        assert!(row.loss.is_finite(), "{model:?}");
        squares.iter_mut().zip(row.squares).for_each(|(sum, square)| *sum += square);
    }
    let table = trainer.table.iter().zip(squares);
    table.filter(|(e, square)| e.role().is_trainable() && *square == 0.0).map(|(e, _)| e.path.clone()).collect()
}

#[test]
fn every_norm_placement_and_scale_trains_and_leaves_no_parameter_without_a_gradient() {
    let mut refused = 0;
    for placement in Placement::all() {
        for norm in NormConfig::all() {
            for scale in ScaleConfig::all() {
                let model = ModelConfig {
                    vocab_size: Some(8),
                    context: 8,
                    d_model: 16,
                    n_layers: 2,
                    n_heads: 2,
                    d_ff: Some(24),
                    bias: true,
                    attention_bias: Some(false),
                    norm,
                    placement,
                    scale,
                    ..ModelConfig::default()
                };
                match model.plan(8) {
                    Ok(_) => assert_eq!(without_gradient(&model), [""; 0], "{placement:?} {norm:?} {scale:?}"),
                    Err(ModelError::Combination { .. }) => refused += 1,
                    Err(e) => panic!("{placement:?} {norm:?} {scale:?}: {e}"),
                }
            }
        }
    }
    println!("{refused} combinations are refused");
}

/// Settings besides the three axes of the grid.
#[test]
fn every_other_setting_trains_and_leaves_no_parameter_without_a_gradient() {
    let base = ModelConfig {
        vocab_size: Some(8),
        context: 8,
        d_model: 16,
        n_layers: 2,
        n_heads: 2,
        d_ff: Some(24),
        ..ModelConfig::default()
    };
    let standardized = WeightNormConfig::ScaledWeightStandardization { flavour: Flavour::Nfnet, eps: None };
    let mut configs: Vec<ModelConfig> = Vec::new();
    for qk_norm in NormConfig::all() {
        for qk_norm_over in [QkNormOver::Head, QkNormOver::Width] {
            for position in [Position::rope(1e4), Position::None {}] {
                configs.push(ModelConfig { qk_norm, qk_norm_over, position, n_kv_heads: Some(1), ..base.clone() });
            }
        }
    }
    for activation in Activation::all() {
        for weight_norm in WeightNormConfig::all().into_iter().chain([standardized]) {
            let free =
                ModelConfig { scale: ScaleConfig::Nfnet { alpha: 0.2 }, placement: Placement::None {}, ..base.clone() };
            configs.push(ModelConfig { activation, weight_norm, bias: true, attention_bias: Some(false), ..free });
            let fixup = ModelConfig { scale: ScaleConfig::Fixup {}, placement: Placement::None {}, ..base.clone() };
            let zero_writers = !matches!(weight_norm, WeightNormConfig::WeightNorm { .. });
            configs.push(ModelConfig { activation, weight_norm, zero_writers, ..fixup });
        }
    }
    for placement in Placement::all() {
        configs.push(ModelConfig { placement, zero_writers: true, ..base.clone() });
        configs.push(ModelConfig { placement, zero_writers: true, weight_norm: standardized, ..base.clone() });
        configs.push(ModelConfig {
            placement,
            head_scale: Some(true),
            embedding_scale: Some(2.0.into()),
            ..base.clone()
        });
        let attention_scale = Some(AttentionScale::Learned { init: None, per_head: true });
        let embedding_scale = Some(EmbeddingScale::Learned { init: None });
        configs.push(ModelConfig { placement, attention_scale, embedding_scale, ..base.clone() });
        for mlp_placement in Placement::all() {
            configs.push(ModelConfig { placement, mlp_placement: Some(mlp_placement), ..base.clone() });
        }
    }
    let (mut trained, mut refused) = (0, 0);
    for model in &configs {
        match model.plan(8) {
            Ok(_) => {
                let missing = without_gradient(model);
                assert!(missing.is_empty(), "{missing:?} of {}", toml::to_string(model).unwrap());
                trained += 1;
            }
            Err(ModelError::Combination { .. }) => refused += 1,
            Err(e) => panic!("{e}"),
        }
    }
    println!("{trained} models trained, {refused} refused");
}

/// Every accepted combination of init, weight norm, placement and scale: after three steps each parameter has had a
/// gradient.
#[test]
fn no_accepted_combination_of_init_weight_norm_placement_and_scale_is_dead() {
    let mut accepted = Vec::new();
    let mut refused = 0;
    for init in Scheme::all() {
        for weight_norm in WeightNormConfig::all() {
            for placement in Placement::all() {
                for scale in ScaleConfig::all() {
                    for (zero_writers, zero_query) in [(false, false), (false, true), (true, false), (true, true)] {
                        let model = ModelConfig {
                            vocab_size: Some(4),
                            context: 4,
                            d_model: 8,
                            n_layers: 2,
                            n_heads: 2,
                            d_ff: Some(12),
                            bias: true,
                            attention_bias: Some(false),
                            init: Some(init),
                            weight_norm,
                            placement,
                            scale,
                            zero_writers,
                            zero_query,
                            ..ModelConfig::default()
                        };
                        match model.plan(4) {
                            Ok(_) => accepted.push(model),
                            Err(ModelError::Combination { .. }) => refused += 1,
                            Err(e) => panic!("{e}"),
                        }
                    }
                }
            }
        }
    }
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let started = std::time::Instant::now();
    let dead: Vec<String> = std::thread::scope(|scope| {
        let part = |part: usize| accepted.iter().skip(part).step_by(workers).filter_map(dead);
        let parts: Vec<_> = (0..workers).map(|i| scope.spawn(move || part(i).collect::<Vec<_>>())).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    println!("{} accepted, {refused} refused, {:?}", accepted.len(), started.elapsed());
    let some: Vec<_> = dead.iter().take(20).collect();
    assert!(dead.is_empty(), "{} of {} are dead: {some:#?}", dead.len(), accepted.len());
    assert!(accepted.len() > 2000 && refused > 2000);
    // A dead branch must be detected: its gradient underflows in f32.
    let still = ModelConfig { scale: ScaleConfig::Constant { value: 1e-30 }, ..accepted[0].clone() };
    assert!(self::dead(&still).is_some_and(|said| said.contains("blocks.1.mlp.down.weight")));
}

/// The parameters without a gradient in four steps (the last follows three updates); None if there are none.
fn dead(model: &ModelConfig) -> Option<String> {
    let task = DataConfig::Markov { vocab_size: 4, order: 1, branching: 2, seed: 0 }.load(4).unwrap();
    let clip = ClipConfig::default();
    let mut trainer = Trainer::new(model, OptimizerConfig::default(), clip, 1, &Device::flex()).unwrap();
    let trainable = |(_, entry): &(usize, &unitgain_model::ParamEntry)| entry.role().is_trainable();
    let mut dead: Vec<usize> = trainer.table.iter().enumerate().filter(trainable).map(|(i, _)| i).collect();
    for step in 0..4 {
        let (next, row) = trainer.step(&[task.batch(1, step, 0..2)], 1e-2, false);
        trainer = next;
        let squares = read_rows(&[row]).remove(0).squares;
        dead.retain(|i| !(squares[*i] > 0.0 && squares[*i].is_finite()));
        if dead.is_empty() {
            return None;
        }
    }
    let dead: Vec<&str> = dead.into_iter().map(|i| trainer.table.entries()[i].path.as_str()).collect();
    let ModelConfig { init, weight_norm, placement, scale, zero_writers, zero_query, .. } = model;
    Some(format!("{init:?} {weight_norm:?} {placement:?} {scale:?} {zero_writers} {zero_query}: {dead:?}"))
}

#[test]
fn with_zero_writers_a_block_is_what_its_placement_makes_of_nothing() {
    let device = Device::flex();
    let x = draw("nothing", 8, 16, &device);
    let standardized = WeightNormConfig::ScaledWeightStandardization { flavour: Flavour::Timm, eps: None };
    // Inits that draw zeros, which a weight norm keeps.
    let kinds = [
        (WeightNormConfig::None {}, true, None),
        (standardized, true, None),
        (WeightNormConfig::None {}, false, Scheme::named("zero")),
        (standardized, false, Scheme::named("zero")),
        (standardized, false, Scheme::named("fixup")),
    ];
    let mut compared = 0;
    for placement in Placement::all() {
        for (weight_norm, zero_writers, init) in kinds {
            let config = ModelConfig {
                vocab_size: Some(2),
                context: 8,
                d_model: 16,
                n_layers: 2,
                n_heads: 2,
                placement,
                weight_norm,
                zero_writers,
                init,
                final_norm: Some(placement.is_dual()),
                ..ModelConfig::default()
            };
            if init.is_some() && config.plan(2).is_err() {
                continue;
            }
            compared += 1;
            let (model, _) = config.build(1, &device).unwrap();
            let mut stream = Vec::new();
            let mut note = |_, x: &Tensor<2>| stream.push(host(x.clone()));
            model.forward_stream(x.clone().unsqueeze(), &Observe::new(&mut note));
            let start = Tensor::from_data(TensorData::new(stream[0].clone(), [8, 16]), &device);
            let mut nothing = Stream::new(start, 1, placement.is_dual());
            for block in 0..2 {
                for branch in [Branch::Attention, Branch::Mlp] {
                    let site = Site { block, blocks: 2, width: 16, base_width: 16, joint: Joint::of(1.0), branch };
                    let norm = NormConfig::layer_norm();
                    let residual = Residual::new(placement, &norm, ScaleConfig::One {}, site, &device);
                    nothing = residual.forward(nothing, |x| x * 0.0);
                }
            }
            let difference = max_difference(&stream[2], &host(nothing.x));
            assert!(difference < 1e-6, "{placement:?} {weight_norm:?} {init:?}: {difference}");
        }
    }
    // All placements twice, and Fixup without norms.
    assert!(compared > 2 * 17 + 2 * 10, "{compared}");
}
