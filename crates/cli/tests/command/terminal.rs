//! Output on a terminal, on a dumb terminal, and without a terminal.
//!
//! The terminal is simulated by `script` of util-linux.

use super::{Place, records};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a shell command line, in which UNITGAIN is the command, on a terminal, and returns what the terminal shows
/// (without redirected output).
fn on_terminal(place: &Place, term: Option<&str>, line: &str) -> String {
    let line = line.replace("UNITGAIN ", concat!(env!("CARGO_BIN_EXE_unitgain"), " "));
    let mut command = Command::new("script");
    command.current_dir(&place.0).args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::null());
    match term {
        Some(term) => command.env("TERM", term),
        None => command.env_remove("TERM"),
    };
    let output = command.output().expect("this test needs `script` of util-linux: apt-get install bsdutils");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}: {shown}");
    shown
}

const TERMS: [Option<&str>; 3] = [Some("xterm"), Some("dumb"), None];

/// The steps of the record lines in a text, in order.
fn steps(text: &str) -> Vec<usize> {
    let step = |line: &str| {
        let (number, rest) = line[line.find("step ")? + 5..].trim_start().split_once(' ')?;
        rest.trim_start().starts_with("loss ").then(|| number.parse().ok()).flatten()
    };
    text.lines().filter_map(step).collect()
}

fn has_bar(text: &str) -> bool {
    text.contains('\u{1b}') && text.contains('\u{2588}')
}

/// Standard output and standard error may be the terminal, a pipe, or a file.
#[test]
fn the_lines_of_a_run_are_on_its_output_and_a_bar_where_one_can_be_drawn() {
    let place = Place::new("terminal-train");
    let all: Vec<usize> = (1..=30).collect();
    for term in TERMS {
        let can_draw = term == Some("xterm");
        for (output, is_terminal, is_pipe) in [("", true, false), ("| cat > out", false, true), ("> out", false, false)]
        {
            for error in ["", "2> err"] {
                let case = format!("TERM={term:?} {error} {output}");
                place.write("out", "");
                place.write("err", "");
                let line = format!("UNITGAIN train small.toml --out run --force {error} {output}");
                let terminal = on_terminal(&place, term, &line);
                let bar = can_draw && error.is_empty() && !is_pipe;
                assert_eq!(has_bar(&terminal), bar, "{case}: {terminal}");
                assert_eq!(place.read("err"), "", "{case}");
                let lines = if is_terminal { terminal.clone() } else { place.read("out") };
                // A bar shows what happens between evaluations.
                let expected = if bar && is_terminal { vec![10, 20, 30] } else { all.clone() };
                assert_eq!(steps(&lines), expected, "{case}: {lines}");
                for once in ["run: ", "finished 30 steps"] {
                    assert_eq!(lines.matches(once).count(), 1, "{case}: {lines}");
                }
                if !is_terminal {
                    assert!(!lines.contains('\u{1b}'), "{case}: {lines}");
                    assert!(steps(&terminal).is_empty(), "{case}: {terminal}");
                }
            }
        }
    }
}

/// Each long command shows progress on standard error, as a bar or in lines, and none of it in its report.
#[test]
fn every_command_shows_its_progress_on_every_terminal() {
    let place = Place::new("terminal-progress");
    place.write("tiny.toml", "run = 'small.toml'\nset = ['train.steps=3']\n[axes]\nwidth = [8, 16]\nseed = [1, 2]");
    for (command, counts) in [
        ("probe small.toml --seeds 3", vec!["model 1/3", "model 3/3"]),
        ("coord-check small.toml --widths 8,16 --seeds 1 --steps 1 --tolerance 9", vec!["model 1/2", "model 2/2"]),
        ("sanity --seeds 2", vec!["seed 1/2", "seed 2/2"]),
        ("bench small.toml --rounds 2 --steps 1 --warmup 1", vec!["round 1/2", "round 2/2"]),
        ("sweep tiny.toml --out sweep --force", vec!["1/4", "4/4"]),
        ("compare small.toml --set train.steps=3 --seeds 2 --out compare --force", vec!["1/2", "2/2"]),
    ] {
        for term in [Some("xterm"), Some("dumb")] {
            let shown = on_terminal(&place, term, &format!("UNITGAIN {command} --json > out"));
            assert!(serde_json::from_str::<Value>(&place.read("out")).is_ok(), "{command}: {}", place.read("out"));
            assert_eq!(has_bar(&shown), term == Some("xterm"), "{command}: {shown}");
            let is_told = counts.iter().all(|count| shown.contains(count));
            assert!(is_told || has_bar(&shown), "{command}: {shown}");
        }
    }
    let calibrated = "train small.toml --steps 2 --out run --force --set model.dropout=0.0 \
        --set init.calibrate={kind='meta_init',steps=4}";
    let calibrated = calibrated
        .replace("init.calibrate={kind='meta_init',steps=4}", "\"init.calibrate={kind='meta_init',steps=4}\"");
    let shown = on_terminal(&place, Some("dumb"), &format!("UNITGAIN {calibrated} > out"));
    assert!(shown.contains("calibrating 1/4") && shown.contains("calibrating 4/4"), "{shown}");
    assert!(has_bar(&on_terminal(&place, Some("xterm"), &format!("UNITGAIN {calibrated} > out"))));
    assert_eq!(steps(&place.read("out")), [1, 2]);
}

/// A message is not written into the line of the bar.
#[test]
fn a_message_stands_on_its_own_line_beside_a_bar() {
    let place = Place::new("terminal-message");
    let shown = on_terminal(&place, Some("xterm"), "UNITGAIN_LOG=debug UNITGAIN train small.toml --out run");
    let messages: Vec<&str> = shown.lines().filter(|line| line.contains("DEBUG")).collect();
    assert!(messages.len() > 6, "{shown}");
    assert!(has_bar(&shown), "{shown}");
    for line in messages {
        let before = &line[..line.find("DEBUG").unwrap()];
        assert!(before.is_empty() || before.ends_with("\u{1b}[2K"), "{line:?}");
    }
}

/// Lines of the tables of the shipped configurations: columns are at least two spaces apart, prose never.
fn table_lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.trim_start().contains("  ")).collect()
}

fn shipped() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let files = |folder: &Path| -> Vec<PathBuf> {
        let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.is_file()).collect()
    };
    [files(&folder), vec![folder.join("compare/run.toml")]].concat()
}

#[test]
fn every_table_fits_80_columns() {
    let place = Place::new("tables");
    place.write("text.txt", "to be or not to be, that is the question\n".repeat(400));
    let fits = |arguments: &[&str]| {
        let text = String::from_utf8_lossy(&place.run(arguments).stdout).into_owned();
        let lines = table_lines(&text);
        assert!(lines.len() > 1, "{arguments:?} has a table: {text}");
        for line in lines {
            assert!(line.chars().count() <= 80, "{arguments:?}: {line:?} has {} columns", line.chars().count());
        }
    };
    for path in shipped() {
        let name = path.to_string_lossy().into_owned();
        let is_text = std::fs::read_to_string(&path).unwrap().contains("task = \"text\"");
        let data: &[&str] = if is_text { &["--set", "data.path=text.txt"] } else { &[] };
        fits(&[&["params", &name][..], data].concat());
        fits(&[&["params", &name, "--full"][..], data].concat());
        if !name.contains("_48") && !name.contains("_no_warmup") {
            fits(&[&["probe", &name, "--set", "train.batch_size=2"][..], data].concat());
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (pre, post, mup) = (file("pre_norm.toml"), file("post_norm.toml"), file("mup.toml"));
    fits(&["probe", &pre, &post, "--depths", "1,2", "--widths", "32,64", "--seeds", "2"]);
    fits(&["coord-check", &mup, "--widths", "64,128,256", "--steps", "1", "--seeds", "2"]);
    fits(&["bench", &pre, &mup, "--rounds", "1", "--steps", "1", "--warmup", "0"]);
    fits(&["sanity", "--seeds", "2"]);
    fits(&["devices"]);
    fits(&["configs"]);
    let short = ["--set", "train.steps=2", "--set", "schedule.warmup=0", "--set", "eval.tokens=1024"];
    fits(&[&["compare", &pre, &post, "--seeds", "2"][..], &short].concat());
    place.write(
        "wide.toml",
        "run = 'small.toml'\nset = ['train.steps=2']\n[axes]\nwidth = [8, 10, 12, 14, 16, 18, 20]\n\
         'optimizer.lr' = [1e-3, 1e-2]\n'model.placement' = ['pre_norm', 'scaled_pre_norm']",
    );
    fits(&["sweep", "wide.toml"]);
}

#[test]
fn a_table_is_as_wide_as_the_terminal() {
    let place = Place::new("terminal-width");
    let widest = |columns: usize| {
        let line = format!("stty rows 24 columns {columns}; UNITGAIN configs; UNITGAIN params small.toml --full");
        let shown = on_terminal(&place, Some("xterm"), &line);
        table_lines(&shown).iter().map(|line| line.trim_end().chars().count()).max().unwrap()
    };
    for columns in [60, 80, 120] {
        let width = widest(columns);
        assert!(width <= columns && width > columns - 20, "{width} of {columns}");
    }
    let whole = on_terminal(&place, Some("xterm"), "stty rows 24 columns 200; UNITGAIN params small.toml --full");
    assert!(whole.lines().any(|line| line.contains("path ") && line.contains(" elements")), "{whole}");
}

/// The summary by role agrees with the full list.
#[test]
fn params_sums_up_what_it_prints_in_full() {
    let place = Place::new("params-roles");
    let settings = ["params", "small.toml", "--set", "model.norm=dyt", "--set", "model.bias=true", "--set"];
    let mup = "model.parametrization={kind='mup',base_width=8}";
    let rows: Value = serde_json::from_str(&place.good(&[&settings[..], &[mup, "--json"]].concat())).unwrap();
    let rows = rows.as_array().unwrap();
    let shown = place.good(&[&settings[..], &[mup]].concat());
    let mut roles: Vec<&str> = rows.iter().map(|row| row["role"].as_str().unwrap()).collect();
    roles.dedup();
    roles.sort_unstable();
    roles.dedup();
    for role in &roles {
        let own: Vec<&Value> = rows.iter().filter(|row| row["role"] == *role).collect();
        let elements: u64 = own.iter().map(|row| row["elements"].as_u64().unwrap()).sum();
        // A role has a line in each group of columns; the first has count and elements.
        let words = shown.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
        let lines: Vec<Vec<&str>> = words.filter(|line| line.first() == Some(role)).collect();
        assert!(!lines.is_empty(), "{role} is not in\n{shown}");
        assert_eq!(lines[0][1..3], [own.len().to_string(), elements.to_string()], "{shown}");
    }
    assert_eq!(shown.lines().filter(|line| line.starts_with("mlp_in ")).count(), 2, "a line in each group\n{shown}");
    // DyT's alpha starts at 0.5, its gain at 1 and its bias at 0; mlp_out's lr is half the base's.
    assert!(shown.lines().any(|line| line.starts_with("norm ") && line.contains("0 to 1")), "{shown}");
    assert!(shown.contains("--full") && !shown.contains("blocks.0"), "{shown}");
    let full = place.good(&["params", "small.toml", "--full"]);
    assert!(full.contains("blocks.1.mlp.down.weight") && !full.contains("--full"), "{full}");
}

#[test]
fn the_help_of_configs_is_its_list() {
    let place = Place::new("configs-help");
    let help = place.good(&["configs", "--help"]);
    let all = place.good(&["configs"]);
    let listed: Vec<(&str, &str)> = help
        .lines()
        .skip_while(|line| !line.starts_with("Axes"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(name, key)| (name, key.trim()))
        .collect();
    let keys: Vec<&str> = all
        .lines()
        .filter_map(|line| line.contains("formula").then(|| line.split_whitespace().next()).flatten())
        .collect();
    assert_eq!(listed.iter().map(|(_, key)| *key).collect::<Vec<_>>(), keys, "{help}");
    assert!(listed.len() >= 13, "{help}");
    let refused = place.bad(&["configs", "model.colour"]);
    for (name, key) in listed {
        let shown = place.good(&["configs", name]);
        assert!(shown.starts_with(key) && shown == place.good(&["configs", key]), "{name} {key}");
        assert!(refused.contains(name) && refused.contains(key), "{refused}");
    }
}

#[test]
fn debug_messages_tell_what_a_run_is_made_of() {
    let place = Place::new("debug");
    let log = |arguments: &[&str], level: &str| {
        let output = place.command(arguments).env("UNITGAIN_LOG", level).output().unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let arguments =
        ["train", "small.toml", "--out", "run", "--set", "model.norm=rms_norm", "--set", "init.calibrate=lsuv"];
    let said = log(&arguments, "debug");
    for part in [
        "settings that are not the defaults: ",
        "model.d_model (128, now 16)",
        "\"rms_norm\"",
        "device: flex (CPU",
        "threads",
        "data: sequences drawn without end, a vocabulary of 8",
        "a new run in run",
        "lsuv: variance of the output of blocks.0.attention.query.weight",
        "wrote run/checkpoints/step_00000005.safetensors, ",
        "removes run/checkpoints/step_00000005.safetensors",
        "step 20: evaluation ",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert!(!said.contains("model.n_heads (2"), "what is a default is not a difference\n{said}");
    assert_eq!(
        log(&[&arguments[..], &["--force"]].concat(), "warn"),
        log(&[&arguments[..], &["--force"]].concat(), "")
    );
    place.good(&["train", "small.toml", "--steps", "4", "--out", "short", "--set", "schedule.kind=constant"]);
    assert!(log(&["train", "--resume", "short", "--steps", "6"], "debug").contains("goes on from step 4"));
    place.write("text.txt", "to be or not to be, that is the question\n".repeat(40));
    let text = ["train", "small.toml", "--steps", "1", "--out", "text", "--set", "data.task=text"];
    let said = log(&[&text[..], &["--set", "data.path=text.txt"]].concat(), "debug");
    assert!(said.contains("data: 1476 tokens to learn from, 164 held out"), "{said}");
}

/// A trained model, by folder or checkpoint, next to the configuration it came from.
#[test]
fn probe_reads_runs_and_checkpoints() {
    let place = Place::new("probe-trained");
    place.good(&["train", "small.toml", "--out", "run", "--set", "optimizer.lr=1e-2"]);
    let checkpoint = "run/checkpoints/step_00000025.safetensors";
    let mixed = ["probe", "small.toml", "run", checkpoint, "run/config.toml"];
    let all: Value = serde_json::from_str(&place.good(&[&mixed[..], &["--json"]].concat())).unwrap();
    let of = |i: usize| (all[i]["config"].as_str().unwrap(), all[i]["step"].as_u64().unwrap());
    assert_eq!([of(0), of(1), of(2), of(3)], [("small", 0), ("run", 30), ("run", 25), ("config", 0)]);
    let signal = |i: usize| &all[i]["seeds"][0];
    let loss = |i: usize| signal(i)["loss"].as_f64().unwrap();
    assert!(loss(1) < loss(0) - 0.1 && loss(1) != loss(2), "{} {} {}", loss(0), loss(1), loss(2));
    assert_eq!(signal(0)["loss"], signal(3)["loss"], "a run's own configuration is measured at step 0");
    for key in ["entropy", "largest_logit", "attention_share", "mlp_share", "singular_values"] {
        let block = |i: usize| &signal(i)["blocks"][1][key];
        assert!(!block(1).is_null() && block(1) != block(0), "{key}: {} {}", block(0), block(1));
    }
    for matrix in signal(1)["matrices"].as_array().unwrap() {
        let rank = matrix["stable_rank"].as_f64().unwrap();
        assert!((1.0..=16.0).contains(&rank), "{matrix}");
    }
    let shown = place.good(&mixed);
    for part in ["small\n", "run, step 30\n", "run, step 25\n", "stable rank", "mlp_out", "attention / stream"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    assert!(!place.good(&[&mixed[..], &["--no-spectrum"]].concat()).contains("stable rank"));
    // The name is the folder's, which may contain a dot, or that of a moved checkpoint.
    std::fs::create_dir(place.0.join("lr=0.01")).unwrap();
    std::fs::rename(place.0.join("run"), place.0.join("lr=0.01/lr=0.02")).unwrap();
    std::fs::copy(place.0.join("lr=0.01/lr=0.02").join(&checkpoint[4..]), place.0.join("lr=0.03.safetensors")).unwrap();
    let moved = format!("lr=0.01/lr=0.02/{}", &checkpoint[4..]);
    let named = place.good(&["probe", "lr=0.01/lr=0.02", &moved, "lr=0.03.safetensors", "--no-spectrum"]);
    for name in ["lr=0.02, step 30", "lr=0.02, step 25", "lr=0.03, step 25"] {
        assert!(named.lines().any(|line| line == name), "{name} is not in\n{named}");
    }
    std::fs::rename(place.0.join("lr=0.01/lr=0.02"), place.0.join("run")).unwrap();
    // Seeds of a trained model are seeds of the batch.
    let seeds: Value = serde_json::from_str(&place.good(&["probe", "run", "--seeds", "2", "--json"])).unwrap();
    let [a, b] = [&seeds[0]["seeds"][0], &seeds[0]["seeds"][1]];
    assert!(a["loss"] != b["loss"] && a["matrices"] == b["matrices"]);
    // Settings that would change the model are refused.
    for (arguments, expected) in [
        (vec!["run", "--depths", "2,4"], "--depths and --widths are for configurations"),
        (vec!["small.toml", checkpoint, "--widths", "8"], "--depths and --widths are for configurations"),
        (vec!["run", "--set", "model.norm=rms_norm"], "model.norm"),
        (vec!["run", "--set", "model.n_layers=3"], "model.n_layers"),
        (vec!["run", "--set", "data.vocab_size=9"], "another text or vocabulary"),
        (vec!["run/checkpoints"], "has no checkpoint"),
        (vec!["nowhere.safetensors"], "nowhere.safetensors"),
    ] {
        let message = place.bad(&[&["probe"], &arguments[..]].concat());
        assert!(message.contains(expected), "{message:?} does not say {expected:?}");
    }
    assert_eq!(records(&place, "run").len(), 30, "reading a run changes nothing in it");
}

/// Plots over sizes stand next to plots over blocks.
#[test]
fn probe_draws_over_depths_and_widths() {
    let place = Place::new("probe-sizes");
    let draw = |sizes: &[&str]| {
        place.good(&[&["probe", "small.toml", "--no-spectrum", "--plot", "probe.svg"], sizes].concat());
        place.read("probe.svg")
    };
    let panels = |svg: &str| {
        ["rms of the last stream", "gradient of the first block", "gradient of the last block"]
            .map(|title| svg.matches(title).count())
    };
    let plain = draw(&[]);
    assert_eq!((panels(&plain), plain.matches("rms of the stream").count()), ([0; 3], 1));
    assert_eq!(panels(&draw(&["--depths", "1,2,4"])), [1; 3]);
    assert_eq!(panels(&draw(&["--widths", "8,16"])), [1; 3]);
    let both = draw(&["--depths", "1,2", "--widths", "8,16"]);
    assert_eq!((panels(&both), both.matches("rms of the stream").count()), ([2; 3], 1));
    // One curve for each of the other sizes, in the legends of its panels.
    assert!(both.contains("small, width 8") && both.contains("small, 2 blocks"), "names");
}
