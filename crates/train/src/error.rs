use std::fmt::Display;
use std::path::{Path, PathBuf};
use unitgain_model::{Fault, ModelError};

/// What a user can do wrong, and what a machine can refuse. Each is one message that names the thing,
/// its value, what is allowed and how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value is not allowed, wherever it is written.
    #[error("{}: {}", .0.key, format!("{} {}", .0.value, .0.problem).trim_start())]
    Value(Fault),
    /// A key or the type of a value is not valid, in a configuration or a `--set`.
    #[error("{origin}: {key}: {problem}")]
    Config {
        /// The file, or `--set`.
        origin: String,
        /// The key, with its path.
        key: String,
        /// What is wrong, what is allowed, how to fix it.
        problem: String,
    },
    /// Several of these, in the order of the file.
    #[error("{} faults:\n{}", .0.len(), listed(.0))]
    Several(Vec<Self>),
    /// One of these about a value, with the place where it is written.
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
    /// A run of several failed.
    #[error("run {name} failed: {problem}")]
    Run {
        /// The run.
        name: String,
        /// What it said last.
        problem: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A run was asked to stop before it had begun.
    #[error("the run was asked to stop before its first step, and wrote nothing")]
    Stopped,
    /// What was asked of `generate` is not possible.
    #[error("generate: {0}")]
    Generate(String),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Value(fault)
    }
}

impl Error {
    /// For `map_err` on an operation on a file.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// A value that is not allowed; an empty one is not shown.
    pub fn value(key: &str, value: impl Display, problem: impl Into<String>) -> Self {
        Self::Value(Fault::new(key, value, problem))
    }

    /// An error of the configuration in a file, where it does not say so itself.
    pub fn of_file(path: &Path, error: Self) -> Self {
        let file = path.display().to_string();
        match error {
            error if error.to_string().contains(&file) => error,
            error => Self::At { place: file, error: Box::new(error) },
        }
    }

    /// One error of some, of which there is at least one.
    pub(crate) fn several(mut errors: Vec<Self>) -> Self {
        if errors.len() == 1 { errors.remove(0) } else { Self::Several(errors) }
    }
}

/// A line for each error, further in.
fn listed(errors: &[Error]) -> String {
    let all: Vec<String> = errors.iter().map(|e| format!("  {}", e.to_string().replace('\n', "\n  "))).collect();
    all.join("\n")
}
