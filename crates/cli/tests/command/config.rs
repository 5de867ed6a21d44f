//! Configuration files: relative paths, thread counts, and messages about faults.

use super::{Place, records};
use std::process::Output;
use unitgain_train::folder::checkpoint::Checkpoint;

const TEXT: &str = "to be or not to be, that is the question\n";

/// A model whose results depend on the number of threads.
const WIDE: &str = "
    [model]
    context = 32
    d_model = 64
    n_layers = 1
    n_heads = 2
    [data]
    task = 'markov'
    vocab_size = 8
    order = 1
    branching = 2
    [train]
    steps = 4
    [log]
    every = 1";

/// A folder with `conf/text.toml`, which refers to `conf/data/text.txt` by a relative path.
fn place(name: &str) -> Place {
    let place = Place::new(name);
    std::fs::create_dir_all(place.0.join("conf/data")).unwrap();
    std::fs::create_dir_all(place.0.join("elsewhere")).unwrap();
    place.write("conf/data/text.txt", TEXT.repeat(100));
    let small = place.read("small.toml");
    let (before, after) = (small.find("[data]").unwrap(), small.find("[train]").unwrap());
    let data = "[data]\ntask = 'text'\npath = 'data/text.txt'\ntokenizer = 'char'\n    ";
    let text = format!("{}{data}{}", &small[..before], &small[after..]).replace("steps = 30", "steps = 6");
    place.write("conf/text.toml", text + "\n[schedule]\nkind = 'constant'");
    place
}

/// Runs the command in a subfolder.
fn run_in(place: &Place, folder: &str, arguments: &[&str]) -> Output {
    place.command(arguments).current_dir(place.0.join(folder)).output().unwrap()
}

/// Standard output and standard error of a successful command in a subfolder.
fn good_in(place: &Place, folder: &str, arguments: &[&str]) -> (String, String) {
    let output = run_in(place, folder, arguments);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{arguments:?} in {folder}: {out}{err}");
    (out, err)
}

#[test]
fn a_path_is_found_from_every_working_folder() {
    let place = place("paths");
    for (i, (folder, config)) in
        [("", "conf/text.toml"), ("conf", "text.toml"), ("elsewhere", "../conf/text.toml")].into_iter().enumerate()
    {
        let out = place.0.join(format!("run{i}")).display().to_string();
        let (_, said) = good_in(&place, folder, &["train", config, "--out", &out, "--steps", "3"]);
        assert!(!said.contains("WARN"), "{said}");
    }
    assert_eq!(records(&place, "run0"), records(&place, "run2"));
    // A run folder's own configuration, and a resumed run.
    good_in(&place, "elsewhere", &["train", "../run0/config.toml", "--out", "../again"]);
    assert_eq!(records(&place, "run0"), records(&place, "again"));
    good_in(&place, "elsewhere", &["train", "--resume", "../run0", "--steps", "6"]);
    good_in(&place, "", &["train", "run0/config.toml", "--resume", "run0", "--steps", "8"]);
    assert_eq!(records(&place, "run0").len(), 8);
    // The configuration in a checkpoint. The tests run in another folder.
    Checkpoint::newest(&place.0.join("run0")).unwrap().config.prepare().unwrap();
    // A sweep keeps configurations in its folder, and can be resumed.
    place.write("conf/sweep.toml", "run = 'text.toml'\n[axes]\nseed = [1, 2]");
    good_in(&place, "", &["sweep", "conf/sweep.toml"]);
    let sweep = ["sweep", "../conf/sweep.toml", "--out", "../runs/sweep"];
    assert!(good_in(&place, "elsewhere", &sweep).1.contains("2 of 2 runs were there already"));
    good_in(&place, "elsewhere", &["train", "../runs/sweep/configs/seed=2.toml", "--out", "../repeated"]);
    assert_eq!(records(&place, "repeated"), records(&place, "runs/sweep/runs/seed=2"));
    // Other commands that read a configuration.
    let (shown, _) = good_in(&place, "elsewhere", &["config", "show", "../conf/text.toml"]);
    let absolute = place.0.canonicalize().unwrap().join("conf/data/text.txt").display().to_string();
    assert!(shown.contains(&absolute), "{absolute} is not in {shown}");
    good_in(&place, "elsewhere", &["params", "../conf/text.toml"]);
    good_in(
        &place,
        "elsewhere",
        &["compare", "../conf/text.toml", "../run0/config.toml", "--seeds", "1", "--set", "train.steps=2"],
    );
}

/// Paths in a sweep's file are relative to it, paths on the command line to the working folder.
#[test]
fn a_path_belongs_to_what_it_is_written_in() {
    let place = place("path-owner");
    place.write("conf/other.txt", "what a piece of work is a man\n".repeat(100));
    place.write("elsewhere/mine.txt", "the rest is silence\n".repeat(100));
    let vocabulary = |folder: &str, arguments: &[&str]| {
        let (shown, _) = good_in(&place, folder, &[&["config", "show", "../conf/text.toml"], arguments].concat());
        shown.lines().find(|line| line.starts_with("vocab_size")).unwrap().to_string()
    };
    let size = |file: &str| {
        let different: std::collections::BTreeSet<char> = place.read(file).chars().collect();
        format!("vocab_size = {}", different.len())
    };
    let [own, mine, other] = ["conf/data/text.txt", "elsewhere/mine.txt", "conf/other.txt"].map(size);
    assert!(own != mine && mine != other);
    assert_eq!(vocabulary("elsewhere", &[]), own);
    assert_eq!(vocabulary("elsewhere", &["--set", "data.path=mine.txt"]), mine);
    let message = String::from_utf8_lossy(
        &run_in(&place, "elsewhere", &["params", "../conf/text.toml", "--set", "data.path=other.txt"]).stderr,
    )
    .into_owned();
    assert!(message.contains("data.path = other.txt") && message.contains("elsewhere"), "{message}");
    for (name, sweep) in [
        ("set", "run = 'text.toml'\nset = ['data.path=other.txt']\n[axes]\nseed = [1]"),
        ("axis", "run = 'text.toml'\n[axes]\n'data.path' = ['other.txt']"),
    ] {
        place.write(&format!("conf/{name}.toml"), sweep);
        good_in(&place, "elsewhere", &["sweep", &format!("../conf/{name}.toml"), "--out", name]);
        let configs = std::fs::read_dir(place.0.join(format!("elsewhere/{name}/configs"))).unwrap();
        for config in configs {
            let text = std::fs::read_to_string(config.unwrap().path()).unwrap();
            assert!(text.contains("/conf/other.txt") && text.contains(&other), "{text}");
        }
    }
}

/// A path that exists only relative to the working folder is accepted, with one message.
#[test]
fn a_path_from_the_working_folder_is_noted() {
    let place = place("old-path");
    place.write("elsewhere/data.txt", TEXT.repeat(100));
    let text = place.read("conf/text.toml").replace("data/text.txt", "data.txt");
    place.write("conf/old.toml", &text);
    place.write("conf/old_sweep.toml", "run = 'old.toml'\n[axes]\nseed = [1, 2, 3]\n'optimizer.lr' = [1e-3, 2e-3]");
    for arguments in [
        &["train", "../conf/old.toml", "--out", "run"][..],
        &["params", "../conf/old.toml"],
        &["sweep", "../conf/old_sweep.toml", "--dry-run"],
    ] {
        let (_, said) = good_in(&place, "elsewhere", arguments);
        assert_eq!(said.matches("is taken from the working folder").count(), 1, "{said}");
        assert!(said.contains("../conf/data.txt") && said.contains("WARN"), "{said}");
    }
    // The run stores the path that it found.
    let (_, said) = good_in(&place, "conf", &["train", "../elsewhere/run/config.toml", "--out", "again"]);
    assert!(!said.contains("working folder"), "{said}");
    // No message for an unused path, or for a path next to the file.
    let (_, said) =
        good_in(&place, "elsewhere", &["params", "../conf/old.toml", "--set", "data.path=../conf/data/text.txt"]);
    assert!(!said.contains("working folder"), "{said}");
    place.write("conf/data.txt", "and by opposing end them\n".repeat(100));
    let (shown, said) = good_in(&place, "elsewhere", &["config", "show", "../conf/old.toml"]);
    assert!(!said.contains("working folder") && shown.contains("/conf/data.txt"), "{said}{shown}");
    // A missing file is reported relative to the configuration's folder.
    place.write("conf/none.toml", text.replace("data.txt", "none.txt"));
    let output = run_in(&place, "elsewhere", &["params", "../conf/none.toml"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(message.contains("none.toml:1") && message.contains("../conf/none.txt"), "{message}");
}

#[test]
fn names_that_look_like_other_values_are_paths() {
    let place = Place::new("path-names");
    for name in ["2024", "true", "nan", "1e5", "a#b.txt", "2024#1", "#hash", "1979-05-27", "[1, 2]", "with space.txt"] {
        place.write(name, TEXT.repeat(100));
        for path in [name.to_string(), format!("{name:?}")] {
            let set = format!("data.path={path}");
            let shown = place.good(&["config", "show", "small.toml", "--set", "data.task=text", "--set", &set]);
            let line = shown.lines().find(|line| line.starts_with("path = ")).unwrap();
            assert!(line.trim_end_matches(['"', '\'']).ends_with(name), "{set}: {line}");
        }
    }
    // A comment is not part of a number.
    assert!(place.bad(&["params", "small.toml", "--set", "seed=3 # three"]).contains("seed: invalid type"));
}

/// The threads are divided among a sweep's runs; each configuration says how many.
#[test]
fn a_run_of_a_sweep_is_repeated_to_the_bit() {
    let place = Place::new("threads");
    place.write("wide.toml", WIDE);
    place.write("sweep.toml", "run = 'wide.toml'\n[axes]\n'optimizer.lr' = [1e-3, 2e-3]");
    // With another environment, as on another machine.
    let train = |arguments: &[&str], threads: &str| {
        let output = place.command(&[&["train"], arguments].concat()).env("RAYON_NUM_THREADS", threads).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (out, settings) in [("usual", &[][..]), ("one", &["--jobs", "1"]), ("set", &["--set", "threads=3"])] {
        place.good(&[&["sweep", "sweep.toml", "--out", out], settings].concat());
        let run = format!("{out}/runs/lr=0.002");
        let config = place.read(&format!("{out}/configs/lr=0.002.toml"));
        let threads = config.lines().find(|line| line.starts_with("threads = ")).unwrap();
        assert!(place.read(&format!("{run}/config.toml")).contains(threads), "{threads}");
        let again = format!("{out}-again");
        train(&[&format!("{out}/configs/lr=0.002.toml"), "--out", &again], "5");
        assert_eq!(records(&place, &run), records(&place, &again));
        let settings = |folder: &str| settings_of(&place.read(&format!("{folder}/config.toml")));
        assert_eq!(settings(&again), settings(&run));
    }
    assert!(place.read("set/configs/lr=0.002.toml").contains("threads = 3\n"));

    // The key overrides the variable, which overrides the number of cores.
    train(&["wide.toml", "--out", "key", "--set", "threads=3"], "2");
    train(&["wide.toml", "--out", "variable"], "3");
    assert_eq!(records(&place, "key"), records(&place, "variable"));
    train(&["wide.toml", "--out", "other"], "2");
    assert!(place.read("other/config.toml").contains("threads = 2\n"));
    assert_ne!(records(&place, "key"), records(&place, "other"), "these numbers do not show the number of threads");

    // A run may be resumed with another number of threads, with a warning.
    let constant = ["--set", "schedule.kind=constant", "--set", "schedule.warmup=0"];
    train(&[&["wide.toml", "--out", "part"][..], &constant].concat(), "3");
    let said = train(&["--resume", "part", "--steps", "6"], "2");
    assert!(!said.contains("threads"), "the folder's own number is kept: {said}");
    assert!(place.read("part/config.toml").contains("threads = 3\n"));
    let said = train(&["--resume", "part", "--steps", "8", "--set", "threads=2"], "1");
    assert!(said.contains("threads = 3, now 2") && said.contains("last digits"), "{said}");

    assert!(place.bad(&["train", "wide.toml", "--set", "threads=1000000000"]).contains("threads: 1000000000 must be"));
    let message = place.bad(&["bench", "wide.toml", "key/config.toml"]);
    assert!(message.contains("threads"), "{message}");
}

#[test]
fn faults_of_a_file_come_together() {
    let place = Place::new("faults");
    place.write(
        "nano.toml",
        "n_layer = 4\nn_head = 4\nn_embd = 128\nblock_size = 64\nmax_iters = 100\nlearning_rate = 1e-3\n\
         weight_decay = 0.1\neval_iters = 10\ndropout = 0.0\n[train]\nbatch_size = 'many'\n[optimizer]\nkind = 'adamv'",
    );
    let arguments = ["train", "nano.toml", "--set", "model.widht=3", "--set", "seed"];
    let message = place.bad(&arguments);
    for part in [
        "13 faults",
        "nano.toml:1: n_layer: unknown key. `n_layer` of nanoGPT is `model.n_layers` here",
        "nano.toml:4: block_size: unknown key. `block_size` of nanoGPT is `model.context` here",
        "nano.toml:7: weight_decay: unknown key. It belongs elsewhere: write `optimizer.weight_decay`",
        "nano.toml:9: dropout: unknown key. It belongs elsewhere: write `model.dropout`",
        "nano.toml:11: train.batch_size: invalid type: string \"many\", expected a whole number",
        "nano.toml:13: optimizer.kind: unknown value \"adamv\". Did you mean `adam`?",
        "--set: model.widht: unknown key",
        "--set: seed: has no value",
    ] {
        assert!(message.contains(part), "{part} is not in\n{message}");
    }
    assert_eq!(message.lines().count(), 14, "{message}");
    // Invalid values in every section.
    place.write(
        "values.toml",
        "backend = 'gpu'\nthreads = 9999\n[model]\nd_model = 130\ndropout = 1.5\n[train]\nsteps = 5\nbatch_size = 0\nclip = -1.0\n\
         [optimizer]\nlr = -1\neps = -1\n[schedule]\nwarmup = 6\n[data]\nvocab_size = 1",
    );
    for command in [&["train"][..], &["params"], &["config", "show"]] {
        let message = place.bad(&[command, &["values.toml", "--set", "schedule.min_ratio=2"]].concat());
        for part in [
            "values.toml:1: backend = \"gpu\": unknown backend",
            "values.toml:2: threads: 9999",
            "values.toml:4: model.d_model = 130: must be a multiple of n_heads",
            "values.toml:5: model.dropout = 1.5",
            "values.toml:8: train.batch_size: 0",
            "values.toml:9: train.clip.max: -1",
            "values.toml:11: optimizer.lr: -1",
            "values.toml:12: optimizer.eps: -1",
            "values.toml:14: schedule.warmup: 6 is longer",
            "values.toml:16: data.vocab_size: 1",
            "--set: schedule.min_ratio: 2",
        ] {
            assert!(message.contains(part), "{part} is not in\n{message}");
        }
        assert_eq!(message.lines().count(), 12, "{message}");
    }
    // Syntax errors and unknown keys, in one message.
    place.write("syntax.toml", "bias = False\n[model]\nd_modle = 3\nd_ff = 1 2\nfinal_norm = True\n");
    let message = place.bad(&["train", "syntax.toml"]);
    for part in ["line 1, column 8", "syntax.toml:4", "syntax.toml:5", "model.bias", "Did you mean `d_model`?"] {
        assert!(message.contains(part), "{part} is not in\n{message}");
    }
    // A sweep's file.
    place.write("sweep.toml", "run = 'small.toml'\nsett = ['a']\ntolerance = 'x'\n[axes]\nseed = [1]");
    let message = place.bad(&["sweep", "sweep.toml"]);
    assert!(message.contains("sweep.toml:2: sett: unknown key. Did you mean `set`?"), "{message}");
    assert!(message.contains("sweep.toml:3: tolerance: invalid type"), "{message}");
    assert!(!place.0.join("runs").exists());
}

/// A run's configuration without the versions and process that wrote it.
fn settings_of(text: &str) -> String {
    let (settings, wrote) = text.split_once("\n[versions]\n").unwrap();
    assert!(wrote.contains("[origin]") && wrote.contains("checksum = "), "{wrote}");
    settings.into()
}

#[test]
fn what_wrote_a_run_does_nothing_in_another_file_and_that_is_said() {
    let place = Place::new("versions");
    let warned = |arguments: &[&str]| {
        let output = place.run(arguments);
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).contains("does nothing")
    };
    place.good(&["train", "small.toml", "--out", "run", "--steps", "2"]);
    assert!(!warned(&["config", "show", "run/config.toml"]), "a run's own file is as it was written");
    for table in ["[versions]\nburn = '0.1'", "[origin]\ncommand = 'x'"] {
        place.write("other.toml", format!("{}\n{table}", crate::SMALL));
        assert!(warned(&["config", "show", "other.toml"]), "{table}");
    }
    place.write("other.toml", format!("{}\n[versions]\nseed = 1", crate::SMALL));
    assert!(place.bad(&["config", "show", "other.toml"]).contains("versions.seed: unknown key"));
}

#[test]
fn a_configuration_is_shown_as_a_run_writes_it() {
    let place = Place::new("show");
    let settings = ["--set", "model.placement=deep_norm", "--set", "optimizer.kind=lion"];
    let shown = place.good(&[&["config", "show", "small.toml"][..], &settings].concat());
    place.good(&[&["train", "small.toml", "--out", "run", "--steps", "30"][..], &settings].concat());
    assert_eq!(shown, settings_of(&place.read("run/config.toml")));
    place.write("shown.toml", &shown);
    assert_eq!(place.good(&["config", "show", "shown.toml"]), shown);
    assert!(place.good(&["config", "--help"]).contains("Example"));
    assert!(place.good(&["config", "show", "--help"]).contains("Example"));
    assert!(place.bad(&["config", "show", "missing.toml"]).contains("cannot read missing.toml"));
}

#[test]
fn a_dry_run_tells_the_runs_and_makes_nothing() {
    let place = Place::new("dry");
    place.write("sweep.toml", "run = 'small.toml'\nset = ['train.steps=4']\n[axes]\nwidth = [16, 8]\nseed = [1, 2]");
    let dry = ["sweep", "sweep.toml", "--dry-run"];
    let shown = place.good(&dry);
    for part in
        ["run ", "width", "seed", "width=16,seed=1", "width=8,seed=2", "4 runs, 0 of them already in runs/sweep"]
    {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    assert!(!place.0.join("runs").exists());
    place.good(&["sweep", "sweep.toml"]);
    place.write("sweep.toml", place.read("sweep.toml").replace("[1, 2]", "[1, 2, 3]"));
    let before = place.read("runs/sweep/sweep.json");
    let shown = place.good(&dry);
    assert!(shown.contains("6 runs, 4 of them already in runs/sweep") && shown.contains("finished"), "{shown}");
    let runs: serde_json::Value = serde_json::from_str(&place.good(&[&dry[..], &["--json"]].concat())).unwrap();
    assert_eq!(
        runs[0],
        serde_json::json!({ "name": "width=16,seed=1", "settings": { "width": 16, "seed": 1 }, "status": "finished" })
    );
    assert!(runs[5]["status"].is_null() && runs[5]["settings"]["seed"] == 3);
    // Runs are identified by their settings, not by names, which depend on the order of the axes.
    place.write("turned.toml", "run = 'small.toml'\nset = ['train.steps=4']\n[axes]\nseed = [1, 2]\nwidth = [8]");
    let turned = place.good(&["sweep", "turned.toml", "--dry-run", "--out", "runs/sweep"]);
    assert!(turned.contains("2 runs, 2 of them already"), "{turned}");
    // Runs with other settings are not the requested ones.
    let other = place.good(&[&dry[..], &["--set", "optimizer.lr=0.5"]].concat());
    assert!(other.contains("6 runs, 0 of them"), "{other}");
    assert_eq!(before, place.read("runs/sweep/sweep.json"));
    assert!(!place.0.join("runs/sweep/runs/width=8,seed=3").exists());
    assert!(place.bad(&["sweep", "sweep.toml", "--dry-run", "--set", "model.n_heads=3"]).contains("n_heads"));
}

/// Each warning appears once per command, and the base model of a sweep gets none.
#[test]
fn a_warning_is_told_once() {
    let place = Place::new("warnings");
    let mup = "model.parametrization={ kind = 'mup', base_width = 16 }";
    let sweep = "run = 'small.toml'\n[axes]\nwidth = [16, 32, 64]\nseed = [1, 2]";
    place.write("sweep.toml", sweep);
    for arguments in [
        &["sweep", "sweep.toml", "--dry-run"][..],
        &["coord-check", "small.toml", "--widths", "16,32", "--seeds", "1", "--steps", "1"],
        &["params", "small.toml"],
        &["train", "small.toml", "--steps", "1"],
    ] {
        let said = place.run(&[arguments, &["--set", mup]].concat());
        // The outcome of the check does not matter here.
        assert!(matches!(said.status.code(), Some(0 | 1)), "{arguments:?}");
        let said = String::from_utf8_lossy(&said.stderr);
        assert!(!said.contains("WARN"), "{arguments:?}: {said}");
    }
    let said = place.run(&["sweep", "sweep.toml", "--dry-run", "--set", "model.scale=re_zero"]);
    assert_eq!(String::from_utf8_lossy(&said.stderr).matches("WARN").count(), 1);
}
