//! Files on disk are right in any case: runs that stop, are killed, diverge, or whose files were changed.

use crate::common::{Scratch, generator};
use crate::train::run::small;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use unitgain_train::folder::checkpoint::Checkpoint;
use unitgain_train::folder::metrics::{self, Status};
use unitgain_train::run::divergence::Action;
use unitgain_train::{Event, Record, RunConfig, Start, Summary, train};

/// The small run with settings.
fn config(settings: &[&str]) -> RunConfig {
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    RunConfig::parse(&small().to_toml(), "test", &settings).unwrap()
}

fn go(config: &RunConfig, folder: &Path, start: Start) -> Summary {
    stopped(config, folder, start, usize::MAX)
}

/// A run that is asked to stop after step `at`.
fn stopped(config: &RunConfig, folder: &Path, start: Start, at: usize) -> Summary {
    let _one_at_a_time = generator();
    let mut stop = |event: Event<'_>| match event {
        Event::Step(step) if step >= at => ControlFlow::Break(()),
        Event::Started { .. } if at == 0 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    train(config, folder, start, &mut stop).unwrap()
}

/// The message of a run that is refused.
fn refused(config: &RunConfig, folder: &Path, start: Start) -> String {
    let _one_at_a_time = generator();
    train(config, folder, start, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string()
}

/// A run that is killed after an event.
fn killed(config: &RunConfig, folder: &Path, start: Start, is_last: fn(&Event<'_>) -> bool) {
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _one_at_a_time = generator();
        train(config, folder, start, &mut |event| {
            if is_last(&event) {
                // resume_unwind prints no panic message into the test log.
                std::panic::resume_unwind(Box::new("killed"));
            }
            ControlFlow::Continue(())
        })
    }));
    assert!(ended.is_err(), "the run was not killed");
}

fn records(folder: &Path) -> Vec<Record> {
    let records = metrics::read(folder).unwrap();
    records.into_iter().map(|record| Record { tokens_per_second: 0.0, ..record }).collect()
}

fn on_disk(folder: &Path) -> Summary {
    serde_json::from_slice(&fs::read(folder.join("summary.json")).unwrap()).unwrap()
}

/// Checks that two runs ended with the same numbers, and that both summaries match their last records.
fn assert_same(a: &Path, b: &Path, what: &str) {
    assert_eq!(records(a), records(b), "{what}");
    // A stopped run may have an additional checkpoint off schedule.
    let newest = Checkpoint::newest(a).unwrap();
    let same = b.join("checkpoints").join(newest.path().file_name().unwrap());
    assert!(fs::read(newest.path()).unwrap() == fs::read(same).unwrap(), "{what}: weights or optimizer state differ");
    let numbers = |folder: &Path| {
        let (summary, records) = (on_disk(folder), records(folder));
        let evaluated = records.iter().rev().find_map(|record| record.eval_loss);
        assert_eq!((summary.loss, summary.eval_loss), (records.last().map(|r| r.loss), evaluated), "{what}");
        (summary.status, summary.step, summary.message, summary.divergences, summary.best_eval_loss, summary.learned)
    };
    assert_eq!(numbers(a), numbers(b), "{what}");
}

#[test]
fn a_run_that_is_stopped_at_any_step_goes_on_to_the_same_numbers() {
    let scratch = Scratch::new("stopped");
    let config = config(&["log.every=5"]);
    let whole = scratch.0.join("whole");
    go(&config, &whole, Start::New);
    for at in [0, 1, 4, 5, 12, 23] {
        let folder = scratch.0.join(at.to_string());
        let summary = stopped(&config, &folder, Start::New, at);
        assert_eq!((summary.status, summary.step), (Status::Interrupted, at.max(1)));
        assert_eq!(on_disk(&folder), summary);
        assert!(summary.process.is_some_and(|process| process.ended.is_some()));
        assert_eq!(go(&config, &folder, Start::Resume).status, Status::Finished);
        assert_same(&whole, &folder, &format!("stopped at step {at}"));
    }
    let folder = scratch.0.join("last");
    assert_eq!(stopped(&config, &folder, Start::New, 24).status, Status::Finished, "nothing is left to stop");
}

#[test]
fn the_losses_of_a_summary_are_those_of_the_last_records() {
    let scratch = Scratch::new("derived");
    let config = config(&["checkpoint.every=24"]);
    let whole = scratch.0.join("whole");
    let finished = go(&config, &whole, Start::New);
    let summary = |folder: &Path| folder.join("summary.json");
    // Killed between the last checkpoint and the summary: the summary is the initial one, an older one, damaged, or
    // missing.
    let earlier = {
        let folder = scratch.0.join("earlier");
        stopped(&config, &folder, Start::New, 9);
        fs::read(summary(&folder)).unwrap()
    };
    let damaged = fs::read_to_string(summary(&whole)).unwrap().replace("\"step\": 24", "\"step\": 25");
    for (name, text) in [("of_an_earlier_step", Some(earlier)), ("damaged", Some(damaged.into_bytes())), ("lost", None)]
    {
        let folder = scratch.0.join(name);
        go(&config, &folder, Start::New);
        match text {
            Some(text) => fs::write(summary(&folder), text).unwrap(),
            None => fs::remove_file(summary(&folder)).unwrap(),
        }
        let resumed = go(&config, &folder, Start::Resume);
        assert_eq!(resumed.loss, finished.loss, "{name}");
        assert_same(&whole, &folder, name);
    }
}

#[test]
fn no_checkpoint_more_than_is_kept_stays() {
    let scratch = Scratch::new("kept");
    let folder = scratch.0.join("run");
    stopped(&config(&["checkpoint.keep=9", "checkpoint.every=2"]), &folder, Start::New, 13);
    let count = || fs::read_dir(folder.join("checkpoints")).unwrap().count();
    assert_eq!(count(), 7);
    killed(&config(&["checkpoint.keep=2", "checkpoint.every=0"]), &folder, Start::Resume, |event| {
        matches!(event, Event::Started { .. })
    });
    assert_eq!(count(), 1, "that of step 13 is the newest, and none of the others is due");
    for keep in [1, 2] {
        let config = config(&[&format!("checkpoint.keep={keep}"), "checkpoint.every=4"]);
        let folder = scratch.0.join(keep.to_string());
        let names = || {
            let names = fs::read_dir(folder.join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = names.map(|name| name.to_string_lossy()[5..13].to_string()).collect();
            names.sort();
            names
        };
        stopped(&config, &folder, Start::New, 10);
        assert_eq!(names(), [&["00000004", "00000008"][2 - keep..], &["00000010"]].concat());
        stopped(&config, &folder, Start::Resume, 14);
        assert_eq!(names(), [&["00000008", "00000012"][2 - keep..], &["00000014"]].concat());
        go(&config, &folder, Start::Resume);
        assert_eq!(names(), ["00000020", "00000024"][2 - keep..]);
    }
}

/// All states in which a killed process can leave a folder while creating it.
#[test]
fn a_folder_is_known_at_every_moment_of_its_making() {
    let scratch = Scratch::new("making");
    let config = config(&["checkpoint.every=9"]);
    let whole = scratch.0.join("whole");
    go(&config, &whole, Start::New);
    let early = scratch.0.join("early");
    killed(&config, &early, Start::New, |event| matches!(event, Event::Step(7)));
    let read = |name: &str| fs::read(early.join(name)).unwrap();
    let text: [(&str, Vec<u8>); 3] = ["config.toml", "metrics.jsonl", "summary.json"].map(|name| (name, read(name)));
    let part = |name: &'static str| (name, b"{\"un".to_vec());
    // In the order in which a new run writes.
    let moments: Vec<Vec<(&str, Vec<u8>)>> = vec![
        vec![(".lock", Vec::new())],
        vec![(".lock", Vec::new()), ("metrics.jsonl", Vec::new())],
        vec![(".lock", Vec::new()), ("metrics.jsonl", Vec::new()), part("config.toml.partial")],
        vec![text[0].clone(), ("metrics.jsonl", Vec::new())],
        vec![text[0].clone(), ("metrics.jsonl", Vec::new()), part("summary.json.partial")],
        vec![text[0].clone(), text[1].clone(), text[2].clone(), part("checkpoints/step_00000009.safetensors.partial")],
    ];
    for (i, moment) in moments.iter().enumerate() {
        let make = |name: String| {
            let folder = scratch.0.join(name);
            fs::create_dir_all(folder.join("checkpoints")).unwrap();
            moment.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
            folder
        };
        let begun = i > 2;
        let folder = make(format!("new-{i}"));
        if begun {
            assert!(refused(&config, &folder, Start::New).contains("--resume"));
            go(&config, &folder, Start::Resume);
        } else {
            go(&config, &folder, Start::New);
        }
        assert_same(&whole, &folder, &format!("moment {i}"));
        let folder = make(format!("force-{i}"));
        go(&config, &folder, Start::Replace);
        assert_same(&whole, &folder, &format!("moment {i} by force"));
    }
    // Foreign files are never taken for a run.
    let foreign: [(&str, &[u8]); 5] = [
        ("config.toml", b"seed = 1"),
        ("notes.txt", b"mine"),
        ("model.partial", b"mine"),
        ("config.toml", b"a = \"\xe9\""),
        ("config.toml", &[b' '; 600 << 10]),
    ];
    for (i, (name, text)) in foreign.into_iter().enumerate() {
        let folder = scratch.0.join(format!("foreign-{i}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), text).unwrap();
        for start in [Start::New, Start::Replace, Start::Resume] {
            refused(&config, &folder, start);
        }
        assert!(fs::read(folder.join(name)).unwrap() == text);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is written beside it");
    }
}

/// A folder with a run that was killed after step 20, whose newest checkpoint is of step 18.
fn broken(scratch: &Scratch, name: &str) -> PathBuf {
    let folder = scratch.0.join(name);
    killed(&small(), &folder, Start::New, |event| matches!(event, Event::Step(20)));
    folder
}

#[test]
fn records_that_are_not_those_of_the_checkpoint_are_refused() {
    let scratch = Scratch::new("records");
    let whole = scratch.0.join("whole");
    go(&small(), &whole, Start::New);
    let altered = |text: &str| {
        let digit = text.find("\"loss\":").unwrap() + 9;
        format!("{}{}{}", &text[..digit], if &text[digit..=digit] == "1" { 2 } else { 1 }, &text[digit + 1..])
    };
    let swapped = |text: &str| {
        let lines: Vec<&str> = text.lines().collect();
        [&[lines[1], lines[0]], &lines[2..]].concat().join("\n") + "\n"
    };
    type Change<'a> = &'a dyn Fn(&str) -> String;
    let changes: [(&str, Change<'_>); 8] = [
        ("emptied", &|_| String::new()),
        ("doubled", &|text| text.repeat(2)),
        ("altered", &altered),
        ("swapped", &swapped),
        ("cut", &|text| text[..text.len() / 2].into()),
        ("foreign", &|text| format!("{text}seed = 1\n")),
        ("time", &|text| text.replacen("\"tokens_per_second\":", "\"tokens_per_second\":1", 1)),
        ("earlier step again", &|text| format!("{text}{}\n", text.lines().nth(1).unwrap())),
    ];
    for (name, change) in changes {
        let folder = broken(&scratch, name);
        let path = folder.join("metrics.jsonl");
        let changed = change(&fs::read_to_string(&path).unwrap());
        fs::write(&path, &changed).unwrap();
        let message = refused(&small(), &folder, Start::Resume);
        assert!(message.contains("metrics.jsonl"), "{name}: {message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), changed, "{name}: it is left as it is");
    }
    let lost = broken(&scratch, "lost");
    fs::remove_file(lost.join("metrics.jsonl")).unwrap();
    assert!(refused(&small(), &lost, Start::Resume).contains("metrics.jsonl"));
    for (name, added) in [("unfinished", "{\"step\":21,\"tok"), ("zeros", "\0\0\0\0\0\0")] {
        let folder = broken(&scratch, name);
        let path = folder.join("metrics.jsonl");
        fs::write(&path, fs::read_to_string(&path).unwrap() + added).unwrap();
        go(&small(), &folder, Start::Resume);
        assert_same(&whole, &folder, name);
    }
}

#[test]
fn a_configuration_that_is_not_as_it_was_written_is_refused() {
    let scratch = Scratch::new("configuration");
    let whole = scratch.0.join("whole");
    go(&small(), &whole, Start::New);
    let text = fs::read_to_string(broken(&scratch, "text").join("config.toml")).unwrap();
    for (name, changed) in [
        ("cut", text[..text.len() / 3].to_string()),
        ("emptied", String::new()),
        ("altered", text.replace("every = 8", "every = 9")),
        ("doubled", text.repeat(2)),
        ("longer", format!("{text}\n[log]\nevery = 1\n")),
    ] {
        let folder = broken(&scratch, name);
        fs::write(folder.join("config.toml"), &changed).unwrap();
        let message = RunConfig::of_run(&folder, &[]).unwrap_err().to_string();
        assert!(message.contains("config.toml is not as it was written"), "{name}: {message}");
        // The checkpoint contains it too.
        fs::remove_file(folder.join("config.toml")).unwrap();
        go(&RunConfig::of_run(&folder, &[]).unwrap(), &folder, Start::Resume);
        assert_same(&whole, &folder, name);
    }
}

#[test]
fn a_run_whose_files_are_removed_while_it_trains_does_not_finish() {
    let scratch = Scratch::new("removed");
    for name in ["metrics.jsonl", "config.toml"] {
        for at in [10, 24] {
            let folder = scratch.0.join(format!("{name}-{at}"));
            let _one_at_a_time = generator();
            let result = train(&small(), &folder, Start::New, &mut |event| {
                if matches!(event, Event::Step(step) if step == at) {
                    fs::remove_file(folder.join(name)).unwrap();
                }
                ControlFlow::Continue(())
            });
            let message = result.unwrap_err().to_string();
            assert!(message.contains(&format!("{name} was removed or changed")), "{message}");
            assert_eq!(on_disk(&folder).status, Status::Running);
        }
    }
}

/// A run that diverges in its second or third step, with a policy.
fn diverging(policy: &str) -> RunConfig {
    config(&[
        "optimizer.kind=sgd",
        "optimizer.momentum=0.0",
        "optimizer.lr=10.0",
        "train.clip=0.0",
        "schedule.kind=constant",
        "log.every=50",
        "eval.every=0",
        "checkpoint.every=2",
        "model.dropout=0.0",
        "model.norm=none",
        "model.placement=none",
        &format!("train.on_divergence={policy}"),
    ])
}

#[test]
fn the_steps_before_a_divergence_are_recorded_however_the_run_was_broken_off() {
    let scratch = Scratch::new("before");
    let config = diverging("stop");
    let whole = scratch.0.join("whole");
    let summary = go(&config, &whole, Start::New);
    assert_eq!((summary.status, summary.divergences.len()), (Status::Diverged, 1));
    let at = summary.divergences[0].step;
    assert_eq!(summary.divergences[0].action, Action::Stopped {});
    assert!(at > 2, "{summary:?}");
    let steps: Vec<usize> = records(&whole).iter().map(|record| record.step).collect();
    assert_eq!(steps, (1..at).collect::<Vec<_>>(), "every step that was made");
    for stop in 1..at {
        let folder = scratch.0.join(stop.to_string());
        assert_eq!(stopped(&config, &folder, Start::New, stop).status, Status::Interrupted);
        go(&config, &folder, Start::Resume);
        assert_same(&whole, &folder, &format!("stopped at {stop}"));
        // It diverges again, after a checkpoint some of whose steps are recorded later.
        go(&config, &folder, Start::Resume);
        assert_same(&whole, &folder, &format!("stopped at {stop}, diverged twice"));
    }
}

#[test]
fn a_step_that_is_not_finite_is_skipped_or_gone_back_from_and_recorded() {
    let scratch = Scratch::new("policies");
    let blown = go(&diverging("stop"), &scratch.0.join("stop"), Start::New).divergences[0].step;
    // Skipped: the weights stay as before the first step that is not finite, and so are all later ones.
    let folder = scratch.0.join("skip");
    let summary = go(&diverging("{ kind = \"skip\", at_most = 3 }"), &folder, Start::New);
    let steps: Vec<usize> = summary.divergences.iter().map(|divergence| divergence.step).collect();
    assert_eq!(steps, [blown, blown + 1, blown + 2, blown + 3], "{summary:?}");
    let skipped = summary.divergences.iter().filter(|divergence| divergence.action == Action::Skipped {}).count();
    assert_eq!((summary.status, skipped), (Status::Diverged, 3));
    // Rewound: after two reductions to a millionth the rate suits this run.
    let policy = "{ kind = \"rewind\", factor = 1e-6, at_most = 4 }";
    let folder = scratch.0.join("rewind");
    let summary = go(&diverging(policy), &folder, Start::New);
    assert_eq!((summary.status, summary.step), (Status::Finished, 24), "{summary:?}");
    let rewound: Vec<Action> = summary.divergences.iter().map(|divergence| divergence.action).collect();
    assert!(
        !rewound.is_empty() && rewound.iter().all(|action| matches!(action, Action::Rewound { .. })),
        "{rewound:?}"
    );
    let Action::Rewound { to, rate } = rewound[rewound.len() - 1] else { unreachable!() };
    assert!(to < blown && (rate / 1e-6f64.powi(rewound.len() as i32) - 1.0).abs() < 1e-9);
    let lr = |record: &Record| record.lr;
    assert!(records(&folder).last().map(lr).unwrap() < 1e7);
    // Stopped before, between and after, it ends the same.
    for stop in 1..8 {
        let broken = scratch.0.join(format!("rewind-{stop}"));
        stopped(&diverging(policy), &broken, Start::New, stop);
        go(&diverging(policy), &broken, Start::Resume);
        assert_same(&folder, &broken, &format!("stopped at {stop}"));
    }
    // One divergence more than allowed ends the run.
    let summary =
        go(&diverging("{ kind = \"rewind\", factor = 1.0, at_most = 2 }"), &scratch.0.join("often"), Start::New);
    assert_eq!((summary.status, summary.divergences.len()), (Status::Diverged, 3));
}

#[test]
fn rows_do_not_wait_without_end() {
    let scratch = Scratch::new("rows");
    let config = config(&["log.every=1000000", "eval.every=0", "checkpoint.every=0", "train.steps=600"]);
    let folder = scratch.0.join("run");
    let summary = go(&config, &folder, Start::New);
    assert_eq!((summary.status, records(&folder).len()), (Status::Finished, 2));
}

#[test]
fn a_summary_holds_the_process_that_made_it() {
    let scratch = Scratch::new("process");
    let folder = scratch.0.join("run");
    let process = go(&config(&["threads=1"]), &folder, Start::New).process.unwrap();
    assert_eq!((process.threads, process.from_step), (1, 0));
    assert!(process.ended.unwrap() >= process.started && !process.processor.is_empty());
    let written = RunConfig::of_run(&folder, &[]).unwrap().origin.unwrap();
    assert_eq!((written.command, written.started), (process.command, process.started));
}

#[test]
fn a_step_that_diverged_is_made_again_and_says_where() {
    use unitgain_study::replay::{Phase, replay};
    let scratch = Scratch::new("replay");
    for policy in ["stop", "{ kind = \"skip\", at_most = 3 }"] {
        let folder = scratch.0.join(&policy[..1]);
        let config = diverging(policy);
        let summary = go(&config, &folder, Start::New);
        let of = |step: usize| {
            let _one_at_a_time = generator();
            replay(&folder, step, &mut |_, _| ()).unwrap()
        };
        for divergence in &summary.divergences {
            let found = of(divergence.step);
            let first = found.first().unwrap();
            assert!(!found.is_finite && found.from < divergence.step, "{policy}: {found:?}");
            assert_eq!((first.pass, first.block.is_some()), (Phase::Forward, true), "{policy}: {first:?}");
            assert!(divergence.message.contains(&format!("loss {}", found.loss)), "{divergence:?} {}", found.loss);
        }
        // The loss of a recorded step equals its record, and all numbers are finite.
        for record in records(&folder) {
            let found = of(record.step);
            assert_eq!(found.loss, record.loss, "{policy}");
            assert!(found.is_finite && found.first().is_none(), "{policy}: {:?}", found.first());
        }
    }
    let folder = scratch.0.join("s");
    assert!(
        replay(&folder, 25, &mut |_, _| ()).unwrap_err().to_string().contains("must be from 1 to train.steps = 24")
    );
}

/// A checkpoint with a valid checksum and impossible contents.
#[test]
fn a_checkpoint_that_contradicts_itself_is_refused() {
    use unitgain_train::data::Tokenizer;
    use unitgain_train::folder::checkpoint::{Progress, save};
    use unitgain_train::{Digest, Trainer};
    let scratch = Scratch::new("contradiction");
    let folder = broken(&scratch, "run");
    let there = Checkpoint::newest(&folder).unwrap();
    let config = there.config.clone();
    let trainer = Trainer::new(&config.model, config.optimizer, config.train.clip, 1, &burn::tensor::Device::flex());
    let trainer = there.load(trainer.unwrap()).unwrap();
    let good = there.progress.clone();
    let digest = |lines| Digest { lines, ..good.records };
    let record = records(&folder)[0].clone();
    let refused = |name: &str, progress: Progress, as_step: usize| {
        let folder = broken(&scratch, name);
        fs::remove_dir_all(folder.join("checkpoints")).unwrap();
        fs::create_dir(folder.join("checkpoints")).unwrap();
        save(&folder.join("checkpoints"), &trainer, &progress, &config).unwrap();
        let path = |step: usize| folder.join(format!("checkpoints/step_{step:08}.safetensors"));
        if as_step != progress.step {
            fs::rename(path(progress.step), path(as_step)).unwrap();
        }
        self::refused(&small(), &folder, Start::Resume)
    };
    for (name, progress, as_step, expected) in [
        ("name", good.clone(), 12, "its name is of step 12"),
        ("step", Progress { step: 12, ..good.clone() }, 12, "tokens"),
        ("tokens", Progress { tokens: 1, ..good.clone() }, 18, "tokens"),
        ("tokenizer", Progress { tokenizer: Tokenizer::Symbols(9), ..good.clone() }, 18, "tokenizer"),
        ("rate", Progress { rate: 2.0, ..good.clone() }, 18, "rate"),
        ("nan", Progress { rate: f64::NAN, ..good.clone() }, 18, "was not written by unitgain"),
        ("recent", Progress { recent: vec![record.clone(), record], ..good.clone() }, 18, "records"),
        ("fewer", Progress { records: digest(1), ..good.clone() }, 18, "metrics.jsonl"),
        ("more", Progress { records: digest(1 << 50), ..good.clone() }, 18, "metrics.jsonl"),
        ("data", Progress { fingerprint: 7, ..good.clone() }, 18, "another text"),
    ] {
        let message = refused(name, progress, as_step);
        assert!(message.contains(expected), "{name}: {message}");
    }
}

#[test]
fn a_step_is_made_again_at_the_rate_that_it_had() {
    use unitgain_study::replay::replay;
    let scratch = Scratch::new("rates");
    // Without checkpoints in between, each rewind goes back to the start.
    for every in [0, 2] {
        let folder = scratch.0.join(every.to_string());
        let policy = "{ kind = \"rewind\", factor = 1e-2, at_most = 9 }";
        let settings = [format!("checkpoint.every={every}"), "log.every=3".into()];
        let config = RunConfig::parse(&diverging(policy).to_toml(), "test", &settings).unwrap();
        let summary = go(&config, &folder, Start::New);
        assert!(!summary.divergences.is_empty(), "{summary:?}");
        let of = |step: usize| {
            let _one_at_a_time = generator();
            replay(&folder, step, &mut |_, _| ()).unwrap()
        };
        let diverged: Vec<usize> = summary.divergences.iter().map(|divergence| divergence.step).collect();
        for record in records(&folder).iter().filter(|record| !diverged.contains(&record.step)) {
            let found = of(record.step);
            assert_eq!(
                (found.loss, found.lr),
                (record.loss, record.lr),
                "step {} of {:?}",
                record.step,
                summary.divergences
            );
        }
        for step in diverged {
            let found = of(step);
            let last = summary.divergences.iter().rfind(|divergence| divergence.step == step).unwrap();
            assert!(
                !found.is_finite && last.message.contains(&format!("loss {}", found.loss)),
                "{last:?} {}",
                found.loss
            );
        }
    }
}

#[test]
fn a_run_goes_on_under_what_may_change() {
    let scratch = Scratch::new("change");
    // A rewind policy for a resumed run that had another policy and length, and no checkpoint on schedule.
    let folder = scratch.0.join("policy");
    let first = RunConfig::parse(
        &diverging("stop").to_toml(),
        "test",
        &["checkpoint.every=0".to_string(), "checkpoint.keep=1".into(), "train.steps=3".into()],
    )
    .unwrap();
    go(&first, &folder, Start::New);
    let policy = "train.on_divergence={ kind = \"rewind\", factor = 1e-6, at_most = 4 }";
    let settings = [policy.to_string(), "train.steps=24".into(), "checkpoint.every=0".into()];
    let longer = RunConfig::parse(&first.to_toml(), "test", &settings).unwrap();
    let summary = go(&longer, &folder, Start::Resume);
    assert_eq!(summary.status, Status::Finished, "{summary:?}");
    assert_eq!(summary.divergences[0].action, Action::Rewound { to: 3, rate: 1e-6 });
    // A run that is being extended and was killed before its next checkpoint keeps the previous one.
    let folder = scratch.0.join("longer");
    let constant = ["schedule.kind=constant", "checkpoint.every=0"];
    go(&config(&[&constant[..], &["train.steps=5"]].concat()), &folder, Start::New);
    killed(&config(&[&constant[..], &["train.steps=50"]].concat()), &folder, Start::Resume, |event| {
        matches!(event, Event::Step(9))
    });
    assert_eq!(Checkpoint::newest(&folder).unwrap().progress.step, 5);
    // A stopped run has no record of its last step, and cannot end there.
    let folder = scratch.0.join("shorter");
    stopped(&config(&[&constant[..], &["log.every=24", "eval.every=0"]].concat()), &folder, Start::New, 10);
    let message = refused(
        &config(&[&constant[..], &["log.every=24", "eval.every=0", "train.steps=10"]].concat()),
        &folder,
        Start::Resume,
    );
    assert!(message.contains("has no record of it"), "{message}");
}

#[test]
fn a_run_that_skips_has_the_same_records_however_it_was_broken_off() {
    let scratch = Scratch::new("skips");
    let config = diverging("{ kind = \"skip\", at_most = 2 }");
    let whole = scratch.0.join("whole");
    let summary = go(&config, &whole, Start::New);
    let last = summary.divergences[summary.divergences.len() - 1].step;
    assert_eq!((summary.status, summary.step), (Status::Diverged, last), "the step that diverged, not one behind it");
    assert!(records(&whole).len() > 2, "{:?}", records(&whole));
    for stop in 1..last {
        let folder = scratch.0.join(stop.to_string());
        stopped(&config, &folder, Start::New, stop);
        go(&config, &folder, Start::Resume);
        assert_eq!(records(&whole), records(&folder), "stopped at {stop}");
        assert_eq!(on_disk(&whole).divergences, on_disk(&folder).divergences, "stopped at {stop}");
    }
}
