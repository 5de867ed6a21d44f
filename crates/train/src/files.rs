//! Files that are either as they were or complete.

use crate::Error;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

const TEMPORARY: &str = ".partial";
/// Held by the process that trains in a folder.
pub(crate) const LOCK: &str = ".lock";

/// Writes beside `path`, flushes to the disk, and renames: a reader, a crash or a full disk sees the
/// old file or the new one, never a part.
pub(crate) fn write_atomically(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let temporary = temporary(path);
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|source| {
        // The error that counts is the first one.
        let _ = fs::remove_file(&temporary);
        Error::Io { action: "write", path: path.to_path_buf(), source }
    })
}

/// Removes what a killed process left of its unfinished writes in `folder`.
pub(crate) fn remove_partial(folder: &Path) -> Result<(), Error> {
    let entries = fs::read_dir(folder).map_err(Error::io("read", folder))?;
    for entry in entries {
        let path = entry.map_err(Error::io("read", folder))?.path();
        if path.to_string_lossy().ends_with(TEMPORARY) {
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Where a [`hash`] starts.
pub(crate) const HASH_START: u64 = 0xCBF2_9CE4_8422_2325;

/// Goes on with a hash: FNV-1a over words of eight bytes. It finds damage, not malice.
pub(crate) fn hash(start: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(29);
    let hash = words.iter().fold(start, |hash, word| step(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, byte| step(hash, u64::from(*byte)))
}

/// Takes a folder for this process until the file is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(LOCK);
    let file = File::create(&path).map_err(Error::io("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Folder {
            path: folder.to_path_buf(),
            problem: "another process is training in it; wait for it, or use --out for another folder".into(),
        }),
        // A file system without locks is no reason not to train.
        Err(TryLockError::Error(_)) => Ok(file),
    }
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(TEMPORARY);
    name.into()
}
