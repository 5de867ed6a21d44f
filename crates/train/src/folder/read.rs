//! Reading whole files: regular files only, and bounded in size.

use crate::{Error, device::memory};
use std::fs::{self, File, FileType};
use std::io::{self, Read};
use std::path::Path;

/// Maximum size in bytes of a hand-written file: a configuration, a sweep, a comparison.
pub const MOST_WRITTEN: u64 = 512 << 10;

/// The bytes of a file, `most` at most.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, is not a regular file, or is longer.
pub fn bytes(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    all(path, most).map_err(Error::io("read", path))
}

/// As [`bytes`], for UTF-8 text.
///
/// # Errors
/// As [`bytes`], and if it is not UTF-8.
pub fn text(path: &Path, most: u64) -> Result<String, Error> {
    String::from_utf8(bytes(path, most)?).map_err(|e| Error::io("read", path)(not_text(e)))
}

/// As [`bytes`], with the error of the system.
///
/// # Errors
/// As [`bytes`].
pub(crate) fn all(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, length) = open(path, most)?;
    let mut bytes = Vec::new();
    // A sparse file can claim any length, more than there is memory.
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX)).map_err(|_| {
        io::Error::new(io::ErrorKind::OutOfMemory, format!("there is no memory for its {length} bytes"))
    })?;
    // A file may grow while it is read, and files of the kernel have length 0.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        Err(io::Error::new(io::ErrorKind::FileTooLarge, more_than(most)))
    } else {
        Ok(bytes)
    }
}

fn more_than(most: u64) -> String {
    format!("it has more than {most} bytes, although it reported fewer")
}

/// The bytes of a file of any length, if `bytes_each` times its length fits into the free memory.
///
/// # Errors
/// The error of the system; and if it is not a regular file, or too long for the memory.
pub(crate) fn fitting(path: &Path, bytes_each: f64) -> io::Result<Vec<u8>> {
    let (_, length) = open(path, u64::MAX)?;
    memory::check(bytes_each * length as f64).map_err(|problem| io::Error::new(io::ErrorKind::OutOfMemory, problem))?;
    all(path, length)
}

/// As [`fitting`], for UTF-8 text.
///
/// # Errors
/// As [`fitting`], and if it is not UTF-8.
pub(crate) fn fitting_text(path: &Path, bytes_each: f64) -> io::Result<String> {
    String::from_utf8(fitting(path, bytes_each)?).map_err(not_text)
}

fn not_text(e: std::string::FromUtf8Error) -> io::Error {
    let problem = format!("it is not valid UTF-8 at byte {}", e.utf8_error().valid_up_to());
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// Opens a file of at most `most` bytes; also returns its length.
///
/// # Errors
/// The error of the system; and if it is not a regular file, or longer.
pub fn open(path: &Path, most: u64) -> io::Result<(File, u64)> {
    // Before opening: opening a pipe blocks until it has a writer, and opening a device may have any effect.
    check(&fs::metadata(path)?, most)?;
    let file = File::open(path)?;
    let length = check(&file.metadata()?, most)?;
    Ok((file, length))
}

fn check(of: &fs::Metadata, most: u64) -> io::Result<u64> {
    if !of.is_file() {
        let problem = format!("it is {}, not a file", name(of.file_type()));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    if of.len() > most { Err(too_long(of.len(), most)) } else { Ok(of.len()) }
}

fn too_long(length: u64, most: u64) -> io::Error {
    let problem = format!("it has {length} bytes, and a file of its kind has at most {most}");
    io::Error::new(io::ErrorKind::FileTooLarge, problem)
}

/// Name of a type of file that is not a regular file.
fn name(of: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let others = [(of.is_fifo(), "a pipe"), (of.is_socket(), "a socket")];
        if let Some((_, name)) = others.into_iter().find(|(is, _)| *is) {
            return name;
        }
    }
    if of.is_dir() { "a folder" } else { "a device" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_is_read_and_only_up_to_its_bound() {
        let folder = std::env::temp_dir().join(format!("unitgain-read-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a");
        fs::write(&path, "abcd").unwrap();
        assert_eq!(text(&path, 4).unwrap(), "abcd");
        let problem = |path: &Path, most| bytes(path, most).unwrap_err().to_string();
        assert!(problem(&path, 3).ends_with("/a: it has 4 bytes, and a file of its kind has at most 3"));
        assert!(problem(&folder, 3).ends_with("it is a folder, not a file"));
        fs::write(&path, b"ab\xff").unwrap();
        assert!(text(&path, 4).unwrap_err().to_string().ends_with("it is not valid UTF-8 at byte 2"));
        assert_eq!(all(&folder.join("b"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        // A sparse file, longer than any disk.
        File::create(&path).unwrap().set_len(100 << 30).unwrap();
        assert!(problem(&path, MOST_WRITTEN).contains("at most 524288"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_made_up_as_it_is_read_is_bounded() {
        assert!(bytes(Path::new("/dev/zero"), 9).unwrap_err().to_string().ends_with("it is a device, not a file"));
        let status = Path::new("/proc/self/status");
        assert!(text(status, 1 << 16).unwrap().starts_with("Name:"));
        assert!(text(status, 9).unwrap_err().to_string().contains("more than 9 bytes"));
        // Opening a pipe without a writer would block.
        let pipe = std::env::temp_dir().join(format!("unitgain-pipe-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let said = text(&pipe, 9).unwrap_err().to_string();
        fs::remove_file(&pipe).unwrap();
        assert!(said.ends_with("it is a pipe, not a file"), "{said}");
    }
}
