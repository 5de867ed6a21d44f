//! `sweep` and `compare` from a user's view.

use super::{Place, records};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const SWEEP: &str = "
    run = 'small.toml'
    set = ['train.steps=6', 'model.n_layers=1', 'checkpoint.every=3']
    tolerance = 9
    [axes]
    width = [16, 8]
    'optimizer.lr' = [1e-3, 1e-2]
    seed = [1]";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn losses(report: &Value) -> Vec<&Value> {
    report["runs"].as_array().unwrap().iter().map(|run| &run["loss"]).collect()
}

#[test]
fn a_sweep_makes_every_run_once() {
    let place = Place::new("sweep");
    place.write("tiny.toml", SWEEP);
    let shown = place.good(&["sweep", "tiny.toml", "--jobs", "2", "--plot", "tiny.svg"]);
    for part in [
        "4 runs of 6 steps, 384 tokens",
        "width 8",
        "width 16",
        "best lr",
        "+0.00",
        "undecided over width",
        "did not learn",
        "runs/tiny/sweep.svg",
    ] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    assert!(place.read("tiny.svg").contains("learning rate") && place.read("runs/tiny/sweep.svg").contains("width 8"));
    assert!(place.read("runs/tiny/sweep.toml").ends_with(SWEEP));
    let report = json(&place.read("runs/tiny/sweep.json"));
    assert_eq!((&report["complete"], &report["horizon"]["tokens"]), (&true.into(), &384.into()));
    assert_eq!(report["runs"][1]["name"], "width=16,lr=0.01,seed=1");
    assert_eq!(report["runs"][2]["settings"], serde_json::json!({ "width": 8, "optimizer.lr": 1e-3, "seed": 1 }));
    assert_eq!(report["optima"][0]["size"], 8, "sizes ascend");
    assert_eq!(report["verdicts"][0]["verdict"], "undecided");
    for run in report["runs"].as_array().unwrap() {
        let name = run["name"].as_str().unwrap();
        let last = records(&place, &format!("runs/tiny/runs/{name}")).pop().unwrap();
        let single = |loss: &Value| loss.as_f64().unwrap() as f32;
        assert_eq!(single(&run["loss"]), single(&last["eval_loss"]), "{name}");
        assert!(place.0.join(format!("runs/tiny/logs/{name}.log")).exists());
    }

    let metrics = place.0.join("runs/tiny/runs/width=8,lr=0.01,seed=1/metrics.jsonl");
    let written = std::fs::metadata(&metrics).unwrap().modified().unwrap();
    let again = place.run(&["sweep", "tiny.toml"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout), shown);
    assert!(String::from_utf8_lossy(&again.stderr).contains("4 of 4 runs were there already"));
    assert_eq!(std::fs::metadata(&metrics).unwrap().modified().unwrap(), written, "no run was made again");
    assert_eq!(json(&place.good(&["sweep", "tiny.toml", "--json"])), report);
    assert_eq!(place.run(&["sweep", "tiny.toml", "--check"]).status.code(), Some(1), "undecided is not a yes");

    // Extending an axis trains only the new runs; another setting needs --force, which trains all again.
    place.write("tiny.toml", SWEEP.replace("1e-2]", "1e-2, 1e-1]"));
    assert!(place.good(&["sweep", "tiny.toml"]).contains("6 runs"));
    assert_eq!(std::fs::metadata(&metrics).unwrap().modified().unwrap(), written);
    // A new axis renames the runs, and trains none again, because their settings are unchanged.
    place.write("tiny.toml", SWEEP.replace("[axes]", "[axes]\n'train.batch_size' = [4]"));
    let more = place.good(&["sweep", "tiny.toml", "--json"]);
    assert_eq!(losses(&json(&more)), losses(&report));
    let metrics = place.0.join("runs/tiny/runs/batch_size=4,width=8,lr=0.01,seed=1/metrics.jsonl");
    assert_eq!(std::fs::metadata(&metrics).unwrap().modified().unwrap(), written, "a run is found by its settings");
    // A value that does not fit into a name leaves the other names unchanged.
    let long = "[axes]\n'model.norm' = ['layer_norm', { kind = 'dyt', alpha = 0.12345678901234567 }]";
    place.write("tiny.toml", SWEEP.replace("[axes]", long));
    place.good(&["sweep", "tiny.toml"]);
    let metrics = place.0.join("runs/tiny/runs/norm=layer_norm,width=8,lr=0.01,seed=1/metrics.jsonl");
    assert_eq!(std::fs::metadata(&metrics).unwrap().modified().unwrap(), written);
    place.write("tiny.toml", SWEEP.replace("1e-2]", "1e-2, 1e-1]"));
    place.good(&["sweep", "tiny.toml"]);
    let metrics = place.0.join("runs/tiny/runs/width=8,lr=0.01,seed=1/metrics.jsonl");
    for setting in ["optimizer.weight_decay=0.5", "eval.tokens=300"] {
        let message = place.bad(&["sweep", "tiny.toml", "--set", setting]);
        let key = setting.split(['=', '.']).next().unwrap();
        assert!(message.contains(key) && message.contains("--force"), "{message}");
    }
    place.good(&["sweep", "tiny.toml", "--set", "train.steps=5", "--force"]);
    assert!(std::fs::metadata(&metrics).unwrap().modified().unwrap() > written);
}

#[cfg(unix)]
#[test]
fn a_killed_sweep_goes_on_to_the_same_losses() {
    use std::os::unix::process::CommandExt;
    let place = Place::new("sweep-kill");
    let steps = |n: usize| SWEEP.replace("train.steps=6", &format!("train.steps={n}"));
    place.write("long.toml", steps(300));
    let whole = json(&place.good(&["sweep", "long.toml", "--jobs", "2", "--json", "--out", "whole"]));
    // As with Ctrl-C, the signal reaches the runs too.
    let mut command = place.command(&["sweep", "long.toml", "--jobs", "2", "--out", "broken"]);
    let mut child = command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !place.0.join("broken/runs/width=16,lr=0.001,seed=1/checkpoints/step_00000030.safetensors").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "no checkpoint in a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
    let group = format!("-{}", child.id());
    assert!(std::process::Command::new("kill").args(["-9", "--", &group]).status().unwrap().success());
    child.wait().unwrap();
    assert!(!place.0.join("broken/sweep.json").exists());
    assert!(records(&place, "broken/runs/width=16,lr=0.001,seed=1").len() < 300, "the run was broken off");
    let broken = json(&place.good(&["sweep", "long.toml", "--jobs", "2", "--json", "--out", "broken"]));
    assert_eq!(losses(&whole), losses(&broken));
    assert_eq!(whole["optima"], broken["optima"]);
}

#[test]
fn a_run_that_diverges_is_a_result_and_one_that_fails_is_not() {
    let place = Place::new("sweep-diverged");
    let sgd = SWEEP.replace("'train.steps=6'", "'train.steps=6', 'optimizer.kind=sgd', 'train.clip=0.0'");
    place.write("wild.toml", sgd.replace("1e-2]", "1e-2, 1e30]"));
    let shown = place.good(&["sweep", "wild.toml"]);
    assert!(shown.contains("diverged") && shown.contains("1 diverged"), "{shown}");
    let report = json(&place.read("runs/wild/sweep.json"));
    let wild = &report["runs"][2];
    assert_eq!((&wild["status"], &wild["loss"]), (&"diverged".into(), &Value::Null));
    assert!(wild["message"].as_str().unwrap().contains("diverged at step"));
    assert_eq!(report["means"][2]["diverged"], 1);
    assert_eq!(report["optima"][0]["beside_divergence"], true);

    // A run whose folder cannot be used.
    let run = "runs/tiny/runs/width=8,lr=0.01,seed=1";
    place.write("tiny.toml", SWEEP);
    std::fs::create_dir_all(place.0.join(run)).unwrap();
    place.write(
        "runs/tiny/sweep.toml",
        format!("# Written by unitgain, which keeps its runs in the folders beside this file.\n{SWEEP}"),
    );
    place.write(&format!("{run}/checkpoints"), "a");
    assert!(place.bad(&["sweep", "tiny.toml", "--jobs", "1"]).contains("holds \"checkpoints\", which is of no run"));
    assert_eq!(place.read(&format!("{run}/checkpoints")), "a");
    std::fs::remove_file(place.0.join(run).join("checkpoints")).unwrap();
    // A run that fails, because its records are removed while it trains.
    place
        .write("long.toml", SWEEP.replace("train.steps=6", "train.steps=20000").replace("seed = [1]", "seed = [1, 2]"));
    let sweep =
        place.command(&["sweep", "long.toml", "--jobs", "1"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let started = std::time::Instant::now();
    let is_removed = || {
        let runs = std::fs::read_dir(place.0.join("runs/long/runs")).into_iter().flatten().flatten();
        runs.map(|run| run.path()).any(|run| {
            let is_begun = std::fs::metadata(run.join("metrics.jsonl")).is_ok_and(|file| file.len() > 0);
            is_begun && std::fs::remove_file(run.join("metrics.jsonl")).is_ok()
        })
    };
    while !is_removed() {
        assert!(started.elapsed().as_secs() < 60, "no run began");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let output = sweep.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(" failed") && message.contains("was removed or changed"), "{message}");
    let report = json(&place.read("runs/long/sweep.json"));
    assert_eq!((&report["complete"], &report["optima"]), (&false.into(), &serde_json::json!([])));
}

#[test]
fn a_sweep_that_cannot_be_starts_nothing() {
    let place = Place::new("sweep-errors");
    let axes = |text: &str| format!("run = 'small.toml'\n[axes]\n{text}");
    for (sweep, expected) in [
        (axes("'optimizer.rate' = [1]"), "optimizer.rate"),
        (axes("seed = [1]\n'optimizer.lr' = [1e-3, 'x']"), "optimizer.lr"),
        (axes("width = [16, 17]"), "width=17"),
        (axes("'model.norm' = ['layer_norm', 'layer_norn']"), "norm=layer_norn"),
        (axes("seed = [1, 1]"), "there twice"),
        (axes("seed = [1]").replace("small", "missing"), "missing.toml"),
        ("runs = 1\n[axes]\nseed = [1]".into(), "unknown key"),
        ("run = [".into(), "not valid TOML"),
    ] {
        place.write("bad.toml", sweep);
        let message = place.bad(&["sweep", "bad.toml"]);
        assert!(message.contains(expected), "{message:?} does not say {expected:?}");
    }
    place.write("good.toml", axes("seed = [1]"));
    assert!(place.bad(&["sweep", "good.toml", "--check"]).contains("optimizer.lr"));
    assert!(place.bad(&["sweep", "good.toml", "--plot", "a.pdf"]).contains(".svg"));
    assert!(place.bad(&["sweep", "good.toml", "--set", "seed=2"]).contains("axis"));
    assert!(!place.0.join("runs").exists(), "nothing was started");
    std::fs::create_dir(place.0.join("mine")).unwrap();
    place.write("mine/a.txt", "a");
    assert!(place.bad(&["sweep", "good.toml", "--out", "mine"]).contains("sweep.toml"));
    assert!(place.bad(&["sweep", "good.toml", "--out", "mine", "--force"]).contains("sweep.toml"));
    assert_eq!(std::fs::read_dir(place.0.join("mine")).unwrap().count(), 1);
}

#[test]
fn a_comparison_has_a_row_for_each_configuration() {
    let place = Place::new("compare");
    let small = place.read("small.toml").replace("dropout = 0.1", "");
    place.write("pre.toml", &small);
    place.write("post.toml", small.replace("[model]", "[model]\nplacement = 'post_norm'"));
    let arguments = ["compare", "pre.toml", "post.toml", "--seeds", "2", "--set", "train.steps=8"];
    let table = place.good(&[&arguments[..], &["--plot", "both.svg", "--jobs", "2"]].concat());
    for part in [
        "pre ",
        "post ",
        "above floor",
        "last/first block",
        "of 2",
        "after 8 steps, 512 tokens, seeds [1, 2]",
        "losses of 128 held-out tokens",
        "differs in: model.placement; and so in model.final_norm",
        "compare.json",
        "compare.svg",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    let sets = || {
        let mut names: Vec<String> = std::fs::read_dir(place.0.join("runs/compare"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let [own] = &sets()[..] else { panic!("one comparison has one folder: {:?}", sets()) };
    let own = format!("runs/compare/{own}");
    assert!(own.starts_with("runs/compare/pre+post-"), "{own}");
    assert!(place.read("both.svg").contains("training loss") && place.0.join(&own).join("compare.svg").exists());
    let report = json(&place.good(&[&arguments[..], &["--json"]].concat()));
    assert_eq!(report, json(&place.read(&format!("{own}/compare.json"))));
    let last = |run: &str| records(&place, &format!("{own}/runs/{run}")).pop().unwrap()["eval_loss"].as_f64().unwrap();
    let paired = [1, 2].map(|seed| last(&format!("post,seed={seed}")) - last(&format!("pre,seed={seed}")));
    let of = |key: &str| report["configurations"][1][key].as_f64().unwrap();
    assert!((of("difference") - (paired[0] + paired[1]) / 2.0).abs() < 1e-6);
    assert!((of("difference_error") - (paired[0] - paired[1]).abs() / 2.0).abs() < 1e-6);
    assert_eq!(report["configurations"][0]["difference"], 0.0);
    // Another comparison gets its own folder, and refuses the folder of the first.
    place.good(&["compare", "pre.toml", "--seeds", "1", "--set", "train.steps=8"]);
    place.good(&["compare", "pre.toml", "post.toml", "--seeds", "1", "--set", "train.steps=7"]);
    assert_eq!(sets().len(), 3, "{:?}", sets());
    let before = place.read(&format!("{own}/compare.json"));
    let message = place.bad(&["compare", "post.toml", "--seeds", "1", "--out", &own]);
    assert!(message.contains("other configurations") && message.contains("--out"), "{message}");
    assert_eq!(before, place.read(&format!("{own}/compare.json")));
    let mean = (last("post,seed=1") + last("post,seed=2")) / 2.0;
    assert!((report["configurations"][1]["loss"].as_f64().unwrap() - mean).abs() < 1e-6);
    // The same seed draws the same matrices and batches: a configuration under two names gives equal losses.
    place.write("pre-again.toml", &small);
    let renamed = ["compare", "pre.toml", "pre-again.toml", "--seeds", "1", "--out", "renamed", "--reach", "99"];
    let report = json(&place.good(&[&renamed[..], &["--json", "--set", "train.steps=8"]].concat()));
    assert_eq!(report["configurations"][0]["loss"], report["configurations"][1]["loss"]);
    assert_eq!(report["configurations"][0]["steps_to_reach"], 1.0);

    for (change, key) in [
        (("steps = 30", "steps = 31"), "train.steps"),
        (("batch_size = 4", "batch_size = 5"), "batch_size"),
        (("context = 16", "context = 8"), "model.context"),
        (("order = 1", "order = 2"), "data.order"),
        (("every = 10", "every = 15"), "eval.every"),
    ] {
        place.write("other.toml", small.replace(change.0, change.1));
        let message = place.bad(&["compare", "pre.toml", "other.toml", "--out", "other"]);
        assert!(message.contains(key) && message.contains("other.toml"), "{message}");
    }
    assert!(!place.0.join("other").exists());
}

#[test]
fn a_comparison_names_failures_and_what_a_placement_brings() {
    let place = Place::new("compare-failures");
    let small = place.read("small.toml").replace("dropout = 0.1", "");
    place.write("dead.toml", &small);
    place.write("deep.toml", small.replace("[model]", "[model]\nplacement = 'deep_norm'"));
    let arguments = ["compare", "dead.toml", "deep.toml", "--seeds", "1", "--set", "train.steps=4", "--check"];
    let ended = place.run(&[&arguments[..], &["--set", "optimizer.lr=1e-30"]].concat());
    assert_eq!(ended.status.code(), Some(1), "nothing learned");
    let (shown, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(shown.contains("1 of 1 did not learn") && shown.contains("than the frequencies of the symbols"), "{shown}");
    assert!(shown.contains("differs in: model.placement; and so in model.final_norm, model.init"), "{shown}");
    assert!(said.contains("model.init differs too (gpt2, xavier), which no file sets"), "{said}");
    assert!(!said.contains("final_norm"), "a final norm is part of its placement: {said}");
    let ended = place.run(&[&arguments[..], &["--set", "train.steps=120", "--set", "optimizer.lr=1e-2"]].concat());
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stdout));
    let wild = ["--set", "optimizer.kind=sgd", "--set", "optimizer.lr=1e30", "--set", "train.clip=0.0"];
    let ended = place.run(&[&arguments[..], &wild].concat());
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 of 1 diverged"));
    let ended = place.run(&[&arguments[..arguments.len() - 1], &wild].concat());
    assert_eq!(ended.status.code(), Some(0), "without --check a divergence is a result");
}

#[test]
fn every_shipped_sweep_can_start() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/sweeps");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with('#') && text.contains("xpect"), "{} begins with what to expect", path.display());
        assert!(unitgain_study::sweep::Sweep::load(&path, &[]).unwrap().plan.len() > 1);
        seen += 1;
    }
    assert!(seen >= 4);
}

/// Only a training run changes a folder.
#[test]
fn what_is_refused_changes_nothing_in_a_folder() {
    let place = Place::new("sweep-refused");
    place.write("tiny.toml", SWEEP);
    place.good(&["sweep", "tiny.toml", "--out", "out"]);
    let files = || {
        let mut all: Vec<(std::path::PathBuf, Vec<u8>)> = Vec::new();
        let mut folders = vec![place.0.join("out")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false => all.push((entry.clone(), std::fs::read(&entry).unwrap())),
                }
            }
        }
        all.sort();
        all
    };
    let before = files();
    // Other settings, another sweep, and a run in progress.
    place.write("other.toml", SWEEP.replace("train.steps=6", "train.steps=5"));
    assert!(place.bad(&["sweep", "other.toml", "--out", "out"]).contains("train.steps"));
    place.write("other.toml", SWEEP.replace("seed = [1]", "seed = [7]"));
    assert!(place.bad(&["sweep", "other.toml", "--out", "out"]).contains("none of those that are asked for"));
    let lock = std::fs::File::create(place.0.join("out/runs/width=8,lr=0.01,seed=1/.lock")).unwrap();
    lock.lock().unwrap();
    assert!(place.bad(&["sweep", "tiny.toml", "--out", "out", "--force"]).contains("another process"));
    drop(lock);
    assert!(before == files());
    // Files that are not part of a run are never removed.
    let own = place.0.join("out/runs/width=8,lr=0.01,seed=1");
    std::fs::remove_file(own.join("summary.json")).unwrap();
    std::fs::remove_dir_all(own.join("checkpoints")).unwrap();
    std::fs::write(own.join("notes.txt"), "mine").unwrap();
    assert!(place.bad(&["sweep", "tiny.toml", "--out", "out"]).contains("notes.txt"));
    assert!(own.join("config.toml").exists() && own.join("notes.txt").exists());
    // An unwritable plot is reported before the runs.
    for plot in ["nowhere/x.svg", "out", "x.pdf"] {
        for command in
            [&["sweep", "tiny.toml", "--out", "new"][..], &["coord-check", "small.toml"], &["probe", "small.toml"]]
        {
            assert!(place.bad(&[command, &["--plot", plot]].concat()).contains("--plot"), "{command:?} {plot}");
        }
    }
    assert!(!place.0.join("new").exists());
}

/// User files next to a sweep's files, and in other folders, are never removed.
#[test]
fn force_removes_the_runs_of_a_sweep_and_nothing_else() {
    let place = Place::new("sweep-force");
    place.good(&["train", "small.toml", "--steps", "2", "--out", "kept"]);
    // A user's folder that contains a sweep's file and folders of the same names.
    place.write("tiny.toml", SWEEP);
    for folder in ["own/configs", "own/logs", "own/runs/mine"] {
        std::fs::create_dir_all(place.0.join(folder)).unwrap();
    }
    let own = ["own/sweep.toml", "own/configs/mine.toml", "own/logs/mine.log", "own/runs/mine/config.toml"];
    own.iter().for_each(|file| place.write(file, SWEEP));
    assert!(place.bad(&["sweep", "tiny.toml", "--out", "own", "--force"]).contains("that unitgain wrote"));
    // The same in the folder of a sweep, and a link to a run elsewhere.
    place.good(&["sweep", "tiny.toml", "--out", "out"]);
    std::fs::create_dir_all(place.0.join("out/runs/mine")).unwrap();
    let beside = ["out/configs/mine.toml", "out/logs/mine.log", "out/runs/mine/config.toml"];
    beside.iter().for_each(|file| place.write(file, "a = 1"));
    #[cfg(unix)]
    std::os::unix::fs::symlink("../../kept", place.0.join("out/runs/link")).unwrap();
    place.good(&["sweep", "tiny.toml", "--out", "out", "--force"]);
    own.iter().for_each(|file| assert_eq!(place.read(file), SWEEP, "{file}"));
    beside.iter().for_each(|file| assert_eq!(place.read(file), "a = 1", "{file}"));
    assert_eq!(records(&place, "kept").len(), 2);
    assert!(place.0.join("kept/checkpoints/step_00000002.safetensors").exists());
}

#[test]
fn a_run_on_another_text_is_not_taken_for_this_one() {
    let place = Place::new("sweep-text");
    place.write("text.txt", "to be or not to be ".repeat(40));
    let sweep = SWEEP.replace("['train.steps=6',", "['train.steps=6', 'data.task=text', 'data.path=text.txt',");
    place.write("text.toml", sweep);
    place.good(&["sweep", "text.toml"]);
    place.good(&["sweep", "text.toml"]);
    place.write("text.txt", "to be or not to go ".repeat(40));
    assert!(place.bad(&["sweep", "text.toml"]).contains("another text"));
}

/// A check with NaN bounds or invalid sizes fails before it measures anything.
#[test]
fn a_coordinate_check_knows_its_sizes_and_tolerance_first() {
    let place = Place::new("coord-first");
    for (arguments, expected) in [
        (&["--tolerance", "nan"][..], "tolerance"),
        (&["--tolerance", "inf"], "tolerance"),
        (&["--widths", "16,33"], "d_model"),
        (&["--widths", "16,24", "--set", "model.d_ff=9"], "model.d_ff"),
    ] {
        let message = place.bad(&[&["coord-check", "small.toml"], arguments].concat());
        assert!(message.contains(expected), "{message}");
    }
}
