use super::progress::Count;
use super::{Outcome, printable, table};
use serde::Serialize;
use std::io::Write;
use unitgain_study::sanity;
use unitgain_train::{Replicas, device, device::memory};

/// Check norms, placements, init and depth scaling against theory
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain sanity\n  unitgain sanity --seeds 3 --json")]
pub(crate) struct Args {
    /// Number of seeds; each check is on their mean
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// The compute backend
    #[arg(long, value_name = "NAME", default_value = "flex")]
    backend: String,
    /// Print JSON (an array of objects)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    check: &'a sanity::Check,
    mean: f64,
    std: f64,
    passed: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let device = device::from_name(&self.backend)?;
        let replicas = match device::is_host(&self.backend) {
            true => {
                let threads = device::threads()?.min(usize::try_from(self.seeds).unwrap_or(usize::MAX));
                memory::check(sanity::MEMORY * threads as f64).map_err(anyhow::Error::msg)?;
                // Without more threads the seeds come one after the other.
                Replicas::on_threads(threads, threads, &device).unwrap_or_default()
            }
            false => Replicas::one(),
        };
        let count = Count::new(self.seeds, "seed");
        let checks = sanity::run(self.seeds, sanity::Sizes::default(), &device, &replicas, &mut |_| count.inc());
        count.finish();
        let passed = checks.iter().filter(|check| check.passed()).count();
        let mut out = printable::out();
        if self.json {
            let rows: Vec<_> = checks
                .iter()
                .map(|check| Row { check, mean: check.mean(), std: check.std(), passed: check.passed() })
                .collect();
            writeln!(printable::raw(), "{}", serde_json::to_string_pretty(&rows)?)?;
        } else {
            let cells: Vec<Vec<String>> = checks.iter().map(cells).collect();
            let header = ["", "quantity", "expected", "measured", "+-", "least", "most", "verdict"];
            table::print(&header, &cells, &[3, 4, 5, 6])?;
            writeln!(out, "{passed} of {} hold, by the mean of {} seeds", checks.len(), self.seeds)?;
        }
        Ok(if passed == checks.len() { Outcome::Success } else { Outcome::Negative })
    }
}

fn cells(check: &sanity::Check) -> Vec<String> {
    let number = |x: f64| match x.abs() {
        x if x == 0.0 || (1e-2..1e4).contains(&x) => format!("{:.4}", x),
        _ => format!("{x:.1e}"),
    };
    let least = check.measured.iter().copied().fold(f64::INFINITY, f64::min);
    let most = check.measured.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    vec![
        format!("[{}]", &check.key[..1]),
        check.what.into(),
        check.expected.clone(),
        number(check.mean()),
        number(check.std()),
        number(least),
        number(most),
        if check.passed() { "holds".into() } else { "FAILS".into() },
    ]
}
