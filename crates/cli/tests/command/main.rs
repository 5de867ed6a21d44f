//! Tests of the `unitgain` command from a user's view.
#![allow(missing_docs, clippy::unwrap_used)]

#[cfg(target_os = "linux")]
mod bounds;
mod catalogue;
mod config;
#[cfg(unix)]
mod crash;
#[cfg(unix)]
mod damage;
#[cfg(target_os = "linux")]
mod random;
#[cfg(unix)]
mod signals;
#[cfg(target_os = "linux")]
mod soak;
mod speed;
mod sweep;
#[cfg(target_os = "linux")]
mod terminal;
mod untrusted;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SMALL: &str = "
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
    steps = 30
    batch_size = 4
    [log]
    every = 1
    [eval]
    every = 10
    tokens = 128
    [checkpoint]
    every = 5";

/// A temporary folder that contains `small.toml`.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("unitgain-command-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let place = Self(path);
        place.write("small.toml", SMALL);
        place
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unitgain"));
        command.current_dir(&self.0).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// The message of a command that must exit with code 2.
    fn bad(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(!message.contains("panicked") && !message.contains("stack backtrace"), "{message}");
        message
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Random numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Records without their speeds, which may differ.
fn records(place: &Place, run: &str) -> Vec<serde_json::Value> {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    text.lines()
        .map(|line| {
            let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
            record.as_object_mut().unwrap().remove("tokens_per_second").expect("tokens_per_second");
            record
        })
        .collect()
}

#[test]
fn training_writes_a_run_folder_and_plain_lines() {
    let place = Place::new("train");
    let shown = place.good(&["train", "small.toml"]);
    assert!(shown.contains("floor") && shown.contains("step     30") && shown.contains("finished 30 steps"), "{shown}");
    for file in ["config.toml", "metrics.jsonl", "summary.json", "checkpoints/step_00000030.safetensors"] {
        assert!(place.0.join("runs/small").join(file).exists(), "{file}");
    }
    let config = place.read("runs/small/config.toml");
    for key in ["seed = 1", "backend = \"flex\"", "unitgain = \"", "burn = \"0.22.1\"", "head_dim = 8", "warmup = 0"] {
        assert!(config.contains(key), "{key} is not in\n{config}");
    }
    // A run folder's config.toml is a valid configuration.
    place.good(&["train", "runs/small/config.toml", "--out", "again"]);
    assert_eq!(records(&place, "runs/small"), records(&place, "again"));
}

#[test]
fn a_killed_run_resumes_to_the_same_records() {
    let place = Place::new("kill");
    let settings = [
        "train",
        "small.toml",
        "--set",
        "train.steps=400",
        "--set",
        "model.d_model=32",
        "--set",
        "checkpoint.keep=1000",
    ];
    place.good(&[&settings[..], &["--out", "whole"]].concat());
    let mut child =
        place.command(&[&settings[..], &["--out", "broken"]].concat()).stdout(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !place.0.join("broken/checkpoints/step_00000020.safetensors").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "no checkpoint in a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let summary: serde_json::Value = serde_json::from_str(&place.read("broken/summary.json")).unwrap();
    assert_eq!(summary["status"], "running");
    assert!(records(&place, "broken").len() < 400);
    place.good(&["train", "--resume", "broken"]);
    assert_eq!(records(&place, "whole"), records(&place, "broken"));
}

#[test]
fn an_existing_run_is_replaced_only_by_force() {
    let place = Place::new("force");
    place.good(&["train", "small.toml", "--steps", "3"]);
    let before = place.read("runs/small/metrics.jsonl");
    assert!(place.bad(&["train", "small.toml", "--steps", "4"]).contains("--force"));
    assert_eq!(before, place.read("runs/small/metrics.jsonl"));
    place.good(&["train", "small.toml", "--steps", "4", "--seed", "2", "--force"]);
    assert_eq!(records(&place, "runs/small").len(), 4);
    assert!(place.read("runs/small/config.toml").contains("seed = 2"));
}

#[test]
fn wrong_input_is_one_message_and_nothing_is_written() {
    let place = Place::new("wrong");
    place.write("empty.txt", "");
    place.write("short.txt", "abc");
    place.write("latin1.txt", [b'a'; 400].iter().copied().chain([0xE9]).chain([b'b'; 400]).collect::<Vec<u8>>());
    place.write("broken.toml", "[model");
    place.write("file", "");
    let text = |path: &'static str| {
        vec!["data.task=text".to_string(), format!("data.path={path}"), "data.tokenizer=char".to_string()]
    };
    let set = |setting: &str| vec![setting.to_string()];
    for (settings, expected) in [
        (set("model.d_modle=3"), "Did you mean `d_model`?"),
        (set("model.d_model=wide"), "model.d_model: invalid type"),
        (set("model.d_model=15"), "must be a multiple of n_heads = 2"),
        (vec!["model.position=rope".into(), "model.head_dim=3".into()], "model.head_dim = 3: must be even"),
        (set("schedule.warmup=31"), "schedule.warmup: 31 is longer than the run of train.steps = 30"),
        (set("train.batch_size=0"), "train.batch_size: 0 must be at least 1"),
        (vec!["model.placement=deep_norm".into(), "model.init=gpt2".into()], "cannot be combined"),
        (text("missing.txt"), "cannot read data.path = missing.txt"),
        (text("empty.txt"), "the file is empty"),
        (text("short.txt"), "too short"),
        (text("latin1.txt"), "not valid UTF-8 at byte 400"),
        (set("seed=9223372036854775808"), "seed"),
        (set("model.n_layers=1000000000000000000"), "model.n_layers = 1000000000000000000: must be at most"),
        (set("train.batch_size=99999999999"), "train.batch_size: 99999999999 must be at most"),
        (set("train.accumulate=99999999999"), "train.accumulate: 99999999999 must be at most"),
        (set("data.branching=1000000"), "data.branching"),
        (set("backend=cuda"), "Build with `--features cuda`"),
        (set("backend=tpu"), "unknown backend"),
    ] {
        let mut arguments = vec!["train", "small.toml"];
        for setting in &settings {
            arguments.extend(["--set", setting]);
        }
        let message = place.bad(&arguments);
        assert!(message.contains(expected), "{message:?} does not say {expected:?}");
        assert!(!place.0.join("runs").exists(), "{settings:?}");
    }
    for (arguments, expected) in [
        (vec!["train", "missing.toml"], "cannot read missing.toml"),
        (vec!["train", "broken.toml"], "is not valid TOML"),
        (vec!["train", "small.toml", "--out", "file"], "is a file"),
        (vec!["train", "small.toml", "--out", "file/run"], "run"),
        (vec!["train", "small.toml", "--out", "/proc/run"], "/proc/run"),
        (vec!["train", "--resume", "nowhere"], "nowhere"),
        (vec!["train"], "required"),
        (vec!["params", "missing.toml"], "cannot read missing.toml"),
        (vec!["generate", "nowhere"], "has no checkpoint"),
        (vec!["configs", "colour"], "not an axis"),
    ] {
        let message = place.bad(&arguments);
        assert!(message.contains(expected), "{message:?} does not say {expected:?}");
    }
}

#[test]
fn a_diverged_run_ends_with_exit_code_1() {
    let place = Place::new("diverged");
    let output = place.run(&[
        "train",
        "small.toml",
        "--set",
        "optimizer.kind=sgd",
        "--set",
        "optimizer.lr=1e30",
        "--set",
        "train.clip=0.0",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("diverged at step"));
    let summary: serde_json::Value = serde_json::from_str(&place.read("runs/small/summary.json")).unwrap();
    assert_eq!(summary["status"], "diverged");
    assert!(!records(&place, "runs/small").is_empty());
}

/// A limit on the file size simulates a full disk: a write fails in its middle.
#[cfg(unix)]
#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_one_before() {
    let place = Place::new("full");
    place.good(&["train", "small.toml", "--steps", "5", "--out", "run", "--set", "schedule.kind=constant"]);
    let before = std::fs::read(place.0.join("run/checkpoints/step_00000005.safetensors")).unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f {}; exec \"$@\"",
        // Blocks of 512 or 1024 bytes, depending on the shell; both are less than one checkpoint.
        before.len() / 2048
    );
    let output = Command::new("sh")
        .current_dir(&place.0)
        .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_unitgain"), "train", "--resume", "run", "--steps", "20"])
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("cannot write") && message.contains("step_00000010"), "{message}");
    let files: Vec<_> =
        std::fs::read_dir(place.0.join("run/checkpoints")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files, ["step_00000005.safetensors"]);
    assert!(std::fs::read(place.0.join("run/checkpoints/step_00000005.safetensors")).unwrap() == before);
    place.good(&["train", "--resume", "run", "--steps", "20"]);
}

#[test]
fn params_prints_a_table_and_json() {
    let place = Place::new("params");
    let table = place.good(&["params", "small.toml", "--full"]);
    assert!(table.contains("blocks.1.mlp.down.weight") && table.contains("parameters in"), "{table}");
    let json = place.good(&[
        "params",
        "small.toml",
        "--json",
        "--set",
        "model.parametrization.kind=mup",
        "--set",
        "model.parametrization.base_width=8",
    ]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    let query = rows.iter().find(|row| row["path"] == "blocks.0.attention.query.weight").unwrap();
    assert_eq!(query["role"], "query");
    assert_eq!(query["shape"], serde_json::json!([16, 16]));
    assert_eq!((&query["lr_factor"], &query["weight_decay"]), (&0.5.into(), &0.2.into()));
    assert!((query["init_std"].as_f64().unwrap() - 0.02 / 2f64.sqrt()).abs() < 1e-12);
    assert!(query["init_value"].is_null() && query["lr"] == 0.5e-3);
    let norm = rows.iter().find(|row| row["role"] == "norm").unwrap();
    assert_eq!((&norm["weight_decay"], &norm["multiplier"]), (&0.0.into(), &1.0.into()));
    for row in &rows {
        let keys: Vec<&String> = row.as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 11, "{keys:?}");
    }
}

#[test]
fn generate_continues_a_prompt() {
    let place = Place::new("generate");
    let line = "the quick brown fox jumps over the lazy dog\n";
    place.write("text.txt", line.repeat(60));
    let text = [
        "--set",
        "data.task=text",
        "--set",
        "data.path=text.txt",
        "--set",
        "data.tokenizer=char",
        "--set",
        "model.dropout=0.0",
    ];
    place.good(
        &[&["train", "small.toml", "--steps", "150", "--set", "optimizer.lr=1e-2", "--out", "run"], &text[..]].concat(),
    );
    let arguments = |seed| ["generate", "run", "--prompt", "the qui", "--tokens", "60", "--top-k", "3", "--seed", seed];
    let a = place.good(&arguments("1"));
    assert!(a.starts_with("the qui") && a.trim_end_matches('\n').chars().count() >= 60, "{a:?}");
    assert_eq!(a, place.good(&arguments("1")), "the same seed writes the same");
    let words = a.split_whitespace().filter(|word| line.contains(word)).count();
    assert!(words >= 6, "{a:?}");
    assert!(place.bad(&["generate", "run", "--prompt", "THE"]).contains("'T'"));
    assert!(place.bad(&["generate", "run", "--temperature", "-1"]).contains("--temperature"));
    assert!(place.bad(&["generate", "run", "--prompt", ""]).contains("no token"));
}

#[test]
fn configs_and_completions_name_everything() {
    let place = Place::new("configs");
    let all = place.good(&["configs"]);
    for name in [
        "rms_norm",
        "deep_norm",
        "re_zero",
        "kaiming",
        "mup",
        "swi_glu",
        "rope",
        "markov",
        "lion",
        "warmup_stable_decay",
    ] {
        assert!(all.contains(name), "{name}");
    }
    assert!(place.good(&["configs", "placement"]).contains("arXiv:2203.00555"));
    assert!(place.good(&["completions", "bash"]).contains("unitgain"));
    for command in ["train", "params", "generate", "configs", "sanity", "sweep", "compare"] {
        assert!(place.good(&[command, "--help"]).contains("Example"), "{command}");
    }
}

#[test]
fn every_shipped_configuration_is_valid() {
    let place = Place::new("shipped");
    place.write("text.txt", "to be or not to be, that is the question\n".repeat(400));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut seen = 0;
    let files = |folder: &Path| {
        let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.is_file()).collect::<Vec<_>>()
    };
    for path in files(&folder) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with('#') && text.contains("xpect"), "{} begins with what to expect", path.display());
        let name = path.to_string_lossy().into_owned();
        let data = if text.contains("task = \"text\"") { vec!["--set", "data.path=text.txt"] } else { vec![] };
        place.good(&[&["params", &name][..], &data].concat());
        seen += 1;
    }
    assert!(seen >= 8);
}

/// /dev/full exists on Linux only.
#[cfg(target_os = "linux")]
#[test]
fn a_closed_or_full_output_is_no_panic() {
    let place = Place::new("pipes");
    let shell = |script: &str| {
        let program = env!("CARGO_BIN_EXE_unitgain");
        let output = Command::new("sh")
            .current_dir(&place.0)
            .args(["-c", &script.replace("UNITGAIN", program)])
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for command in ["params small.toml --json", "params small.toml", "configs", "completions bash"] {
        let (_, shown) =
            shell(&format!("{{ UNITGAIN {command}; echo $? >&3; }} 3>code | head -c 1 >/dev/null; cat code"));
        assert_eq!(shown.trim(), "0", "{command}");
    }
    // Failing to print warnings and errors has no effect.
    let (code, _) = shell("UNITGAIN train small.toml --steps 2 --out a --set model.scale=re_zero 2>/dev/full");
    assert_eq!(code, Some(0));
    assert_eq!(shell("UNITGAIN train missing.toml 2>/dev/full").0, Some(2));
    assert_eq!(shell("UNITGAIN train small.toml --steps 2 --out b >/dev/full").0, Some(0));
}

#[test]
fn reading_a_run_changes_nothing_in_it() {
    let place = Place::new("reader");
    place.good(&["train", "small.toml", "--steps", "5", "--out", "run"]);
    // A temporary file, a user's copy, and a similar name.
    for name in ["step_00000010.safetensors.partial", "step_00000005_copy.safetensors", "step_best.safetensors"] {
        place.write(&format!("run/checkpoints/{name}"), "x");
    }
    let text = place.good(&["generate", "run", "--tokens", "5", "--temperature", "0"]);
    assert_eq!(text.split_whitespace().count(), 6, "{text:?}");
    assert_eq!(std::fs::read_dir(place.0.join("run/checkpoints")).unwrap().count(), 4);
}
