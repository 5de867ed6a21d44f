//! A command that is killed at any moment can be resumed, with the results of an uninterrupted one.
//!
//! A short part runs by default. The whole, with 300 kills and every file call:
//! `UNITGAIN_CRASHES=300 UNITGAIN_FILE_CALLS=all cargo test --release --test command crash -- --nocapture`

use super::{Place, Random, SMALL, records};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A command that writes a folder named after it.
struct Scenario {
    name: &'static str,
    /// Arguments without `--out`.
    arguments: &'static [&'static str],
    /// Whether it replaces an earlier run in the folder.
    replaces: bool,
}

const TRAIN: &[&str] = &["train", "run.toml"];
const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "train", arguments: TRAIN, replaces: false },
    Scenario { name: "calibrated", arguments: &["train", "run.toml", "--set", "init.calibrate=lsuv"], replaces: false },
    Scenario { name: "replaced", arguments: &["train", "run.toml", "--force"], replaces: true },
    Scenario { name: "sweep", arguments: &["sweep", "sweep.toml", "--jobs", "2"], replaces: false },
    Scenario {
        name: "compare",
        arguments: &["compare", "run.toml", "other.toml", "--seeds", "2", "--jobs", "2"],
        replaces: false,
    },
];

/// The small run with more steps, and fewer records, evaluations and checkpoints.
fn run() -> String {
    let changes = [
        ("steps = 30", "steps = 60"),
        ("[log]\n    every = 1", "[log]\n    every = 3"),
        ("every = 10", "every = 20"),
        ("every = 5", "every = 7"),
    ];
    changes.into_iter().fold(SMALL.to_string(), |text, (old, new)| {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        text.replace(old, new)
    })
}

pub(crate) fn place(name: &str) -> Place {
    let place = Place::new(name);
    place.write("run.toml", run());
    place.write("other.toml", format!("{}\n[optimizer]\nlr = 3e-3", run()));
    place.write("sweep.toml", "run = 'run.toml'\n[axes]\nwidth = [16, 8]\n'optimizer.lr' = [1e-3, 1e-2]");
    place
}

/// All results in a folder, by file: records and results without times, and checkpoints unchanged.
pub(crate) fn numbers(place: &Place, folder: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![place.0.join(folder)];
    while let Some(at) = folders.pop() {
        for path in std::fs::read_dir(at).unwrap().flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let relative = path.strip_prefix(place.0.join(folder)).unwrap().to_path_buf();
            assert!(!name.ends_with(".partial"), "{} was left over", path.display());
            let bytes = match name.as_str() {
                _ if path.is_dir() => {
                    folders.push(path);
                    continue;
                }
                "metrics.jsonl" => {
                    let run = path.parent().unwrap().strip_prefix(&place.0).unwrap().to_string_lossy().into_owned();
                    check_summary(place, &run);
                    serde_json::to_vec(&records(place, &run)).unwrap()
                }
                "sweep.json" | "compare.json" => timeless(&std::fs::read_to_string(&path).unwrap()).into_bytes(),
                name if name.ends_with(".safetensors") => std::fs::read(&path).unwrap(),
                _ => continue,
            };
            found.insert(relative, bytes);
        }
    }
    found
}

/// A result without times and speeds.
fn timeless(text: &str) -> String {
    text.lines().filter(|line| !["\"seconds\"", "\"tokens_per_second\""].iter().any(|key| line.contains(key))).collect()
}

/// Checks that a summary matches the last record.
fn check_summary(place: &Place, run: &str) {
    let summary: serde_json::Value = serde_json::from_str(&place.read(&format!("{run}/summary.json"))).unwrap();
    let records = records(place, run);
    let last = records.last().unwrap();
    assert_eq!((&summary["loss"], &summary["status"]), (&last["loss"], &"finished".into()), "{run}");
    assert_eq!(summary["eval_loss"], last["eval_loss"], "{run}");
    let checkpoints = std::fs::read_dir(place.0.join(run).join("checkpoints")).unwrap().count();
    assert!(checkpoints <= 2, "{run}: more than are kept");
}

fn prepare(place: &Place, scenario: &Scenario, out: &str) {
    if scenario.replaces {
        place.good(&["train", "run.toml", "--seed", "7", "--steps", "20", "--out", out]);
    }
}

fn command(place: &Place, scenario: &Scenario, out: &str) -> Command {
    place.command(&[scenario.arguments, &["--out", out]].concat())
}

/// Waits until no run in a folder is locked: the runs of a killed sweep end by themselves.
fn wait_for_locks(folder: &Path) {
    let started = Instant::now();
    let runs = std::fs::read_dir(folder.join("runs")).into_iter().flatten().flatten().map(|entry| entry.path());
    for lock in runs.map(|run| run.join(".lock")).filter(|lock| lock.exists()) {
        while std::fs::File::open(&lock).is_ok_and(|file| file.try_lock().is_err()) {
            assert!(started.elapsed() < Duration::from_secs(30), "{} is still held", lock.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Resumes a killed command as a user would: a run by `--resume`, or from scratch if the folder has no run.
fn go_on(place: &Place, scenario: &Scenario, out: &str) -> Output {
    let is_run = scenario.arguments[0] == "train" && !scenario.replaces;
    if !is_run {
        wait_for_locks(&place.0.join(out));
        return command(place, scenario, out).output().unwrap();
    }
    let resumed = place.run(&["train", "--resume", out]);
    match resumed.status.code() {
        Some(0) => resumed,
        _ => {
            let said = String::from_utf8_lossy(&resumed.stderr);
            if said.contains("has already made") {
                return place.command(&["config", "show", "run.toml"]).output().unwrap();
            }
            let is_empty =
                ["does not exist", "holds no run", "neither config.toml nor"].iter().any(|text| said.contains(text));
            assert!(is_empty, "{}: {said}", scenario.name);
            command(place, scenario, out).output().unwrap()
        }
    }
}

fn assert_goes_on(place: &Place, scenario: &Scenario, out: &str, unbroken: &BTreeMap<PathBuf, Vec<u8>>, what: &str) {
    let output = go_on(place, scenario, out);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {said}");
    let found = numbers(place, out);
    let differing: Vec<_> =
        unbroken.keys().chain(found.keys()).filter(|key| unbroken.get(*key) != found.get(*key)).collect();
    assert!(differing.is_empty(), "{what}: {differing:?} differ from those of an unbroken command");
    std::fs::remove_dir_all(place.0.join(out)).unwrap();
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
fn a_command_that_is_killed_at_any_time_goes_on_to_the_same_numbers() {
    let place = place("crash");
    let kills: usize = setting("UNITGAIN_CRASHES").map_or(10, |n| n.parse().unwrap());
    let mut unbroken = Vec::new();
    for scenario in &SCENARIOS {
        let out = format!("whole-{}", scenario.name);
        prepare(&place, scenario, &out);
        let started = Instant::now();
        let output = command(&place, scenario, &out).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        unbroken.push((started.elapsed(), numbers(&place, &out)));
    }
    let mut draws = Random(kills as u64);
    let (mut done, mut late) = (0, 0);
    for case in 0.. {
        if done >= kills {
            break;
        }
        let index = case % SCENARIOS.len();
        let (scenario, (time, whole)) = (&SCENARIOS[index], &unbroken[index]);
        let out = format!("{}-{case}", scenario.name);
        prepare(&place, scenario, &out);
        // Several times in a row: resumed commands are killed too.
        let mut times = Vec::new();
        for _ in 0..1 + draws.below(3) {
            let wait = Duration::from_micros(draws.below(time.as_micros() as usize) as u64);
            let mut command = if times.is_empty() || scenario.arguments[0] != "train" || scenario.replaces {
                command(&place, scenario, &out)
            } else {
                place.command(&["train", "--resume", &out])
            };
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(wait);
            late += usize::from(child.try_wait().unwrap().is_some());
            child.kill().unwrap();
            child.wait().unwrap();
            times.push(wait);
            done += 1;
            wait_for_locks(&place.0.join(&out));
        }
        assert_goes_on(&place, scenario, &out, whole, &format!("{} killed after {times:?}", scenario.name));
    }
    println!("{done} kills, {late} of them after the command had ended");
    assert!(late < done, "no kill came before the end");
}

/// The system calls that change files.
const CALLS: [&str; 9] = ["openat", "write", "rename", "fsync", "fdatasync", "unlink", "mkdir", "ftruncate", "flock"];

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_is_killed_before_any_file_call_goes_on_to_the_same_numbers() {
    if Command::new("strace").arg("-V").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "strace is not there");
        println!("strace is not there, so that no command is killed before a call");
        return;
    }
    let all = setting("UNITGAIN_FILE_CALLS").is_some_and(|which| which == "all");
    let place = place("calls");
    let mut points = BTreeMap::new();
    for scenario in &SCENARIOS {
        let whole = format!("whole-{}", scenario.name);
        prepare(&place, scenario, &whole);
        assert!(command(&place, scenario, &whole).output().unwrap().status.success());
        let whole = numbers(&place, &whole);
        for call in CALLS {
            let mut n = 1;
            loop {
                let out = format!("{}-{call}-{n}", scenario.name);
                prepare(&place, scenario, &out);
                let inner = command(&place, scenario, &out);
                let mut traced = Command::new("strace");
                traced.current_dir(&place.0).args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
                traced.args(["-e", &format!("inject={call}:signal=KILL:when={n}")]);
                traced.arg(inner.get_program()).args(inner.get_args());
                let output = traced.stdin(Stdio::null()).output().unwrap();
                wait_for_locks(&place.0.join(&out));
                let is_killed = output.status.code().is_none() || output.status.code() == Some(137);
                if is_killed {
                    *points.entry((scenario.name, call)).or_insert(0) += 1;
                }
                assert_goes_on(&place, scenario, &out, &whole, &format!("{} killed before {call} {n}", scenario.name));
                // A call that no longer occurs, or only in a child process, kills nothing.
                if output.status.success() {
                    break;
                }
                n += if all { 1 } else { 1 + n / 2 + 17 };
            }
        }
        if !all && scenario.name == "calibrated" {
            break;
        }
    }
    println!("killed before calls: {points:?}, {} in all", points.values().sum::<usize>());
    assert!(points.len() > 6, "{points:?}");
}
