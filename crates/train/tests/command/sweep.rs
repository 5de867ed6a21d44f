//! `sweep` and `compare`: many runs, as a person uses them.

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
    for part in ["4 runs of 6 steps, 384 tokens", "width 8", "width 16", "best lr", "+0.00", "undecided over width"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    assert!(place.read("tiny.svg").contains("learning rate") && place.read("runs/tiny/sweep.svg").contains("width 8"));
    assert_eq!(place.read("runs/tiny/sweep.toml"), SWEEP);
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

    // A longer axis makes what is new; another setting asks for --force, which makes all anew.
    place.write("tiny.toml", SWEEP.replace("1e-2]", "1e-2, 1e-1]"));
    assert!(place.good(&["sweep", "tiny.toml"]).contains("6 runs"));
    assert_eq!(std::fs::metadata(&metrics).unwrap().modified().unwrap(), written);
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
    // As Ctrl-C does, the signal reaches the runs too.
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
    place.write("tiny.toml", SWEEP);
    std::fs::create_dir_all(place.0.join("runs/tiny/runs/width=8,lr=0.01,seed=1")).unwrap();
    place.write("runs/tiny/sweep.toml", SWEEP);
    place.write("runs/tiny/runs/width=8,lr=0.01,seed=1/checkpoints", "a");
    let message = place.bad(&["sweep", "tiny.toml", "--jobs", "1"]);
    assert!(message.contains("width=8,lr=0.01,seed=1 failed") && message.contains("is not empty"), "{message}");
    let report = json(&place.read("runs/tiny/sweep.json"));
    assert_eq!((&report["complete"], &report["optima"]), (&false.into(), &serde_json::json!([])));
    assert_eq!(place.read("runs/tiny/runs/width=8,lr=0.01,seed=1/checkpoints"), "a");
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
    for part in
        ["pre ", "post ", "above floor", "last/first block", "0 of 2", "after 8 steps, 512 tokens, seeds [1, 2]"]
    {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    assert!(place.read("both.svg").contains("training loss") && place.0.join("runs/compare/compare.svg").exists());
    let report = json(&place.good(&[&arguments[..], &["--json"]].concat()));
    assert_eq!(report, json(&place.read("runs/compare/compare.json")));
    let last =
        |run: &str| records(&place, &format!("runs/compare/runs/{run}")).pop().unwrap()["eval_loss"].as_f64().unwrap();
    let mean = (last("post,seed=1") + last("post,seed=2")) / 2.0;
    assert!((report["configurations"][1]["loss"].as_f64().unwrap() - mean).abs() < 1e-6);
    // The same seed draws the same matrices, and the same batches at every step: before the first update the losses of
    // one configuration under two names are equal, and stay so.
    place.write("pre-twin.toml", &small);
    let twins = ["compare", "pre.toml", "pre-twin.toml", "--seeds", "1", "--out", "twins", "--reach", "99"];
    let report = json(&place.good(&[&twins[..], &["--json", "--set", "train.steps=8"]].concat()));
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
fn every_shipped_sweep_can_start() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/sweeps");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with('#') && text.contains("xpect"), "{} begins with what to expect", path.display());
        assert!(unitgain_train::sweep::Sweep::load(&path, &[]).unwrap().plan.len() > 1);
        seen += 1;
    }
    assert!(seen >= 4);
}

/// A folder is changed only by what is really made in it.
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
    // Other settings, another sweep, and a run that is going on.
    place.write("other.toml", SWEEP.replace("train.steps=6", "train.steps=5"));
    assert!(place.bad(&["sweep", "other.toml", "--out", "out"]).contains("train.steps"));
    place.write("other.toml", SWEEP.replace("seed = [1]", "seed = [7]"));
    assert!(place.bad(&["sweep", "other.toml", "--out", "out"]).contains("none of those that are asked for"));
    let lock = std::fs::File::create(place.0.join("out/runs/width=8,lr=0.01,seed=1/.lock")).unwrap();
    lock.lock().unwrap();
    assert!(place.bad(&["sweep", "tiny.toml", "--out", "out", "--force"]).contains("another process"));
    drop(lock);
    assert!(before == files());
    // What is of no run is never removed.
    let own = place.0.join("out/runs/width=8,lr=0.01,seed=1");
    std::fs::remove_file(own.join("summary.json")).unwrap();
    std::fs::write(own.join("notes.txt"), "mine").unwrap();
    assert!(place.bad(&["sweep", "tiny.toml", "--out", "out"]).contains("notes.txt"));
    assert!(own.join("config.toml").exists() && own.join("notes.txt").exists());
    // A plot that cannot be written is known before the runs.
    for plot in ["nowhere/x.svg", "out", "x.pdf"] {
        for command in
            [&["sweep", "tiny.toml", "--out", "new"][..], &["coord-check", "small.toml"], &["probe", "small.toml"]]
        {
            assert!(place.bad(&[command, &["--plot", plot]].concat()).contains("--plot"), "{command:?} {plot}");
        }
    }
    assert!(!place.0.join("new").exists());
}

/// A check whose bounds are no numbers, or whose sizes cannot be, measures nothing.
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
