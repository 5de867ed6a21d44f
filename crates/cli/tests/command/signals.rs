//! Stopping the command by signals, or by killing its parent.

use super::{Place, records};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Settings of a run of some seconds that does its first steps soon.
const LONG: [&str; 10] = [
    "train",
    "small.toml",
    "--set",
    "train.steps=3000",
    "--set",
    "checkpoint.every=0",
    "--set",
    "log.every=7",
    "--set",
    "eval.every=0",
];

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until a condition holds.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "not in a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn summary(place: &Place, run: &str) -> serde_json::Value {
    std::fs::read(place.0.join(run).join("summary.json"))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

/// Starts a long run and waits for its first records.
fn begun(place: &Place, command: &mut Command, run: &str) -> Child {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let records = place.0.join(run).join("metrics.jsonl");
    until("a record", || std::fs::read_to_string(&records).is_ok_and(|text| text.lines().count() > 3));
    child
}

#[test]
fn a_signal_loses_nothing() {
    let place = Place::new("signal");
    place.good(&[&LONG[..], &["--out", "whole"]].concat());
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let child = begun(&place, &mut place.command(&[&LONG[..], &["--out", name]].concat()), name);
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("interrupted after step") && said.contains(&format!("train --resume {name}")), "{said}");
        let there = summary(&place, name);
        assert_eq!(there["status"], "interrupted");
        let step = there["step"].as_u64().unwrap();
        assert!((1..3000).contains(&step), "{step}");
        assert!(place.0.join(format!("{name}/checkpoints/step_{step:08}.safetensors")).exists());
        place.good(&["train", "--resume", name]);
        assert_eq!(records(&place, "whole"), records(&place, name));
        let newest =
            |run: &str| std::fs::read(place.0.join(run).join("checkpoints/step_00003000.safetensors")).unwrap();
        assert!(newest("whole") == newest(name));
        let checkpoints = std::fs::read_dir(place.0.join(name).join("checkpoints")).unwrap().count();
        assert_eq!(checkpoints, 1, "that of the signal is gone");
    }
}

#[test]
fn a_signal_that_was_ignored_stays_so() {
    let place = Place::new("nohup");
    let line = format!("trap '' HUP; exec '{}' \"$@\"", env!("CARGO_BIN_EXE_unitgain"));
    let mut command = Command::new("sh");
    command.current_dir(&place.0).args(["-c", &line, "sh"]).args(LONG).args(["--out", "run"]);
    let child = begun(&place, &mut command, "run");
    signal(&child, "HUP");
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(summary(&place, "run")["status"], "finished");
}

#[test]
fn a_second_signal_ends_at_once() {
    let place = Place::new("twice");
    // A long evaluation, during which the first signal has to wait.
    let settings = ["--set", "eval.tokens=16000000", "--set", "eval.every=30", "--out", "run"];
    let child = begun(&place, &mut place.command(&[&LONG[..], &settings].concat()), "run");
    until("all records before the evaluation", || records(&place, "run").len() >= 5);
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    signal(&child, "TERM");
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, "TERM");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
    assert!(started.elapsed() < Duration::from_secs(5), "it waited for the evaluation");
    assert_eq!(summary(&place, "run")["status"], "running");
}

const SWEEP: &str = "
    run = 'small.toml'
    set = ['train.steps=1500', 'checkpoint.every=0', 'eval.every=0', 'log.every=50']
    [axes]
    width = [16, 8]
    'optimizer.lr' = [1e-3, 1e-2, 1e-4]";

/// The results of a sweep, without times.
fn found(place: &Place, out: &str) -> serde_json::Value {
    let mut report: serde_json::Value = serde_json::from_str(&place.read(&format!("{out}/sweep.json"))).unwrap();
    for run in report["runs"].as_array_mut().unwrap() {
        run["seconds"] = 0.into();
    }
    report
}

#[test]
fn a_sweep_passes_a_signal_on_and_goes_on_where_its_runs_were() {
    let place = Place::new("signal-sweep");
    place.write("tiny.toml", SWEEP);
    place.good(&["sweep", "tiny.toml", "--out", "whole"]);
    let sweep = |out: &str| {
        let mut command = place.command(&["sweep", "tiny.toml", "--jobs", "2", "--out", out]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let runs = |out: &str| -> Vec<String> {
        let entries = std::fs::read_dir(place.0.join(out).join("runs")).into_iter().flatten().flatten();
        entries.map(|entry| format!("{out}/runs/{}", entry.file_name().to_string_lossy())).collect()
    };
    let statuses = |out: &str| -> Vec<serde_json::Value> {
        runs(out).iter().map(|run| summary(&place, run)["status"].clone()).collect()
    };
    let are_going_on = |out: &str| {
        runs(out)
            .iter()
            .filter(|run| std::fs::metadata(place.0.join(run).join("metrics.jsonl")).is_ok_and(|f| f.len() > 0))
            .count()
            > 1
    };
    let child = sweep("asked").spawn().unwrap();
    until("two runs", || are_going_on("asked"));
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(143), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("of 6 runs have ended") && said.contains("sweep tiny.toml --jobs 2 --out asked"), "{said}");
    assert!(statuses("asked").contains(&"interrupted".into()), "{:?}", statuses("asked"));
    assert!(!statuses("asked").contains(&"running".into()), "{:?}", statuses("asked"));

    // Killing only the sweep leaves no run training.
    let mut child = sweep("killed").spawn().unwrap();
    until("two runs", || are_going_on("killed"));
    child.kill().unwrap();
    child.wait().unwrap();
    until("the end of its runs", || !statuses("killed").contains(&"running".into()));

    for out in ["asked", "killed"] {
        assert!(sweep(out).status().unwrap().success());
        assert_eq!(found(&place, out), found(&place, "whole"), "{out}");
    }
}
