//! Sizes that come from files are bounded: nesting, lengths, memory, threads.

use super::Place;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs a shell command line in which UNITGAIN is the command.
fn shell(place: &Place, line: &str) -> Output {
    let line = line.replace("UNITGAIN", env!("CARGO_BIN_EXE_unitgain"));
    Command::new("sh").current_dir(&place.0).args(["-c", &line]).output().unwrap()
}

/// The message of a shell command line that must fail soon with exit code 2.
fn refused(place: &Place, line: &str) -> String {
    let started = Instant::now();
    let output = shell(place, line);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}: {message}");
    assert!(!message.contains("panicked") && message.starts_with("error: "), "{line}: {message}");
    assert!(message.len() < 3000, "{line}: {} bytes", message.len());
    assert!(started.elapsed() < Duration::from_secs(20), "{line}: {:?}", started.elapsed());
    message
}

#[test]
fn depth_is_bounded_wherever_a_key_is_written() {
    let place = Place::new("depth");
    let key = |parts: usize| vec!["a"; parts].join(".");
    let nested = |open: &str, close: &str, n: usize| format!("x = {}1{}", open.repeat(n), close.repeat(n));
    // Dotted keys within inline tables: each is within the parser's own limits, but not both together.
    let both = format!("[{0}]\n{1}b = 1{2}", key(70), format!("{} = {{ ", key(70)).repeat(70), " }".repeat(70));
    for (text, expected) in [
        (format!("{} = 1", key(30_000)), "a key has more than 32 parts"),
        (format!("[{}]", key(30_000)), "a key has more than 32 parts"),
        (nested("[", "]", 30_000), "more than 32 levels deep"),
        (nested("{a=", "}", 30_000), "more than 32 levels deep"),
        (format!("{} = 1", key(60)), "more than 32 levels deep"),
        (format!("[[{}]]", key(60)), "more than 32 levels deep"),
        (nested("[", "]", 60), "more than 32 levels deep"),
        (nested("{ a = ", " }", 60), "more than 32 levels deep"),
        (both, "more than 32 levels deep"),
    ] {
        place.write("deep.toml", &text);
        place.write("sweep.toml", format!("{text}\nrun = 'small.toml'\n"));
        for line in ["train deep.toml", "config show deep.toml", "compare small.toml deep.toml", "sweep sweep.toml"] {
            let message = refused(&place, &format!("UNITGAIN {line}"));
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
    let setting = format!("{}=1", key(30_000));
    place.write("axes.toml", format!("run = 'small.toml'\n[axes]\n'{}' = [1]", key(30_000)));
    place.write("set.toml", format!("run = 'small.toml'\nset = ['{setting}']\n[axes]\nseed = [1]"));
    for line in [
        &format!("params small.toml --set {setting}"),
        &format!("compare small.toml --set {setting}"),
        "sweep axes.toml",
        "sweep set.toml",
    ] {
        let message = refused(&place, &format!("UNITGAIN {line}"));
        assert!(message.contains("has 30000 parts, more than 32"), "{message}");
    }
    // A value that is not a table is a string, which is not a kind of norm.
    let value = format!("{}{{}}{}", "{a.a.a.a.a.a.a.a.a.a=".repeat(60), "}".repeat(60));
    let output = shell(&place, &format!("UNITGAIN params small.toml --set 'model.norm={value}'"));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("model.norm: unknown value"));
}

#[test]
fn what_a_person_writes_is_half_a_mebibyte_at_most_and_read_in_no_time() {
    let place = Place::new("length");
    let size = 512 << 10;
    let full = |unit: &str, head: &str, tail: &str| {
        format!("{head}{}{tail}", unit.repeat((size - head.len() - tail.len()) / unit.len()))
    };
    let keys = |n: usize| (0..n).map(|i| format!("k{i}=1\n")).collect::<String>();
    for (text, expected) in [
        (full("# a comment\n", "", ""), ""),
        (full("1,", "x=[", "]"), "x: unknown key"),
        (full("{a=1},", "x=[", "]"), "tables: are more than 20000"),
        (full("[[x]]\n", "", ""), "tables: are more than 20000"),
        (full("[[model.block]]\n", "", ""), "tables: are more than 20000"),
        (
            full("[[model.block]]\nrange=[0,1]\nplacement='pre_norm'\nscale='depth'\n", "", ""),
            "ranges of blocks are more than 500",
        ),
        (keys(50_000), "has 50000 keys, and may have 1000"),
        (format!("[data]\n{}", keys(990)), "50 faults"),
        (
            format!("[[model.block]]\nrange=[0,1]\nnorm={{kind='rms_norm',{}}}", keys(990).replace('\n', ",")),
            "50 faults",
        ),
        (full("=\n", "", ""), "is not valid TOML"),
        (full("a", "x='", "'"), "x: unknown key"),
        (full("# a comment\n", "", "") + "# a comment\n", "has at most 524288"),
    ] {
        assert!(expected.contains("at most") || text.len() <= size);
        place.write("long.toml", &text);
        let started = Instant::now();
        let output = shell(&place, "UNITGAIN config show long.toml");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(started.elapsed() < Duration::from_secs(10), "{expected}: {:?}", started.elapsed());
        let code = if expected.is_empty() { 0 } else { 2 };
        let start: String = message.chars().take(300).collect();
        assert_eq!(output.status.code(), Some(code), "{expected}: {start}");
        assert!(message.contains(expected), "{expected} is not in {start}");
    }
    place.write("sweep.toml", vec![b'#'; size + 1]);
    assert!(refused(&place, "UNITGAIN sweep sweep.toml").contains("has at most 524288"));
    // As many values as the maximum number of runs.
    let values: Vec<String> = (1..=400).map(|i| i.to_string()).collect();
    let values = values.join(",");
    place.write("sweep.toml", format!("run = 'small.toml'\n[axes]\nseed = [{values}]\n'optimizer.lr' = [{values}]"));
    assert!(refused(&place, "UNITGAIN sweep sweep.toml").contains("more than 100000 runs"));
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let place = Place::new("files");
    assert!(shell(&place, "mkfifo pipe && mkdir folder && truncate -s 100G sparse").status.success());
    place.write("pipe.toml", "run = 'pipe'\n[axes]\nseed = [1]");
    let all = [("pipe", "it is a pipe"), ("/dev/zero", "it is a device"), ("folder", "it is a folder")];
    for (path, expected) in all.into_iter().chain([("sparse", "at most")]) {
        for line in [
            format!("train {path}"),
            format!("params {path}"),
            format!("config show {path}"),
            format!("bench {path}"),
            format!("coord-check {path}"),
            format!("compare small.toml {path}"),
            format!("sweep {path}"),
        ] {
            let message = refused(&place, &format!("UNITGAIN {line} < /dev/null"));
            assert!(
                message.contains(&format!("cannot read {path}: {expected}")) || message.contains("at most"),
                "{line}: {message}"
            );
        }
        for tokenizer in ["byte", "char"] {
            let text = format!("--set data.task=text --set data.path={path} --set data.tokenizer={tokenizer}");
            let message = refused(&place, &format!("UNITGAIN params small.toml {text}"));
            let expected = if path == "sparse" { "of memory, and" } else { expected };
            assert!(message.contains("data.path") && message.contains(expected), "{message}");
        }
    }
    assert!(refused(&place, "UNITGAIN sweep pipe.toml").contains("it is a pipe"));
}

/// Limits are set by the shell, so that the test is the same on any machine.
#[test]
fn memory_is_checked_before_it_is_taken() {
    let place = Place::new("memory");
    let commands =
        ["train", "params", "probe", "coord-check --depths 65536,65535", "bench", "compare", "train --out run"];
    for command in commands {
        let line = format!("ulimit -v 3000000; UNITGAIN {command} small.toml --set model.n_layers=65536");
        let message = refused(&place, &line);
        assert!(message.contains("model.n_layers: 6553") && message.contains("left under `ulimit -v`"), "{message}");
        let line = format!(
            "ulimit -d 6000000; UNITGAIN {command} small.toml --set train.batch_size=1048576 --set model.d_model=256"
        );
        if !command.contains("depths") {
            let message = refused(&place, &line);
            assert!(message.contains("train.batch_size: 1048576") && message.contains("`ulimit -d`"), "{message}");
        }
    }
    place.write("sweep.toml", "run = 'small.toml'\n[axes]\ndepth = [2, 65536]");
    for dry in ["", "--dry-run"] {
        let message = refused(&place, &format!("ulimit -v 3000000; UNITGAIN sweep sweep.toml {dry}"));
        assert!(message.contains("depth=65536") && message.contains("model.n_layers"), "{message}");
    }
    assert!(!place.0.join("runs").exists() && !place.0.join("run").exists());
    // Two models that fit into memory alone, but not together.
    let large = "--set model.d_model=256 --set model.n_layers=24 --set model.dropout=0.0";
    let alone = shell(&place, &format!("ulimit -v 1800000; UNITGAIN params small.toml {large}"));
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    let message = refused(
        &place,
        &format!("ulimit -v 1800000; UNITGAIN bench small.toml small.toml small.toml small.toml {large}"),
    );
    assert!(message.contains("4 at once"), "{message}");
    // A sweep trains fewer runs at once.
    place.write("sweep.toml", "run = 'small.toml'\nset = ['train.steps=1']\n[axes]\nseed = [1, 2, 3]");
    let output = shell(&place, &format!("ulimit -v 1800000; UNITGAIN sweep sweep.toml --jobs 3 {large}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("at once, not 3"), "{said}");
}

#[test]
fn threads_that_cannot_be_started_are_one_message() {
    let place = Place::new("threads");
    place.good(&["train", "small.toml", "--steps", "1", "--out", "run"]);
    for command in ["train small.toml", "params small.toml", "probe run", "sanity", "generate run", "bench small.toml"]
    {
        // The stacks of 1000 threads do not fit.
        let line = format!("ulimit -v 1500000; RAYON_NUM_THREADS=1000 UNITGAIN {command}");
        let message = refused(&place, &line);
        assert!(message.contains("threads: the system starts no more threads"), "{message}");
    }
    let message =
        refused(&place, "ulimit -v 1500000; RAYON_NUM_THREADS=1 UNITGAIN train small.toml --set threads=1000");
    assert!(message.contains("threads: 1000: the system starts no more threads"), "{message}");
    let message = refused(&place, "RAYON_NUM_THREADS=100000 UNITGAIN params small.toml");
    assert!(message.contains("RAYON_NUM_THREADS = 100000 must be at most 1024"), "{message}");
}
