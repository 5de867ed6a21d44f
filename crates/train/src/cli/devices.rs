use super::{Outcome, table};
use serde::Serialize;
use std::io::Write;
use unitgain_train::device;

/// List the backends that are compiled in and the devices that they find
#[derive(clap::Args)]
#[command(after_help = "Example:\n  unitgain devices --json")]
pub(crate) struct Args {
    /// Print an array of objects
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    backend: &'static str,
    compiled: bool,
    device: String,
    types: Vec<&'static str>,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let mut rows = Vec::new();
        for (backend, compiled) in device::backends() {
            let row = |device: String, types| Row { backend, compiled, device, types };
            if !compiled {
                rows.push(row(format!("build with --features {backend}"), Vec::new()));
                continue;
            }
            match device::found(backend) {
                Ok(found) => rows.extend(found.into_iter().map(|(name, types)| row(name, types))),
                Err(problem) => rows.push(row(problem, Vec::new())),
            }
        }
        let mut out = std::io::stdout();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
            return Ok(Outcome::Success);
        }
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let compiled = if row.compiled { "yes" } else { "no" };
                vec![row.backend.into(), compiled.into(), row.device.clone(), row.types.join(" ")]
            })
            .collect();
        table::print(&["backend", "compiled", "device", "types"], &cells, &[])?;
        Ok(Outcome::Success)
    }
}
