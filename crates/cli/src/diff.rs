use super::{Outcome, printable, table};
use std::io::Write;
use std::path::PathBuf;
use unitgain_study::diff::{self, RunDiff};

/// Find the first step at which two runs differ, and the configuration keys that differ
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain diff runs/pre_norm runs/again\n  \
    unitgain diff runs/pre_norm runs/post_norm --json\n\n\
    Exit codes: 0 nothing differs, 1 records or configurations differ, 2 a folder is not one of a run. Speeds, times and \
    memory are not compared.")]
pub(crate) struct Args {
    /// A run folder
    run_a: PathBuf,
    /// The run folder to compare with
    run_b: PathBuf,
    /// Print JSON (an object)
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let diff = diff::runs(&self.run_a, &self.run_b)?;
        match self.json {
            true => writeln!(printable::raw(), "{}", diff.to_json())?,
            false => print(&diff, [&self.run_a, &self.run_b].map(|run| run.display().to_string()))?,
        }
        Ok(if diff.is_equal() { Outcome::Success } else { Outcome::Negative })
    }
}

fn print(diff: &RunDiff, names: [String; 2]) -> anyhow::Result<()> {
    let mut out = printable::out();
    match &diff.first {
        None if diff.compared == 0 => writeln!(out, "no step has a record in both runs")?,
        None => writeln!(out, "the records of {} are equal", steps(diff.compared))?,
        Some(first) => {
            let [a, b] = first.values.map(|value| value.map_or("none".into(), |value| format!("{value}")));
            writeln!(out, "step {}: {} is {a} and {b}", first.step, first.metric)?;
            if first.metrics > 1 {
                writeln!(out, "{} metrics differ at this step", first.metrics)?;
            }
        }
    }
    for (name, more) in names.iter().zip(&diff.more) {
        if let Some(step) = more.from_step {
            let records = if more.records == 1 { "record" } else { "records" };
            writeln!(out, "{name} alone has {} {records} more, from step {step} on", more.records)?;
        }
    }
    if diff.configuration.is_empty() {
        writeln!(out, "the configurations are equal")?;
        return Ok(());
    }
    writeln!(out)?;
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
    let rows: Vec<Vec<String>> = diff
        .configuration
        .iter()
        .map(|difference| [vec![difference.key.clone()], difference.values.iter().map(shown).collect()].concat())
        .collect();
    Ok(table::print(&["key", &names[0], &names[1]], &rows, &[])?)
}

fn steps(n: usize) -> String {
    if n == 1 { "1 step".into() } else { format!("{n} steps") }
}
