//! One file per command.

mod bench;
mod compare;
mod config;
mod configs;
mod coord_check;
mod devices;
mod generate;
mod overrides;
mod params;
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

/// What the command ends with, beside success.
pub(crate) enum Outcome {
    Success,
    /// A run diverged or a check failed: the command did its work, and the answer is no.
    Negative,
    /// A signal stopped it, and it can go on.
    Interrupted(Stop),
}

#[derive(Parser)]
#[command(
    name = "unitgain",
    version,
    about = "Train Transformers whose norm placement, residual scaling, init and parametrization are one value each",
    after_help = "Exit codes: 0 success, 1 a run diverged or a check failed, 2 wrong input or a failing machine,\n\
                  130 and 143 stopped by Ctrl-C or SIGTERM, after a checkpoint to go on from.\n\
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

pub(crate) fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("UNITGAIN_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Quiet).without_time().with_target(false).init();
    let result = match Cli::parse().command {
        Command::Train(args) => args.run(),
        Command::Params(args) => args.run(),
        Command::Generate(args) => args.run(),
        Command::Configs(args) => args.run(),
        Command::Config(args) => args.run(),
        Command::Probe(args) => args.run(),
        Command::CoordCheck(args) => args.run(),
        Command::Sweep(args) => args.run(),
        Command::Compare(args) => args.run(),
        Command::Sanity(args) => args.run(),
        Command::Bench(args) => args.run(),
        Command::Replay(args) => args.run(),
        Command::Devices(args) => args.run(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "unitgain", &mut script);
            std::io::stdout().write_all(&script).map(|()| Outcome::Success).map_err(Into::into)
        }
    };
    match result {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Negative) => ExitCode::from(1),
        Ok(Outcome::Interrupted(stop)) => stop.exit_code(),
        // A reader that closed the pipe has what it wanted.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "error: {e}");
            ExitCode::from(2)
        }
    }
}

/// Standard error, where a message that nobody can read is no reason to stop.
struct Quiet;

impl Write for Quiet {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        let _ = progress::aside(|| std::io::stderr().write_all(text));
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
