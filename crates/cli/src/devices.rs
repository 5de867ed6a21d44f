use super::{Outcome, printable, table};
use serde::Serialize;
use std::io::Write;
use unitgain_train::device::{self, Found};

/// List the compiled backends and their devices
#[derive(clap::Args)]
#[command(after_help = "Example:\n  unitgain devices --json")]
pub(crate) struct Args {
    /// Print JSON (an array of objects)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    backend: &'static str,
    compiled: bool,
    #[serde(flatten)]
    found: Option<Found>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let mut rows = Vec::new();
        for (backend, compiled) in device::backends() {
            let row = |found, problem| Row { backend, compiled, found, problem };
            let found = match compiled {
                true => device::found(backend),
                false => Err(format!("build with --features {backend}")),
            };
            match found {
                Ok(found) => rows.extend(found.into_iter().map(|found| row(Some(found), None))),
                Err(problem) => rows.push(row(None, Some(problem))),
            }
        }
        if self.json {
            writeln!(printable::raw(), "{}", serde_json::to_string_pretty(&rows)?)?;
            return Ok(Outcome::Success);
        }
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let compiled = if row.compiled { "yes" } else { "no" };
                let mut cells = vec![row.backend.into(), compiled.into()];
                cells.extend(match &row.found {
                    Some(found) => {
                        let memory = found.memory.map(|bytes| format!("{:.1} GB", bytes as f64 / 1e9));
                        let memory = memory.unwrap_or_else(|| "unknown".into());
                        [found.name.clone(), found.target.clone(), memory, found.types.join(" ")]
                    }
                    None => [row.problem.clone().unwrap_or_default(), String::new(), String::new(), String::new()],
                });
                cells
            })
            .collect();
        table::print(&["backend", "compiled", "device", "target", "memory", "types"], &cells, &[4])?;
        Ok(Outcome::Success)
    }
}
