//! A step on shards of a batch is the step on the batch.

use crate::common::{Scratch, test_device, tests_a_gpu};
use burn::tensor::Device;
use unitgain_model::weights::of as weights;
use unitgain_model::{ModelConfig, ModelError, NormConfig, Parametrization, Placement, ScaleConfig, Variant};
use unitgain_study::replay::replay;
use unitgain_train::{
    Batch, ClipConfig, DataConfig, HostRow, OptimizerConfig, ReplicaCount, Replicas, RunConfig, Start, Task, Trainer,
    folder::metrics, read_rows, train,
};

const ROWS: usize = 5;

fn model() -> ModelConfig {
    ModelConfig {
        vocab_size: Some(8),
        context: 8,
        d_model: 16,
        n_layers: 2,
        n_heads: 2,
        d_ff: Some(24),
        bias: true,
        attention_bias: Some(false),
        dropout: 0.1,
        ..ModelConfig::default()
    }
}

fn task() -> Task {
    DataConfig::Markov { vocab_size: 8, order: 1, branching: 3, seed: 1 }.load(8).unwrap()
}

/// A trainer with this many replicas.
fn trainer(model: &ModelConfig, replicas: usize) -> Trainer {
    let device = Device::flex();
    let sgd = OptimizerConfig::Sgd { lr: 1e-2, momentum: 0.9, nesterov: false, weight_decay: 1e-3 };
    let trainer = Trainer::new(model, sgd, ClipConfig::default(), 1, &device).unwrap();
    trainer.with_replicas(Replicas::on_threads(replicas, replicas, &device).unwrap())
}

/// Steps on `batches(step)`, and an evaluation: the rows, its loss, and the final weights.
fn steps(
    model: &ModelConfig,
    replicas: usize,
    steps: usize,
    batches: impl Fn(usize) -> Vec<Batch>,
) -> (Vec<HostRow>, f32, Vec<Vec<f32>>) {
    let mut trainer = trainer(model, replicas);
    let mut rows = Vec::new();
    for step in 0..steps {
        let row;
        (trainer, row) = trainer.step(&batches(step), 1e-2, true);
        rows.push(row);
    }
    let held_out = [task().batch(2, 0, 0..3), task().batch(2, 1, 0..2), task().batch(2, 2, 0..4)];
    let evaluation = trainer.evaluate(held_out.into_iter());
    let weights = weights(&trainer.model).into_iter().map(|(_, _, values)| values).collect();
    (read_rows(&rows), evaluation, weights)
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// The largest relative difference between what two trainers did.
fn difference(a: &(Vec<HostRow>, f32, Vec<Vec<f32>>), b: &(Vec<HostRow>, f32, Vec<Vec<f32>>)) -> f64 {
    let relative = |a: f32, b: f32| f64::from(a - b).abs() / f64::from(a).abs().max(1e-30);
    let mut worst = relative(a.1, b.1);
    for (a, b) in a.0.iter().zip(&b.0) {
        assert_eq!(a.stream_rms.len(), 2, "the stream was observed");
        let numbers =
            |row: &HostRow| [vec![row.loss, row.grad_norm(), row.grad_norm_clipped], row.stream_rms.clone()].concat();
        for (a, b) in numbers(a).into_iter().zip(numbers(b)) {
            worst = worst.max(relative(a, b));
        }
    }
    let all = |of: &[Vec<f32>]| of.iter().flatten().copied().collect::<Vec<_>>();
    let (a, b) = (all(&a.2), all(&b.2));
    worst.max(norm(a.iter().zip(&b).map(|(a, b)| a - b)) / norm(a.iter().copied()))
}

/// Shards of 2, 2 and 1 sequences of every placement, norm and scale.
#[test]
fn a_step_on_shards_is_the_step_on_the_batch() {
    let (mut compared, mut refused) = (0, 0);
    let batches = |step| vec![task().batch(1, step, 0..ROWS)];
    for placement in Placement::all() {
        for norm in NormConfig::all() {
            let norm = match norm {
                // Refused.
                NormConfig::BatchNorm { .. } => continue,
                // A norm of one or two entries, as here by default, is about their signs, and rounding errors grow.
                NormConfig::PartialRmsNorm { eps, .. } => NormConfig::PartialRmsNorm { eps, fraction: 0.5 },
                NormConfig::GroupNorm { eps, over_time, .. } => NormConfig::GroupNorm { eps, groups: 1, over_time },
                other => other,
            };
            for scale in ScaleConfig::all() {
                let model = ModelConfig { norm, placement, scale, ..model() };
                match model.plan(8) {
                    Ok(_) => {
                        let [one, three] = [1, 3].map(|replicas| steps(&model, replicas, 2, batches));
                        let worst = difference(&one, &three);
                        // 1.0e-6 at most on a machine with AVX-512, where a norm divides a branch that is almost 0.
                        assert!(worst < 3e-6, "{placement:?} {norm:?} {scale:?}: {worst:e}");
                        compared += 1;
                    }
                    Err(ModelError::Combination { .. }) => refused += 1,
                    Err(e) => panic!("{placement:?} {norm:?} {scale:?}: {e}"),
                }
            }
        }
    }
    println!("{compared} compared, {refused} refused");
    assert!(compared > 500);
}

/// Thirty steps of what changes how a batch is averaged: every parametrization, masked losses, micro-batches.
#[test]
fn thirty_steps_on_shards_are_those_on_the_batch() {
    let masked = |step: usize, rows: std::ops::Range<usize>| {
        let batch = task().batch(1, step, rows.clone());
        let weights = (rows.start * 8..rows.end * 8).map(|i| (i * i % 7) as f32 / 7.0).collect();
        Batch { weights: Some(weights), ..batch }
    };
    let untied = ModelConfig { tie_embeddings: false, ..model() };
    for parametrization in Parametrization::all() {
        let model = ModelConfig { parametrization, ..untied.clone() };
        let [one, two, five] = [1, 2, 5].map(|n| steps(&model, n, 30, |step| vec![masked(step, 0..ROWS)]));
        let micro = steps(&model, 2, 30, |step| vec![masked(step, 0..2), masked(step, 2..ROWS)]);
        for (name, other) in [("2 replicas", &two), ("5 replicas", &five), ("micro-batches", &micro)] {
            let worst = difference(&one, other);
            assert!(worst < 1e-6, "{parametrization:?}, {name}: {worst:e}");
        }
        assert!(
            difference(&one, &steps(&model, 2, 30, |step| vec![task().batch(1, step, 0..ROWS)])) > 1e-4,
            "the mask counts"
        );
    }
}

#[test]
fn the_same_replicas_give_the_same_bits() {
    let of = |replicas| {
        let (rows, evaluation, weights) = steps(&model(), replicas, 5, |step| vec![task().batch(1, step, 0..ROWS)]);
        let rows: Vec<_> = rows.into_iter().map(|row| (row.loss, row.squares, row.stream_rms)).collect();
        format!("{rows:?} {evaluation} {weights:?}")
    };
    for replicas in [2, 3] {
        assert!(of(replicas) == of(replicas), "{replicas} replicas");
    }
}

/// A mask is that of a sequence: other sequences of the batch do not change it, and those of two copies differ.
#[test]
fn a_dropout_mask_belongs_to_its_sequence() {
    let dropped = ModelConfig { dropout: 0.5, ..model() };
    let mut trainer = trainer(&dropped, 1);
    let batch = task().batch(1, 0, 0..3);
    // The loss of one sequence among these.
    let mut of = |order: &[usize], seen: usize| {
        let pick = |all: &[i32]| order.iter().flat_map(|&i| all[i * 8..(i + 1) * 8].to_vec()).collect();
        let weights = (0..order.len() * 8).map(|at| f32::from(u8::from(at / 8 == seen))).collect();
        let [tokens, targets] = [pick(&batch.tokens), pick(&batch.targets)];
        let batch = Batch { rows: order.len(), tokens, targets, weights: Some(weights), ..batch.clone() };
        trainer.measure(&[batch], false).loss.into_scalar::<f32>()
    };
    let alone = of(&[0], 0);
    for others in [&[0, 1][..], &[0, 2], &[0, 0], &[0, 1, 2]] {
        let among = of(others, 0);
        assert!((among - alone).abs() < 1e-6, "{alone} alone, {among} in {others:?}");
    }
    let (first, second) = (of(&[0, 0], 0), of(&[0, 0], 1));
    assert!((first - second).abs() > 1e-4, "two copies have two masks: {first}, {second}");
}

/// Several replicas on a device, and where a GPU is tested, replicas on two devices that copy to each other.
#[test]
fn a_step_on_several_devices_is_that_on_one() {
    let of = |devices: &[Device]| {
        let sgd = OptimizerConfig::Sgd { lr: 1e-2, momentum: 0.9, nesterov: false, weight_decay: 1e-3 };
        let trainer = Trainer::new(&model(), sgd, ClipConfig::default(), 1, &devices[0]).unwrap();
        let mut trainer = trainer.with_replicas(Replicas::on_devices(devices).unwrap());
        assert_eq!(trainer.replicas().count(), devices.len());
        let mut rows = Vec::new();
        for step in 0..10 {
            let row;
            (trainer, row) = trainer.step(&[task().batch(1, step, 0..ROWS)], 1e-2, true);
            rows.push(row);
        }
        let evaluation = trainer.evaluate([task().batch(2, 0, 0..3), task().batch(2, 1, 0..2)].into_iter());
        let weights = weights(&trainer.model).into_iter().map(|(_, _, values)| values).collect();
        (read_rows(&rows), evaluation, weights)
    };
    let (cpu, device) = (Device::flex(), test_device());
    let one = of(std::slice::from_ref(&cpu));
    let lists = [
        vec![device.clone()],
        vec![device.clone(), device.clone()],
        vec![device.clone(), cpu.clone(), device.clone()],
        vec![cpu, device.clone(), device],
    ];
    for devices in lists {
        let worst = difference(&one, &of(&devices));
        assert!(worst < if tests_a_gpu() { 1e-5 } else { 1e-6 }, "{devices:?}: {worst:e}");
    }
}

/// A run on a list of devices. On the CPU a list is refused, with the key that takes its place.
#[test]
fn a_run_names_its_devices() {
    let name = std::env::var("UNITGAIN_TEST_BACKEND").unwrap_or("flex".into());
    let scratch = Scratch::new("devices");
    let config = |backend: &str, rest: &str| {
        let text = format!(
            "backend = {backend:?}\n[model]\ncontext = 8\nd_model = 16\nn_layers = 1\nn_heads = 2\n{rest}\n[schedule]\n\
             kind = 'constant'\n[log]\nevery = 1\n[eval]\ntokens = 64\n"
        );
        RunConfig::parse(&text, "test", &[]).unwrap()
    };
    let twice = format!("{name},{name}");
    if !tests_a_gpu() {
        let said = config(&twice, "").prepare().unwrap_err().to_string();
        assert!(said.contains("write train.replicas = 2"), "{said}");
        return;
    }
    let refused = |rest: &str| config(&twice, rest).prepare().unwrap_err().to_string();
    for (rest, part) in [
        ("[train]\nreplicas = 3", "must be 2, one on each device"),
        ("[train]\nbatch_size = 1", "at most train.batch_size = 1"),
        ("norm = 'batch_norm'", "batch_norm normalizes by the statistics"),
    ] {
        assert!(refused(rest).contains(part), "{rest}: {}", refused(rest));
    }
    let run = |backend: &str, steps: usize, start| {
        let rest = format!("[train]\nsteps = {steps}\nbatch_size = 4");
        let folder = scratch.0.join("run");
        train(&config(backend, &rest), &folder, start, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        metrics::read(&folder).unwrap()
    };
    run(&twice, 2, Start::New);
    let resumed = run(&name, 4, Start::Resume);
    let made: Vec<usize> = resumed.iter().map(|record| record.replicas).collect();
    assert_eq!(made, [2, 2, 1, 1], "a run goes on with the devices that are left");
}

/// A device reports its failure by a panic, here in the thread of the second replica.
#[test]
fn a_replica_that_fails_is_one_message() {
    let device = Device::flex();
    let replicas = Replicas::on_threads(2, 2, &device).unwrap();
    let work = |i, part: u32| if i == 1 { panic!("device lost; part {part}") } else { part };
    let said = unitgain_train::device::guarded(|| replicas.each(vec![1, 2], work)).unwrap_err();
    assert_eq!(said, "device lost; part 2");
    assert_eq!(replicas.each(vec![3, 4], |_, part| part), [3, 4], "and the threads go on");
}

/// Also in debug builds, and from a thread of a pool, whose stacks are small.
#[test]
fn many_replicas_take_no_deep_stack() {
    let replicas = Replicas::on_threads(600, 1, &Device::flex()).unwrap();
    for parts in [1, 2, 3, 599, 600] {
        let each = || replicas.each((0..parts).collect(), |i, part: usize| (i, part * part));
        let expected: Vec<(usize, usize)> = (0..parts).map(|i| (i, i * i)).collect();
        assert_eq!(unitgain_train::device::on_threads(2, each).unwrap(), expected);
    }
}

#[test]
fn what_cannot_be_split_says_so() {
    let parse = |text: &str| {
        let base = "[model]\ncontext = 8\nd_model = 16\nn_layers = 1\nn_heads = 2\n";
        let config = RunConfig::parse(&format!("{base}{text}"), "test", &[]).map_err(|e| e.to_string())?;
        let (config, _) = config.prepare().map_err(|e| e.to_string())?;
        Ok::<_, String>(config.replicas(&config.plan().unwrap(), &Device::flex()).unwrap().count())
    };
    for (text, parts) in [
        ("[train]\nreplicas = 0", ["train.replicas: 0", "at least 1, or \"auto\""]),
        ("[train]\nreplicas = 5\nbatch_size = 4", ["train.replicas: 5", "at most train.batch_size = 4"]),
        ("[train]\nreplicas = 5000\nbatch_size = 10000", ["train.replicas: 5000", "at most 1024"]),
        ("[train]\nreplicas = 1000000", ["train.replicas: 1000000", "at most 1024"]),
        // The evaluation has 4096 tokens on each replica.
        ("d_ff = 1000000\n[train]\nreplicas = 900\nbatch_size = 1000", ["train.replicas: 900", "Take fewer replicas"]),
        ("norm = 'batch_norm'\n[train]\nreplicas = 2", ["train.replicas: 2", "batch_norm"]),
        ("[train]\nreplicas = 'all'", ["train.replicas", "a number of replicas, or \"auto\""]),
    ] {
        let said = parse(text).unwrap_err();
        assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
    }
    let set = |value: &str| RunConfig::parse("", "test", &[format!("train.replicas={value}")]).unwrap().train.replicas;
    assert_eq!([set("3"), set("auto")], [ReplicaCount::Count(3), ReplicaCount::Auto]);
    let resolved = |text: &str| parse(&format!("{text}\n")).unwrap();
    assert_eq!(resolved("norm = 'batch_norm'"), 1);
    assert_eq!(resolved("[train]\nbatch_size = 1"), 1);
    assert_eq!(resolved("[train]\nreplicas = 3"), 3);
    for (threads, batch, replicas) in [(1, 16, 1), (2, 16, 2), (3, 4, 2), (4, 5, 3), (8, 5, 5), (16, 16, 16)] {
        // As many as leave the largest shard as small as it can be.
        let text = format!("[train]\nbatch_size = {batch}\n");
        let config = RunConfig::parse(&text, "test", &[format!("threads={threads}")]).unwrap();
        let (config, _) = config.prepare().unwrap();
        assert_eq!(config.train.replicas, ReplicaCount::Auto, "what is stored follows the threads");
        let made = config.replicas(&config.plan().unwrap(), &Device::flex()).unwrap();
        assert_eq!(made.count(), replicas, "{threads} threads, {batch} sequences");
    }
}

/// A run with one replica can be resumed with two; the records say which made a step.
#[test]
fn records_say_how_many_replicas_made_them() {
    let scratch = Scratch::new("replicas");
    let config = |replicas: usize, steps: usize| {
        let text = format!(
            "[model]\ncontext = 8\nd_model = 16\nn_layers = 1\nn_heads = 2\n[train]\nsteps = {steps}\nbatch_size = 4\n\
             replicas = {replicas}\n[schedule]\nkind = 'constant'\n[log]\nevery = 1\n[eval]\ntokens = 64\n"
        );
        RunConfig::parse(&text, "test", &[]).unwrap()
    };
    let run = |replicas, steps, start, name: &str| {
        let folder = scratch.0.join(name);
        train(&config(replicas, steps), &folder, start, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        metrics::read(&folder).unwrap()
    };
    run(1, 3, Start::New, "run");
    let resumed = run(2, 6, Start::Resume, "run");
    let made: Vec<usize> = resumed.iter().map(|record| record.replicas).collect();
    assert_eq!(made, [1, 1, 1, 2, 2, 2]);
    let unbroken = run(2, 6, Start::New, "unbroken");
    for record in &resumed {
        let again = replay(&scratch.0.join("run"), record.step, &mut |_, _| ()).unwrap();
        assert_eq!(again.loss, record.loss, "a step is replayed with the replicas that made it");
    }
    for (a, b) in resumed.iter().zip(&unbroken) {
        assert!((a.loss / b.loss - 1.0).abs() < 1e-5, "{} {}", a.loss, b.loss);
    }
}
