use super::runs::{Runs, View};
use super::{Outcome, printable, table};
use std::io::Write;
use std::path::{Path, PathBuf};
use unitgain_study::compare::{CompareReport, Compared, Comparison};

/// Train several configurations on the same batches, over the same seeds, and report their differences
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  unitgain compare configs/pre_norm.toml configs/post_norm.toml --set train.steps=300\n  \
    unitgain compare configs/compare/24_blocks.toml --out runs/24 --plot 24.svg\n  \
    unitgain compare configs/compare/24_blocks.toml --out runs/24 --reach 1.5 --json\n\n\
    An interrupted comparison resumes when the command is repeated."
)]
pub(crate) struct Args {
    /// TOML files of runs, or of comparisons: a run and its variants
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    /// Number of seeds, counting up from the first file's
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Count the steps to this training loss [default: the highest final loss of the configurations that learned]
    #[arg(long, value_name = "LOSS")]
    reach: Option<f64>,
    /// The folder for all runs [default: a folder in runs/compare, named after the configurations]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    runs: Runs,
    /// Exit with code 1 if a run diverged or did not learn
    #[arg(long)]
    check: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        if self.reach.is_some_and(|reach| !reach.is_finite()) {
            anyhow::bail!("--reach must be a number");
        }
        let comparison = Comparison::load(&self.configs, &self.runs.overrides.settings(), self.seeds)?;
        self.runs.check(comparison.jobs.iter())?;
        let out = self.out.clone().unwrap_or_else(|| Path::new("runs/compare").join(comparison.name()));
        for difference in comparison.differences.iter().filter(|difference| difference.is_confound()) {
            tracing::warn!(
                "{} differs too ({}), which no file sets: it follows from another key. Set it in all configurations \
                 to compare the other differences alone",
                difference.key,
                difference.values.join(", ")
            );
        }
        let mut view = View::new(comparison.jobs.len());
        let report = comparison
            .run(&self.runs.options(&out, comparison.jobs.iter())?, self.reach, &mut |event| view.show(&event));
        view.finish();
        let report = report?;
        if let Some(stop) = view.interrupted() {
            return Ok(Outcome::Interrupted(stop));
        }
        self.runs.tell(|| report.to_json(), || print(&report), || report.panels())?;
        self.runs.tell_where(&out, "compare")?;
        Ok(if self.check && !report.all_learned() { Outcome::Negative } else { Outcome::Success })
    }
}

fn print(report: &CompareReport) -> anyhow::Result<()> {
    let reach = report.reach.map_or("reach".into(), |reach| format!("steps to {reach:.4}"));
    let header = [
        "",
        "loss",
        "+-",
        "less the first's",
        "+- error",
        "best",
        "above floor",
        reach.as_str(),
        "last/first block",
        "at the end",
        "largest gradient",
        "tokens/s",
        "failed",
    ];
    let rows: Vec<Vec<String>> = report.configurations.iter().map(cells).collect();
    table::print(&header, &rows, &(1..header.len()).collect::<Vec<_>>())?;
    let (steps, tokens) = (report.steps.unwrap_or(0), report.tokens);
    let tokens = tokens.map_or(String::new(), |tokens| format!(", {tokens} tokens"));
    let floor = report.floor.map_or(String::new(), |floor| format!("; floor {floor:.4}"));
    let on = report.eval_tokens.map_or(String::new(), |n| format!("; losses of {n} held-out tokens"));
    let mut out = printable::out();
    writeln!(out, "\nafter {steps} steps{tokens}, seeds {:?}{on}{floor}", report.seeds)?;
    let keys = |follows| {
        let own = report.differs_in.iter().filter(|difference| difference.follows == follows);
        own.map(|difference| difference.key.as_str()).collect::<Vec<_>>().join(", ")
    };
    match (report.configurations.len(), keys(false), keys(true)) {
        (0 | 1, ..) => {}
        (_, asked, _) if asked.is_empty() => writeln!(out, "differs in: nothing; the configurations are the same")?,
        (_, asked, follow) if follow.is_empty() => writeln!(out, "differs in: {asked}")?,
        (_, asked, follow) => writeln!(out, "differs in: {asked}; and so in {follow}")?,
    }
    if let Some(unigram) = report.unigram_loss.filter(|_| report.configurations.iter().any(|c| c.did_not_learn > 0)) {
        writeln!(
            out,
            "did not learn: a run that ends no better than the frequencies of the symbols ({unigram:.4}), or than its start"
        )?;
    }
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
        of.difference.map_or("-".into(), |x| format!("{x:+.4}")),
        loss(of.difference_error),
        loss(of.best_loss),
        loss(of.excess),
        of.steps_to_reach.map_or("-".into(), |steps| format!("{steps:.0}{some}")),
        number(of.first_ratio),
        number(of.last_ratio),
        number(of.largest_grad_norm),
        of.tokens_per_second.map_or("-".into(), |speed| format!("{speed:.0}")),
        failed(of),
    ]
}

/// How many seeds failed, and how.
fn failed(of: &Compared) -> String {
    let seeds = of.runs.len();
    let parts = [(of.diverged, "diverged"), (of.did_not_learn, "did not learn")];
    let said: Vec<String> =
        parts.iter().filter(|(n, _)| *n > 0).map(|(n, how)| format!("{n} of {seeds} {how}")).collect();
    if said.is_empty() { format!("0 of {seeds}") } else { said.join(", ") }
}
