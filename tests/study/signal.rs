//! The signal at step 0, against theory and finite differences.

use crate::common::{Scratch, generator};
use unitgain_model::{BlockConfig, ModelConfig, Placement, ScaleConfig, Scheme, Variant};
use unitgain_study::signal::{Signal, measure, measure_trained, slope};
use unitgain_train::{Calibrate, DataConfig, RunConfig};

fn config(placement: Placement, n_layers: usize) -> RunConfig {
    let mut config = RunConfig {
        model: ModelConfig {
            context: 24,
            d_model: 48,
            n_layers,
            n_heads: 4,
            placement,
            init: Some(Scheme::xavier()),
            ..ModelConfig::default()
        },
        data: DataConfig::Markov { vocab_size: 32, order: 1, branching: 4, seed: 1 },
        ..RunConfig::default()
    };
    config.train.batch_size = 6;
    config
}

fn signal(placement: Placement, n_layers: usize) -> Signal {
    measure(&config(placement, n_layers), false).unwrap()
}

/// Exponent of a quantity in the number of blocks, from the geometric mean over six seeds.
fn exponent(placement: Placement, f: impl Fn(&Signal) -> f64) -> f64 {
    let of_seeds = |n: usize| -> f64 {
        let of = |seed| f(&measure(&RunConfig { seed, ..config(placement, n) }, false).unwrap()).ln();
        (1..=6).map(of).sum::<f64>() / 6.0
    };
    slope(&[4, 8, 16, 32].map(|n: usize| ((n as f64).ln(), of_seeds(n))))
}

#[test]
fn streams_and_gradients_grow_with_depth_as_derived() {
    let last_stream = |signal: &Signal| signal.blocks[signal.blocks.len() - 1].stream;
    let last_gradient = |signal: &Signal| signal.blocks[signal.blocks.len() - 1].gradient;
    // Branches of equal variance: rms ~ sqrt(L), and the gradient of the last block ~ 1 / sqrt(L) (arXiv:2002.04745,
    // theorem 1).
    let pre = Placement::PreNorm {};
    assert!((exponent(pre, last_stream) - 0.5).abs() < 0.12, "{}", exponent(pre, last_stream));
    assert!((exponent(pre, last_gradient) + 0.5).abs() < 0.15, "{}", exponent(pre, last_gradient));
    // LayerNorm Scaling: variances 1/l sum to ln L.
    assert!(exponent(Placement::ScaledPreNorm {}, last_stream) < 0.3);
    // A norm ends each block; DeepNorm's gradients are independent of the block.
    for placement in [Placement::PostNorm {}, Placement::DeepNorm {}] {
        assert!(exponent(placement, last_stream).abs() < 1e-3);
    }
    assert!((signal(Placement::DeepNorm {}, 32).last_over_first - 1.0).abs() < 0.2);
    assert!(signal(pre, 32).last_over_first < 0.4);
}

#[test]
fn a_signal_is_what_the_model_computes() {
    let config = config(Placement::PreNorm {}, 3);
    let signal = measure(&config, true).unwrap();
    assert!((signal.loss - 32f64.ln()).abs() < 0.1, "an untrained model is near uniform: {}", signal.loss);
    let block = &signal.blocks[0];
    // Two branches write to the stream, independent of it and of each other.
    let sum = (signal.embedding.powi(2) + block.attention.powi(2) + block.mlp.powi(2)).sqrt();
    assert!((block.stream / sum - 1.0).abs() < 0.1, "{} {sum}", block.stream);
    // The largest singular value of a Xavier matrix is near sigma (sqrt m + sqrt n), for square ones 2 / sqrt 2 ..
    let [most, least] = block.singular_values.unwrap();
    assert!(most > 1.5 && most < 2.3 && least > 0.0 && least < 0.2, "{most} {least}");
    assert!(block.entropy > 0.5 && block.entropy <= 1.0 + 1e-5 && block.largest_logit > 0.0);
    // The norm of a block is over its parameters.
    let own = signal.gradients.iter().filter(|(path, _)| path.starts_with("blocks.0."));
    let norm = own.map(|(_, norm)| norm * norm).sum::<f64>().sqrt();
    assert!((norm / block.gradient - 1.0).abs() < 1e-6);
    assert!(measure(&config, false).unwrap().blocks[0].singular_values.is_none());
    // Repeatable, and different for another seed.
    assert_eq!(measure(&config, false).unwrap().loss, signal.loss);
    assert_ne!(measure(&RunConfig { seed: 2, ..config }, false).unwrap().loss, signal.loss);
}

#[test]
fn attention_of_equal_queries_is_uniform() {
    let mut config = config(Placement::None {}, 2);
    config.model.scale = ScaleConfig::ReZero { shared: false };
    config.model.init = Some(Scheme::Normal { std: 1e-4 });
    config.model.block = vec![BlockConfig { range: [1, 2], window: Some(3), ..BlockConfig::default() }];
    let signal = measure(&config, false).unwrap();
    for block in &signal.blocks {
        assert!((block.entropy - 1.0).abs() < 1e-5 && block.largest_logit < 1e-5, "{block:?}");
        assert_eq!((block.attention, block.mlp), (0.0, 0.0));
        assert!((block.stream - signal.embedding).abs() < 1e-9);
    }
}

#[test]
fn a_calibrated_model_is_measured_as_it_starts() {
    let mut config = config(Placement::None {}, 4);
    config.model.tie_embeddings = false;
    let plain = measure(&config, false).unwrap();
    config.init.calibrate = Some(Calibrate::all()[0]);
    let lsuv = measure(&config, false).unwrap();
    // All layers have output variance 1, and so do the logits.
    assert!((lsuv.logits - 1.0).abs() < 0.1 && (plain.logits - 1.0).abs() > 0.2, "{} {}", lsuv.logits, plain.logits);
    assert!(lsuv.growth > 0.3, "{}", lsuv.growth);
}

/// The checkpoint's weights are read, multiplied and summed here, independently of the measurement.
#[test]
fn a_trained_model_is_measured_by_its_own_weights() {
    use burn::tensor::Device;
    use std::ops::ControlFlow;
    use unitgain_model::cross_entropy;
    use unitgain_model::weights::of as weights;
    use unitgain_train::folder::checkpoint::Checkpoint;
    use unitgain_train::{Start, train};
    let scratch = Scratch::new("signal-trained");
    let mut config = config(Placement::PreNorm {}, 2);
    (config.train.steps, config.checkpoint.every) = (12, 6);
    let folder = scratch.0.join("run");
    {
        let _one_at_a_time = generator();
        train(&config, &folder, Start::New, &mut |_| ControlFlow::Continue(())).unwrap();
    }
    let checkpoint = Checkpoint::newest(&folder).unwrap();
    let signal = measure_trained(&checkpoint, &config, true).unwrap();
    assert_eq!(signal.step, 12);

    let device = Device::flex();
    let (model, table) = checkpoint.config.model.build(config.seed, &device).unwrap();
    let model = checkpoint.load_model(model, &table).unwrap();
    let (_, task) = config.prepare().unwrap();
    let (tokens, targets) = task.batch(config.seed, 1, 0..config.train.batch_size).tensors(&device);
    let loss = cross_entropy(model.forward(tokens), targets, None).into_scalar::<f32>();
    assert!((signal.loss - f64::from(loss)).abs() < 1e-5, "{} {loss}", signal.loss);

    let all = weights(&model);
    assert_eq!(signal.matrices.len(), 2 * 6 + 2, "six matrices of a block, embedding and position");
    for matrix in &signal.matrices {
        let (.., values) = all.iter().find(|(path, ..)| *path == matrix.path).unwrap();
        let squares: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((matrix.largest.powi(2) * matrix.stable_rank / squares - 1.0).abs() < 1e-6, "{matrix:?} {squares}");
    }
    let block = &signal.blocks[1];
    assert_eq!(block.attention_share, block.attention / signal.blocks[0].stream);
    assert_eq!(signal.blocks[0].mlp_share, signal.blocks[0].mlp / signal.embedding);

    let first = Checkpoint::read(&folder.join("checkpoints/step_00000006.safetensors")).unwrap();
    let losses = [measure(&config, false).unwrap(), measure_trained(&first, &config, false).unwrap(), signal];
    assert!(losses.windows(2).all(|pair| pair[1].loss < pair[0].loss), "{:?}", losses.map(|signal| signal.loss));

    let mut other = config.clone();
    other.model.n_heads = 2;
    assert!(measure_trained(&checkpoint, &other, false).unwrap_err().to_string().contains("model.n_heads"));
    let data = DataConfig::Markov { vocab_size: 31, order: 1, branching: 4, seed: 1 };
    let other = RunConfig { data, ..config };
    assert!(measure_trained(&checkpoint, &other, false).unwrap_err().to_string().contains("vocabulary"));
}

/// Rank one, all values equal, and zero.
#[test]
fn a_stable_rank_is_that_of_the_matrix() {
    let mut config = config(Placement::PreNorm {}, 1);
    let ranks = |config: &RunConfig| -> Vec<(String, f64)> {
        let signal = measure(config, true).unwrap();
        signal.matrices.into_iter().map(|matrix| (matrix.path, matrix.stable_rank)).collect()
    };
    config.model.init = Scheme::named("orthogonal");
    let of = |ranks: &[(String, f64)], part: &str| ranks.iter().find(|(path, _)| path.contains(part)).unwrap().1;
    let orthogonal = ranks(&config);
    assert!((of(&orthogonal, "query") - 48.0).abs() < 1e-3 && (of(&orthogonal, "mlp.up") - 48.0).abs() < 1e-3);
    config.model.init = Some(Scheme::xavier());
    config.model.zero_writers = true;
    let zero = ranks(&config);
    assert_eq!((of(&zero, "mlp.down"), of(&zero, "attention.out")), (0.0, 0.0));
    assert!(of(&zero, "query") > 5.0 && of(&zero, "query") < 20.0);
}

/// A weight matrix may contain any value.
#[test]
fn weights_that_are_not_finite_have_no_singular_values() {
    use unitgain_init::matrix::{mimetic_factors, singular_values};
    assert!(singular_values(&[1.0, f32::INFINITY, 0.0, 1.0], 2, 2).iter().all(|s| s.is_nan()));
    assert!(mimetic_factors(&[f32::NAN; 4], 2, 2, 1.0, 1.0)[0].iter().all(|x| x.is_nan()));
}

/// Under muP changes do not grow with the width; under the standard parametrization they do (arXiv:2203.03466, appendix
/// D.1).
#[test]
fn a_coordinate_check_tells_mup_from_standard() {
    use unitgain_model::Parametrization;
    use unitgain_study::coord_check::{Axis, Conclusion, CoordCheckOptions, Growth, run};
    let check = |parametrization, lr| {
        let mut config = config(Placement::PreNorm {}, 2);
        config.model = ModelConfig {
            d_model: 32,
            init: Some(Scheme::lecun()),
            tie_embeddings: false,
            parametrization,
            ..config.model
        };
        config.optimizer =
            unitgain_train::OptimizerConfig::Adam { lr, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0 };
        let options =
            CoordCheckOptions { axis: Axis::Width, sizes: vec![32, 64, 128, 256], steps: 3, seeds: 2, tolerance: 0.25 };
        run(&config, &options, &mut || ()).unwrap()
    };
    let mup = check(Parametrization::mup(32), 3e-3);
    assert_eq!(mup.conclusion(), Conclusion::Holds, "{mup:#?}");
    let standard = check(Parametrization::Standard {}, 3e-3);
    assert_eq!(standard.conclusion(), Conclusion::Fails);
    let grows = |name: &str| standard.layers.iter().find(|layer| layer.name == name).unwrap().verdict == Growth::Grows;
    assert!(grows("logits") && grows("block 2, stream") && grows("block 1, mlp"), "{standard:#?}");
    assert!(!grows("embedding"));
}

/// A check of something that did not happen must not hold, whatever else moves: decay, batch statistics, or other
/// branches.
#[test]
fn a_coordinate_check_of_what_does_not_move_does_not_hold() {
    use unitgain_model::NormConfig;
    use unitgain_study::coord_check::{Axis, Conclusion, CoordCheckOptions, CoordCheckReport, Growth, run};
    use unitgain_train::OptimizerConfig;
    let sgd = |lr| OptimizerConfig::Sgd { lr, momentum: 0.9, nesterov: false, weight_decay: 0.5 };
    let adamw = |lr| OptimizerConfig::Adamw { lr, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.5.into() };
    let check = |axis: Axis, optimizer, steps, change: &dyn Fn(&mut RunConfig)| -> (CoordCheckReport, String) {
        let mut config = config(Placement::PreNorm {}, 2);
        config.model = ModelConfig { d_model: 16, context: 12, tie_embeddings: false, ..config.model };
        config.optimizer = optimizer;
        change(&mut config);
        let sizes = if axis == Axis::Width { vec![16, 32, 64] } else { vec![1, 2, 4] };
        let options = CoordCheckOptions { axis, sizes, steps, seeds: 1, tolerance: 1e9 };
        let report = run(&config, &options, &mut || ()).unwrap();
        let said = report.said(&options);
        (report, said)
    };
    let named = |report: &CoordCheckReport, verdict: Growth| -> Vec<String> {
        report.layers.iter().filter(|layer| layer.verdict == verdict).map(|layer| layer.name.clone()).collect()
    };
    for axis in [Axis::Width, Axis::Depth] {
        // With everything moving it holds, at this wide tolerance.
        let (report, said) = check(axis, adamw(1e-2), 2, &|_| ());
        assert_eq!(report.conclusion(), Conclusion::Holds, "{said} {report:#?}");
        // The single block of the shallowest model is its last one too.
        let blocks = if axis == Axis::Width {
            ["block 1, stream", "block 2, stream"]
        } else {
            ["first block, stream", "last block, stream"]
        };
        for block in blocks {
            assert!(report.layers.iter().any(|layer| layer.name == block), "{block} {report:#?}");
        }
        // Parameters that start at 0 take any step, however small, but remain negligible.
        let changes: [&dyn Fn(&mut RunConfig); 4] = [
            &|_| (),
            &|config| config.model.norm = NormConfig::BatchNorm { eps: 1e-5, momentum: 0.5 },
            &|config| (config.model.zero_query, config.model.zero_readout) = (true, true),
            &|config| {
                (config.model.placement, config.model.scale) =
                    (Placement::None {}, ScaleConfig::ReZero { shared: false })
            },
        ];
        for (i, change) in changes.into_iter().enumerate() {
            for optimizer in [sgd(1e-30), adamw(1e-30), adamw(1e-12)] {
                let (report, said) = check(axis, optimizer, 2, change);
                assert_eq!(report.conclusion(), Conclusion::NothingMoved, "{i}: {report:#?}");
                assert!(said.contains("nothing moved") && said.contains("learning rate"), "{said}");
            }
        }
        // All branches are dead beside a stream that moves: their output is below the stream's precision.
        let (report, said) =
            check(axis, adamw(1e-2), 2, &|config| config.model.scale = ScaleConfig::Constant { value: 1e-30 });
        assert_eq!(report.conclusion(), Conclusion::Undecided, "{report:#?}");
        let still = named(&report, Growth::Still);
        assert!(still.iter().any(|name| name.ends_with("mlp")) && still.iter().any(|name| name.ends_with("attention")));
        assert!(
            !still.iter().any(|name| name == "embedding" || name == "logits" || name.ends_with("stream")),
            "{still:?}"
        );
        assert!(said.contains("did not move") && still.iter().all(|name| said.contains(name.as_str())), "{said}");
        // Everything behind a zero head waits for it: the first step does not count, the later ones do.
        let waits = |steps| check(axis, adamw(1e-2), steps, &|config| config.model.zero_readout = true).0;
        let report = waits(1);
        assert_eq!(
            (report.conclusion(), named(&report, Growth::Holds)),
            (Conclusion::Undecided, vec!["logits".into()])
        );
        let report = waits(3);
        assert_eq!(report.conclusion(), Conclusion::Holds, "{report:#?}");
        let stream = report.layers.iter().find(|layer| layer.name.ends_with("stream")).unwrap();
        assert!(stream.slopes[0].is_nan() && stream.slopes[1].is_finite(), "{stream:?}");
        // NaN does not hold.
        let (report, said) = check(axis, sgd(1e30), 3, &|config| config.train.clip = 0.0.into());
        assert_eq!(report.conclusion(), Conclusion::Fails, "{report:#?}");
        assert!(
            report.layers.iter().any(|layer| layer.verdict == Growth::Overflows) && said.contains("overflow"),
            "{said}"
        );
    }
    // Decay alone is no movement, and decay with a gradient does not change the verdict.
    let free = |decay: f64| {
        let optimizer = OptimizerConfig::Adamw { lr: 1e-2, betas: [0.9, 0.95], eps: 1e-8, weight_decay: decay.into() };
        let report = check(Axis::Width, optimizer, 2, &|_| ()).0;
        report.layers.iter().map(|layer| layer.changes.clone()).collect::<Vec<_>>()
    };
    assert_eq!(free(0.0), free(0.9));
    let empty = CoordCheckReport { layers: Vec::new(), targets: 9 };
    assert_eq!(empty.conclusion(), Conclusion::NothingMoved, "a check of nothing");
}

/// A text of a single character gives a model nothing to learn.
#[test]
fn a_text_of_one_character_decides_nothing() {
    use unitgain_study::coord_check::{Axis, Conclusion, CoordCheckOptions, run};
    let scratch = crate::common::Scratch::new("one-character");
    let path = scratch.0.join("a.txt");
    std::fs::write(&path, "a".repeat(4000)).unwrap();
    for tokenizer in ["byte", "char"] {
        for position in ["learned", "none"] {
            let text = format!(
                "[model]\ncontext = 8\nd_model = 16\nn_layers = 1\nn_heads = 2\nposition = '{position}'\n[data]\n\
                 task = 'text'\npath = {path:?}\ntokenizer = '{tokenizer}'\n[train]\nbatch_size = 4"
            );
            let config = RunConfig::parse(&text, "test", &[]).unwrap();
            let options =
                CoordCheckOptions { axis: Axis::Width, sizes: vec![16, 32], steps: 2, seeds: 1, tolerance: 1e9 };
            let Ok(report) = run(&config, &options, &mut || ()) else {
                assert_eq!(tokenizer, "char");
                continue;
            };
            assert_eq!(report.targets, 1);
            assert!(matches!(report.conclusion(), Conclusion::Undecided | Conclusion::NothingMoved), "{report:#?}");
        }
    }
}
