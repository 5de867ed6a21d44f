//! The `unitgain` command, with one file per subcommand.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "mimalloc")]
mod allocator;
mod bench;
mod compare;
mod config;
mod configs;
mod coord_check;
mod devices;
mod diff;
mod generate;
mod overrides;
mod params;
mod printable;
mod probe;
mod progress;
mod replay;
mod runs;
mod sanity;
mod stop;
mod sweep;
mod table;
mod train;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;
use stop::Stop;
use tracing_subscriber::EnvFilter;

/// The outcome of a command.
pub(crate) enum Outcome {
    Success,
    /// The command worked, and the answer is no: a run diverged, or a check failed.
    Negative,
    /// Stopped by a signal, and resumable.
    Interrupted(Stop),
}

#[derive(Parser)]
#[command(
    name = "unitgain",
    version,
    about = "Train Transformers whose norm placement, residual scaling, init and parametrization are one value each",
    after_help = "Exit codes: 0 success, 1 a run diverged or a check failed, 2 wrong input or a failing machine,\n\
                  129, 130 and 143 stopped by SIGHUP, Ctrl-C or SIGTERM, after a checkpoint to resume from.\n\
                  Set UNITGAIN_LOG=debug for more messages."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(train::Args),
    Params(params::Args),
    Generate(generate::Args),
    Configs(configs::Args),
    Config(config::Args),
    Probe(probe::Args),
    CoordCheck(coord_check::Args),
    Sweep(sweep::Args),
    Compare(compare::Args),
    Diff(diff::Args),
    Sanity(sanity::Args),
    Bench(bench::Args),
    Replay(replay::Args),
    Devices(devices::Args),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  unitgain completions bash > /etc/bash_completion.d/unitgain")]
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether the command computes in this process and needs its thread pool.
    fn computes(&self) -> bool {
        match self {
            Self::Train(_)
            | Self::Params(_)
            | Self::Generate(_)
            | Self::Probe(_)
            | Self::CoordCheck(_)
            | Self::Sanity(_)
            | Self::Bench(_)
            | Self::Replay(_) => true,
            Self::Configs(_)
            | Self::Config(_)
            | Self::Sweep(_)
            | Self::Compare(_)
            | Self::Diff(_)
            | Self::Devices(_)
            | Self::Completions { .. } => false,
        }
    }

    fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Train(args) => args.run(),
            Self::Params(args) => args.run(),
            Self::Generate(args) => args.run(),
            Self::Configs(args) => args.run(),
            Self::Config(args) => args.run(),
            Self::Probe(args) => args.run(),
            Self::CoordCheck(args) => args.run(),
            Self::Sweep(args) => args.run(),
            Self::Compare(args) => args.run(),
            Self::Diff(args) => args.run(),
            Self::Sanity(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Replay(args) => args.run(),
            Self::Devices(args) => args.run(),
            Self::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "unitgain", &mut script);
                printable::raw().write_all(&script).map(|()| Outcome::Success).map_err(Into::into)
            }
        }
    }
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("UNITGAIN_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Quiet).without_time().with_target(false).init();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() => {
            let _ = writeln!(printable::err(), "{}", printable::message(&e.render().to_string()));
            return ExitCode::from(2);
        }
        // Help and version are printed this way.
        Err(e) => return e.print().map_or(ExitCode::from(2), |()| ExitCode::SUCCESS),
    };
    let command = cli.command;
    #[cfg(feature = "mimalloc")]
    if matches!(command, Command::Train(_) | Command::Bench(_)) {
        allocator::keep_memory();
    }
    let started = if command.computes() { unitgain_train::device::threads().map(|_| ()) } else { Ok(()) };
    let result = started.map_err(anyhow::Error::from).and_then(|()| command.run());
    if let Some(bytes) = unitgain_train::folder::metrics::peak_memory() {
        tracing::debug!("the largest memory of this process was {bytes} bytes");
    }
    match result {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Negative) => ExitCode::from(1),
        Ok(Outcome::Interrupted(stop)) => stop.exit_code(),
        // A reader may close the pipe early.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(printable::err(), "{}", printable::message(&format!("error: {e}")));
            ExitCode::from(2)
        }
    }
}

/// Standard error, ignoring failed writes.
struct Quiet;

impl Write for Quiet {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        let shown = printable::logged(&String::from_utf8_lossy(text));
        let _ = progress::aside(|| writeln!(printable::err(), "{shown}"));
        Ok(text.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe))
}
