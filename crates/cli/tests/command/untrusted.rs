//! Text and numbers from files: none controls a terminal, is drawn from, or is used as an index unchecked.

use super::{Place, records};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::process::Output;
use unitgain_model::weights::{assign, of as weights};
use unitgain_train::data::Tokenizer;
use unitgain_train::folder::checkpoint::{self, Checkpoint, Progress};
use unitgain_train::{Trainer, device};

/// Characters that control a terminal: a colour, carriage return, bell, right-to-left override, next line, delete, and
/// a one-byte control sequence introducer.
const ORDERS: &str = "\u{1b}[31m\r\u{7}\u{202e}\u{85}\u{7f}\u{9b}2J";

/// The output of a command, checked to contain no character that controls a terminal.
fn plain(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8(bytes.clone()).expect("UTF-8"));
    let all = format!("{out}{err}");
    let is_order = |c: &char| c.is_control() && !matches!(c, '\n' | '\t') || ('\u{202a}'..='\u{202e}').contains(c);
    let found: Vec<char> = all.chars().filter(is_order).collect();
    assert!(found.is_empty(), "{found:?} in {all:?}");
    assert!(!all.contains("panicked"), "{all}");
    all
}

#[test]
fn no_text_of_a_file_or_an_argument_is_obeyed_by_a_terminal() {
    let place = Place::new("orders");
    let small = place.read("small.toml").replace("steps = 30", "steps = 2");
    place.write(&format!("{ORDERS}.toml"), &small);
    place.write("short.toml", &small);
    let escaped = "\"\\u001b[31m\\r\\u0007\u{202e}\u{85}\"";
    place.write("key.toml", format!("{escaped} = 1\n[model]\n{escaped} = 1"));
    place.write("value.toml", format!("seed = {escaped}\n[model]\nplacement = {escaped}\n[data]\npath = {escaped}"));
    place.write("syntax.toml", format!("seed = {ORDERS}\n[model\n{ORDERS}"));
    place.write(
        "text.toml",
        format!("{}\n[data]\ntask = 'text'\npath = {escaped}", &small[..small.find("[data]").unwrap()]),
    );
    place.write("sweep.toml", format!("run = 'short.toml'\n[axes]\n'model.placement' = [{escaped}]"));
    place.write("sweep_key.toml", format!("run = 'short.toml'\n[axes]\n{escaped} = [1, 2]"));
    place.write("sweep_run.toml", format!("run = {escaped}\n[axes]\nseed = [1, 2]"));
    let view = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
    let metadata = HashMap::from([("who".to_string(), ORDERS.to_string())]);
    let foreign = safetensors::serialize([(ORDERS, view)], Some(metadata)).unwrap();
    place.write("foreign.safetensors", &foreign);
    place.write("cut.safetensors", &foreign[..foreign.len() - 1]);
    let own = format!("{ORDERS}.toml");
    let run = format!("run{ORDERS}");
    let set = |key: &str| format!("{key}={ORDERS}");
    // A visible escape shows that the text was printed at all.
    for (arguments, code, is_seen) in [
        (vec!["train", &own, "--out", &run], 0, true),
        (vec!["train", &own, "--out", &run], 2, true),
        (vec!["train", &own], 0, true),
        (vec!["train", ORDERS], 2, true),
        (vec!["train", "--resume", ORDERS], 2, true),
        (vec!["config", "show", "key.toml"], 2, true),
        (vec!["config", "show", "value.toml"], 2, true),
        (vec!["config", "show", "syntax.toml"], 2, true),
        (vec!["config", "show", "text.toml"], 2, true),
        (vec!["config", "show", "short.toml", "--set", &set("model.placement")], 2, true),
        (vec!["config", "show", "short.toml", "--set", &set(ORDERS)], 2, true),
        (vec!["config", "show", "short.toml", "--set", &set("seed")], 2, true),
        (vec!["config", "show", "short.toml", "--set", &set("backend")], 2, true),
        (vec!["config", "show", "short.toml", "--set", &set("data.path"), "--set", "data.task=text"], 2, true),
        (vec!["params", ORDERS], 2, true),
        (vec!["params", &own, "--full"], 0, false),
        (vec!["probe", &own, &run], 0, true),
        (vec!["probe", &run], 0, true),
        (vec!["probe", "foreign.safetensors"], 2, true),
        (vec!["probe", "cut.safetensors"], 2, true),
        (vec!["coord-check", ORDERS, "--widths", "8,16"], 2, true),
        (vec!["compare", &own, "short.toml", "--seeds", "1"], 0, false),
        (vec!["compare", ORDERS], 2, true),
        (vec!["sweep", "sweep.toml"], 2, true),
        (vec!["sweep", "sweep_key.toml"], 2, true),
        (vec!["sweep", "sweep_run.toml"], 2, true),
        (vec!["sweep", ORDERS], 2, true),
        (vec!["diff", &run, &run], 0, false),
        (vec!["diff", &run, ORDERS], 2, true),
        (vec!["generate", ORDERS], 2, true),
        (vec!["generate", &run, "--prompt", ORDERS], 2, true),
        (vec!["configs", ORDERS], 2, true),
        (vec![ORDERS], 2, false),
        (vec!["train", "--jobs", ORDERS], 2, false),
        (vec!["generate", &run, "--top-k", ORDERS], 2, false),
    ] {
        let output = place.command(&arguments).env("UNITGAIN_LOG", "debug").output().unwrap();
        let said = plain(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(!is_seen || said.contains("31m"), "{arguments:?}: {said}");
    }
    // Two names of the same model, and content of one run only.
    place.good(&["train", "short.toml", "--out", "other", "--seed", "2"]);
    let output = place.run(&["diff", &run, "other"]);
    assert!(output.status.code() == Some(1) && plain(&output).contains("31m"), "{output:?}");
}

#[test]
fn a_message_does_not_grow_with_what_it_quotes() {
    let place = Place::new("long");
    let long = "x".repeat(400_000);
    place.write("long.toml", format!("seed = {long:?}"));
    place.write("line.toml", format!("seed = {long}"));
    place.write("key.toml", format!("{long} = 1"));
    place.write("many.toml", (0..5000).map(|i| format!("key{i} = 1\n")).collect::<String>());
    for file in ["long.toml", "line.toml", "key.toml", "many.toml"] {
        let said = place.bad(&["config", "show", file]);
        assert!(said.contains(file), "{said}");
        assert!(said.lines().count() <= 61, "{file}: {} lines", said.lines().count());
        let longest = said.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= 1000, "{file}: {longest}");
    }
    assert!(place.bad(&["config", "show", "long.toml"]).contains("expected a whole number"), "the end of a line stays");
}

/// A text with control characters, and a model that learned it.
#[test]
fn a_generated_text_is_escaped_unless_it_is_asked_for_raw() {
    let place = Place::new("raw");
    place.write("text.txt", format!("a{ORDERS}\n").repeat(60));
    for tokenizer in ["char", "byte"] {
        let settings = [
            "data={task='text', path='text.txt'}".to_string(),
            format!("data.tokenizer={tokenizer}"),
            "optimizer.lr=1e-2".into(),
            "train.steps=200".into(),
        ];
        let mut arguments = vec!["train", "small.toml", "--out", tokenizer];
        settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
        place.good(&arguments);
        let generate = ["generate", tokenizer, "--tokens", "200", "--prompt", "a", "--temperature", "0"];
        let escaped = plain(&place.run(&generate));
        assert!(escaped.contains(r"\u{1b}[31m") && escaped.contains(r"\u{d}"), "{escaped}");
        let raw = place.run(&[&generate[..], &["--raw"]].concat());
        let raw = String::from_utf8(raw.stdout).unwrap();
        assert!(raw.contains("\u{1b}[31m") && !raw.contains(r"\u{1b}"), "{raw:?}");
        let same: String = raw
            .chars()
            .map(|c| if escaped.contains(c) { c.to_string() } else { c.escape_unicode().to_string() })
            .collect();
        assert_eq!(same, escaped, "only the escapes differ");
    }
}

/// The shown configuration can be loaded, whatever its paths are.
#[cfg(unix)]
#[test]
fn a_configuration_that_is_shown_can_be_read_back() {
    let place = Place::new("shown");
    let name = format!("it's {ORDERS}.txt");
    place.write(&name, "to be or not to be\n".repeat(60));
    let path = format!("data.path={name}");
    let arguments = ["config", "show", "small.toml", "--set", "data.task=text", "--set", &path];
    let output = place.run(&arguments);
    let shown = plain(&output);
    assert!(output.status.success(), "{shown}");
    place.write("again.toml", &output.stdout);
    assert_eq!(place.good(&["config", "show", "again.toml"]), shown);
    place.good(&["train", "again.toml", "--steps", "1"]);
}

/// Writes a checkpoint of `step` next to the newest of `run`, with changed weights and progress.
fn change(place: &Place, step: usize, weight: impl Fn(f32) -> f32, progress: impl Fn(&mut Progress)) {
    let run = place.0.join("run");
    let checkpoint = Checkpoint::newest(&run).unwrap();
    let config = &checkpoint.config;
    let device = device::from_name("flex").unwrap();
    let trainer = Trainer::new(&config.model, config.optimizer, config.train.clip, config.seed, &device).unwrap();
    let mut trainer = checkpoint.load(trainer).unwrap();
    let changed = weights(&trainer.model)
        .into_iter()
        .map(|(path, shape, values)| (path, (shape, values.into_iter().map(&weight).collect())))
        .collect();
    trainer.model = assign(trainer.model, &changed).unwrap();
    let tokens = checkpoint.progress.tokens / checkpoint.progress.step * step;
    let mut other = Progress { step, tokens, ..checkpoint.progress.clone() };
    progress(&mut other);
    checkpoint::save(&run.join("checkpoints"), &trainer, &other, config).unwrap();
}

#[test]
fn nothing_is_drawn_from_a_model_that_diverged() {
    let place = Place::new("nan");
    place.good(&["train", "small.toml", "--out", "run", "--steps", "5"]);
    place.good(&["generate", "run"]);
    for (weight, others) in [(f32::NAN, &[][..]), (f32::INFINITY, &[]), (1e38, &["--top-k", "1"])] {
        change(&place, 7, |_| weight, |_| ());
        for temperature in ["0", "0.8"] {
            let said = place.bad(&[&["generate", "run", "--temperature", temperature], others].concat());
            assert!(said.contains("the checkpoint of step 7 ") && said.contains("not finite"), "{said}");
            assert!(said.contains("Delete that checkpoint") && said.matches("error:").count() == 1, "{said}");
        }
        std::fs::remove_file(place.0.join("run/checkpoints/step_00000007.safetensors")).unwrap();
    }
    place.good(&["generate", "run", "--top-k", "18446744073709551615"]);
    let said = place.bad(&["generate", "run", "--tokens", "99999999999999999999"]);
    assert!(said.contains("--tokens"), "{said}");
}

#[test]
fn a_vocabulary_of_another_size_and_a_symbol_beyond_it_are_refused() {
    let place = Place::new("vocabulary");
    place.good(&["train", "small.toml", "--out", "run", "--steps", "5"]);
    for prompt in ["8", "-1", "2147483648", "4294967296", "1099511627776", "18446744073709551616"] {
        let said = place.bad(&["generate", "run", "--prompt", prompt]);
        assert!(said.contains("is not a symbol of this task; write numbers from 0 to 7"), "{said}");
    }
    let tokenizers = [
        Tokenizer::Symbols(7),
        Tokenizer::Symbols(0),
        Tokenizer::Symbols(1 << 40),
        Tokenizer::Symbols(usize::MAX),
        Tokenizer::Char(String::new()),
        Tokenizer::Char("abc".into()),
        Tokenizer::Byte,
    ];
    for tokenizer in tokenizers {
        let size = tokenizer.vocab_size();
        change(&place, 9, |x| x, |progress| progress.tokenizer = tokenizer.clone());
        for arguments in [
            &["generate", "run"][..],
            &["generate", "run", "--prompt", "1099511627776"],
            &["probe", "run"],
            &["probe", "run/checkpoints/step_00000009.safetensors"],
        ] {
            let said = place.bad(arguments);
            let expected = format!("its tokenizer has {size} tokens, and its model a vocabulary of 8");
            assert!(said.contains(&expected), "{tokenizer:?} {arguments:?}: {said}");
        }
        assert!(place.bad(&["train", "--resume", "run"]).contains("vocabulary"));
        std::fs::remove_file(place.0.join("run/checkpoints/step_00000009.safetensors")).unwrap();
    }
    place.good(&["generate", "run"]);
}

/// Records of a model with another number of blocks, as if one seed's were changed after the run.
#[test]
fn records_of_other_blocks_are_one_message() {
    let place = Place::new("blocks");
    let compare = ["compare", "small.toml", "--seeds", "2", "--out", "runs/c", "--set", "train.steps=4"];
    place.good(&compare);
    let file = "runs/c/runs/small,seed=2/metrics.jsonl";
    let whole = place.read(file);
    let changed = |change: &dyn Fn(&mut Vec<serde_json::Value>)| {
        let line = |line: &str| {
            let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
            change(record["grad_norm_block"].as_array_mut().unwrap());
            format!("{record}\n")
        };
        place.write(file, whole.lines().map(line).collect::<String>());
        place.bad(&compare)
    };
    for change in
        [&(|blocks: &mut Vec<_>| blocks.clear()) as &dyn Fn(&mut Vec<_>), &|blocks| drop(blocks.pop()), &|blocks| {
            blocks.push(serde_json::json!(1.0));
        }]
    {
        let said = changed(change);
        assert!(
            said.contains("small,seed=2") && said.contains("are not those that summary.json was written from"),
            "{said}"
        );
    }
    place.write(file, &whole);
    place.good(&compare);
}

#[test]
fn diff_says_where_two_runs_part() {
    let place = Place::new("diff");
    let train = |out: &str, more: &[&str]| {
        let arguments = [&["train", "small.toml", "--out", out], more].concat();
        place.good(&arguments);
    };
    train("a", &["--steps", "8"]);
    train("b", &["--steps", "8"]);
    assert_eq!(records(&place, "a"), records(&place, "b"));
    let said = place.good(&["diff", "a", "b"]);
    assert_eq!(said, "the records of 8 steps are equal\nthe configurations are equal\n");
    let json = |arguments: &[&str], code: i32| {
        let output = place.run(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let same = json(&["diff", "a", "b"], 0);
    assert_eq!(
        (&same["equal"], &same["compared"], &same["first"]),
        (&true.into(), &8.into(), &serde_json::Value::Null)
    );

    train("lr", &["--steps", "8", "--set", "optimizer.lr=2e-3"]);
    let output = place.run(&["diff", "a", "lr"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    // The learning rate itself is the first thing that differs.
    assert!(said.starts_with("step 1: lr is ") && said.contains("optimizer.lr  0.001  0.002"), "{said}");
    let found = json(&["diff", "a", "lr"], 1);
    assert_eq!(found["first"]["step"], 1);
    assert_eq!(found["configuration"][0]["key"], "optimizer.lr");

    // The last step of a longer run of the same schedule has one more record.
    let constant = ["--set", "schedule.kind=constant", "--set", "log.every=3"];
    train("short", &[&["--steps", "7"], &constant[..]].concat());
    train("long", &[&["--steps", "12"], &constant[..]].concat());
    let output = place.run(&["diff", "short", "long"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("long alone has 3 records more, from step 9 on"), "{said}");
    assert!(said.contains("train.steps  7      12"), "{said}");

    // Changed records are refused if the summary has a digest of the originals.
    let changed = place.read("a/metrics.jsonl").replacen("\"grad_norm\":", "\"grad_norm\":1", 1);
    place.write("a/metrics.jsonl", &changed);
    assert!(place.bad(&["diff", "a", "b"]).contains("are not those that summary.json was written from"));
    std::fs::remove_file(place.0.join("a/summary.json")).unwrap();
    let config = place.read("a/config.toml");
    place.write("a/config.toml", config.replace("seed = 1", "seed = 2"));
    assert!(place.bad(&["diff", "a", "b"]).contains("config.toml is not as it was written"));
    place.write("a/config.toml", config);
    let said = json(&["diff", "a", "b"], 1);
    assert_eq!((&said["first"]["step"], &said["first"]["metric"]), (&1.into(), &"grad_norm".into()));
    assert_eq!((&said["first"]["metrics"], said["configuration"].as_array().unwrap().len()), (&1.into(), 0));
    for (arguments, expected) in [(["diff", "a", "nowhere"], "nowhere"), (["diff", "small.toml", "a"], "small.toml")] {
        assert!(place.bad(&arguments).contains(expected));
    }
    place.write("a/metrics.jsonl", "{}\n");
    assert!(place.bad(&["diff", "a", "b"]).contains("line 1 of metrics.jsonl"));
}

#[test]
fn a_key_that_does_nothing_is_told_by_every_command() {
    let place = Place::new("idle");
    place.write(
        "idle.toml",
        place.read("small.toml").replace("dropout = 0.1", "placement = 'none'\n    norm = 'rms_norm'"),
    );
    place.write("sweep.toml", "run = 'idle.toml'\n[axes]\nseed = [1, 2]");
    for arguments in [
        &["config", "show", "idle.toml"][..],
        &["params", "idle.toml"],
        &["probe", "idle.toml"],
        &["train", "idle.toml", "--steps", "2"],
        &["sweep", "sweep.toml", "--dry-run"],
        &["compare", "idle.toml", "--seeds", "2", "--set", "train.steps=2"],
    ] {
        let output = place.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains("model.norm = \"rms_norm\" does nothing: no placement asks for a norm"),
            "{arguments:?}: {said}"
        );
        assert_eq!(said.matches("does nothing").count(), 1, "{arguments:?}: {said}");
        assert!(said.contains("idle.toml:8: "), "{arguments:?}: {said}");
    }
}
