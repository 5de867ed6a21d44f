//! Results of a sweep: `sweep.json`, tables and curves.

use super::Sweep;
use super::analysis::{Analysis, AtSize, Edge, Layout, Optimum, Point, Verdict, Why, analyse};
use super::config::{Axis, Loss, SweepConfig, number};
use super::plan::{Planned, plain, shortest};
use crate::plot::Panel;
use serde::Serialize;
use std::collections::BTreeMap;
use toml::Value;
use unitgain_train::Summary;
use unitgain_train::folder::metrics::Status;

/// Version of the format of `sweep.json` and `compare.json`. It rises when a field is removed or changes its meaning;
/// not for new fields.
pub const FORMAT: u32 = 1;

/// Contents of `sweep.json`. Numbers that are not finite are `null`.
#[derive(Clone, Debug, Serialize)]
pub struct SweepReport {
    /// Version of the format.
    pub format: u32,
    /// Name of the sweep's file, without extension.
    pub name: String,
    /// File of the base run.
    pub run: String,
    /// The loss that runs are compared by.
    pub loss: Loss,
    /// Maximum shift that counts as transfer, in octaves.
    pub tolerance: f64,
    /// The axes.
    pub axes: Vec<Axis>,
    /// Length of the runs, for which an optimum is valid; None if an axis changes it.
    pub horizon: Option<Horizon>,
    /// Whether all runs have ended. If not, there are no means, optima and verdicts.
    pub complete: bool,
    /// Runs in the order of the plan.
    pub runs: Vec<RunEntry>,
    /// Means over the seeds, in the order of the plan.
    pub means: Vec<MeanEntry>,
    /// Optima by group and ascending size.
    pub optima: Vec<OptimumEntry>,
    /// Verdicts by group.
    pub verdicts: Vec<VerdictEntry>,
    /// Whether all groups transfer; None without verdicts.
    pub transfers: Option<bool>,
    /// The analysis behind means, optima and verdicts.
    #[serde(skip)]
    pub analysis: Analysis,
    /// Role of each axis.
    #[serde(skip)]
    pub layout: Layout,
}

/// Length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Horizon {
    /// Number of updates.
    pub steps: usize,
    /// Number of tokens.
    pub tokens: usize,
}

/// Values of axes by key.
type Settings = BTreeMap<String, Value>;

/// A run and its result.
#[derive(Clone, Debug, Serialize)]
pub struct RunEntry {
    /// Name of its folder in `runs/`.
    pub name: String,
    /// Value of each axis.
    pub settings: Settings,
    /// `finished`, `diverged`, or None if it has not ended.
    pub status: Option<Status>,
    /// Reason of a divergence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether it beat the unigram loss and its initial loss; None if it has not finished.
    pub learned: Option<bool>,
    /// The loss for the comparison; None if it diverged.
    pub loss: Option<f64>,
    /// Last evaluation loss.
    pub eval_loss: Option<f32>,
    /// Configured length.
    pub horizon: Horizon,
    /// Steps done.
    pub steps: usize,
    /// Time of its last process, in seconds.
    pub seconds: Option<f64>,
    #[serde(skip)]
    at: Vec<usize>,
}

/// Mean of runs that differ only in the seed.
#[derive(Clone, Debug, Serialize)]
pub struct MeanEntry {
    /// Value of each axis except the seed.
    pub settings: Settings,
    /// Mean loss; not finite if a seed diverged.
    pub loss: f64,
    /// Standard deviation over the seeds.
    pub std: f64,
    /// Number of seeds that diverged.
    pub diverged: usize,
    /// Whether every seed learned.
    pub learned: bool,
}

/// The optimum at one size.
#[derive(Clone, Debug, Serialize)]
pub struct OptimumEntry {
    /// Values of the axes other than learning rate, seed and size.
    pub group: Settings,
    /// Value of the size.
    pub size: Option<Value>,
    /// Learning rate at the vertex of the parabola; None if all runs diverged.
    pub lr: Option<f64>,
    /// Learning rate of the lowest grid point.
    pub grid_lr: Option<f64>,
    /// Loss of the lowest grid point.
    pub loss: Option<f64>,
    /// Standard deviation of that loss over the seeds.
    pub std: f64,
    /// Whether every seed learned at that point.
    pub learned: bool,
    /// Set if that point is at an edge of the grid.
    pub edge: Option<Edge>,
    /// Whether a neighbour of that point diverged.
    pub beside_divergence: bool,
    /// Standard deviation of the optimum over the seeds, in octaves.
    pub spread: Option<f64>,
    /// Shift of the optimum against the smallest size, in octaves.
    pub shift: Option<f64>,
    /// Number of runs that diverged.
    pub diverged: usize,
}

/// Verdict on a group.
#[derive(Clone, Debug, Serialize)]
pub struct VerdictEntry {
    /// Values of the axes other than learning rate, seed and size.
    pub group: Settings,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The verdict as a sentence.
    pub said: String,
}

impl RunEntry {
    pub(super) fn new(config: &SweepConfig, planned: &Planned, summary: Option<&Summary>, loss: Option<f64>) -> Self {
        let run = &planned.job.config;
        let steps = run.train.steps;
        let tokens = steps * run.tokens_of_step();
        Self {
            name: planned.job.name.clone(),
            settings: settings(&config.axes, &planned.at, |_| true),
            status: summary.map(|summary| summary.status),
            message: summary.and_then(|summary| summary.message.clone()),
            learned: summary.and_then(|summary| summary.learned),
            loss,
            eval_loss: summary.and_then(|summary| summary.eval_loss),
            horizon: Horizon { steps, tokens },
            steps: summary.map_or(0, |summary| summary.step),
            seconds: summary.map(|summary| summary.seconds.total),
            at: planned.at.clone(),
        }
    }
}

fn settings(axes: &[Axis], at: &[usize], is_in: impl Fn(usize) -> bool) -> Settings {
    let all = axes.iter().zip(at).enumerate().filter(|(i, _)| is_in(*i));
    all.map(|(_, (axis, index))| (axis.key.clone(), axis.values[*index].clone())).collect()
}

impl SweepReport {
    pub(super) fn new(name: String, sweep: &Sweep, runs: Vec<RunEntry>) -> Self {
        let SweepConfig { run, loss, tolerance, axes, .. } = sweep.config.clone();
        let layout = Layout::of(&axes);
        let complete = runs.iter().all(|run| run.status.is_some());
        let point = |run: &RunEntry| Point {
            at: run.at.clone(),
            loss: run.loss.unwrap_or(f64::INFINITY),
            learned: run.learned == Some(true),
        };
        let points: Vec<Point> = runs.iter().map(point).collect();
        let analysis = if complete { analyse(&axes, &points, tolerance) } else { Analysis::default() };
        let first = runs.first().map(|run| run.horizon);
        let mut report = Self {
            format: FORMAT,
            name,
            run: run.display().to_string(),
            loss,
            tolerance,
            horizon: first.filter(|first| runs.iter().all(|run| run.horizon == *first)),
            axes,
            complete,
            runs,
            means: Vec::new(),
            optima: Vec::new(),
            verdicts: Vec::new(),
            transfers: None,
            analysis,
            layout,
        };
        report.means = report.analysis.cells.iter().map(|cell| report.mean_entry(cell)).collect();
        report.optima = report.analysis.optima.iter().map(|at| report.optimum_entry(at)).collect();
        report.verdicts =
            report.analysis.verdicts.iter().map(|(at, verdict)| report.verdict_entry(at, *verdict)).collect();
        let transfers = |decided: &VerdictEntry| matches!(decided.verdict, Verdict::Transfers { .. });
        report.transfers = (!report.verdicts.is_empty()).then(|| report.verdicts.iter().all(transfers));
        report
    }

    fn mean_entry(&self, cell: &super::Cell) -> MeanEntry {
        let settings = settings(&self.axes, &cell.at, |i| Some(i) != self.layout.seed);
        MeanEntry { settings, loss: cell.mean, std: cell.std, diverged: cell.diverged, learned: cell.learned }
    }

    fn optimum_entry(&self, at: &AtSize) -> OptimumEntry {
        let of = |f: fn(&Optimum) -> f64| at.optimum.as_ref().map(f);
        OptimumEntry {
            group: self.group(&at.at),
            size: self.layout.size.map(|size| self.axes[size].values[at.at[size]].clone()),
            lr: of(|o| o.lr),
            grid_lr: of(|o| o.grid_lr),
            loss: of(|o| o.loss),
            std: at.std,
            learned: at.learned,
            edge: at.optimum.and_then(|o| o.edge),
            beside_divergence: at.optimum.is_some_and(|o| o.beside_divergence),
            spread: at.spread,
            shift: at.shift,
            diverged: at.diverged,
        }
    }

    fn verdict_entry(&self, at: &[usize], verdict: Verdict) -> VerdictEntry {
        let over = self.layout.size.map_or("", |size| &self.axes[size].key);
        let tolerance = format!("tolerance {} octaves", shortest(self.tolerance));
        let said = match verdict {
            Verdict::Transfers { shift } => {
                format!("transfers over {over}: the best learning rate moves by {shift:+.2} octaves ({tolerance})")
            }
            Verdict::Drifts { shift, at_least } => {
                let at_least = if at_least { "at least " } else { "" };
                format!("drifts over {over} by {at_least}{shift:+.2} octaves ({tolerance})")
            }
            Verdict::Undecided { shift, why } => {
                let seen = shift.map_or(String::new(), |shift| {
                    format!("the observed shift is {shift:+.2} octaves ({tolerance}), but ")
                });
                let why = match why {
                    Why::Diverged => "every run of a size diverged; take smaller learning rates",
                    Why::DidNotLearn => {
                        "the best runs of a size did not learn (they end no better than the frequencies of the symbols, or \
                         than their start); take other learning rates, or more steps"
                    }
                    Why::Edge => "an optimum is at an edge of the grid; widen the learning rates",
                    Why::Spread => {
                        "over the seeds an optimum spreads by more than the tolerance; take more seeds, or a task and a \
                         length whose optimum is sharper"
                    }
                };
                format!("undecided over {over}: {seen}{why}")
            }
        };
        let said = said + &self.noise(at);
        VerdictEntry { group: self.group(at), verdict, said }
    }

    /// How much of a group's shifts may be noise.
    fn noise(&self, at: &[usize]) -> String {
        let group = self.group(at);
        let own = self.analysis.optima.iter().filter(|optimum| self.group(&optimum.at) == group);
        match own.filter_map(|optimum| optimum.spread).reduce(f64::max) {
            Some(spread) => format!("; over seeds an optimum spreads by up to {spread:.2} octaves"),
            None => "; one seed, so the noise is unknown".into(),
        }
    }

    fn group(&self, at: &[usize]) -> Settings {
        settings(&self.axes, at, |i| self.layout.groups.contains(&i))
    }

    /// JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|e| unreachable!("a report is always valid JSON: {e}"))
    }

    /// `key value` for the axes that `is_in` accepts.
    pub fn named(&self, at: &[usize], is_in: impl Fn(usize) -> bool) -> String {
        let all = self.axes.iter().zip(at).enumerate().filter(|(i, _)| is_in(*i));
        let said = all.map(|(_, (axis, index))| format!("{} {}", short(&axis.key), self::shown(&axis.values[*index])));
        said.collect::<Vec<_>>().join(", ")
    }

    /// Loss over the learning rate: one panel per group, one curve per size, with its optimum marked. Without learning
    /// rates loss over the size, with one curve per group; without both, over the index of the run's settings.
    pub fn panels(&self) -> Vec<Panel> {
        let Layout { lr, size, .. } = self.layout;
        let labels = |over: &str| [over.to_string(), "loss, nats".to_string()];
        let value = |axis: usize, at: &[usize]| number(&self.axes[axis].values[at[axis]]).unwrap_or(f64::NAN);
        let cells = &self.analysis.cells;
        let is_group = |i: usize| self.layout.groups.contains(&i);
        let by = |name: &dyn Fn(&[usize]) -> String, x: &dyn Fn(usize) -> f64| {
            let mut curves: Vec<(String, Vec<[f64; 2]>)> = Vec::new();
            for (i, cell) in cells.iter().enumerate() {
                let (name, point) = (name(&cell.at), [x(i), cell.mean]);
                match curves.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, points)) => points.push(point),
                    None => curves.push((name, vec![point])),
                }
            }
            for (_, points) in &mut curves {
                points.sort_by(|a, b| a[0].total_cmp(&b[0]));
            }
            curves
        };
        let Some(lr) = lr else {
            let curves = match size {
                Some(size) => by(&|at| self.named(at, is_group), &|i| value(size, &cells[i].at)),
                None => by(&|_| "loss".into(), &|i| (i + 1) as f64),
            };
            let over = size.map_or("configuration", |size| &self.axes[size].key);
            let positive = size.is_some() && curves.iter().flat_map(|(_, points)| points).all(|point| point[0] > 0.0);
            let log = [positive, is_wide(&curves)];
            return vec![Panel { title: self.name.clone(), labels: labels(over), log, curves, marks: Vec::new() }];
        };
        let mut panels: Vec<(Settings, Panel)> = Vec::new();
        for at in &self.analysis.optima {
            let group = self.group(&at.at);
            let title = if group.is_empty() { self.name.clone() } else { self.named(&at.at, is_group) };
            if panels.last().is_none_or(|(known, _)| *known != group) {
                let log = [true, false];
                panels.push((
                    group,
                    Panel { title, labels: labels("learning rate"), log, curves: Vec::new(), marks: Vec::new() },
                ));
            }
            let Some((_, panel)) = panels.last_mut() else { continue };
            let of_size = |cell: &&super::Cell| (0..self.axes.len()).all(|i| i == lr || cell.at[i] == at.at[i]);
            let mut points: Vec<[f64; 2]> =
                cells.iter().filter(of_size).map(|cell| [value(lr, &cell.at), cell.mean]).collect();
            points.sort_by(|a, b| a[0].total_cmp(&b[0]));
            panel.marks.extend(at.optimum.map(|optimum| (panel.curves.len(), [optimum.lr, optimum.loss])));
            panel.curves.push((self.named(&at.at, |i| Some(i) == size), points));
        }
        panels.into_iter().map(|(_, panel)| Panel { log: [true, is_wide(&panel.curves)], ..panel }).collect()
    }
}

/// Whether the range of losses requires a logarithmic axis.
fn is_wide(curves: &[(String, Vec<[f64; 2]>)]) -> bool {
    let losses = || curves.iter().flat_map(|(_, points)| points).map(|point| point[1]).filter(|loss| loss.is_finite());
    let (low, high) = (losses().fold(f64::INFINITY, f64::min), losses().fold(f64::NEG_INFINITY, f64::max));
    low > 0.0 && high / low > 10.0
}

/// The last part of a key.
fn short(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// A value with its significant digits.
fn shown(value: &Value) -> String {
    value.as_float().map_or_else(|| plain(value), shortest)
}
