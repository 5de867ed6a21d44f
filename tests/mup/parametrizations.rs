//! The guarantees of each parametrization, on our model.

use crate::common::{Scratch, host, max_difference};
use burn::module::ParamId;
use burn::tensor::{Device, Int, Tensor};
use std::cell::RefCell;
use std::collections::HashMap;
use unitgain_model::weights::of as weights;
use unitgain_model::{
    Activation, Branch, Form, ModelConfig, NormConfig, Parametrization, Point, Position, Probe, Scheme, Variant, Walk,
    cross_entropy,
};
use unitgain_residual::two_way;
use unitgain_study::coord_check::{Axis, Conclusion, CoordCheckOptions, CoordCheckReport, Growth, resized, run};
use unitgain_study::sweep::Sweep;
use unitgain_train::{Batch, OptimizerConfig, RunConfig, Trainer, WeightDecay, read_rows};

const UNIT: Parametrization = Parametrization::u_mup();

fn tiny() -> ModelConfig {
    ModelConfig {
        vocab_size: Some(11),
        context: 12,
        d_model: 16,
        n_layers: 2,
        n_heads: 4,
        tie_embeddings: false,
        init: Some(Scheme::lecun()),
        ..ModelConfig::default()
    }
}

fn relative(base_width: usize, base_depth: usize) -> Vec<Parametrization> {
    vec![
        Parametrization::mup(base_width),
        Parametrization::Mup { base_width, base_head_dim: None, output_multiplier: 1.0, form: Form::Table3 },
        Parametrization::Mup { base_width, base_head_dim: None, output_multiplier: 1.0, form: Form::Table9 },
        Parametrization::Spectral { base_width, base_head_dim: None, output_multiplier: 1.0 },
        Parametrization::DepthMup { base_width, base_depth, base_head_dim: None, output_multiplier: 1.0 },
        Parametrization::CompleteP { base_width, base_depth, base_head_dim: None, output_multiplier: 1.0, alpha: 0.75 },
    ]
}

fn batch(step: i32) -> Batch {
    let ids = |shift: i32| (0..36).map(|i| (i * i + 3 * i * step + shift) % 11).collect();
    Batch { rows: 3, time: 12, tokens: ids(0), targets: ids(1 + step), weights: None }
}

/// Losses and final weights of a few steps.
fn trained(model: &ModelConfig, optimizer: OptimizerConfig) -> (Vec<f32>, Vec<Vec<f32>>) {
    let mut trainer = Trainer::new(model, optimizer, 1.0.into(), 1, &Device::flex()).unwrap();
    let mut rows = Vec::new();
    for step in 0..4 {
        let (next, row) = trainer.step(&[batch(step)], optimizer.lr(), false);
        trainer = next;
        rows.push(row);
    }
    let losses = read_rows(&rows).iter().map(|row| row.loss).collect();
    (losses, weights(&trainer.model).into_iter().map(|(.., values)| values).collect())
}

#[test]
fn the_base_model_trains_as_standard_bit_for_bit() {
    for optimizer in OptimizerConfig::all() {
        let standard = trained(&tiny(), optimizer);
        for parametrization in relative(16, 2) {
            let same = trained(&ModelConfig { parametrization, ..tiny() }, optimizer);
            assert_eq!(same, standard, "{parametrization:?} {optimizer:?}");
            // Another base is another parametrization.
            let other = relative(8, 1).into_iter().find(|p| p.about().name == parametrization.about().name).unwrap();
            assert_ne!(trained(&ModelConfig { parametrization: other, ..tiny() }, optimizer), standard, "{other:?}");
        }
    }
}

#[test]
fn every_parametrization_trains_composed_as_fused() {
    for parametrization in relative(8, 1).into_iter().chain([UNIT]) {
        let init = if parametrization == UNIT { None } else { tiny().init };
        for activation in [Activation::Gelu, Activation::SwiGlu] {
            let model = ModelConfig { parametrization, init, activation, ..tiny() };
            let optimizer = OptimizerConfig::Sgd { lr: 1e-2, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
            let (fused, weights) = trained(&model, optimizer);
            let (composed, same) = unitgain_kernels::composed(|| trained(&model, optimizer));
            assert!(max_difference(&fused, &composed) < 1e-4, "{parametrization:?}: {fused:?} {composed:?}");
            for (a, b) in weights.iter().zip(&same) {
                assert!(max_difference(a, b) < 1e-3, "{parametrization:?}");
            }
        }
    }
}

#[test]
fn a_two_way_scale_has_one_factor_for_each_way() {
    let x = Tensor::<1>::from_floats([1.0, -2.0, 3.0], &Device::flex().autodiff()).require_grad();
    for (forward, backward) in [(2.0, 2.0), (1.0, 1.0), (0.25, 1.0), (1.0, 0.25), (3.0, 0.5), (1e-3, 1e3)] {
        let y = two_way(x.clone(), forward, backward);
        let want = [1.0, -2.0, 3.0].map(|v| v * forward as f32);
        assert_eq!(host(y.clone()), want, "exact, however far both are apart");
        let gradient = host(x.grad(&y.sum().backward()).unwrap());
        assert_eq!(gradient, [backward as f32; 3]);
    }
}

/// Sizes of activations and of their gradients.
#[derive(Default)]
struct Sizes {
    names: HashMap<ParamId, String>,
    seen: RefCell<Vec<(String, Tensor<2>, Tensor<2>)>>,
}

impl Sizes {
    fn note(&self, name: String, x: Tensor<2>) -> Tensor<2> {
        let leaf = Tensor::zeros(x.shape(), &x.device()).require_grad();
        self.seen.borrow_mut().push((name, x.clone(), leaf.clone()));
        x + leaf
    }
}

impl Probe for Sizes {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        self.note(format!("{point:?}"), x)
    }
    fn branch(&self, _: usize, _: Branch, y: Tensor<2>) -> Tensor<2> {
        y
    }
    fn sees_layers(&self) -> bool {
        true
    }
    fn linear(&self, weight: ParamId, y: Tensor<2>) -> Tensor<2> {
        self.note(self.names[&weight].clone(), y)
    }
}

fn rms(x: Tensor<2>) -> f64 {
    f64::from(x.inner().square().mean().into_scalar::<f32>()).sqrt()
}

/// arXiv:2407.17465: weights, activations and activation gradients have size 1 at init, at every width, for a loss
/// whose gradient with respect to the logits has size 1. Gradients of queries and keys are smaller: at init attention
/// hardly depends on them, in the authors' models too. And attention averages tokens that earlier averages have made
/// similar, while its scale assumes independence: over 64 tokens its output has size 2 in the second block and 3 in the
/// fourth, and so has the gradient of the values (docs/parametrizations.md).
#[test]
fn under_u_mup_everything_has_size_one_at_init() {
    let all = [
        (Activation::SwiGlu, Position::rope(1e4), 2, 16),
        (Activation::Gelu, Position::Learned {}, 2, 16),
        (Activation::SwiGlu, Position::rope(1e4), 6, 64),
    ];
    for (width, (activation, position, layers, time)) in [64, 512].into_iter().flat_map(|w| all.map(|other| (w, other)))
    {
        for (name, value, gradient) in sizes_at_init(width, activation, position, layers, time) {
            let averages = name.ends_with("attention.out.weight") || name.ends_with("attention.value.weight");
            let most = if averages && layers > 2 { 4.0 } else { 2.0 };
            assert!((0.5..=most).contains(&value), "{width} {layers} {activation:?}: {name} has size {value}");
            let hardly_counts = name.ends_with("query.weight") || name.ends_with("key.weight");
            assert!(
                hardly_counts || (0.5..=most).contains(&gradient),
                "{width} {layers} {activation:?}: the gradient of {name} has size {gradient}"
            );
        }
    }
}

/// Name, size and gradient size at each point of the stream and of each linear layer's output.
fn sizes_at_init(
    width: usize,
    activation: Activation,
    position: Position,
    layers: usize,
    time: usize,
) -> Vec<(String, f64, f64)> {
    let (vocab, rows) = (64, 16);
    let config = ModelConfig {
        vocab_size: Some(vocab),
        context: time,
        d_model: width,
        n_layers: layers,
        n_heads: 4,
        activation,
        position,
        norm: NormConfig::rms_norm(),
        tie_embeddings: false,
        parametrization: UNIT,
        ..ModelConfig::default()
    };
    let device = Device::flex().autodiff();
    let (model, table) = config.build(1, &device).unwrap();
    for entry in table.iter().filter(|entry| entry.role().is_matrix()) {
        assert_eq!(entry.init_std, 1.0, "{}", entry.path);
    }
    let mut sizes = Sizes::default();
    burn::module::Module::visit(
        &model,
        &mut Walk::new(|path: &str, id, _: Vec<usize>| {
            sizes.names.insert(id, path.to_string());
        }),
    );
    let ids = |path: &str| {
        let uniform = unitgain_init::Distribution::Uniform { bound: 1.0 }.draw(7, path, 1, rows * time);
        let ids: Vec<i32> = uniform.iter().map(|u| ((u + 1.0) * 0.5 * vocab as f32) as i32 % vocab as i32).collect();
        Tensor::<1, Int>::from_ints(ids.as_slice(), &device).reshape([rows, time])
    };
    let loss = cross_entropy(model.forward_probed(ids("tokens"), &sizes), ids("targets"), None);
    let graph = loss.backward();
    let unit = (rows * time) as f64 * vocab as f64 / (vocab as f64 - 1.0).sqrt();
    let size = |(name, x, leaf): (String, Tensor<2>, Tensor<2>)| {
        // With its multiplier 1/fan_in the head writes 1/sqrt(fan_in), as under muP.
        let is_logits = name == "Logits" || name == "head.weight";
        let value = if is_logits { rms(x) * (width as f64).sqrt() } else { rms(x) };
        (name, value, unit * rms(leaf.grad(&graph).unwrap()))
    };
    sizes.seen.into_inner().into_iter().map(size).collect()
}

fn check(model: ModelConfig, lr: f64, axis: Axis, sizes: Vec<usize>) -> CoordCheckReport {
    let text = "[data]\ntask = 'markov'\nvocab_size = 16\norder = 1\nbranching = 4\n[train]\nbatch_size = 4";
    let mut config = RunConfig::parse(text, "test", &[]).unwrap();
    config.model = ModelConfig { vocab_size: None, context: 16, ..model };
    config.optimizer = OptimizerConfig::Adam { lr, betas: [0.9, 0.95], eps: 1e-12, weight_decay: 0.0 };
    let options = CoordCheckOptions { axis, sizes, steps: 3, seeds: 2, tolerance: 0.25 };
    run(&config, &options, &mut || ()).unwrap()
}

/// Changes over a few steps are independent of the width under each parametrization, but not without one.
#[test]
fn every_parametrization_passes_the_coordinate_check_over_the_width() {
    let widths = || vec![32, 64, 128, 256];
    let model = |parametrization| ModelConfig { d_model: 32, parametrization, ..tiny() };
    let all = relative(32, 2).into_iter().map(|p| (model(p), 3e-3));
    for (model, lr) in all.chain([(ModelConfig { init: None, ..model(UNIT) }, 0.1)]) {
        let name = model.parametrization;
        let report = check(model, lr, Axis::Width, widths());
        assert_eq!(report.conclusion(), Conclusion::Holds, "{name:?} {report:#?}");
        assert!(report.layers.iter().any(|l| l.verdict == Growth::Holds), "{name:?}");
    }
    let standard = check(model(Parametrization::Standard {}), 3e-3, Axis::Width, widths());
    assert_eq!(standard.conclusion(), Conclusion::Fails);
    assert!(standard.layers.iter().filter(|layer| layer.verdict == Growth::Grows).count() >= 5, "{standard:#?}");
}

/// The same over the depth, under the parametrizations that support it.
#[test]
fn depth_parametrizations_pass_the_coordinate_check_over_the_depth() {
    let model = |parametrization| ModelConfig { d_model: 32, parametrization, ..tiny() };
    let depths = || vec![2, 4, 8, 16];
    let complete = |alpha| Parametrization::CompleteP {
        base_width: 32,
        base_depth: 2,
        base_head_dim: None,
        output_multiplier: 1.0,
        alpha,
    };
    let depth =
        Parametrization::DepthMup { base_width: 32, base_depth: 2, base_head_dim: None, output_multiplier: 1.0 };
    for parametrization in [complete(1.0), complete(0.5), depth] {
        let report = check(model(parametrization), 3e-3, Axis::Depth, depths());
        assert_eq!(report.conclusion(), Conclusion::Holds, "{parametrization:?} {report:#?}");
    }
    let mup = check(model(Parametrization::mup(32)), 3e-3, Axis::Depth, depths());
    assert!(mup.layers.iter().any(|l| l.name == "last block, stream" && l.verdict == Growth::Grows), "{mup:#?}");
}

/// The factor on the attention logits of each block in the built model, and the parameter table.
fn attention_scales(model: &ModelConfig) -> (Vec<f64>, unitgain_model::ParamTable) {
    struct Scales(RefCell<Vec<f64>>);
    impl Probe for Scales {
        fn stream(&self, _: Point, x: Tensor<2>) -> Tensor<2> {
            x
        }
        fn branch(&self, _: usize, _: Branch, y: Tensor<2>) -> Tensor<2> {
            y
        }
        fn attention(&self, _: usize, _: &Tensor<4>, _: &Tensor<4>, scale: f64, _: Option<usize>) {
            self.0.borrow_mut().push(scale);
        }
    }
    let (built, table) = model.build(1, &Device::flex()).unwrap();
    let scales = Scales(RefCell::default());
    built.forward_probed(Tensor::from_ints([[0, 1, 2]], &Device::flex()), &scales);
    (scales.0.into_inner(), table)
}

/// A given width of a configuration, a sweep, a coordinate check and a probe is the same model, whether heads grow in
/// size or in number.
#[test]
fn the_same_sizes_are_the_same_model_in_every_command() {
    let scratch = Scratch::new("same-sizes");
    let (base, file) = (scratch.0.join("base.toml"), scratch.0.join("sweep.toml"));
    let mut compared = 0;
    for kind in relative(16, 2).into_iter().chain([UNIT, Parametrization::Standard {}]) {
        let kind = serde_json::to_value(kind).unwrap();
        let setting = |(key, value): (&String, &serde_json::Value)| format!("{key} = {value}");
        let kind = kind.as_object().unwrap().iter().map(setting).collect::<Vec<_>>().join(", ");
        // Heads and head size of the base model, and the tuned head size if it differs.
        for (heads, head_dim, base_head_dim) in
            [(4, None, None), (2, Some(8), None), (4, Some(4), None), (1, Some(16), Some(4.0)), (3, Some(8), None)]
        {
            if base_head_dim.is_some() && !kind.contains("base_width") {
                continue;
            }
            let more = base_head_dim.map(|size: f64| format!(", base_head_dim = {size:?}")).unwrap_or_default();
            let text = |width: usize, heads: usize| {
                let size = head_dim.map(|size: usize| format!("head_dim = {size}")).unwrap_or_default();
                format!(
                    "[model]\nd_model = {width}\nn_heads = {heads}\n{size}\nn_layers = 2\ncontext = 8\n\
                     tie_embeddings = false\nqk_norm = 'rms_norm'\nhead_scale = true\nparametrization = {{ {kind}{more} }}\n\
                     [data]\ntask = 'markov'\nvocab_size = 8\norder = 1\nbranching = 4\n[optimizer]\nkind = 'adam'"
                )
            };
            std::fs::write(&base, text(16, heads)).unwrap();
            std::fs::write(&file, "run = 'base.toml'\n[axes]\nwidth = [16, 32, 64]").unwrap();
            let swept = Sweep::load(&file, &[]).unwrap();
            let base = RunConfig::parse(&text(16, heads), "base", &[]).unwrap();
            for run in &swept.plan {
                let width = run.job.config.model.d_model;
                let grown = if head_dim.is_some() { heads * width / 16 } else { heads };
                let (written, _) = RunConfig::parse(&text(width, grown), "written", &[]).unwrap().prepare().unwrap();
                let (checked, _) = resized(&base, Axis::Width, width).unwrap().prepare().unwrap();
                let name = format!("{kind} at width {width}, {grown} heads of {head_dim:?}");
                assert_eq!(written.model, run.job.config.model, "{name}");
                assert_eq!(written.model, checked.model, "{name}");
                let (scales, table) = attention_scales(&written.model);
                assert_eq!((&scales, &table), (&attention_scales(&run.job.config.model).0, &table), "{name}");
                // As in the authors' muP: sqrt(base head size) / head size.
                let size = head_dim.unwrap_or(width / heads) as f64;
                let tuned = base_head_dim.unwrap_or(head_dim.unwrap_or(16 / heads) as f64);
                let want = match kind.as_str() {
                    kind if kind.contains("u_mup") => 1.0 / size,
                    kind if kind.contains("standard") => size.powf(-0.5),
                    _ => tuned.sqrt() / size,
                };
                assert!(
                    scales.len() == 2 && scales.iter().all(|scale| (scale - want).abs() < 1e-12),
                    "{name} {scales:?}"
                );
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 3 * (6 * 5 + 2 * 4));
}

/// Coupled decay removes the same fraction of a hidden weight at each width; independent decay also at each learning
/// rate.
#[test]
fn weight_decay_takes_the_same_part_at_every_width() {
    let part = |width, lr, weight_decay| {
        let optimizer = OptimizerConfig::Adamw { lr, betas: [0.9, 0.95], eps: 1e-8, weight_decay };
        let config = ModelConfig { d_model: width, parametrization: Parametrization::mup(16), ..tiny() };
        let (_, table) = config.build(1, &Device::flex()).unwrap();
        let entry = table.iter().find(|entry| entry.path.ends_with("query.weight")).unwrap();
        lr * entry.factors.lr * optimizer.decay_of(entry)
    };
    let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
    let coupled = WeightDecay::Coupled { value: 0.1 };
    assert!(close(part(16, 1e-2, coupled), 1e-3) && close(part(64, 1e-2, coupled), 1e-3));
    // A step with independent decay: a weight without a gradient shrinks by that fraction.
    let independent = WeightDecay::Independent { value: 1e-3 };
    let model = ModelConfig { d_model: 64, parametrization: Parametrization::mup(16), zero_readout: true, ..tiny() };
    let optimizer = OptimizerConfig::Adamw { lr: 1e-2, betas: [0.9, 0.95], eps: 1e-8, weight_decay: independent };
    let trainer = Trainer::new(&model, optimizer, 0.0.into(), 1, &Device::flex()).unwrap();
    let query = |trainer: &Trainer| crate::common::values(&trainer.model, "blocks.1.attention.query.weight");
    let before = query(&trainer);
    let (trainer, _) = trainer.step(&[batch(0)], 1e-2 / 2.0, false);
    let want: Vec<f32> = before.iter().map(|w| w * (1.0 - 0.5e-3)).collect();
    assert!(max_difference(&query(&trainer), &want) < 1e-7, "half of the schedule, half of the decay");
}

#[test]
fn queries_and_an_untied_head_can_start_at_zero() {
    let model = ModelConfig { zero_query: true, zero_readout: true, ..tiny() };
    let device = Device::flex();
    let (built, table) = model.build(1, &device).unwrap();
    for entry in table.iter().filter(|entry| entry.role().is_matrix()) {
        let is_zero = crate::common::values(&built, &entry.path).iter().all(|w| *w == 0.0);
        assert_eq!(is_zero, entry.path.ends_with("query.weight") || entry.path == "head.weight", "{}", entry.path);
        assert_eq!(is_zero, entry.init_std == 0.0);
    }
    let adam = OptimizerConfig::Adam { lr: 1e-2, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0 };
    let (losses, _) = trained(&model, adam);
    assert!((losses[0] - 11f32.ln()).abs() < 1e-5 && losses[3] != losses[0]);
}

#[test]
fn u_mup_refuses_a_decay_that_is_coupled_to_its_learning_rates() {
    let text = "[model]\nparametrization = 'u_mup'\ntie_embeddings = false\nd_model = 16\n[optimizer]\nkind = 'adamw'\nlr = 0.5";
    let parse = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        RunConfig::parse(text, "test", &settings).unwrap().prepare()
    };
    let problem = parse(&[]).unwrap_err().to_string();
    assert!(problem.contains("optimizer.weight_decay") && problem.contains("independent"), "{problem}");
    for fine in ["optimizer.weight_decay=0.0", "optimizer.weight_decay.kind=independent", "optimizer.kind=adam"] {
        parse(&[fine]).unwrap();
    }
    parse(&["optimizer.kind=sgd", "optimizer.weight_decay=0.1"]).unwrap_err();
}

/// Constants that depend on the size use the base model's: its depth for layer_scale, its width for DyT's alpha.
#[test]
fn constants_go_by_the_base_model() {
    let complete = Parametrization::CompleteP {
        base_width: 16,
        base_depth: 2,
        base_head_dim: None,
        output_multiplier: 1.0,
        alpha: 1.0,
    };
    let scale = unitgain_model::ScaleConfig::LayerScale { init: None };
    let deep = ModelConfig { parametrization: complete, scale, n_layers: 24, init: None, ..tiny() };
    assert_eq!(
        deep.plan(11).unwrap().blocks[0].mlp.branch.scale,
        unitgain_model::ScaleConfig::LayerScale { init: Some(0.1) }
    );
    let dyt = |width, parametrization| {
        let norm = NormConfig::Dyt { alpha: None, bias: true };
        let config = ModelConfig { norm, d_model: width, n_layers: 1, parametrization, ..tiny() };
        let (model, table) = config.build(1, &Device::flex()).unwrap();
        let alphas = table.iter().filter(|entry| entry.path.ends_with("alpha"));
        alphas.map(|entry| crate::common::values(&model, &entry.path)[0]).collect::<Vec<f32>>()
    };
    let standard = Parametrization::Standard {};
    assert_eq!(dyt(2048, Parametrization::mup(16)), dyt(16, standard));
    assert_ne!(dyt(2048, standard), dyt(16, standard));
}

/// Single values of u-muP's scales: the authors' fit of the attention size, computed by hand, and the mean square of
/// silu(z) u.
#[test]
fn unit_scales_have_their_values() {
    let unit = unitgain_mup::UnitScaling::default();
    // A fraction 1 / (1 + 4 16), in logarithms, of the way from sqrt(ln 64 / 64) = 0.25491 to 1.
    assert!((unit.attention_size(16, 64) - 0.25491f64.powf(64.0 / 65.0)).abs() < 1e-5);
    let wide = unitgain_mup::UnitScaling { attention: 8.0, ..unit };
    assert!((wide.attention_size(16, 64) - 0.25491f64.powf(0.5)).abs() < 1e-5);
}

/// A norm before a branch belongs to it: its gain's gradient has the branch's size (arXiv:2407.17465, appendix F).
#[test]
fn under_u_mup_gains_have_the_gradient_of_their_branch() {
    let config = ModelConfig { parametrization: Parametrization::u_mup(), init: None, n_layers: 6, ..tiny() };
    let device = Device::flex().autodiff();
    let (model, table) = config.build(1, &device).unwrap();
    let (tokens, targets) = batch(1).tensors(&device);
    let gradients = unitgain_train::Gradients::backward(&cross_entropy(model.forward(tokens), targets, None), &model);
    let size = |path: &str| {
        let index = table.iter().position(|entry| entry.path.ends_with(path) && entry.block() == Some(5)).unwrap();
        let g = gradients.iter().nth(index).unwrap().unwrap().clone();
        f64::from(g.square().mean().into_scalar::<f32>()).sqrt()
    };
    // After the norm comes the MLP's first matrix, whose entries each see as many tokens, over sqrt(fan_in).
    let (gain, matrix) = (size("around_mlp.norms.0.LayerNorm.gamma"), size("mlp.up.weight"));
    let ratio = gain / (matrix * 16f64.sqrt());
    assert!((0.6..1.7).contains(&ratio), "{gain} {matrix}");
}
