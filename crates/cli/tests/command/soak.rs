//! The memory of a long run stays constant. Takes a minute or two: `cargo test --release --test command soak --
//! --ignored --nocapture`

use super::Place;
use std::process::Stdio;

/// Resident memory of a process, in KiB.
fn resident(id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[test]
#[ignore = "it takes a minute or two"]
fn the_memory_of_20000_steps_is_flat() {
    let place = Place::new("soak");
    for (name, every) in [("logged", 1), ("not logged", 1_000_000)] {
        let log = format!("log.every={every}");
        let settings = ["--set", &log, "--set", "train.steps=20000", "--set", "checkpoint.every=0", "--out", name];
        let arguments = [&["train", "small.toml", "--set", "eval.every=0"][..], &settings].concat();
        let mut child = place.command(&arguments).stdout(Stdio::null()).spawn().unwrap();
        let mut seen = Vec::new();
        while child.try_wait().unwrap().is_none() {
            seen.extend(resident(child.id()));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(child.wait().unwrap().success() && seen.len() > 1000, "{} samples", seen.len());
        // After a quarter the allocator has seen all sizes; at the end the records are read once.
        let mean = |samples: &[u64]| samples.iter().sum::<u64>() as f64 / samples.len() as f64;
        let at = |part: usize| part * seen.len() / 20;
        let (second, last) = (mean(&seen[at(5)..at(10)]), mean(&seen[at(14)..at(19)]));
        println!("{name}: {second:.0} KiB in the second quarter of {} samples, {last:.0} KiB in the last", seen.len());
        assert!(last <= 1.02 * second, "{name}: from {second} to {last} KiB");
    }
}
