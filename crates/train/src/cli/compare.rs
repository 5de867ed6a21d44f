use super::runs::{Runs, View};
use super::{Outcome, table};
use std::io::Write;
use std::path::PathBuf;
use unitgain_train::compare::{Compared, Comparison, Report};

/// Train several configurations on the same batches, over the same seeds, and say how they differ
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  unitgain compare configs/pre_norm.toml configs/post_norm.toml --set train.steps=300\n  \
    unitgain compare configs/compare/*_24.toml --out runs/24 --plot 24.svg\n  \
    unitgain compare configs/compare/*_24.toml --out runs/24 --reach 1.5 --json\n\n\
    A comparison that was broken off goes on where it was when the command is given again."
)]
pub(crate) struct Args {
    /// TOML files of runs
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    /// Number of seeds, from that of the first file on
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Count the steps to this training loss [default: the largest final loss of those that finish]
    #[arg(long, value_name = "LOSS")]
    reach: Option<f64>,
    /// The folder of all runs
    #[arg(long, value_name = "DIR", default_value = "runs/compare")]
    out: PathBuf,
    #[command(flatten)]
    runs: Runs,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        if self.reach.is_some_and(|reach| !reach.is_finite()) {
            anyhow::bail!("--reach must be a number");
        }
        let comparison = Comparison::load(&self.configs, &self.runs.overrides.settings(), self.seeds)?;
        self.runs.check(comparison.jobs.iter())?;
        let mut view = View::new(comparison.jobs.len());
        let report = comparison.run(&self.runs.options(&self.out)?, self.reach, &mut |event| view.show(&event));
        view.finish();
        let report = report?;
        self.runs.tell(|| report.to_json(), || print(&report), || report.panels())?;
        Ok(Outcome::Success)
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let reach = report.reach.map_or("reach".into(), |reach| format!("steps to {reach:.4}"));
    let header = [
        "",
        "loss",
        "+-",
        "best",
        "above floor",
        reach.as_str(),
        "last/first block",
        "at the end",
        "largest gradient",
        "tokens/s",
        "diverged",
    ];
    let rows: Vec<Vec<String>> = report.configurations.iter().map(cells).collect();
    table::print(&header, &rows, &(1..header.len()).collect::<Vec<_>>())?;
    let (steps, tokens) = (report.steps.unwrap_or(0), report.tokens);
    let tokens = tokens.map_or(String::new(), |tokens| format!(", {tokens} tokens"));
    let floor = report.floor.map_or(String::new(), |floor| format!("; floor {floor:.4}"));
    writeln!(std::io::stdout(), "\nafter {steps} steps{tokens}, seeds {:?}{floor}", report.seeds)?;
    Ok(())
}

fn cells(of: &Compared) -> Vec<String> {
    let loss = |x: Option<f64>| x.filter(|x| x.is_finite()).map_or("-".into(), |x| format!("{x:.4}"));
    let number = |x: Option<f64>| x.map_or("-".into(), table::number);
    let seeds = of.runs.len();
    let some = if of.reached < seeds { format!(" ({} of {seeds})", of.reached) } else { String::new() };
    vec![
        of.name.clone(),
        loss(of.loss),
        loss(of.std),
        loss(of.best_loss),
        loss(of.excess),
        of.steps_to_reach.map_or("-".into(), |steps| format!("{steps:.0}{some}")),
        number(of.first_ratio),
        number(of.last_ratio),
        number(of.largest_grad_norm),
        of.tokens_per_second.map_or("-".into(), |speed| format!("{speed:.0}")),
        format!("{} of {seeds}", of.diverged),
    ]
}
