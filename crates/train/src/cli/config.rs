use super::Outcome;
use super::overrides::Overrides;
use std::io::Write;
use std::path::PathBuf;

/// Look at a configuration
#[derive(clap::Args)]
#[command(after_help = "Example:\n  unitgain config show configs/pre_norm.toml --set model.placement=deep_norm")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Print it with every default written out, as it stands in the folder of a run
    #[command(after_help = "Examples:\n  unitgain config show configs/pre_norm.toml\n  \
        unitgain config show configs/pre_norm.toml --set optimizer.kind=lion > lion.toml")]
    Show {
        /// The run's TOML file
        config: PathBuf,
        #[command(flatten)]
        overrides: Overrides,
    },
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        match self.action {
            Action::Show { config, overrides } => {
                let (mut config, _) = overrides.load(&config)?.prepare()?;
                // That of a run is what wrote its numbers.
                config.versions = None;
                write!(std::io::stdout(), "{}", config.to_toml())?;
                Ok(Outcome::Success)
            }
        }
    }
}
