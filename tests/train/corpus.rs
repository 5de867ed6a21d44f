//! The fuzzers' corpus, and random changes of it without a fuzzer's guidance.

use crate::common::{Scratch, generator};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

#[allow(unreachable_pub)]
#[path = "../../fuzz/src/targets.rs"]
mod targets;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The names in a folder, without extensions.
fn names(folder: &Path) -> BTreeSet<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path().file_stem().unwrap().to_owned();
    std::fs::read_dir(folder).unwrap().map(|entry| name(entry).into_string().unwrap()).collect()
}

/// The files of a target's corpus, sorted by name.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(fuzz().join("corpus").join(target)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn no_file_of_the_corpus_makes_its_target_panic() {
    let known: BTreeSet<String> = targets::TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names(&fuzz().join("fuzz_targets")), known);
    assert_eq!(names(&fuzz().join("corpus")), known);
    let scratch = Scratch::new("corpus");
    let _one_at_a_time = generator();
    for (name, target) in targets::TARGETS {
        let (mut taken, mut refused) = (0, 0);
        for (path, bytes) in corpus(name) {
            match catch_unwind(AssertUnwindSafe(|| target(&bytes, &scratch.0))) {
                Ok(true) => taken += 1,
                Ok(false) => refused += 1,
                Err(_) => panic!("{name} does not bear {}", path.display()),
            }
        }
        println!("{name}: {taken} files taken to the end, {refused} refused or too large");
        assert!(taken > 0 && refused > 0, "the corpus of {name} reaches one side only");
    }
}

/// Number of changed files per target; `UNITGAIN_FUZZ_CHANGES` for more.
const CHANGES: u64 = 300;

#[test]
fn no_change_of_the_corpus_makes_its_target_panic() {
    let changes = std::env::var("UNITGAIN_FUZZ_CHANGES").map_or(CHANGES, |n| n.parse().unwrap());
    let only = std::env::var("UNITGAIN_FUZZ_TARGET").ok();
    let scratch = Scratch::new("changes");
    let _one_at_a_time = generator();
    for (name, target) in targets::TARGETS.iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)) {
        let files: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
        let words: Vec<&[u8]> = files.iter().flat_map(|file| words(file)).map(|(_, word)| word).collect();
        let mut taken = 0;
        for seed in 0..changes {
            let bytes = changed(&files, &words, &mut Numbers(seed));
            match catch_unwind(AssertUnwindSafe(|| target(&bytes, &scratch.0))) {
                Ok(is_taken) => taken += u64::from(is_taken),
                Err(_) => {
                    let path = std::env::temp_dir().join(format!("unitgain-{name}-{seed}"));
                    std::fs::write(&path, &bytes).unwrap();
                    panic!("{name} does not bear change {seed}, which is in {}", path.display());
                }
            }
        }
        println!("{name}: {taken} of {changes} changed files taken to the end");
        assert!(taken < changes, "the changes of {name} change nothing that matters");
    }
}

/// The generator splitmix64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// Inputs that have broken a parser before.
const EDGES: [&[u8]; 24] = [
    b"0",
    b"-1",
    b"1",
    b"2",
    b"3",
    b"255",
    b"1048577",
    b"4294967296",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"1e308",
    b"1e-320",
    b"-0.0",
    b"0.5",
    b"nan",
    b"inf",
    b"true",
    b"''",
    b"[]",
    b"{}",
    b"null",
    b"\"\"",
    b"\xff",
];

/// The words and numbers of a file, with their offsets.
fn words(file: &[u8]) -> Vec<(usize, &[u8])> {
    let is_of_word = |b: &u8| b.is_ascii_alphanumeric() || b"_.-+".contains(b);
    let mut words = Vec::new();
    let mut at = 0;
    for run in file.chunk_by(|a, b| is_of_word(a) == is_of_word(b)) {
        if is_of_word(&run[0]) && run.len() < 40 {
            words.push((at, run));
        }
        at += run.len();
    }
    words
}

/// One of the files with one to six changes.
fn changed(files: &[Vec<u8>], all_words: &[&[u8]], numbers: &mut Numbers) -> Vec<u8> {
    let mut file = files[numbers.below(files.len())].clone();
    let changes = if numbers.below(2) == 0 { 1 } else { 1 + numbers.below(6) };
    for _ in 0..changes {
        let (from, to) = (numbers.below(file.len() + 1), numbers.below(file.len() + 1));
        let (from, to) = (from.min(to), from.max(to));
        // Most changes are short.
        let near = to.min(from + 1 + numbers.below(16));
        match numbers.below(10) {
            0 => drop(file.splice(from..near, [])),
            1 => drop(file.splice(from..from, [numbers.below(256) as u8])),
            2 => {
                if let Some(byte) = file.get_mut(from) {
                    *byte ^= 1 << numbers.below(8);
                }
            }
            3 => {
                let again = file[from..near].to_vec();
                drop(file.splice(from..from, again));
            }
            4 => {
                let other = &files[numbers.below(files.len())];
                let start = numbers.below(other.len() + 1);
                let end = (start + numbers.below(64)).min(other.len());
                drop(file.splice(from..near, other[start..end].iter().copied()));
            }
            5 if numbers.below(4) == 0 => file.truncate(from),
            _ => {
                let there = words(&file);
                if there.is_empty() {
                    continue;
                }
                let (start, word) = there[numbers.below(there.len())];
                let range = start..start + word.len();
                let is_number = word[0].is_ascii_digit() || word[0] == b'-';
                let is_edge = numbers.below(4) < if is_number { 3 } else { 1 };
                let new = if is_edge { numbers.of(&EDGES) } else { numbers.of(all_words) };
                drop(file.splice(range, new.iter().copied()));
            }
        }
    }
    file
}
