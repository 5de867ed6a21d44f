//! Files that are either as they were or complete.

use crate::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const TEMPORARY: &str = ".partial";

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

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(TEMPORARY);
    name.into()
}
