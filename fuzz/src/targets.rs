//! What each fuzz target does with its bytes. The workspace's tests do the same with every file of the corpus.
//!
//! Nothing may panic, an error must say something, and what was accepted must hold: what is written is read as the same,
//! and a model whose configuration was accepted can be built and trained.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use unitgain_study::sweep::{Sweep, SweepConfig, plan};
use unitgain_train::data::Tokenizer;
use unitgain_train::folder::checkpoint::Checkpoint;
use unitgain_train::generate::{Sampling, Writer};
use unitgain_train::{Batch, DataConfig, Error, RunConfig, Summary, Trainer, device, folder::metrics, read_rows};

/// Gets the bytes, and a folder for files. Says whether they were taken to the end, nothing being refused or too large.
pub type Target = fn(&[u8], &Path) -> bool;

/// All of them, by the name of their corpus.
pub const TARGETS: [(&str, Target); 5] =
    [("config", config), ("checkpoint", checkpoint), ("records", records), ("tokenizer", tokenizer), ("sweep", sweep)];

/// Between the parts of an input.
const CUT: &str = "\n--- ";
/// Where the data have no vocabulary of their own.
const VOCABULARY: usize = 17;
/// More than this would be slow, not wrong.
const SMALL: usize = 64;

/// A run's TOML file; after `\n--- ` each line is a setting, as of `--set`.
pub fn config(bytes: &[u8], _: &Path) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let (text, settings) = text.split_once(CUT).unwrap_or((text, ""));
    let settings: Vec<String> = settings.lines().map(String::from).collect();
    let Some(config) = accepted(RunConfig::parse(text, "fuzz.toml", &settings)) else { return false };
    let vocabulary = config.model.vocab_size.unwrap_or(VOCABULARY);
    let Some(resolved) = accepted(config.resolved(vocabulary)) else { return false };
    let written = resolved.to_toml();
    let again = RunConfig::parse(&written, "written.toml", &[]).expect("what was written can be read");
    assert!(again == resolved, "read differently from how it was written:\n{written}");
    let again = again.resolved(vocabulary).expect("what was resolved is complete");
    assert!(again == resolved, "resolved differently a second time:\n{written}");
    if !is_small(&resolved) {
        return false;
    }
    step(trainer(&resolved), &resolved, vocabulary);
    true
}

fn trainer(config: &RunConfig) -> Trainer {
    let device = device::from_name("flex").expect("the CPU backend");
    Trainer::new(&config.model, config.optimizer, config.train.clip, config.seed, &device)
        .expect("a resolved model can be built")
        .with_precision(config.train.precision)
}

/// One update, whatever comes out.
fn step(trainer: Trainer, config: &RunConfig, vocabulary: usize) {
    let (rows, time) = (config.train.batch_size, config.model.context);
    let token = |i: usize| ((i * 7 + 3) % vocabulary) as i32;
    let batch = Batch {
        rows,
        time,
        tokens: (0..rows * time).map(token).collect(),
        targets: (1..=rows * time).map(token).collect(),
        weights: None,
    };
    let (_, row) = trainer.step(&[batch], config.optimizer.lr(), true);
    assert_eq!(read_rows(&[row]).len(), 1);
}

/// Whether a model is built and trained in milliseconds.
fn is_small(config: &RunConfig) -> bool {
    let model = &config.model;
    let sizes = [
        model.d_model,
        model.n_heads,
        model.context,
        model.vocab_size.unwrap_or(usize::MAX),
        model.d_ff.unwrap_or(usize::MAX) / 4,
        model.head_dim.unwrap_or(usize::MAX),
        model.n_layers * 16,
        config.train.batch_size * 16,
    ];
    sizes.iter().all(|size| *size <= SMALL)
}

/// A checkpoint, whatever its checksum. It is loaded into the model of its own configuration, trained, and written with.
pub fn checkpoint(bytes: &[u8], _: &Path) -> bool {
    let path = Path::new("fuzz.safetensors");
    let is_whole = Checkpoint::of_bytes(path, bytes, true).is_ok();
    let Some(checkpoint) = accepted(Checkpoint::of_bytes(path, bytes, false)) else {
        assert!(!is_whole, "the checksum is one more reason to refuse");
        return false;
    };
    let tokenizer = &checkpoint.progress.tokenizer;
    let Some(config) = accepted(checkpoint.config.resolved(tokenizer.vocab_size())) else { return false };
    if !is_small(&config) {
        return false;
    }
    let writer = accepted(Writer::of(&checkpoint, "flex"));
    let is_written = writer.is_some_and(|writer| {
        let Some(prompt) = accepted(tokenizer.encode(&tokenizer.default_prompt())) else { return false };
        let sampling = Sampling { temperature: 0.8, top_k: 0, seed: 1 };
        let all = accepted(writer.write(&prompt, 3, sampling, &mut |_| ControlFlow::Continue(())));
        all.is_some_and(|all| !tokenizer.decode(&all).is_empty())
    });
    let Some(trainer) = accepted(checkpoint.load(trainer(&config))) else { return false };
    step(trainer, &config, tokenizer.vocab_size());
    is_whole && is_written
}

/// The files of a run folder: `metrics.jsonl`, `summary.json` and `config.toml`, with `\n--- ` between them.
pub fn records(bytes: &[u8], scratch: &Path) -> bool {
    let run = scratch.join("records/runs/run");
    fs::create_dir_all(&run).expect("a run folder");
    let mut parts = split(bytes);
    for file in ["metrics.jsonl", "summary.json", "config.toml"] {
        fs::write(run.join(file), parts.next().unwrap_or_default()).expect("a file of a run");
    }
    let records = accepted(metrics::read(&run));
    if let Some(records) = &records {
        let lines = fs::read_to_string(run.join("metrics.jsonl")).map(|text| text.matches('\n').count());
        assert_eq!(lines.ok(), Some(records.len()), "a whole line is a record");
    }
    let is_run = Summary::of_run(&run).is_ok();
    let ended = sweep_of(scratch, "records").ended(&scratch.join("records"));
    assert!(is_run || ended == [None], "without a summary nothing has ended");
    records.is_some_and(|records| !records.is_empty()) && ended != [None]
}

/// A sweep of one run beside the folder of this name.
fn sweep_of(scratch: &Path, name: &str) -> Sweep {
    let (run, sweep) = (scratch.join(format!("{name}.toml")), scratch.join(format!("{name}-sweep.toml")));
    if !sweep.is_file() {
        fs::write(&run, RUN).expect("a run's file");
        fs::write(&sweep, format!("run = '{name}.toml'\n[axes]\nseed = [1]\n")).expect("a sweep's file");
    }
    Sweep::load(&sweep, &[]).expect("a sweep of one small run")
}

/// The run that the corpus of records is of.
const RUN: &str = "
model = { d_model = 4, n_layers = 1, n_heads = 1, context = 8 }
data = { task = 'markov', vocab_size = 4, order = 1, branching = 2 }
train = { batch_size = 2, steps = 2 }
eval = { tokens = 16 }
log = { every = 1 }
checkpoint = { every = 1 }
";

/// A tokenizer in one line of JSON; then a text, `\n--- `, and tokens of four bytes.
pub fn tokenizer(bytes: &[u8], scratch: &Path) -> bool {
    let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
    let (first, rest) = bytes.split_at(end);
    let mut parts = split(rest.get(1..).unwrap_or_default());
    let (text, tokens) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let tokens: Vec<i32> = tokens.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
    let mut is_taken = false;
    if let Ok(tokenizer) = serde_json::from_slice::<Tokenizer>(first) {
        tokenizer.decode(&tokens);
        let vocabulary = tokenizer.vocab_size();
        for text in [String::from_utf8_lossy(text).into_owned(), tokenizer.default_prompt()] {
            let Some(encoded) = accepted(tokenizer.encode(&text)) else { continue };
            is_taken |= !encoded.is_empty();
            let is_known = |t: &i32| usize::try_from(*t).is_ok_and(|t| t < vocabulary);
            assert!(encoded.iter().all(is_known), "a token is in the vocabulary");
            let again = tokenizer.decode(&encoded);
            match &tokenizer {
                Tokenizer::Byte | Tokenizer::Char(_) => assert_eq!(again, text),
                // However they were written.
                Tokenizer::Symbols(_) => assert_eq!(tokenizer.encode(&again).ok(), Some(encoded)),
            }
        }
    }
    // The text as a user's data.
    let path = scratch.join("tokenizer.txt");
    fs::write(&path, text).expect("a text");
    for kind in ["byte", "char"] {
        let data = serde_json::json!({ "task": "text", "path": path, "tokenizer": kind });
        let data: DataConfig = serde_json::from_value(data).expect("a configuration of data");
        let Some(task) = accepted(data.load(4)) else { continue };
        let batch = task.batch(1, 0, 0..2);
        let is_known = |t: &&i32| usize::try_from(**t).is_ok_and(|t| t < task.vocab_size());
        assert_eq!(batch.tokens.iter().chain(&batch.targets).filter(is_known).count(), 16);
        let said = task.tokenizer().decode(&batch.tokens[..4]);
        assert!(kind == "byte" || String::from_utf8_lossy(text).contains(&said), "{said:?} is not in the text");
    }
    is_taken
}

/// A sweep's TOML file, whose run is a small one.
pub fn sweep(bytes: &[u8], scratch: &Path) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let path = scratch.join("fuzz-sweep.toml");
    let Some(mut config) = accepted(SweepConfig::parse(text, &path)) else { return false };
    let runs = config.axes.iter().try_fold(1usize, |runs, axis| runs.checked_mul(axis.values.len()));
    // A plan of more is refused, one of so many is slow; and data that a setting names may be a device, which has no end.
    let is_slow = runs.is_some_and(|runs| runs > SMALL && runs <= 100_000);
    if is_slow || format!("{:?}{:?}", config.set, config.axes).contains('/') {
        return false;
    }
    config.run = scratch.join("sweep.toml");
    if !config.run.is_file() {
        fs::write(&config.run, RUN).expect("a run's file");
    }
    let Some(plan) = accepted(plan(&config, &path, &[])) else { return false };
    assert_eq!(Some(plan.len()), runs, "every combination is a run");
    let mut names: Vec<&str> = plan.iter().map(|planned| planned.job.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), plan.len(), "two runs have one folder");
    true
}

/// The parts of an input.
fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let cut = CUT.as_bytes();
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let all = rest?;
        let at = all.windows(cut.len()).position(|window| window == cut);
        rest = at.map(|at| &all[at + cut.len()..]);
        Some(&all[..at.unwrap_or(all.len())])
    })
}

/// What was not refused; a refusal says something.
fn accepted<T>(result: Result<T, Error>) -> Option<T> {
    result.map_err(|e| assert!(!e.to_string().trim().is_empty(), "an error without a message")).ok()
}
