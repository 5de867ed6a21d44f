use super::runs::{Runs, View};
use super::{Outcome, printable, table};
use std::io::Write;
use std::path::{Path, PathBuf};
use unitgain_study::sweep::{AtSize, Cell, Edge, Layout, Planned, Sweep, SweepReport, shortest};
use unitgain_train::folder::metrics::Status;

/// Train runs at all combinations of some values, and find the best learning rate and whether it shifts
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain sweep configs/sweeps/mup_small.toml\n  \
    unitgain sweep configs/sweeps/sp_small.toml --jobs 2 --out runs/sp --plot sp.svg\n  \
    unitgain sweep configs/sweeps/mup_width.toml --set train.steps=100 --check\n  \
    unitgain sweep configs/sweeps/mup_width.toml --dry-run\n\n\
    An interrupted sweep resumes when the command is repeated.")]
pub(crate) struct Args {
    /// The sweep's TOML file
    sweep: PathBuf,
    /// The folder for all runs [default: runs/NAME of the sweep's file]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    runs: Runs,
    /// Exit with code 1 unless every group's learning rate transfers
    #[arg(long)]
    check: bool,
    /// Print the runs and which of them exist, and train nothing
    #[arg(long)]
    dry_run: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let sweep = Sweep::load(&self.sweep, &self.runs.overrides.settings())?;
        let axes = &sweep.config.axes;
        if self.check && !Layout::of(axes).decides(axes) {
            anyhow::bail!(
                "--check needs an axis \"optimizer.lr\" and one of two or more numbers, as width = [64, 128]"
            );
        }
        let name = self.sweep.file_stem().unwrap_or_default();
        let out = self.out.clone().unwrap_or_else(|| Path::new("runs").join(name));
        if self.dry_run {
            self.runs.warn(sweep.plan.iter().map(|run| &run.job));
            return print_plan(&sweep, &out, self.runs.json).map(|()| Outcome::Success);
        }
        self.runs.check(sweep.plan.iter().map(|run| &run.job))?;
        let mut view = View::new(sweep.plan.len());
        let report =
            sweep.run(&self.runs.options(&out, sweep.plan.iter().map(|run| &run.job))?, &mut |event| view.show(&event));
        view.finish();
        let report = report?;
        if let Some(stop) = view.interrupted() {
            return Ok(Outcome::Interrupted(stop));
        }
        self.runs.tell(|| report.to_json(), || print(&report), || report.panels())?;
        self.runs.tell_where(&out, "sweep")?;
        Ok(if self.check && report.transfers != Some(true) { Outcome::Negative } else { Outcome::Success })
    }
}

/// Prints the planned runs: names, values of the axes, and status.
fn print_plan(sweep: &Sweep, out: &Path, is_json: bool) -> anyhow::Result<()> {
    let axes = &sweep.config.axes;
    let ended = sweep.ended(out);
    let values = |at: &[usize]| axes.iter().zip(at).map(|(axis, i)| axis.values[*i].clone()).collect::<Vec<_>>();
    if is_json {
        let run = |(run, status): (&Planned, &Option<Status>)| {
            let settings: serde_json::Map<String, serde_json::Value> = axes
                .iter()
                .zip(values(&run.at))
                .map(|(axis, value)| (axis.key.clone(), serde_json::json!(value)))
                .collect();
            serde_json::json!({ "name": run.job.name, "settings": settings, "status": status })
        };
        let runs: Vec<_> = sweep.plan.iter().zip(&ended).map(run).collect();
        writeln!(printable::raw(), "{}", serde_json::to_string_pretty(&runs)?)?;
        return Ok(());
    }
    let mut header = vec!["run"];
    header.extend(axes.iter().map(|axis| axis.key.as_str()));
    header.push("");
    let rows: Vec<Vec<String>> = sweep
        .plan
        .iter()
        .zip(&ended)
        .map(|(run, status)| {
            let mut cells = vec![run.job.name.clone()];
            cells.extend(values(&run.at).iter().map(|value| value.as_float().map_or(value.to_string(), shortest)));
            cells.push(match status {
                Some(Status::Finished) => "finished".into(),
                Some(Status::Diverged) => "diverged".into(),
                Some(Status::Running | Status::Interrupted) | None => String::new(),
            });
            cells
        })
        .collect();
    table::print(&header, &rows, &(1..=axes.len()).collect::<Vec<_>>())?;
    let there = ended.iter().flatten().count();
    writeln!(printable::out(), "\n{} runs, {there} of them already in {}", rows.len(), out.display())?;
    Ok(())
}

fn print(report: &SweepReport) -> anyhow::Result<()> {
    let mut out = printable::out();
    if let Some(horizon) = report.horizon {
        writeln!(out, "{} runs of {} steps, {} tokens\n", report.runs.len(), horizon.steps, horizon.tokens)?;
    }
    let Layout { lr: Some(lr), groups, .. } = &report.layout else { return print_cells(report) };
    let same_group = |a: &AtSize, b: &AtSize| groups.iter().all(|axis| a.at[*axis] == b.at[*axis]);
    for (i, sizes) in report.analysis.optima.chunk_by(same_group).enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        if !groups.is_empty() {
            writeln!(out, "{}", report.named(&sizes[0].at, |axis| groups.contains(&axis)))?;
        }
        print_optima(report, sizes)?;
        writeln!(out)?;
        print_grid(report, sizes, *lr)?;
        if let Some(decided) = report.verdicts.get(i) {
            writeln!(out, "\n{}", decided.said)?;
        }
    }
    Ok(())
}

fn size_name(report: &SweepReport, at: &AtSize) -> String {
    report.named(&at.at, |axis| Some(axis) == report.layout.size)
}

fn print_optima(report: &SweepReport, sizes: &[AtSize]) -> anyhow::Result<()> {
    let header = ["", "best lr", "of the grid", "loss there", "+-", "shift", "over seeds", ""];
    let rows: Vec<Vec<String>> = sizes
        .iter()
        .map(|at| {
            let of = |x: Option<f64>, shown: fn(f64) -> String| x.map_or("-".into(), shown);
            let optimum = at.optimum;
            let mut flags: Vec<String> = Vec::new();
            flags.extend(optimum.and_then(|o| o.edge).map(|edge| match edge {
                Edge::Low => "at the low end of the grid".into(),
                Edge::High => "at the high end of the grid".into(),
            }));
            flags.extend(optimum.filter(|o| o.beside_divergence).map(|_| "beside a divergence".into()));
            flags.extend((optimum.is_some() && !at.learned).then(|| "did not learn".into()));
            flags.extend((at.diverged > 0).then(|| format!("{} diverged", at.diverged)));
            vec![
                size_name(report, at),
                of(optimum.map(|o| o.lr), shortest),
                of(optimum.map(|o| o.grid_lr), shortest),
                of(optimum.map(|o| o.loss), |x| format!("{x:.4}")),
                if at.std.is_finite() { format!("{:.4}", at.std) } else { "-".into() },
                at.shift.map_or("-".into(), |shift| format!("{shift:+.2}")),
                at.spread.map_or("-".into(), |spread| format!("+- {spread:.2}")),
                flags.join(", "),
            ]
        })
        .collect();
    Ok(table::print(&header, &rows, &[1, 2, 3, 4, 5, 6])?)
}

/// Mean losses, with a row per learning rate and a column per size.
fn print_grid(report: &SweepReport, sizes: &[AtSize], lr: usize) -> anyhow::Result<()> {
    let names: Vec<String> = sizes.iter().map(|at| size_name(report, at)).collect();
    let mut header = vec!["lr"];
    header.extend(names.iter().map(|name| if name.is_empty() { "loss" } else { name.as_str() }));
    let mut rates: Vec<(f64, usize)> = report.axes[lr]
        .values
        .iter()
        .enumerate()
        .map(|(i, value)| (value.as_float().or(value.as_integer().map(|n| n as f64)).unwrap_or(f64::NAN), i))
        .collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = |at: &AtSize, index: usize| {
        let is_at = |cell: &&Cell| (0..cell.at.len()).all(|i| cell.at[i] == if i == lr { index } else { at.at[i] });
        report.analysis.cells.iter().find(is_at).map_or("-".into(), shown)
    };
    let rows: Vec<Vec<String>> = rates
        .iter()
        .map(|(rate, index)| {
            let mut cells = vec![shortest(*rate)];
            cells.extend(sizes.iter().map(|at| mean(at, *index)));
            cells
        })
        .collect();
    Ok(table::print(&header, &rows, &(0..header.len()).collect::<Vec<_>>())?)
}

fn shown(cell: &Cell) -> String {
    match cell.diverged {
        0 if !cell.learned => format!("{:.4} (did not learn)", cell.mean),
        0 => format!("{:.4}", cell.mean),
        _ => "diverged".into(),
    }
}

/// Means and deviations of all combinations, if there is no axis of learning rates.
fn print_cells(report: &SweepReport) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = report
        .analysis
        .cells
        .iter()
        .map(|cell| {
            let name = report.named(&cell.at, |axis| Some(axis) != report.layout.seed);
            let diverged = if cell.diverged > 0 { format!("{} diverged", cell.diverged) } else { String::new() };
            vec![
                name,
                shown(cell),
                if cell.std.is_finite() { format!("{:.4}", cell.std) } else { "-".into() },
                diverged,
            ]
        })
        .collect();
    Ok(table::print(&["", "loss", "+-", ""], &rows, &[1, 2])?)
}
