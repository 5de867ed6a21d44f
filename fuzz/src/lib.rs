//! What each fuzz target does with its bytes.

mod targets;

pub use targets::*;

use std::path::PathBuf;
use std::sync::OnceLock;

/// Runs a target in the folder of this process, which stays: where `TMPDIR` is in memory, so are its files.
pub fn run(target: Target, bytes: &[u8]) {
    static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
    let scratch = SCRATCH.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("unitgain-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for scratch files");
        path
    });
    let _ = target(bytes, scratch);
}
