use super::Outcome;
use super::overrides::Overrides;
use super::printable::{self, is_printable};
use std::io::Write;
use std::path::PathBuf;
use toml::{Table, Value};

/// Inspect a configuration
#[derive(clap::Args)]
#[command(after_help = "Example:\n  unitgain config show configs/pre_norm.toml --set model.placement=deep_norm")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Print a configuration with every default written out, as in a run folder
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
                // These describe the program that wrote the file, not this one.
                config.versions = None;
                write!(printable::out(), "{}", escaped(&config.to_toml()))?;
                Ok(Outcome::Success)
            }
        }
    }
}

/// The same TOML, with characters that control a terminal escaped in TOML's syntax.
fn escaped(toml: &str) -> String {
    let line = |line: &str| match line.split_once('=') {
        Some((key, _)) if !line.chars().all(is_printable) => match toml::from_str::<Table>(line) {
            // TOML strings in single quotes have no escapes.
            Ok(table) => match table.get(key.trim()) {
                Some(Value::String(text)) => format!("{key}= {}", basic_string(text)),
                Some(_) | None => line.into(),
            },
            Err(_) => line.into(),
        },
        Some(_) | None => line.to_string(),
    };
    toml.lines().map(|text| line(text) + "\n").collect()
}

fn basic_string(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if is_printable(c) && !c.is_control() => c.into(),
        c => format!("\\U{:08X}", u32::from(c)),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_read_back() {
        for text in [
            "plain",
            "\x1b[31m",
            "a\u{202e}b",
            "it's \u{85} \"quoted\" \\ back",
            "two\nlines\r",
            "\u{7f}",
            "a = b\u{9b}",
        ] {
            let table = Table::from_iter([
                ("path".to_string(), Value::String(text.into())),
                ("seed".to_string(), Value::Integer(1)),
            ]);
            let shown = escaped(&toml::to_string(&table).unwrap());
            assert!(shown.chars().all(is_printable), "{shown:?}");
            assert_eq!(toml::from_str::<Table>(&shown).unwrap(), table, "{shown:?}");
        }
    }
}
