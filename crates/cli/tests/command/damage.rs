//! Damaged files are refused, or the damage changes no result.
//!
//! A short part runs by default. The whole: `UNITGAIN_DAMAGES=500 cargo test --release --test command damage --
//! --nocapture`

use super::crash::{numbers, place};
use super::{Place, Random};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Kinds of damage to a file.
const DAMAGES: [&str; 9] =
    ["bit", "digit", "cut", "emptied", "doubled", "removed", "lines swapped", "of another run", "sealed again"];

fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(at) = folders.pop() {
        for path in std::fs::read_dir(at).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(&file, &target).unwrap();
    }
}

/// The hash that a run writes into its files.
fn checksum(text: &str) -> String {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(29);
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let hash = words.iter().fold(0xCBF2_9CE4_8422_2325, |hash, word| step(hash, u64::from_le_bytes(*word)));
    format!("{:016x}", rest.iter().fold(hash, |hash, byte| step(hash, u64::from(*byte))))
}

/// Changes a digit of a file and updates its checksum; None for a file without one.
fn sealed_again(path: &Path, text: &str, draws: &mut Random) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let digits = |text: &str| -> Vec<usize> {
        text.bytes().enumerate().filter(|(_, b)| b.is_ascii_digit()).map(|(i, _)| i).collect()
    };
    let changed = |text: &str, draws: &mut Random| {
        let at = digits(text);
        let at = at[draws.below(at.len())];
        let digit = char::from(b'0' + (text.as_bytes()[at] - b'0' + 1 + draws.below(8) as u8) % 10);
        format!("{}{digit}{}", &text[..at], &text[at + 1..])
    };
    match name {
        "config.toml" => {
            let (body, _) = text.rsplit_once("\nchecksum = ")?;
            let (settings, wrote) = body.split_once("\n[versions]")?;
            let body = format!("{}\n[versions]{wrote}", changed(settings, draws));
            Some(format!("{body}\nchecksum = \"{}\"\n", checksum(&body)))
        }
        "summary.json" => {
            let (body, _) = text.rsplit_once("\"checksum\"")?;
            let (numbers, process) = body.split_once("\"seconds\"")?;
            let bare = format!("{}\"seconds\"{process}\"checksum\": \"\"\n}}", changed(numbers, draws));
            // In file order, which a map does not keep.
            let compact = compact(&bare);
            let seal = checksum(&compact);
            Some(bare.replace("\"checksum\": \"\"", &format!("\"checksum\": \"{seal}\"")))
        }
        _ => None,
    }
}

/// JSON without whitespace between tokens.
fn compact(text: &str) -> String {
    let (mut out, mut is_quoted, mut is_escaped) = (String::new(), false, false);
    for c in text.chars() {
        if is_quoted || !c.is_whitespace() {
            out.push(c);
        }
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
    }
    out
}

/// Damages a file; false if that is not possible.
fn damage(path: &Path, kind: &str, other: &Path, draws: &mut Random) -> bool {
    let bytes = std::fs::read(path).unwrap();
    let text = String::from_utf8(bytes.clone()).ok();
    let changed = match (kind, text) {
        _ if bytes.is_empty() => return false,
        ("bit", _) => {
            let mut bytes = bytes.clone();
            let at = draws.below(bytes.len());
            bytes[at] ^= 1 << draws.below(8);
            bytes
        }
        ("digit", Some(text)) => {
            let at: Vec<usize> = text.bytes().enumerate().filter(|(_, b)| b.is_ascii_digit()).map(|(i, _)| i).collect();
            if at.is_empty() {
                return false;
            }
            let mut bytes = bytes.clone();
            let at = at[draws.below(at.len())];
            bytes[at] = b'0' + (bytes[at] - b'0' + 1 + draws.below(8) as u8) % 10;
            bytes
        }
        ("cut", _) => bytes[..draws.below(bytes.len())].to_vec(),
        ("emptied", _) => Vec::new(),
        ("doubled", _) => bytes.repeat(2),
        ("removed", _) => {
            std::fs::remove_file(path).unwrap();
            return true;
        }
        ("lines swapped", Some(text)) if text.lines().count() > 2 => {
            let mut lines: Vec<&str> = text.lines().collect();
            let at = draws.below(lines.len() - 1);
            lines.swap(at, at + 1);
            (lines.join("\n") + "\n").into_bytes()
        }
        ("of another run", _) if other.exists() => std::fs::read(other).unwrap(),
        ("sealed again", Some(text)) => match sealed_again(path, &text, draws) {
            Some(text) => text.into_bytes(),
            None => return false,
        },
        _ => return false,
    };
    let is_other = changed != bytes;
    std::fs::write(path, changed).unwrap();
    is_other
}

/// A folder, and the command that resumes it.
struct Case {
    name: &'static str,
    arguments: Vec<String>,
    /// The results of an uninterrupted command.
    unbroken: BTreeMap<PathBuf, Vec<u8>>,
}

/// Kills a command once `is_there` holds.
fn broken(place: &Place, arguments: &[&str], is_there: &dyn Fn() -> bool) {
    let mut command = place.command(arguments);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !is_there() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_micros(500));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn damage_is_refused_or_changes_no_number() {
    let place = place("damage");
    let wanted: usize = std::env::var("UNITGAIN_DAMAGES").map_or(60, |n| n.parse().unwrap());
    let checkpoints = |run: &str| std::fs::read_dir(place.0.join(run).join("checkpoints")).map_or(0, Iterator::count);
    // An interrupted run, an interrupted sweep, and a completed sweep and comparison.
    place.good(&["train", "run.toml", "--out", "whole"]);
    let run = ["train", "run.toml", "--out", "run"];
    broken(&place, &run, &|| checkpoints("run") >= 2);
    place.good(&["sweep", "sweep.toml", "--out", "swept"]);
    copy(&place.0.join("swept"), &place.0.join("partly"));
    std::fs::remove_dir_all(place.0.join("partly/runs/width=8,lr=0.01")).unwrap();
    let last = place.0.join("partly/runs/width=8,lr=0.001");
    std::fs::remove_file(last.join("checkpoints/step_00000060.safetensors")).unwrap();
    std::fs::remove_file(last.join("summary.json")).unwrap();
    let compare = ["compare", "run.toml", "other.toml", "--seeds", "2", "--out"];
    place.good(&[&compare[..], &["compared"]].concat());
    // A run whose files are mixed into another's folder.
    place.good(&["train", "run.toml", "--seed", "5", "--out", "foreign"]);
    let own = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let cases = [
        Case { name: "run", arguments: own(&["train", "--resume"]), unbroken: numbers(&place, "whole") },
        Case { name: "partly", arguments: own(&["sweep", "sweep.toml", "--out"]), unbroken: numbers(&place, "swept") },
        Case { name: "swept", arguments: own(&["sweep", "sweep.toml", "--out"]), unbroken: numbers(&place, "swept") },
        Case { name: "compared", arguments: own(&compare), unbroken: numbers(&place, "compared") },
    ];
    let mut draws = Random(wanted as u64);
    let mut outcomes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let (mut done, mut tries) = (0, 0);
    while done < wanted {
        tries += 1;
        assert!(tries < 100 * wanted, "the damages do not damage");
        let case = &cases[draws.below(cases.len())];
        let at = place.0.join("damaged");
        let _ = std::fs::remove_dir_all(&at);
        copy(&place.0.join(case.name), &at);
        let all = files(&at);
        let file = &all[draws.below(all.len())];
        let kind = DAMAGES[draws.below(DAMAGES.len())];
        let name = file.file_name().unwrap().to_str().unwrap();
        let other = match name.ends_with(".safetensors") {
            true => place.0.join("foreign/checkpoints/step_00000060.safetensors"),
            false => place.0.join("foreign").join(name),
        };
        if !damage(file, kind, &other, &mut draws) {
            continue;
        }
        done += 1;
        let what = format!("{}: {kind}: {}", case.name, file.strip_prefix(&at).unwrap().display());
        let arguments: Vec<&str> = case.arguments.iter().map(String::as_str).chain(["damaged"]).collect();
        let output = place.command(&arguments).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "{what}: {said}");
        let outcome = match output.status.code() {
            Some(2) => {
                assert!(said.contains("error: ") && said.lines().count() <= 20, "{what}: {said}");
                "refused"
            }
            Some(0) => {
                let found = numbers(&place, "damaged");
                let differing: Vec<_> =
                    case.unbroken.iter().filter(|(key, bytes)| found.get(*key) != Some(bytes)).collect();
                let differing: Vec<&PathBuf> = differing.into_iter().map(|(key, _)| key).collect();
                // A damaged checkpoint that was not needed is refused when it is read.
                let relative = file.strip_prefix(&at).unwrap();
                let is_unread = name.ends_with(".safetensors") && differing == [relative];
                let is_newest = name == "step_00000060.safetensors";
                if is_unread && file.exists() && (kind != "of another run" || is_newest) {
                    let run = file.parent().unwrap().parent().unwrap();
                    let probed = if is_newest { run } else { file.as_path() };
                    assert!(place.bad(&["probe", probed.to_str().unwrap()]).contains("checkpoint"), "{what}");
                }
                // A resumed run may change what it writes, and says so.
                let is_told =
                    said.contains("other settings than those of its checkpoint") || said.contains("last digits");
                assert!(
                    differing.is_empty() || is_unread || is_told,
                    "{what}: nothing is said, and {differing:?} differ"
                );
                if is_told { "warned" } else { "no number changed" }
            }
            code => panic!("{what}: exit code {code:?}: {said}"),
        };
        *outcomes.entry((kind, outcome)).or_default() += 1;
    }
    println!("{done} damages: {outcomes:?}");
    for outcome in ["refused", "no number changed"] {
        assert!(outcomes.keys().any(|(_, other)| *other == outcome), "{outcomes:?}");
    }
}
