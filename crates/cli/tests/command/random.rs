//! Random configurations, valid and invalid, small and huge, with every command: each exits with a defined code, prints
//! plain text only, and stays within its memory estimate.
//!
//! `UNITGAIN_RANDOM_CONFIGS` is their number and `UNITGAIN_RANDOM_SEED` the first seed. A full run of one to two hours
//! on two cores:
//!
//! ```text
//! UNITGAIN_RANDOM_CONFIGS=10000 cargo test --release --test command random -- --nocapture
//! ```

use super::{Place, Random};
use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use toml::Value;

const BASE: &str = "
    threads = 1
    [model]
    context = 8
    d_model = 8
    n_layers = 2
    n_heads = 2
    [data]
    vocab_size = 8
    order = 1
    branching = 2
    [train]
    steps = 2
    batch_size = 2
    [eval]
    tokens = 64";

/// Address space of a process, in KiB: larger needs are refused, whatever the machine has.
const MOST_MEMORY: u64 = 3 << 20;
/// Valid but expensive commands are killed after this time.
const LONGEST: Duration = Duration::from_secs(20);
/// Maximum memory of a process that built no model, in bytes.
const NO_MODEL: f64 = 100e6;

impl Random {
    fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// All keys with an example value, and the kinds of each axis.
struct Catalogue {
    kinds: Vec<(String, Vec<String>)>,
    /// Each key with the setting that enables it.
    keys: Vec<(String, (Value, Option<String>))>,
}

impl Catalogue {
    fn read(place: &Place) -> Self {
        let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
        // A line with a leading space continues the line before it; a table starts with the key of its axis.
        let text = place.good(&["configs"]);
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')) {
            let name = line.split_whitespace().next().unwrap().to_string();
            if line.split_whitespace().any(|word| word == "formula") {
                kinds.push((name, Vec::new()));
            } else if let Some((_, all)) = kinds.last_mut() {
                all.push(name);
            }
        }
        let mut keys: BTreeMap<String, (Value, Option<String>)> = BTreeMap::new();
        let mut note = |setting: Option<String>| {
            let arguments: Vec<&str> = setting.iter().flat_map(|setting| ["--set", setting]).collect();
            let output = place.run(&[&["config", "show", "base.toml"][..], &arguments].concat());
            let mut own = BTreeMap::new();
            if let Ok(Value::Table(table)) = toml::from_str(&String::from_utf8_lossy(&output.stdout)) {
                leaves("", &Value::Table(table), &mut own);
            }
            for (key, value) in own {
                keys.entry(key).or_insert((value, setting.clone()));
            }
        };
        note(None);
        for (key, all) in &kinds {
            for kind in all {
                note(Some(format!("{key}={kind}")));
            }
        }
        for (key, kind) in [("model.mlp_placement", "pre_norm"), ("model.embedding_norm", "rms_norm")] {
            note(Some(format!("{key}={kind}")));
        }
        assert!(kinds.len() >= 13 && keys.len() >= 90, "{} axes, {} keys", kinds.len(), keys.len());
        Self { kinds, keys: keys.into_iter().collect() }
    }

    /// Some related settings.
    fn settings(&self, random: &mut Random) -> Vec<String> {
        match random.below(14) {
            0..5 => {
                let (key, kinds) = &self.kinds[random.below(self.kinds.len())];
                let key = if key == "model.norm" {
                    random.of(&["model.norm", "model.qk_norm", "model.embedding_norm"])
                } else {
                    key
                };
                vec![format!("{key}={}", kinds[random.below(kinds.len())])]
            }
            5..13 => {
                let (key, (value, with)) = &self.keys[random.below(self.keys.len())];
                let changed = format!("{key}={}", changed(value, random));
                // Sometimes without the setting that enables the key.
                let with = with.iter().filter(|_| random.below(10) > 0);
                with.cloned().chain([changed]).collect()
            }
            _ => {
                let key = random.of(&[
                    "model.block=[{ range = [0, 1], placement = 'post_norm' }]",
                    "model.block=[{ range = [0, 2], norm = { kind = 'group_norm', groups = 2 } }]",
                    "model.block=[{ range = [1, 9], scale = 're_zero' }]",
                    "model.block=[{ range = [0, 1] }, { range = [0, 1] }]",
                    "data={ task = 'text', path = 'base.toml' }",
                    "data={ task = 'text', path = 'base.toml', tokenizer = 'char' }",
                    "data={ task = 'text', path = '/dev/zero' }",
                    "data={ task = 'text', path = 'pipe' }",
                    "data={ task = 'copy', symbols = 1048576 }",
                    "data={ task = 'recall', keys = 4611686018427387904 }",
                    "backend=cuda",
                    "model",
                    "=",
                    "model.no_such_key=1",
                    "model.\u{1b}[31m=1",
                    "\u{7}=\u{8}",
                    "model.norm=\u{1b}[2J",
                    "model.block.0.range=[0, 1]",
                    "seed.seed.seed=1",
                    "x=[[[[[[[[[[1]]]]]]]]]]",
                ]);
                vec![key.into()]
            }
        }
    }
}

fn leaves(path: &str, value: &Value, keys: &mut BTreeMap<String, Value>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                leaves(&if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, value, keys);
            }
        }
        leaf => {
            keys.insert(path.into(), leaf.clone());
        }
    }
}

/// Another value for a key: mostly valid, small or large.
fn changed(value: &Value, random: &mut Random) -> String {
    let rare = random.below(12) == 0;
    if matches!(value, Value::String(_) | Value::Array(_) | Value::Table(_)) && random.below(4) > 0 {
        return value.to_string();
    }
    let all: &[&str] = match (value, rare) {
        (Value::Integer(_), false) => &["1", "2", "3", "4", "5", "8", "16", "33", "64", "128"],
        (Value::Integer(_), true) => &[
            "0",
            "1000",
            "4096",
            "1048576",
            "1048577",
            "16777216",
            "1099511627776",
            "9223372036854775807",
            "9223372036854775808",
            "-1",
            "1.5",
            "'x'",
            "true",
            "[1]",
        ],
        (Value::Float(_), false) => &["0.0", "1e-3", "0.1", "0.5", "0.9", "1.0", "2.0", "30"],
        (Value::Float(_), true) => &["-1.0", "1e-320", "1e300", "1e15", "nan", "inf", "-inf", "-0.0", "'x'", "{}"],
        (Value::Boolean(_), false) => &["true", "false"],
        (Value::Boolean(_), true) => &["1", "'maybe'", "[]"],
        (_, false) => &["head", "width", "all", "byte", "char", "unit", "f32", "bf16", "learned", "flex", "none"],
        (_, true) => &["", "x", "[]", "{}", "{ kind = 'x' }", "\u{1b}[31mred", "a\rb", "\u{202e}x", "1"],
    };
    random.of(all).into()
}

/// The result of a process.
struct Ended {
    /// None if it was killed by a signal.
    code: Option<i32>,
    was_killed: bool,
    out: String,
    err: String,
}

fn run(place: &Place, name: &str, arguments: &[String]) -> Ended {
    let file = |ending: &str| place.0.join(format!("{name}.{ending}"));
    let mut command = Command::new("sh");
    command.current_dir(&place.0).args(["-c", &format!("ulimit -v {MOST_MEMORY}; exec \"$@\""), "sh"]);
    command.arg(env!("CARGO_BIN_EXE_unitgain")).args(arguments);
    command.env("UNITGAIN_LOG", "debug").env("RAYON_NUM_THREADS", "1").env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command.stdout(File::create(file("out")).unwrap()).stderr(File::create(file("err")).unwrap());
    let mut child = command.spawn().unwrap();
    let started = Instant::now();
    let mut was_killed = false;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > LONGEST && !was_killed {
            child.kill().unwrap();
            was_killed = true;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |ending: &str| String::from_utf8_lossy(&std::fs::read(file(ending)).unwrap()).into_owned();
    Ended { code: status.code(), was_killed, out: text("out"), err: text("err") }
}

/// The numbers in a text that stand between `before` and `after`.
fn numbers(text: &str, before: &str, after: &str) -> Vec<f64> {
    let number = |rest: &str| rest.split(after).next().and_then(|number| number.trim().parse().ok());
    text.split(before).skip(1).filter_map(number).collect()
}

/// What is wrong with the result of a command.
fn fault(ended: &Ended, is_written_by_a_model: bool) -> Option<String> {
    // A byte-level model may generate any character.
    let out = if is_written_by_a_model { "" } else { ended.out.as_str() };
    let text = format!("{out}{}", ended.err);
    if !ended.was_killed && !matches!(ended.code, Some(0..=2)) {
        return Some(format!("exit code {:?}", ended.code));
    }
    for word in ["panicked", "stack backtrace", "RUST_BACKTRACE", "overflowed its stack", "memory allocation of"] {
        if text.contains(word) {
            return Some(format!("says {word:?}"));
        }
    }
    // Characters that change the text direction or control a terminal.
    let is_bad = |c: &char| c.is_control() && *c != '\n' || ('\u{202a}'..='\u{202e}').contains(c);
    if let Some(c) = text.chars().find(is_bad) {
        return Some(format!("says the character {:?}", c));
    }
    if ended.code == Some(2) && !ended.err.contains("error: ") {
        return Some("exit code 2 without a message".into());
    }
    let estimates = numbers(&ended.err, "this takes about ", " bytes");
    let estimate = estimates.into_iter().fold(NO_MODEL / 1.5, f64::max);
    let peak = numbers(&ended.err, "memory of this process was ", " bytes").pop()?;
    (peak > 1.5 * estimate).then(|| format!("{:.0} MB, where {:.0} were estimated", peak / 1e6, estimate / 1e6))
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

#[test]
fn random_configurations_end_with_a_code_and_a_message_with_every_command() {
    let place = Place::new("random");
    place.write("base.toml", BASE);
    assert!(Command::new("mkfifo").arg(place.0.join("pipe")).status().unwrap().success());
    let catalogue = Catalogue::read(&place);
    let (count, first) = (from_environment("UNITGAIN_RANDOM_CONFIGS", 40), from_environment("UNITGAIN_RANDOM_SEED", 1));
    let next = AtomicU64::new(0);
    let (faults, tally) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::<String, usize>::new()));
    std::thread::scope(|scope| {
        for worker in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let (place, catalogue, next, faults, tally) = (&place, &catalogue, &next, &faults, &tally);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    for (said, ended) in every_command(place, catalogue, worker, first + index) {
                        let code = ended.code.map_or("killed".into(), |code| format!("exit code {code}"));
                        let command = said.split(' ').next().unwrap_or_default();
                        *tally.lock().unwrap().entry(format!("{command}, {code}")).or_default() += 1;
                        if ended.was_killed {
                            println!("seed {}: ended after {LONGEST:?}: {said:?}", first + index);
                        }
                        if let Some(fault) = fault(&ended, command == "generate") {
                            let (out, err) = (&ended.out, &ended.err);
                            let end = |text: &str| {
                                text.chars().skip(text.chars().count().saturating_sub(700)).collect::<String>()
                            };
                            let text = format!(
                                "seed {}: {fault}\n  {said:?}\n  {:?}\n  {:?}",
                                first + index,
                                end(out),
                                end(err)
                            );
                            println!("{text}");
                            faults.lock().unwrap().push(text);
                        }
                    }
                }
            });
        }
    });
    let (faults, tally) = (faults.into_inner().unwrap(), tally.into_inner().unwrap());
    println!("{count} configurations: {tally:#?}");
    let of = |code: &str| tally.iter().filter(|(name, _)| name.ends_with(code)).map(|(_, n)| n).sum::<usize>();
    // The test is void if all configurations are refused, or all time out.
    assert!(of("exit code 0") > 0 && of("exit code 2") > 0, "{tally:?}");
    assert!(of("killed") * 20 <= tally.values().sum(), "{tally:?}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

fn every_command(place: &Place, catalogue: &Catalogue, worker: usize, seed: u64) -> Vec<(String, Ended)> {
    let mut random = Random(seed);
    let count = 1 + random.below(4);
    let mut settings: Vec<String> = (0..count).flat_map(|_| catalogue.settings(&mut random)).collect();
    // Sometimes in the file, where a syntax error is another fault.
    let name = format!("random-{worker}");
    let config = format!("{name}.toml");
    let mut text = String::new();
    if random.below(4) == 0 {
        text = settings.iter().map(|setting| format!("{setting}\n")).collect();
        settings.clear();
    }
    place.write(&config, format!("{text}{BASE}"));
    let keys = ["seed", "model.n_layers", "depth", "width", "optimizer.lr", "data.path", "a.a.a.a"];
    let (key, value) = (random.of(&keys), random.of(&["1", "0.5", "'x'", "8", "1048576", "[]", "nan"]));
    let axis = format!("run = '{config}'\n[axes]\n'{key}' = [{value}]\n");
    place.write(&format!("{name}-sweep.toml"), axis);
    let sets: Vec<String> = settings.iter().flat_map(|setting| ["--set".into(), setting.clone()]).collect();
    let (run_folder, compare_folder) = (format!("{name}-run"), format!("{name}-compare"));
    let sweep = format!("{name}-sweep.toml");
    let steps = if random.below(2) == 0 { "1" } else { "2" };
    let commands: [&[&str]; 9] = [
        &["train", &config, "--steps", steps, "--out", &run_folder, "--force"],
        &["params", &config, "--full"],
        &["params", &config, "--json"],
        &["probe", &config],
        &["coord-check", &config, "--widths", "8,16", "--steps", "1", "--seeds", "1"],
        &["config", "show", &config],
        &["sweep", &sweep, "--dry-run"],
        &["compare", &config, "--seeds", "1", "--out", &compare_folder, "--jobs", "1"],
        &["bench", &config, "--steps", "1", "--rounds", "1"],
    ];
    let mut all = Vec::new();
    // bench also measures the machine, which takes a second.
    let commands = if random.below(4) == 0 { &commands[..] } else { &commands[..8] };
    for command in commands {
        let mut arguments: Vec<String> = command.iter().map(ToString::to_string).chain(sets.clone()).collect();
        if command[0] == "compare" {
            arguments.extend(["--set".into(), "train.steps=1".into()]);
        }
        all.push((arguments.join(" "), run(place, &name, &arguments)));
    }
    if place.0.join(&run_folder).join("checkpoints").is_dir() {
        for command in [
            &["generate", &run_folder, "--tokens", "5"][..],
            &["probe", &run_folder],
            &["train", "--resume", &run_folder],
        ] {
            let arguments: Vec<String> = command.iter().map(ToString::to_string).collect();
            all.push((arguments.join(" "), run(place, &name, &arguments)));
        }
    }
    for folder in [run_folder, compare_folder] {
        let _ = std::fs::remove_dir_all(place.0.join(folder));
    }
    all
}
