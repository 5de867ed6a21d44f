//! Analysis of a sweep: the optimal learning rate at each size, and whether it shifts.

use super::config::{Axis, LR, SEED, number};
use crate::signal::mean_and_std;
use serde::Serialize;
use std::collections::BTreeMap;

/// The role of each axis in the analysis, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// `optimizer.lr`, which is optimized.
    pub lr: Option<usize>,
    /// `seed`, which is averaged over.
    pub seed: Option<usize>,
    /// The first other axis with numeric values, over which the optimum should be stable.
    pub size: Option<usize>,
    /// The remaining axes; each combination of their values gets a verdict.
    pub groups: Vec<usize>,
}

/// Runs that differ only in the seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Index of the value on each axis; 0 for the seed.
    pub at: Vec<usize>,
    /// Loss for each seed; infinite if it diverged.
    pub losses: Vec<f64>,
    /// Mean loss; infinite if a seed diverged.
    pub mean: f64,
    /// Sample standard deviation over the seeds; NaN for one seed, or if one diverged.
    pub std: f64,
    /// Number of seeds that diverged.
    pub diverged: usize,
    /// Whether every seed learned.
    pub learned: bool,
}

/// A run, as input of the analysis.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Index of the value on each axis.
    pub at: Vec<usize>,
    /// Loss of the run; infinite if it diverged.
    pub loss: f64,
    /// Whether it beat the unigram loss and its initial loss ([`unitgain_train::Summary::learned`]).
    pub learned: bool,
}

/// An edge of the grid of learning rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// The smallest learning rate.
    Low,
    /// The largest.
    High,
}

/// The minimum of a curve of losses over learning rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Optimum {
    /// Vertex of the parabola in log2(lr) through the lowest point and its neighbours; the lowest point itself if a
    /// neighbour is missing or diverged.
    pub lr: f64,
    /// Learning rate of the lowest grid point.
    pub grid_lr: f64,
    /// Loss of the lowest grid point.
    pub loss: f64,
    /// Set if the lowest point is at an edge of the grid, so that the optimum may lie beyond.
    pub edge: Option<Edge>,
    /// Whether a neighbour of the lowest point diverged.
    pub beside_divergence: bool,
}

/// The optimal learning rate at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct AtSize {
    /// Index of the value on each axis; 0 for learning rate and seed.
    pub at: Vec<usize>,
    /// None if all runs diverged.
    pub optimum: Option<Optimum>,
    /// Standard deviation of the loss at the optimum over the seeds.
    pub std: f64,
    /// Whether every seed learned at the optimum.
    pub learned: bool,
    /// Standard deviation of log2(optimum) over the seeds, each with its own curve; None for one seed.
    pub spread: Option<f64>,
    /// Shift of the optimum against the smallest size, in octaves; None if either is missing, or without sizes.
    pub shift: Option<f64>,
    /// Number of runs that diverged.
    pub diverged: usize,
}

/// Whether the optimum transfers over the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// All shifts, and all spreads over the seeds, are within the tolerance.
    Transfers {
        /// The largest shift, in octaves.
        shift: f64,
    },
    /// Some shift exceeds the tolerance and, if optima spread over the seeds by more than the tolerance, by two such
    /// spreads.
    Drifts {
        /// The largest shift, in octaves.
        shift: f64,
        /// Whether one of the two optima is at an edge of the grid, so that the shift may be larger.
        at_least: bool,
    },
    /// The data are insufficient.
    Undecided {
        /// The largest shift, in octaves, if there is one.
        shift: Option<f64>,
        /// The reason.
        why: Why,
    },
}

/// Why a shift is inconclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Every run of a size diverged.
    Diverged,
    /// At some size the best runs did not learn, so that their learning rate is not an optimum.
    DidNotLearn,
    /// An optimum is at an edge of the grid, and may lie beyond it.
    Edge,
    /// The optimum at some size spreads over the seeds by more than the tolerance.
    Spread,
}

/// Results of the analysis.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Analysis {
    /// Cells in the order of the plan.
    pub cells: Vec<Cell>,
    /// Optima by group and ascending size; empty without an axis of learning rates.
    pub optima: Vec<AtSize>,
    /// Verdicts by group; empty without learning rates, or with fewer than two sizes.
    pub verdicts: Vec<(Vec<usize>, Verdict)>,
}

impl Layout {
    /// The roles of the given axes.
    pub fn of(axes: &[Axis]) -> Self {
        let find = |key: &str| axes.iter().position(|axis| axis.key == key);
        let (lr, seed) = (find(LR), find(SEED));
        let mut rest: Vec<usize> = (0..axes.len()).filter(|i| Some(*i) != lr && Some(*i) != seed).collect();
        let is_size = |i: &usize| axes[*i].values.iter().all(|value| number(value).is_some());
        let size = rest.iter().copied().find(is_size);
        rest.retain(|i| Some(*i) != size);
        Self { lr, seed, size, groups: rest }
    }

    /// Whether the axes allow verdicts.
    pub fn decides(&self, axes: &[Axis]) -> bool {
        self.lr.is_some() && self.size.is_some_and(|size| axes[size].values.len() > 1)
    }
}

/// Analyses the runs of a sweep.
pub fn analyse(axes: &[Axis], runs: &[Point], tolerance: f64) -> Analysis {
    let layout = Layout::of(axes);
    let mut by_cell: BTreeMap<Vec<usize>, Vec<&Point>> = BTreeMap::new();
    for run in runs {
        by_cell.entry(without(&run.at, &[layout.seed])).or_default().push(run);
    }
    let cells: Vec<Cell> = by_cell.into_iter().map(|(at, runs)| Cell::new(at, &runs)).collect();
    let Some(lr) = layout.lr else { return Analysis { cells, ..Analysis::default() } };
    let value = |axis: usize, i: usize| number(&axes[axis].values[i]).unwrap_or(f64::NAN);

    // The curves over the learning rate, by group and size.
    let mut curves: BTreeMap<Vec<usize>, BTreeMap<Vec<usize>, Vec<&Cell>>> = BTreeMap::new();
    for cell in &cells {
        let of_size = without(&cell.at, &[Some(lr)]);
        let group = without(&of_size, &[layout.size]);
        curves.entry(group).or_default().entry(of_size).or_default().push(cell);
    }
    let (mut optima, mut verdicts) = (Vec::new(), Vec::new());
    for (group, of_group) in curves {
        let mut found: Vec<AtSize> =
            of_group.into_iter().map(|(at, cells)| at_size(at, cells, |i| value(lr, i), lr)).collect();
        if let Some(size) = layout.size {
            found.sort_by(|a, b| value(size, a.at[size]).total_cmp(&value(size, b.at[size])));
            let base = found[0].optimum.map(|optimum| optimum.lr);
            for at in &mut found {
                at.shift = at.optimum.zip(base).map(|(optimum, base)| (optimum.lr / base).log2());
            }
            if found.len() > 1 {
                verdicts.push((group, verdict(&found, tolerance)));
            }
        }
        optima.extend(found);
    }
    Analysis { cells, optima, verdicts }
}

fn at_size(at: Vec<usize>, mut cells: Vec<&Cell>, lr_of: impl Fn(usize) -> f64, lr: usize) -> AtSize {
    cells.sort_by(|a, b| lr_of(a.at[lr]).total_cmp(&lr_of(b.at[lr])));
    let rates: Vec<f64> = cells.iter().map(|cell| lr_of(cell.at[lr])).collect();
    let curve =
        |f: &dyn Fn(&Cell) -> f64| rates.iter().copied().zip(cells.iter().map(|cell| f(cell))).collect::<Vec<_>>();
    let optimum = optimum(&curve(&|cell| cell.mean));
    let best = cells.iter().find(|cell| optimum.is_some_and(|o| o.grid_lr == lr_of(cell.at[lr])));
    let (std, learned) = best.map_or((0.0, false), |cell| (cell.std, cell.learned));
    let seeds = cells.first().map_or(0, |cell| cell.losses.len());
    let each: Vec<f64> =
        (0..seeds).filter_map(|seed| self::optimum(&curve(&|cell| cell.losses[seed]))).map(|o| o.lr.log2()).collect();
    let spread = (each.len() > 1).then(|| mean_and_std(&each).1);
    let diverged = cells.iter().map(|cell| cell.diverged).sum();
    AtSize { at, optimum, std, learned, spread, shift: None, diverged }
}

/// The minimum of a curve of (learning rate, loss) in ascending order; None if no loss is finite.
pub fn optimum(curve: &[(f64, f64)]) -> Option<Optimum> {
    let finite = curve.iter().enumerate().filter(|(_, (_, loss))| loss.is_finite());
    let (best, (grid_lr, loss)) = finite.min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1)).map(|(i, point)| (i, *point))?;
    let neighbours = best.checked_sub(1).and_then(|before| Some((curve[before], *curve.get(best + 1)?)));
    let edge = match (best, best + 1 == curve.len()) {
        (_, true) => Some(Edge::High),
        (0, false) => Some(Edge::Low),
        (_, false) => None,
    };
    let diverged = |i: Option<usize>| i.and_then(|i| curve.get(i)).is_some_and(|(_, loss)| !loss.is_finite());
    let beside_divergence = diverged(best.checked_sub(1)) || diverged(Some(best + 1));
    let lr = match neighbours {
        Some((before, after)) if before.1.is_finite() && after.1.is_finite() => {
            vertex([before, (grid_lr, loss), after].map(|(lr, loss)| (lr.log2(), loss))).exp2()
        }
        Some(_) | None => grid_lr,
    };
    Some(Optimum { lr, grid_lr, loss, edge, beside_divergence })
}

/// x at the vertex of the parabola through three points, the middle one lowest: x1 + (h1^2 s0 - h0^2 s1) / 2 (h1 s0 +
/// h0 s1), with h0, h1 the distances to its neighbours and s0, s1 how much higher they are.
fn vertex([(x0, y0), (x1, y1), (x2, y2)]: [(f64, f64); 3]) -> f64 {
    let (h0, h1, s0, s1) = (x1 - x0, x2 - x1, y0 - y1, y2 - y1);
    let curvature = h0 * s1 + h1 * s0;
    if curvature <= 0.0 {
        return x1;
    }
    x1 + (h1 * h1 * s0 - h0 * h0 * s1) / (2.0 * curvature)
}

/// The verdict on the optima of a group, sorted by size.
fn verdict(sizes: &[AtSize], tolerance: f64) -> Verdict {
    let edge = |at: &AtSize| at.optimum.is_some_and(|optimum| optimum.edge.is_some());
    // A size without an optimum does not enter a shift.
    let learned = |at: &AtSize| at.learned || at.optimum.is_none();
    let shifts = sizes.iter().filter_map(|at| Some((at, at.shift?)));
    let largest = shifts.max_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()));
    let undecided = |why| Verdict::Undecided { shift: largest.map(|(_, shift)| shift), why };
    let Some((at, shift)) = largest else { return undecided(Why::Diverged) };
    if !sizes.iter().all(learned) {
        return undecided(Why::DidNotLearn);
    }
    let spread = sizes.iter().filter_map(|at| at.spread).fold(0.0, f64::max);
    let noise = if spread > tolerance { 2.0 * spread } else { 0.0 };
    if shift.abs() > tolerance + noise {
        Verdict::Drifts { shift, at_least: edge(at) || edge(&sizes[0]) }
    } else if sizes.iter().any(|at| at.optimum.is_none()) {
        undecided(Why::Diverged)
    } else if sizes.iter().any(edge) {
        undecided(Why::Edge)
    } else if spread > tolerance {
        undecided(Why::Spread)
    } else {
        Verdict::Transfers { shift }
    }
}

impl Cell {
    fn new(at: Vec<usize>, runs: &[&Point]) -> Self {
        let losses: Vec<f64> = runs.iter().map(|run| run.loss).collect();
        let learned = runs.iter().all(|run| run.learned);
        let diverged = losses.iter().filter(|loss| !loss.is_finite()).count();
        let (mean, std) = if diverged > 0 { (f64::INFINITY, f64::NAN) } else { mean_and_std(&losses) };
        Self { at, losses, mean, std, diverged, learned }
    }
}

fn without(at: &[usize], axes: &[Option<usize>]) -> Vec<usize> {
    at.iter().enumerate().map(|(i, index)| if axes.contains(&Some(i)) { 0 } else { *index }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml::Value;

    fn axis(key: &str, values: impl IntoIterator<Item = impl Into<Value>>) -> Axis {
        Axis { key: key.into(), values: values.into_iter().map(Into::into).collect() }
    }

    fn point(at: &[usize], loss: f64) -> Point {
        Point { at: at.to_vec(), loss, learned: true }
    }

    /// Learning rates 2^-9 to 2^-1, widths 64, 128, 256, two seeds, and parabolas with a given vertex in log2(lr).
    fn sweep(vertex: impl Fn(usize, usize) -> f64, tolerance: f64) -> Analysis {
        let rates: Vec<f64> = (-9..0).map(|k| f64::from(k).exp2()).collect();
        let axes = [axis("optimizer.lr", rates.clone()), axis("width", [256, 64, 128]), axis("seed", [1, 2])];
        let mut runs = Vec::new();
        for (i, rate) in rates.iter().enumerate() {
            for width in 0..3 {
                for seed in 0..2 {
                    let size = [2, 0, 1][width];
                    let y = (rate.log2() - vertex(size, seed)).powi(2) + seed as f64;
                    let loss = if y < 20.0 { y } else { f64::INFINITY };
                    runs.push(Point { at: vec![i, width, seed], loss, learned: y < 19.0 });
                }
            }
        }
        analyse(&axes, &runs, tolerance)
    }

    #[test]
    fn a_parabola_has_its_exact_vertex() {
        for x in [-4.0, -4.3, -4.5, -3.51] {
            let curve: Vec<(f64, f64)> =
                [-7.0, -5.5, -5.0, -4.0, -3.0, -2.0f64].iter().map(|u| (u.exp2(), 3.0 + (u - x).powi(2))).collect();
            let found = optimum(&curve).unwrap();
            assert!((found.lr.log2() - x).abs() < 1e-12, "{x}: {}", found.lr.log2());
            assert_eq!((found.edge, found.beside_divergence), (None, false));
        }
        let flat = optimum(&[(1.0, 2.0), (2.0, 2.0), (4.0, 2.0)]).unwrap();
        assert_eq!((flat.lr, flat.edge), (1.0, Some(Edge::Low)));
        let plateau = optimum(&[(1.0, 2.0), (2.0, 1.0), (4.0, 1.0), (8.0, 2.0)]).unwrap();
        assert_eq!(plateau.lr, 8f64.sqrt());
    }

    #[test]
    fn an_edge_and_a_divergence_are_told_apart() {
        let inf = f64::INFINITY;
        let low = optimum(&[(1.0, 1.0), (2.0, 2.0), (4.0, inf)]).unwrap();
        assert_eq!((low.edge, low.lr, low.beside_divergence), (Some(Edge::Low), 1.0, false));
        let high = optimum(&[(1.0, 3.0), (2.0, 2.0), (4.0, 1.0)]).unwrap();
        assert_eq!((high.edge, high.lr, high.loss), (Some(Edge::High), 4.0, 1.0));
        let beside = optimum(&[(1.0, 3.0), (2.0, 2.0), (4.0, inf)]).unwrap();
        assert_eq!((beside.edge, beside.lr, beside.beside_divergence), (None, 2.0, true));
        assert_eq!(optimum(&[(1.0, inf), (2.0, inf)]), None);
    }

    #[test]
    fn sizes_ascend_and_shifts_have_their_sign() {
        let found = sweep(|size, _| -4.2 - 1.5 * size as f64, 0.5);
        let shifts: Vec<f64> = found.optima.iter().map(|at| at.shift.unwrap()).collect();
        assert!(shifts.iter().zip([0.0, -1.5, -3.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{shifts:?}");
        let (_, verdict) = &found.verdicts[0];
        assert!(matches!(verdict, Verdict::Drifts { shift, at_least: false } if (shift + 3.0).abs() < 1e-9));
        assert_eq!(found.cells.len(), 27);
        assert!(found.optima[0].spread.unwrap() < 1e-9 && (found.optima[0].std - 0.5f64.sqrt()).abs() < 1e-9);
        assert!(found.optima[2].diverged > 0);
        let up = sweep(|size, _| -6.0 + 0.4 * size as f64, 1.0);
        assert!(matches!(up.verdicts[0].1, Verdict::Transfers { shift } if (shift - 0.8).abs() < 1e-9));
        let seeds = sweep(|_, seed| -5.0 + 0.6 * seed as f64, 0.5);
        assert!(matches!(seeds.verdicts[0].1, Verdict::Transfers { .. }));
        assert!((seeds.optima[1].spread.unwrap() - 0.6 * 0.5f64.sqrt()).abs() < 1e-9);
        assert!((seeds.optima[1].optimum.unwrap().lr.log2() + 4.7).abs() < 1e-9);
    }

    #[test]
    fn an_edge_leaves_a_small_shift_undecided_and_a_large_one_a_bound() {
        let at = |low: f64, high: f64| sweep(move |size, _| if size == 2 { high } else { low }, 0.5).verdicts[0].1;
        assert!(matches!(at(-5.0, -1.0), Verdict::Drifts { shift: 4.0, at_least: true }));
        assert!(matches!(at(-9.0, -6.0), Verdict::Drifts { shift: 3.0, at_least: true }));
        assert_eq!(at(-1.0, -1.0), Verdict::Undecided { shift: Some(0.0), why: Why::Edge });
        let diverged = Verdict::Undecided { shift: Some(0.0), why: Why::Diverged };
        assert_eq!(at(-5.0, 90.0), diverged, "everything diverged at one size");
        assert_eq!(at(90.0, 90.0), Verdict::Undecided { shift: None, why: Why::Diverged });
    }

    #[test]
    fn a_shift_within_the_noise_of_the_seeds_is_undecided() {
        let at = |spread: f64, shift: f64| {
            let apart = spread * 2f64.sqrt();
            sweep(move |size, seed| -5.5 + apart * seed as f64 + shift * size as f64, 0.5).verdicts[0].1
        };
        assert!(matches!(at(0.45, 0.1), Verdict::Transfers { .. }));
        for shift in [0.0, 0.1, -0.2, 0.4, 1.0] {
            assert!(matches!(at(0.96, shift), Verdict::Undecided { shift: Some(_), why: Why::Spread }), "{shift}");
        }
        assert!(matches!(at(0.6, -1.5), Verdict::Drifts { .. }), "-3 octaves are more than the noise");
        assert!(matches!(at(0.45, -0.4), Verdict::Drifts { .. }));
    }

    #[test]
    fn where_nothing_learned_there_is_no_optimum_to_compare() {
        let axes = [axis("optimizer.lr", [1.0, 2.0, 4.0]), axis("width", [64, 128])];
        let verdict = |learned: &dyn Fn(usize, usize) -> bool| {
            let runs = (0..6).map(|i| [i / 2, i % 2]);
            let point = |at: [usize; 2]| Point {
                at: at.to_vec(),
                loss: (at[0] as f64 - 1.0).abs(),
                learned: learned(at[0], at[1]),
            };
            analyse(&axes, &runs.map(point).collect::<Vec<_>>(), 0.5).verdicts[0].1
        };
        assert_eq!(verdict(&|lr, _| lr == 1), Verdict::Transfers { shift: 0.0 });
        for dead in [0, 1] {
            let expected = Verdict::Undecided { shift: Some(0.0), why: Why::DidNotLearn };
            assert_eq!(verdict(&|_, width| width != dead), expected, "width number {dead}");
        }
    }

    #[test]
    fn the_axes_that_are_left_split_a_sweep_into_groups() {
        let axes = [
            axis("model.placement", ["pre_norm", "post_norm"]),
            axis("depth", [2, 4]),
            axis("optimizer.lr", [1.0, 2.0, 4.0]),
        ];
        let layout = Layout::of(&axes);
        assert_eq!(layout, Layout { lr: Some(2), seed: None, size: Some(1), groups: vec![0] });
        assert!(layout.decides(&axes));
        let loss = |placement: usize, depth: usize, lr: usize| (lr as f64 - 1.0 - (placement * depth) as f64).abs();
        let mut runs = Vec::new();
        for at in (0..12).map(|i| [i / 6, i / 3 % 2, i % 3]) {
            runs.push(point(&at, loss(at[0], at[1], at[2])));
        }
        let found = analyse(&axes, &runs, 0.5);
        assert_eq!(found.verdicts[0], (vec![0, 0, 0], Verdict::Transfers { shift: 0.0 }));
        assert!(matches!(found.verdicts[1].1, Verdict::Drifts { shift: 1.0, at_least: true }));
        assert_eq!(found.optima.iter().map(|at| at.at.clone()).collect::<Vec<_>>()[2], [1, 0, 0]);
        // Without learning rates only means are computed, and without sizes only optima.
        let found =
            analyse(&[axis("model.placement", ["a", "b"])], &[point(&[0], 1.0), point(&[1], f64::INFINITY)], 0.5);
        assert_eq!((found.cells.len(), found.optima.len(), found.verdicts.len()), (2, 0, 0));
        let runs = [point(&[0], 2.0), point(&[1], 1.0), point(&[2], 2.0)];
        let found = analyse(&[axis("optimizer.lr", [1.0, 2.0, 4.0])], &runs, 0.5);
        assert_eq!((found.optima[0].optimum.unwrap().lr, found.optima[0].shift, found.verdicts.len()), (2.0, None, 0));
    }
}
