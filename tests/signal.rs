//! The signal at step 0, against what the papers derive and against finite differences.

use unitgain_model::{ModelConfig, Placement, ScaleConfig, Scheme};
use unitgain_train::signal::{Signal, measure, slope};
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

/// Exponent of a quantity over the number of blocks, by the geometric mean of six seeds.
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
    // Branches of equal variance: rms ~ sqrt(L), and the gradient of the last block ~ 1 / sqrt(L)
    // (arXiv:2002.04745, theorem 1).
    let pre = Placement::PreNorm {};
    assert!((exponent(pre, last_stream) - 0.5).abs() < 0.12, "{}", exponent(pre, last_stream));
    assert!((exponent(pre, last_gradient) + 0.5).abs() < 0.15, "{}", exponent(pre, last_gradient));
    // LayerNorm Scaling: variances 1/l add up to ln L.
    assert!(exponent(Placement::ScaledPreNorm {}, last_stream) < 0.3);
    // A norm closes the block; DeepNorm's gradients do not depend on the block.
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
    // Two branches write into the stream, independent of it and of each other.
    let sum = (signal.embedding.powi(2) + block.attention.powi(2) + block.mlp.powi(2)).sqrt();
    assert!((block.stream / sum - 1.0).abs() < 0.1, "{} {sum}", block.stream);
    // Of Xavier's matrices the largest singular value is near sigma (sqrt m + sqrt n), for the square ones 2 / sqrt 2 ..
    let [most, least] = block.singular_values.unwrap();
    assert!(most > 1.5 && most < 2.3 && least > 0.0 && least < 0.2, "{most} {least}");
    assert!(block.entropy > 0.5 && block.entropy <= 1.0 + 1e-5 && block.largest_logit > 0.0);
    // The norms of a block are those of its parameters.
    let own = signal.gradients.iter().filter(|(path, _)| path.starts_with("blocks.0."));
    let norm = own.map(|(_, norm)| norm * norm).sum::<f64>().sqrt();
    assert!((norm / block.gradient - 1.0).abs() < 1e-6);
    assert!(measure(&config, false).unwrap().blocks[0].singular_values.is_none());
    // It is the same every time, and another with another seed.
    assert_eq!(measure(&config, false).unwrap().loss, signal.loss);
    assert_ne!(measure(&RunConfig { seed: 2, ..config }, false).unwrap().loss, signal.loss);
}

#[test]
fn attention_of_equal_queries_is_uniform() {
    let mut config = config(Placement::None {}, 2);
    config.model.scale = ScaleConfig::ReZero { shared: false };
    config.model.init = Some(Scheme::Normal { std: 1e-4 });
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
    config.init.calibrate = Some(Calibrate::ALL[0]);
    let lsuv = measure(&config, false).unwrap();
    // Every layer writes variance 1, so that the logits have it too.
    assert!((lsuv.logits - 1.0).abs() < 0.1 && (plain.logits - 1.0).abs() > 0.2, "{} {}", lsuv.logits, plain.logits);
    assert!(lsuv.growth > 0.3, "{}", lsuv.growth);
}

/// The matrix of a singular value decomposition may hold anything.
#[test]
fn weights_that_are_not_finite_have_no_singular_values() {
    use unitgain_init::matrix::{mimetic_factors, singular_values};
    assert!(singular_values(&[1.0, f32::INFINITY, 0.0, 1.0], 2, 2).iter().all(|s| s.is_nan()));
    assert!(mimetic_factors(&[f32::NAN; 4], 2, 2, 1.0, 1.0)[0].iter().all(|x| x.is_nan()));
}

/// muP's changes do not grow with the width, the standard parametrization's do (arXiv:2203.03466, appendix D.1).
#[test]
fn a_coordinate_check_tells_mup_from_standard() {
    use unitgain_model::Parametrization;
    use unitgain_train::coord_check::{Axis, Options, Verdict, run};
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
        let options = Options { axis: Axis::Width, sizes: vec![32, 64, 128, 256], steps: 3, seeds: 2, tolerance: 0.25 };
        run(&config, &options, &mut || ()).unwrap()
    };
    let mup = check(Parametrization::mup(32), 3e-3);
    assert!(mup.iter().all(|layer| layer.verdict != Verdict::Grows), "{mup:#?}");
    let standard = check(Parametrization::Standard {}, 3e-3);
    let grows = |name: &str| standard.iter().find(|layer| layer.name == name).unwrap().verdict == Verdict::Grows;
    assert!(grows("logits") && grows("block 2, stream") && grows("block 1, mlp"), "{standard:#?}");
    assert!(!grows("embedding"));
    assert!(check(Parametrization::Standard {}, 1e-30).iter().all(|layer| layer.verdict == Verdict::Still));
}
