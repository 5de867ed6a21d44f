//! File writes that are atomic, also under a power loss.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Suffix of a file that is being written.
const TEMPORARY: &str = ".partial";
/// Lock file of the process that trains in a folder.
pub const LOCK: &str = ".lock";

/// Writes a temporary file next to `path`, syncs it, and renames it: after a crash, a power loss or a full disk `path`
/// holds the old contents or the new ones, never a part.
pub fn write_atomically(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let temporary = temporary(path);
    let written = create_anew(&temporary)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| sync_folder_of(path));
    written.map_err(|source| {
        // Report the first error.
        let _ = fs::remove_file(&temporary);
        Error::Io { action: "write", path: path.to_path_buf(), source }
    })
}

/// Creates a new file. An existing one of this name is removed; a link is not followed.
pub(crate) fn create_anew(path: &Path) -> io::Result<File> {
    let create = || OpenOptions::new().append(true).create_new(true).open(path);
    match create() {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => fs::remove_file(path).and_then(|()| create()),
        result => result,
    }
}

/// Opens or creates this file for appending. A link is refused.
pub fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    let refuse = |problem: &str| Err(io::Error::new(ErrorKind::InvalidInput, problem));
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => {
            refuse("it is a symbolic link, which is not followed; put a file in its place")
        }
        Ok(there) if !there.is_file() => refuse("it is not a file; remove it"),
        Ok(_) | Err(_) => options.open(path),
    }
}

/// Creates a folder and syncs its parent.
pub fn create_folder(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path).and_then(|()| sync_folder_of(path)).map_err(Error::io("create", path))
}

/// Syncs the folder of `path`: without that, a power loss can undo a rename.
#[cfg(unix)]
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some file systems cannot sync a folder, and some folders are writable but not readable.
        Err(e)
            if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Not possible on this system.
#[cfg(not(unix))]
pub(crate) fn sync_folder_of(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The name of the file whose temporary file has this name; None for other files.
pub fn unfinished(name: &str) -> Option<&str> {
    name.strip_suffix(TEMPORARY)
}

/// Removes from `folder` the temporary files of a killed process, for the file names that `is_own` accepts.
pub fn remove_unfinished(folder: &Path, is_own: impl Fn(&str) -> bool) -> Result<(), Error> {
    let entries = fs::read_dir(folder).map_err(Error::io("read", folder))?;
    for entry in entries {
        let entry = entry.map_err(Error::io("read", folder))?;
        if unfinished(&entry.file_name().to_string_lossy()).is_some_and(&is_own) {
            fs::remove_file(entry.path()).map_err(Error::io("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// Start value of [`hash`].
pub const HASH_START: u64 = 0xCBF2_9CE4_8422_2325;

/// Continues a hash (FNV-1a over words of eight bytes). It detects damage, not tampering.
pub fn hash(start: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(29);
    let hash = words.iter().fold(start, |hash, word| step(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, byte| step(hash, u64::from(*byte)))
}

/// Hash of a text, as written into files.
pub(crate) fn checksum(text: &str) -> String {
    format!("{:016x}", hash(HASH_START, text.as_bytes()))
}

/// Number and hash of the lines of a file, to recognize them later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Number of lines.
    pub lines: usize,
    /// Hash of the concatenated lines.
    pub hash: u64,
}

impl Default for Digest {
    /// The digest of no lines.
    fn default() -> Self {
        Self { lines: 0, hash: HASH_START }
    }
}

impl Digest {
    /// The digest after one more line, which includes its line break.
    pub(crate) fn with(self, line: &str) -> Self {
        Self { lines: self.lines + 1, hash: hash(self.hash, line.as_bytes()) }
    }

    /// The digest of the lines of a text.
    pub(crate) fn of(text: &str) -> Self {
        text.split_inclusive('\n').fold(Self::default(), Self::with)
    }
}

/// How long to wait for a lock whose owner may be about to exit.
const LEAVING: Duration = Duration::from_secs(1);

/// Locks a folder for this process until the file is dropped.
pub fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(LOCK);
    let started = Instant::now();
    loop {
        let file = open_own(&path).map_err(Error::io("open", &path))?;
        match file.try_lock() {
            // The lock is worthless if another process has removed the file meanwhile.
            Ok(()) if !is_at(&file, &path) => {}
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if started.elapsed() < LEAVING => std::thread::sleep(LEAVING / 50),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Folder {
                    path: folder.to_path_buf(),
                    problem: "another process is training in it; wait for it, or use --out for another folder".into(),
                });
            }
            // Train without a lock where the file system has none.
            Err(TryLockError::Error(e)) => {
                tracing::warn!("{} cannot be locked, so other processes could train in it too: {e}", path.display());
                return Ok(file);
            }
        }
    }
}

/// Whether `path` names this open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata().map(id), fs::symlink_metadata(path).map(id)), (Ok(a), Ok(b)) if a == b)
}

/// An open file cannot be removed on this system.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(TEMPORARY);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn no_link_is_followed_and_nothing_behind_one_changes() {
        use std::os::unix::fs::symlink;
        let folder = std::env::temp_dir().join(format!("unitgain-files-links-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (precious, path) = (folder.join("precious"), folder.join("file"));
        fs::write(&precious, "mine").unwrap();
        for link in [LOCK, "file", "file.partial"] {
            let _ = symlink(&precious, folder.join(link));
        }
        assert!(lock(&folder).unwrap_err().to_string().contains("symbolic link"));
        assert!(open_own(&path).unwrap_err().to_string().contains("symbolic link"));
        write_atomically(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
        assert!(!folder.join("file.partial").exists());
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_lock_that_was_removed_is_taken_anew() {
        let folder = std::env::temp_dir().join(format!("unitgain-files-lock-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let first = lock(&folder).unwrap();
        assert!(lock(&folder).is_err());
        fs::remove_file(folder.join(LOCK)).unwrap();
        let second = lock(&folder).unwrap();
        #[cfg(unix)]
        assert!(!is_at(&first, &folder.join(LOCK)) && is_at(&second, &folder.join(LOCK)));
        assert!(lock(&folder).is_err());
        drop((first, second));
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_digest_is_that_of_its_lines() {
        assert_eq!(Digest::of("a\nbc\nd"), Digest::default().with("a\n").with("bc\n").with("d"));
        for other in ["a\nbc\ne", "a\nbc\n", "", "bc\na\nd", "a\nbc\nd\n"] {
            assert_ne!(Digest::of("a\nbc\nd"), Digest::of(other));
        }
    }
}
