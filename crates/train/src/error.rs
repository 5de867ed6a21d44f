use std::fmt::Display;
use std::path::{Path, PathBuf};
use unitgain_model::{Fault, ModelError};

/// User errors and refusals of the machine. Each message names the item, its value, what is allowed and how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value is not allowed.
    #[error("{}: {}", .0.key, format!("{} {}", .0.value, .0.problem).trim_start())]
    Value(Fault),
    /// A key, or the type of a value, is invalid in a configuration or a `--set`.
    #[error("{origin}: {key}: {problem}")]
    Config {
        /// The file, or `--set`.
        origin: String,
        /// The key, with its path.
        key: String,
        /// What is wrong, what is allowed, how to fix it.
        problem: String,
    },
    /// Several errors, in the order of the file.
    #[error("{} faults:\n{}", .0.len(), listed(.0))]
    Several(Vec<Self>),
    /// An error about a value, with the place where it was written.
    #[error("{place}: {error}")]
    At {
        /// The file with the line, or `--set`.
        place: String,
        /// What is wrong.
        error: Box<Self>,
    },
    /// The file is not TOML.
    #[error("{origin} is not valid TOML: {problem}")]
    Syntax {
        /// The file.
        origin: String,
        /// The parser's message, with line and column.
        problem: String,
    },
    /// The model's configuration is not valid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The data cannot be used.
    #[error("data: {0}")]
    Data(String),
    /// The backend cannot be used.
    #[error("backend = {name:?}: {problem}")]
    Device {
        /// The name that was given.
        name: String,
        /// What is wrong and how to fix it.
        problem: String,
    },
    /// A checkpoint cannot be used.
    #[error("checkpoint {}: {problem}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the tensors named.
        problem: String,
    },
    /// A run folder cannot be used.
    #[error("run folder {}: {problem}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong and how to fix it.
        problem: String,
    },
    /// One of several runs failed.
    #[error("run {name} failed: {problem}")]
    Run {
        /// The run.
        name: String,
        /// The last line of its error output.
        problem: String,
    },
    /// An operation on a file failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A run was asked to stop before it began.
    #[error("the run was asked to stop before its first step, and wrote nothing")]
    Stopped,
    /// A request to `generate` cannot be met.
    #[error("generate: {0}")]
    Generate(String),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Value(fault)
    }
}

impl Error {
    /// For `map_err` on file operations.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// An error about a value; an empty value is not shown.
    pub fn value(key: &str, value: impl Display, problem: impl Into<String>) -> Self {
        Self::Value(Fault::new(key, value, problem))
    }

    /// Adds the file to an error about a configuration, unless it names one.
    pub fn of_file(path: &Path, error: Self) -> Self {
        let file = path.display().to_string();
        match error {
            error if error.to_string().contains(&file) => error,
            error => Self::At { place: file, error: Box::new(error) },
        }
    }

    /// One error of several, of which there must be at least one.
    pub(crate) fn several(mut errors: Vec<Self>) -> Self {
        if errors.len() == 1 { errors.remove(0) } else { Self::Several(errors) }
    }
}

/// One indented line per error.
fn listed(errors: &[Error]) -> String {
    let all: Vec<String> = errors.iter().map(|e| format!("  {}", e.to_string().replace('\n', "\n  "))).collect();
    all.join("\n")
}
