use super::overrides::Overrides;
use super::progress::Count;
use super::{Outcome, printable, table};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use unitgain_study::bench::{self, Effort};

/// Measure the training speed of configurations, and compare it with the speed of the machine
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain bench configs/pre_norm.toml\n  \
    unitgain bench configs/pre_norm.toml configs/post_norm.toml --rounds 5 --json")]
pub(crate) struct Args {
    /// TOML files of runs; several are measured in turns
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    /// Steps per configuration and round
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Number of rounds; in each, all configurations run in turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Warm-up steps per configuration
    #[arg(long, default_value_t = 3)]
    warmup: u32,
    /// Print JSON (an object)
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let mut configs = Vec::new();
        for path in &self.configs {
            let config = self.overrides.load(path)?;
            self.overrides.self_test(&config.backend)?;
            configs.push((path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), config));
        }
        let threads = bench::threads(&configs)?;
        let effort = Effort { warmup: self.warmup as usize, steps: self.steps as usize, rounds: self.rounds as usize };
        let rounds = (effort.rounds * configs.len()) as u64;
        let count = Count::new(rounds, "round");
        let (measured, machine) = bench::run(&configs, effort, &mut || count.inc())?;
        count.finish();
        let mut out = printable::out();
        if self.json {
            let report = json!({ "configurations": measured, "machine": machine, "threads": threads });
            writeln!(printable::raw(), "{}", serde_json::to_string_pretty(&report)?)?;
            return Ok(Outcome::Success);
        }
        let header = [
            "configuration",
            "tokens/s",
            "ms/step",
            "quartiles",
            "forward",
            "backward",
            "optimizer",
            "logging",
            "of peak",
            "replicas",
            "page faults",
            "memory",
        ];
        let rows: Vec<Vec<String>> = measured
            .iter()
            .map(|m| {
                vec![
                    m.name.clone(),
                    format!("{:.0}", m.tokens_per_second()),
                    format!("{:.2}", m.ms),
                    format!("{:.2} {:.2}", m.quartiles[0], m.quartiles[1]),
                    format!("{:.2}", m.forward),
                    format!("{:.2}", m.backward),
                    format!("{:.2}", m.optimizer),
                    format!("{:.2}", m.logging),
                    format!("{:.0} %", m.utilization * 100.0),
                    m.replicas.to_string(),
                    m.page_faults.map_or("unknown".into(), |n| format!("{n:.0}")),
                    m.peak_memory.map_or("unknown".into(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6)),
                ]
            })
            .collect();
        table::print(&header, &rows, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])?;
        writeln!(
            out,
            "\nthe machine, with {} threads: matrix product {:.0} GFLOP/s, copy {:.1} GB/s",
            threads,
            machine.product / 1e9,
            machine.copy / 1e9
        )?;
        for (name, ms, part) in &machine.norms {
            writeln!(
                out,
                "{name}, forward and backward on 8192 x 1024: {ms:.2} ms, {:.0} % of the copy",
                part * 100.0
            )?;
        }
        Ok(Outcome::Success)
    }
}
