//! Whole runs through the library.

use crate::common::{Scratch, generator, max_difference};
use burn::tensor::Device;
use std::ops::ControlFlow;
use std::path::Path;
use unitgain_model::Placement;
use unitgain_model::weights::of as weights;
use unitgain_train::folder::checkpoint::Checkpoint;
use unitgain_train::folder::metrics::Status;
use unitgain_train::{Batch, ClipConfig, Event, Record, RunConfig, Start, Summary, Trainer, read_rows, train};

/// A run of a second or two.
pub(crate) fn small() -> RunConfig {
    let text = "
        [model]
        context = 16
        d_model = 16
        n_layers = 2
        n_heads = 2
        dropout = 0.1
        [data]
        task = 'markov'
        vocab_size = 8
        order = 1
        branching = 2
        [train]
        steps = 24
        batch_size = 4
        [schedule]
        kind = 'cosine'
        warmup = 4
        [log]
        every = 3
        [eval]
        every = 8
        tokens = 128
        [checkpoint]
        every = 6
        keep = 2";
    RunConfig::parse(text, "test", &[]).unwrap()
}

fn go(config: &RunConfig, folder: &Path, start: Start) -> Summary {
    let _one_at_a_time = generator();
    train(config, folder, start, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn records(folder: &Path) -> Vec<Record> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        // The only field that may differ between runs.
        .map(|record: Record| Record { tokens_per_second: 0.0, ..record })
        .collect()
}

#[test]
fn a_run_writes_what_the_docs_say() {
    let scratch = Scratch::new("run");
    let folder = scratch.0.join("a");
    let config = small();
    let summary = go(&config, &folder, Start::New);
    assert_eq!((summary.status, summary.step, summary.tokens), (Status::Finished, 24, 24 * 4 * 16));

    let records = records(&folder);
    let steps: Vec<usize> = records.iter().map(|r| r.step).collect();
    assert_eq!(steps, [1, 3, 6, 8, 9, 12, 15, 16, 18, 21, 24]);
    for record in &records {
        assert_eq!((record.grad_norm_block.len(), record.stream_rms.len()), (2, 2));
        assert_eq!(record.eval_loss.is_some(), record.step % 8 == 0);
        assert!(record.grad_norm_clipped <= record.grad_norm && record.grad_norm_clipped <= 1.0);
        let of_roles: f32 = record.grad_norm_role.values().map(|n| n * n).sum();
        assert!((of_roles.sqrt() / record.grad_norm - 1.0).abs() < 1e-5);
        for role in ["embedding", "query", "key", "value", "attention_output", "mlp_in", "mlp_out", "norm"] {
            assert!(record.grad_norm_role[role] > 0.0, "{role}");
        }
    }
    let last = &records[records.len() - 1];
    let (eval, floor) = (f64::from(last.eval_loss.unwrap()), last.floor.unwrap());
    assert!((last.excess.unwrap() - (eval - floor)).abs() < 1e-9);
    assert!(eval > floor && eval < f64::from(records[0].loss));

    let resolved = RunConfig::load(&folder.join("config.toml"), &[]).unwrap();
    assert_eq!((resolved.model.vocab_size, resolved.model.d_ff), (Some(8), Some(64)));
    let checkpoints: Vec<_> =
        std::fs::read_dir(folder.join("checkpoints")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(checkpoints.len(), 2, "{checkpoints:?}");
    let on_disk: Summary = serde_json::from_slice(&std::fs::read(folder.join("summary.json")).unwrap()).unwrap();
    assert_eq!(on_disk, summary);
}

#[test]
fn the_same_run_twice_is_the_same_to_the_last_bit() {
    let scratch = Scratch::new("twice");
    let (a, b) = (scratch.0.join("a"), scratch.0.join("b"));
    go(&small(), &a, Start::New);
    go(&small(), &b, Start::New);
    assert_eq!(records(&a), records(&b));
    // A run folder's config.toml gives the same run.
    let again = RunConfig::load(&a.join("config.toml"), &[]).unwrap();
    go(&again, &b, Start::Replace);
    assert_eq!(records(&a), records(&b));
}

#[test]
fn a_resumed_run_equals_an_unbroken_one() {
    // BatchNorm has running statistics, which the optimizer does not update.
    for settings in [vec![], vec!["model.norm=batch_norm".to_string(), "model.placement=peri_norm".into()]] {
        resumed_equals_unbroken("resume", &settings);
    }
}

/// Checks that a small run with these settings, killed and resumed, has the records and weights of an uninterrupted
/// one; returns its configuration and last checkpoint.
pub(crate) fn resumed_equals_unbroken(name: &str, settings: &[String]) -> (RunConfig, Checkpoint) {
    let config = &RunConfig::parse(&small().to_toml(), "test", settings).unwrap();
    let scratch = Scratch::new(name);
    let (whole, broken) = (scratch.0.join("whole"), scratch.0.join("broken"));
    go(config, &whole, Start::New);
    // Kill the run after step 20: the newest checkpoint is of step 18, and the records end at 18 with a partial line.
    let stopped = std::panic::catch_unwind(|| {
        let _one_at_a_time = generator();
        train(config, &broken, Start::New, &mut |event| {
            if matches!(event, Event::Step(20)) {
                // resume_unwind prints no panic message into the test log.
                std::panic::resume_unwind(Box::new("stop"));
            }
            ControlFlow::Continue(())
        })
    });
    assert!(stopped.is_err());
    let metrics = broken.join("metrics.jsonl");
    let mut text = std::fs::read_to_string(&metrics).unwrap();
    text.push_str("{\"step\":21,\"tok");
    std::fs::write(&metrics, text).unwrap();

    go(config, &broken, Start::Resume);
    assert_eq!(records(&whole), records(&broken));
    let last = |folder: &Path| std::fs::read(folder.join("checkpoints/step_00000024.safetensors")).unwrap();
    assert!(last(&whole) == last(&broken), "weights or optimizer state differ");
    (config.clone(), Checkpoint::newest(&whole).unwrap())
}

#[test]
fn a_run_is_not_resumed_as_another() {
    let scratch = Scratch::new("another");
    let folder = scratch.0.join("run");
    let config = small();
    go(
        &RunConfig { train: unitgain_train::config::TrainConfig { steps: 6, ..config.train }, ..config.clone() },
        &folder,
        Start::New,
    );
    let problem = |config: &RunConfig| {
        train(config, &folder, Start::Resume, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string()
    };

    let problem_steps = problem(&config);
    assert!(problem_steps.contains("train.steps (6, now 24)"), "{problem_steps}");
    let mut other = config.clone();
    other.train.steps = 6;
    assert!(problem(&other).contains("has already made 6 of train.steps = 6"));
    other.seed = 9;
    other.model.placement = Placement::PostNorm {};
    let settings = problem(&other);
    assert!(settings.contains("seed (1, now 9)") && settings.contains("model.placement"), "{settings}");
    let set = |key: &str| RunConfig::parse(&small().to_toml(), "test", &[key.into()]).unwrap();
    assert!(problem(&set("data.vocab_size=9")).contains("another vocabulary (8 tokens, now 9)"));
    // As the command does, from the folder's own resolved configuration.
    let settings = ["data.vocab_size=9".to_string()];
    let resolved = RunConfig::load(&folder.join("config.toml"), &settings).unwrap();
    assert!(problem(&resolved).contains("another vocabulary (8 tokens, now 9)"));
    let missing = train(&config, &scratch.0.join("nothing"), Start::Resume, &mut |_| ControlFlow::Continue(()))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("does not exist"), "{missing}");
}

#[test]
fn with_a_constant_rate_a_run_can_be_made_longer() {
    let scratch = Scratch::new("longer");
    let (whole, grown) = (scratch.0.join("whole"), scratch.0.join("grown"));
    let settings = |steps: usize| {
        let settings = [
            "schedule.kind=constant".to_string(),
            format!("train.steps={steps}"),
            "eval.every=6".into(),
            "log.every=6".into(),
        ];
        RunConfig::parse(&small().to_toml(), "test", &settings).unwrap()
    };
    go(&settings(12), &whole, Start::New);
    go(&settings(6), &grown, Start::New);
    go(&settings(12), &grown, Start::Resume);
    assert_eq!(records(&whole), records(&grown));
}

#[test]
fn an_occupied_folder_is_left_alone() {
    let scratch = Scratch::new("occupied");
    std::fs::write(scratch.0.join("notes.txt"), "mine").unwrap();
    let problem = train(&small(), &scratch.0, Start::New, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(problem.contains("--force") && problem.contains("--resume") && problem.contains("--out"), "{problem}");
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1);
    let problem =
        train(&small(), &scratch.0, Start::Replace, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(problem.contains("is not a run"), "{problem}");
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1);
    // Replacing a run keeps other files in its folder.
    let run = scratch.0.join("run");
    go(&small(), &run, Start::New);
    std::fs::write(run.join("notes.txt"), "mine").unwrap();
    std::fs::write(run.join("checkpoints/kept.txt"), "mine").unwrap();
    go(&small(), &run, Start::Replace);
    for file in ["notes.txt", "checkpoints/kept.txt"] {
        assert_eq!(std::fs::read_to_string(run.join(file)).unwrap(), "mine");
    }
}

#[test]
fn a_run_that_diverges_says_where_and_keeps_what_it_had() {
    let scratch = Scratch::new("diverged");
    let settings: Vec<String> = [
        "optimizer.kind=sgd",
        "optimizer.lr=1e30",
        "train.clip=0.0",
        "schedule.kind=constant",
        "log.every=2",
        "checkpoint.every=1",
    ]
    .map(String::from)
    .to_vec();
    let config = RunConfig::parse(&small().to_toml(), "test", &settings).unwrap();
    let summary = go(&config, &scratch.0.join("run"), Start::New);
    let message = summary.message.unwrap();
    assert_eq!(summary.status, Status::Diverged);
    assert!(message.contains("at step 2") && message.contains("embedding"), "{message}");
    let records = records(&scratch.0.join("run"));
    assert_eq!(records.iter().map(|r| r.step).collect::<Vec<_>>(), [1]);
    let newest = Checkpoint::newest(&scratch.0.join("run")).unwrap();
    assert_eq!(newest.progress.step, 1, "no checkpoint of a step that diverged");
}

#[test]
fn a_divergence_between_two_records_is_dated_to_its_step() {
    let scratch = Scratch::new("between");
    let settings: Vec<String> = [
        "optimizer.kind=sgd",
        "optimizer.lr=1e30",
        "train.clip=0.0",
        "schedule.kind=constant",
        "log.every=20",
        "checkpoint.every=0",
        "eval.every=0",
    ]
    .map(String::from)
    .to_vec();
    let config = RunConfig::parse(&small().to_toml(), "test", &settings).unwrap();
    let summary = go(&config, &scratch.0.join("run"), Start::New);
    assert!(summary.message.unwrap().contains("at step 2"));
}

#[test]
fn accumulated_micro_batches_are_the_larger_batch() {
    let mut config = small();
    config.model.dropout = 0.0;
    let (config, task) = config.prepare().unwrap();
    let start = || Trainer::new(&config.model, config.optimizer, ClipConfig::default(), 1, &Device::flex()).unwrap();
    let rows = |range| task.batch(1, 1, range);
    let (whole, a) = start().step(&[rows(0..8)], 1e-2, true);
    let (parts, b) = start().step(&[rows(0..4), rows(4..8)], 1e-2, true);
    let (a, b) = (read_rows(&[a]).remove(0), read_rows(&[b]).remove(0));
    assert!((a.loss - b.loss).abs() < 1e-6);
    assert!(max_difference(&a.stream_rms, &b.stream_rms) < 1e-6);
    assert!((a.grad_norm() / b.grad_norm() - 1.0).abs() < 1e-4);
    for ((path, _, x), (_, _, y)) in weights(&whole.model).into_iter().zip(weights(&parts.model)) {
        // Adam's first step is lr sign(g), which is arbitrary where g is rounding noise.
        let differing = x.iter().zip(&y).filter(|(x, y)| (*x - *y).abs() > 1e-4).count();
        assert!(differing * 50 <= x.len(), "{path}: {differing} of {}", x.len());
    }
}

#[test]
fn an_evaluation_is_the_same_for_every_cut_of_a_batch_and_every_seed() {
    let scratch = Scratch::new("held-out");
    let run = |settings: [&str; 4], tokens: &str| {
        let settings: Vec<String> =
            settings.iter().chain([&tokens, &"model.dropout=0.0", &"eval.every=0"]).map(ToString::to_string).collect();
        let config = RunConfig::parse(&small().to_toml(), "test", &settings).unwrap();
        let folder = scratch.0.join(settings.join(","));
        let summary = go(&config, &folder, Start::New);
        (summary, records(&folder).pop().unwrap())
    };
    let base = ["train.batch_size=8", "train.accumulate=1", "seed=1", "train.steps=8"];
    let (whole, last) = run(base, "eval.tokens=1000");
    assert_eq!((last.eval_tokens, whole.eval_tokens), (Some(1000), Some(1000)));
    for cut in [["train.batch_size=4", "train.accumulate=2"], ["train.batch_size=1", "train.accumulate=8"]] {
        let (other, _) = run([cut[0], cut[1], base[2], base[3]], "eval.tokens=1000");
        // The same training up to rounding, on the same tokens.
        assert!((whole.eval_loss.unwrap() - other.eval_loss.unwrap()).abs() < 1e-5, "{whole:?} {other:?}");
    }
    let (other_seed, _) = run([base[0], base[1], "seed=2", base[3]], "eval.tokens=1000");
    assert_eq!((whole.unigram_loss, whole.eval_tokens), (other_seed.unigram_loss, other_seed.eval_tokens));
    assert_ne!(whole.eval_loss, other_seed.eval_loss);
    let (fewer, _) = run(base, "eval.tokens=16");
    assert_ne!(whole.unigram_loss, fewer.unigram_loss, "other tokens are another ground");
}

#[test]
fn a_run_that_ends_no_better_than_frequencies_did_not_learn() {
    let scratch = Scratch::new("learned");
    let run = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().chain([&"train.steps=80"]).map(ToString::to_string).collect();
        let config = RunConfig::parse(&small().to_toml(), "test", &settings).unwrap();
        go(&config, &scratch.0.join(settings.join(",")), Start::New)
    };
    let learned = run(&["optimizer.lr=1e-2"]);
    assert_eq!(learned.learned, Some(true), "{learned:?}");
    for dead in ["model.zero_writers=false", "model.zero_writers=true"] {
        let summary = run(&[dead, "optimizer.lr=1e-30"]);
        assert_eq!((summary.status, summary.learned), (Status::Finished, Some(false)), "{dead}: {summary:?}");
    }
}

#[test]
fn the_clip_is_of_all_gradients_together() {
    let mut config = small();
    config.model.dropout = 0.0;
    let settings = ["optimizer.kind=sgd".to_string(), "optimizer.momentum=0.0".into()];
    let config = RunConfig::parse(&config.to_toml(), "test", &settings).unwrap();
    let (config, task) = config.prepare().unwrap();
    let batch: Batch = task.batch(1, 1, 0..8);
    let moved = |clip: f64| {
        let trainer = Trainer::new(&config.model, config.optimizer, clip.into(), 1, &Device::flex()).unwrap();
        let before: Vec<f32> = weights(&trainer.model).into_iter().flat_map(|w| w.2).collect();
        let (trainer, row) = trainer.step(std::slice::from_ref(&batch), 1.0, false);
        let after: Vec<f32> = weights(&trainer.model).into_iter().flat_map(|w| w.2).collect();
        let step: Vec<f64> = before.iter().zip(&after).map(|(a, b)| f64::from(a - b)).collect();
        (step, read_rows(&[row]).remove(0).grad_norm())
    };
    let norm = |step: &[f64]| step.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (free, before) = moved(0.0);
    let (clipped, same) = moved(0.1);
    assert_eq!(before, same, "the norm is that before the clip");
    assert!((norm(&free) / f64::from(before) - 1.0).abs() < 1e-4);
    assert!((norm(&clipped) - 0.1).abs() < 1e-4, "{}", norm(&clipped));
    let cosine = free.iter().zip(&clipped).map(|(a, b)| a * b).sum::<f64>() / norm(&free) / norm(&clipped);
    assert!(cosine > 0.9999, "the direction stays: {cosine}");
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused_by_name() {
    let scratch = Scratch::new("checkpoint");
    let folder = scratch.0.join("run");
    let config = small();
    go(&config, &folder, Start::New);
    let path = folder.join("checkpoints/step_00000024.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let problem = || Checkpoint::newest(&folder).unwrap_err().to_string();
    for length in [0, 4, 300, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(problem().contains("truncated or damaged") && problem().contains("step_00000024"), "{}", problem());
    }
    assert!(problem().contains("cut off: optimizer.second.position"), "{}", problem());
    let data = [0u8; 4];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &data).unwrap();
    std::fs::write(&path, safetensors::serialize([("x", view)], None).unwrap()).unwrap();
    assert!(problem().contains("was not written by unitgain"));
    std::fs::write(&path, &whole).unwrap();

    let checkpoint = Checkpoint::newest(&folder).unwrap();
    let load = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let other = RunConfig::parse(&config.to_toml(), "test", &settings).unwrap();
        let (other, _) = other.prepare().unwrap();
        let (model, table) = other.model.build(1, &Device::flex()).unwrap();
        checkpoint.load_model(model, &table).unwrap_err().to_string()
    };
    let norm = load(&["model.norm=rms_norm"]);
    assert!(norm.contains("norms.0.RmsNorm.gamma is missing"), "{norm}");
    let width = load(&["model.d_ff=32"]);
    assert!(width.contains("blocks.0.mlp.up.weight is [16, 64], the model's is [16, 32]"), "{width}");
    let depth = load(&["model.n_layers=1"]);
    assert!(depth.contains("blocks.1.attention.key.weight is not in the model"), "{depth}");
    let mup = load(&["model.parametrization.kind=mup", "model.parametrization.base_width=8"]);
    assert!(mup.contains("parametrization {\"kind\":\"standard\"}") && mup.contains("\"base_width\":8"), "{mup}");
}

#[test]
fn a_checkpoint_alone_rebuilds_the_model() {
    let scratch = Scratch::new("alone");
    let folder = scratch.0.join("run");
    let settings = ["model.parametrization.kind=mup".to_string(), "model.parametrization.base_width=8".into()];
    let config = RunConfig::parse(&small().to_toml(), "test", &settings).unwrap();
    go(&config, &folder, Start::New);
    std::fs::remove_file(folder.join("config.toml")).unwrap();
    let checkpoint = Checkpoint::newest(&folder).unwrap();
    let (model, table) = checkpoint.config.model.build(77, &Device::flex()).unwrap();
    let model = checkpoint.load_model(model, &table).unwrap();
    assert_eq!(weights(&model).len(), table.entries().len());
    assert_eq!(table.iter().find(|e| e.path.ends_with("query.weight")).unwrap().factors.lr, 0.5);
}

#[test]
fn the_group_ratios_of_the_learning_rate_stay_over_the_schedule() {
    // An SGD step moves a weight by lr x factor x gradient: the ratio of moves to gradients of two parameters is the
    // ratio of their factors, for any schedule.
    let settings = [
        "model.parametrization.kind=mup".to_string(),
        "model.parametrization.base_width=4".into(),
        "model.dropout=0.0".into(),
        "optimizer.kind=sgd".into(),
        "optimizer.momentum=0.0".into(),
    ];
    let config = RunConfig::parse(&small().to_toml(), "test", &settings).unwrap();
    let (config, task) = config.prepare().unwrap();
    let schedule = unitgain_train::ScheduleConfig::Cosine { warmup: 4, min_ratio: 0.1 };
    for lr in [0, 2, 5, 15].map(|t| 10.0 * schedule.factor(t, 20)) {
        let trainer = Trainer::new(&config.model, config.optimizer, ClipConfig::None {}, 1, &Device::flex()).unwrap();
        let before = weights(&trainer.model);
        let (trainer, row) = trainer.step(&[task.batch(1, 1, 0..8)], lr, false);
        let row = read_rows(&[row]).remove(0);
        for (((entry, square), (_, _, a)), (_, _, b)) in
            trainer.table.iter().zip(&row.squares).zip(before).zip(weights(&trainer.model))
        {
            let moved = a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
            let rate = moved / f64::from(*square).sqrt();
            assert!((rate / (lr * entry.factors.lr) - 1.0).abs() < 1e-2, "{}: {rate}", entry.path);
        }
        assert!(trainer.table.iter().any(|e| e.factors.lr == 4.0) && trainer.table.iter().any(|e| e.factors.lr == 1.0));
    }
}

#[test]
fn an_evaluation_that_is_not_finite_is_a_divergence() {
    let scratch = Scratch::new("evaluation");
    let settings: Vec<String> =
        ["optimizer.kind=sgd", "optimizer.lr=1e38", "train.clip=0.0", "schedule.kind=constant", "train.steps=1"]
            .map(String::from)
            .to_vec();
    let config = RunConfig::parse(&small().to_toml(), "test", &settings).unwrap();
    let summary = go(&config, &scratch.0.join("run"), Start::New);
    assert_eq!(summary.status, Status::Diverged);
    assert!(summary.message.unwrap().contains("step 1: the evaluation after its update"));
    assert_eq!(std::fs::read_dir(scratch.0.join("run/checkpoints")).unwrap().count(), 0);
}

#[test]
fn one_process_at_a_time_trains_in_a_folder() {
    let scratch = Scratch::new("lock");
    let folder = scratch.0.join("run");
    let mut problem = String::new();
    {
        let _one_at_a_time = generator();
        train(&small(), &folder, Start::New, &mut |event| {
            if matches!(event, Event::Saved(12)) {
                let second = train(&small(), &folder, Start::Resume, &mut |_| ControlFlow::Continue(()));
                problem = second.unwrap_err().to_string();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    assert!(problem.contains("another process is training in it"), "{problem}");
    assert_eq!(records(&folder).len(), 11);
}

#[test]
fn a_run_killed_between_its_last_checkpoint_and_its_summary_finishes() {
    let scratch = Scratch::new("last");
    let folder = scratch.0.join("run");
    let finished = go(&small(), &folder, Start::New);
    let running = Summary { status: Status::Running, ..finished.clone() };
    std::fs::write(folder.join("summary.json"), serde_json::to_string(&running).unwrap()).unwrap();
    let resumed = go(&small(), &folder, Start::Resume);
    assert_eq!((resumed.status, resumed.step, resumed.eval_loss), (Status::Finished, 24, finished.eval_loss));
}

#[test]
fn optimizer_state_that_is_missing_or_foreign_is_refused_by_name() {
    let scratch = Scratch::new("state");
    let folder = scratch.0.join("run");
    go(&small(), &folder, Start::New);
    let checkpoint = Checkpoint::newest(&folder).unwrap();
    let load = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let config = RunConfig::parse(&small().to_toml(), "test", &settings).unwrap();
        let (config, _) = config.prepare().unwrap();
        let trainer = Trainer::new(&config.model, config.optimizer, ClipConfig::default(), 1, &Device::flex()).unwrap();
        checkpoint.load(trainer).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(load(&[]), Ok(()));
    let missing = {
        let other = scratch.0.join("lion");
        let lion = RunConfig::parse(&small().to_toml(), "test", &["optimizer.kind=lion".into()]).unwrap();
        go(&lion, &other, Start::New);
        let (config, _) = small().prepare().unwrap();
        let trainer = Trainer::new(&config.model, config.optimizer, ClipConfig::default(), 1, &Device::flex()).unwrap();
        Checkpoint::newest(&other).unwrap().load(trainer).unwrap_err().to_string()
    };
    assert!(missing.contains("optimizer.second.embedding is missing"), "{missing}");
    let lion = load(&["optimizer.kind=lion"]).unwrap_err();
    assert!(lion.contains("tensors, the model and its optimizer have"), "{lion}");

    let path = folder.join("checkpoints/step_00000024.safetensors");
    let mut damaged = std::fs::read(&path).unwrap();
    let middle = damaged.len() - 1000;
    damaged[middle] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    assert!(Checkpoint::newest(&folder).unwrap_err().to_string().contains("checksum"));
}
