//! Results of a comparison: `compare.json`, tables and curves.

use super::Difference;
use crate::plot::Panel;
use crate::signal::mean_and_std;
use crate::sweep::FORMAT;
use serde::Serialize;
use std::collections::BTreeMap;
use unitgain_train::folder::metrics::Status;
use unitgain_train::{Record, Summary};

/// Number of records in the moving average of the loss.
const SMOOTH: usize = 5;

/// Results of a run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) summary: Option<Summary>,
    pub(super) records: Vec<Record>,
}

/// Contents of `compare.json`. Numbers that are not finite are `null`.
#[derive(Clone, Debug, Serialize)]
pub struct CompareReport {
    /// Version of the format.
    pub format: u32,
    /// Seeds of every configuration.
    pub seeds: Vec<u64>,
    /// Updates per run.
    pub steps: Option<usize>,
    /// Tokens per run.
    pub tokens: Option<usize>,
    /// Lowest expected loss on the held-out tokens, where it is known.
    pub floor: Option<f64>,
    /// Loss to which steps are counted; None if no configuration learned.
    pub reach: Option<f64>,
    /// Number of held-out tokens per evaluation.
    pub eval_tokens: Option<usize>,
    /// Loss of the best prediction without context.
    pub unigram_loss: Option<f64>,
    /// Keys that differ between the configurations.
    pub differs_in: Vec<Difference>,
    /// Whether all runs have ended. If not, means are over the ended runs.
    pub complete: bool,
    /// Results per configuration, in the given order.
    pub configurations: Vec<Compared>,
}

/// Results of a configuration over the seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// Name of the configuration's file.
    pub name: String,
    /// Final evaluation loss: mean over the seeds that finished.
    pub loss: Option<f64>,
    /// Standard deviation of the final loss.
    pub std: Option<f64>,
    /// Final evaluation loss minus the first configuration's at the same seed: mean over the seeds for which both
    /// finished.
    pub difference: Option<f64>,
    /// Standard error of that mean; None for fewer than two pairs.
    pub difference_error: Option<f64>,
    /// Mean best evaluation loss.
    pub best_loss: Option<f64>,
    /// Mean final evaluation loss above the floor.
    pub excess: Option<f64>,
    /// Steps until the training loss, averaged over five records, is at most `reach`: mean over the seeds that reach
    /// it.
    pub steps_to_reach: Option<f64>,
    /// Number of seeds that reach it.
    pub reached: usize,
    /// Gradient norm of the last block relative to the first, at the first record: geometric mean.
    pub first_ratio: Option<f64>,
    /// The same ratio at the last record.
    pub last_ratio: Option<f64>,
    /// Maximum gradient norm before the clip, over all records and seeds.
    pub largest_grad_norm: Option<f64>,
    /// Speed of one process beside the others: median over the records, mean over the seeds.
    pub tokens_per_second: Option<f64>,
    /// Number of seeds that diverged.
    pub diverged: usize,
    /// Number of seeds that finished without learning ([`Summary::learned`]).
    pub did_not_learn: usize,
    /// Results per seed.
    pub runs: Vec<OfSeed>,
    /// Training loss over the steps: (step, mean over the seeds that finished, or over all if none did).
    #[serde(skip)]
    curve: Vec<[f64; 2]>,
    /// Gradient norm of each block at the first and the last record: geometric mean.
    pub grad_norm_block: [Vec<f64>; 2],
}

/// Results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct OfSeed {
    /// Seed of the run.
    pub seed: u64,
    /// Status; None if it has not ended.
    pub status: Option<Status>,
    /// Reason of a divergence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether it beat the unigram loss and its initial loss; None if it has not finished.
    pub learned: Option<bool>,
    /// Last evaluation loss.
    pub loss: Option<f32>,
    /// Best evaluation loss.
    pub best_loss: Option<f32>,
    /// Steps done.
    pub steps: usize,
    /// Steps to `reach`.
    pub steps_to_reach: Option<usize>,
    /// Time of its last process, in seconds.
    pub seconds: Option<f64>,
}

impl CompareReport {
    pub(super) fn new(
        configs: &[(String, &[Run])],
        seeds: &[u64],
        reach: Option<f64>,
        differs_in: Vec<Difference>,
    ) -> Self {
        let learned = |runs| finished(runs).filter(|summary| summary.learned == Some(true));
        let final_losses = configs.iter().filter_map(|(_, runs)| mean(learned(runs).filter_map(|s| s.eval_loss)));
        let reach = reach.or_else(|| final_losses.reduce(f64::max));
        let first = configs.first().map_or(&[][..], |(_, runs)| *runs);
        let summary = || configs.iter().flat_map(|(_, runs)| *runs).find_map(|run| run.summary.as_ref());
        let done = || configs.iter().flat_map(|(_, runs)| finished(runs)).next();
        Self {
            format: FORMAT,
            seeds: seeds.to_vec(),
            steps: summary().map(|summary| summary.steps),
            tokens: done().map(|summary| summary.tokens),
            floor: summary().and_then(|summary| summary.floor),
            reach,
            eval_tokens: summary().and_then(|summary| summary.eval_tokens),
            unigram_loss: summary().and_then(|summary| summary.unigram_loss),
            differs_in,
            complete: configs.iter().flat_map(|(_, runs)| *runs).all(|run| run.summary.is_some()),
            configurations: configs.iter().map(|(name, runs)| Compared::new(name, runs, first, seeds, reach)).collect(),
        }
    }

    /// Whether every run of every configuration learned.
    pub fn all_learned(&self) -> bool {
        let runs = || self.configurations.iter().flat_map(|configuration| &configuration.runs);
        runs().count() > 0 && runs().all(|run| run.learned == Some(true))
    }

    /// JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|e| unreachable!("a report is always valid JSON: {e}"))
    }

    /// Training loss over the steps, and gradient norm of each block at the first and the last record; one curve per
    /// configuration.
    pub fn panels(&self) -> Vec<Panel> {
        let panel = |title: &str, labels: [&str; 2], log: [bool; 2], f: &dyn Fn(&Compared) -> Vec<[f64; 2]>| Panel {
            title: title.into(),
            labels: labels.map(String::from),
            log,
            curves: self.configurations.iter().map(|c| (c.name.clone(), f(c))).collect(),
            marks: Vec::new(),
        };
        let blocks = |norms: &[f64]| norms.iter().enumerate().map(|(l, norm)| [(l + 1) as f64, *norm]).collect();
        let gradient = ["block", "gradient norm"];
        vec![
            panel("training loss", ["step", "loss, nats"], [false, false], &|c| c.curve.clone()),
            panel("gradient of each block, first record", gradient, [false, true], &|c| blocks(&c.grad_norm_block[0])),
            panel("gradient of each block, last record", gradient, [false, true], &|c| blocks(&c.grad_norm_block[1])),
        ]
    }
}

impl Compared {
    fn new(name: &str, runs: &[Run], first: &[Run], seeds: &[u64], reach: Option<f64>) -> Self {
        let pairs = runs.iter().zip(first).filter_map(|(own, first)| Some(final_loss(own)? - final_loss(first)?));
        let pairs: Vec<f64> = pairs.collect();
        let losses: Vec<f64> = finished(runs).filter_map(|s| s.eval_loss).map(f64::from).collect();
        let reached: Vec<Option<usize>> =
            runs.iter().map(|run| reach.and_then(|reach| steps_to_reach(&run.records, reach))).collect();
        let steps: Vec<f64> = reached.iter().flatten().map(|step| *step as f64).collect();
        let at_last = |run: &Run| run.records.len().saturating_sub(1);
        let ratio =
            |at: &dyn Fn(&Run) -> usize| geometric_mean(runs.iter().filter_map(|run| last_over_first(run, at(run))));
        let has_status = |run: &&Run, status| run.summary.as_ref().is_some_and(|summary| summary.status == status);
        let norms = runs.iter().flat_map(|run| &run.records).map(|record| f64::from(record.grad_norm));
        Self {
            name: name.into(),
            loss: mean(losses.iter().copied()),
            std: (!losses.is_empty()).then(|| mean_and_std(&losses).1),
            difference: mean(pairs.iter().copied()),
            difference_error: (pairs.len() > 1).then(|| mean_and_std(&pairs).1 / (pairs.len() as f64).sqrt()),
            best_loss: mean(finished(runs).filter_map(|s| s.best_eval_loss)),
            excess: mean(finished(runs).filter_map(|s| s.excess)),
            steps_to_reach: mean(steps.iter().copied()),
            reached: steps.len(),
            first_ratio: ratio(&|_| 0),
            last_ratio: ratio(&at_last),
            largest_grad_norm: norms.reduce(f64::max),
            tokens_per_second: mean(runs.iter().filter_map(median_speed)),
            diverged: runs.iter().filter(|run| has_status(run, Status::Diverged)).count(),
            did_not_learn: finished(runs).filter(|summary| summary.learned == Some(false)).count(),
            runs: runs
                .iter()
                .zip(seeds)
                .zip(&reached)
                .map(|((run, seed), reached)| OfSeed::new(run, *seed, *reached))
                .collect(),
            curve: curve(runs),
            grad_norm_block: [block_norms(runs, &|_| 0), block_norms(runs, &at_last)],
        }
    }
}

impl OfSeed {
    fn new(run: &Run, seed: u64, steps_to_reach: Option<usize>) -> Self {
        let summary = run.summary.as_ref();
        Self {
            seed,
            status: summary.map(|s| s.status),
            message: summary.and_then(|s| s.message.clone()),
            learned: summary.and_then(|s| s.learned),
            loss: summary.and_then(|s| s.eval_loss),
            best_loss: summary.and_then(|s| s.best_eval_loss),
            steps: summary.map_or(0, |s| s.step),
            steps_to_reach,
            seconds: summary.map(|s| s.seconds.total),
        }
    }
}

fn finished(runs: &[Run]) -> impl Iterator<Item = &Summary> {
    runs.iter().filter_map(|run| run.summary.as_ref()).filter(|summary| summary.status == Status::Finished)
}

/// Last evaluation loss of a finished run.
fn final_loss(run: &Run) -> Option<f64> {
    finished(std::slice::from_ref(run)).find_map(|summary| summary.eval_loss).map(f64::from)
}

/// The first step at which the average loss of the last five records (fewer at the start) is at most `reach`.
fn steps_to_reach(records: &[Record], reach: f64) -> Option<usize> {
    (1..=records.len()).find_map(|end| {
        let last = &records[end.saturating_sub(SMOOTH)..end];
        let smooth = last.iter().map(|record| f64::from(record.loss)).sum::<f64>() / last.len() as f64;
        (smooth <= reach).then(|| records[end - 1].step)
    })
}

fn last_over_first(run: &Run, at: usize) -> Option<f64> {
    let norms = &run.records.get(at)?.grad_norm_block;
    Some(f64::from(*norms.last()?) / f64::from(*norms.first()?)).filter(|ratio| ratio.is_finite())
}

fn median_speed(run: &Run) -> Option<f64> {
    let mut speeds: Vec<f64> = run.records.iter().map(|record| record.tokens_per_second).collect();
    speeds.sort_by(f64::total_cmp);
    speeds.get(speeds.len() / 2).copied()
}

fn curve(runs: &[Run]) -> Vec<[f64; 2]> {
    let finishes = |run: &&Run| run.summary.as_ref().is_some_and(|summary| summary.status == Status::Finished);
    let none = !runs.iter().any(|run| finishes(&run));
    let mut at_step: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for record in runs.iter().filter(|run| none || finishes(run)).flat_map(|run| &run.records) {
        at_step.entry(record.step).or_default().push(f64::from(record.loss));
    }
    at_step.into_iter().map(|(step, losses)| [step as f64, mean_and_std(&losses).0]).collect()
}

fn block_norms(runs: &[Run], at: &dyn Fn(&Run) -> usize) -> Vec<f64> {
    let records: Vec<&Record> = runs.iter().filter_map(|run| run.records.get(at(run))).collect();
    // Use only blocks that all seeds have, so that all means are over the same seeds.
    let blocks = records.iter().map(|record| record.grad_norm_block.len()).min().unwrap_or(0);
    let of_block = |l: usize| geometric_mean(records.iter().map(|record| f64::from(record.grad_norm_block[l])));
    (0..blocks).map(|l| of_block(l).unwrap_or(0.0)).collect()
}

/// Mean of values; None without any.
fn mean(values: impl Iterator<Item = impl Into<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.map(Into::into).collect();
    (!values.is_empty()).then(|| mean_and_std(&values).0)
}

/// Geometric mean of the positive finite values, because norms spread over orders of magnitude.
fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    mean(values.filter(|x| *x > 0.0 && x.is_finite()).map(f64::ln)).map(f64::exp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unitgain_train::folder::metrics;

    fn run(status: Status, losses: &[f32], norms: [f32; 2]) -> Run {
        let record = |(i, loss): (usize, &f32)| Record {
            step: 10 * i + 1,
            tokens: 0,
            loss: *loss,
            lr: 0.0,
            tokens_per_second: [100.0, 300.0, 200.0][i % 3],
            replicas: 1,
            grad_norm: i as f32,
            grad_norm_clipped: 0.0,
            grad_norm_block: norms.to_vec(),
            grad_norm_role: BTreeMap::new(),
            stream_rms: Vec::new(),
            eval_loss: None,
            eval_tokens: None,
            floor: None,
            excess: None,
        };
        let summary = Summary {
            format: 1,
            status,
            message: None,
            step: 1,
            steps: 1,
            tokens: 1,
            parameters: 1,
            loss: None,
            eval_loss: losses.last().copied(),
            best_eval_loss: losses.iter().copied().reduce(f32::min),
            floor: Some(0.5),
            excess: losses.last().map(|loss| f64::from(*loss) - 0.5),
            eval_tokens: Some(1),
            unigram_loss: Some(4.0),
            learned: Some(losses.last().is_some_and(|loss| *loss < 4.0)),
            seconds: metrics::Seconds::default(),
            peak_memory: None,
            divergences: Vec::new(),
            fingerprint: 0,
            process: None,
            records: unitgain_train::Digest::default(),
            checksum: String::new(),
        };
        Run { summary: Some(summary), records: losses.iter().enumerate().map(record).collect() }
    }

    #[test]
    fn a_configuration_is_the_mean_of_the_seeds_that_finish() {
        let good = [
            run(Status::Finished, &[3.0, 2.0, 1.0], [1.0, 4.0]),
            run(Status::Finished, &[5.0, 4.0, 3.0], [1.0, 1.0]),
            run(Status::Diverged, &[9.0, 99.0], [1.0, 0.0]),
        ];
        let bad = [run(Status::Diverged, &[9.0], [1.0, 1.0])];
        let report = CompareReport::new(&[("good".into(), &good), ("bad".into(), &bad)], &[1, 2, 3], None, Vec::new());
        assert!(!report.all_learned());
        assert_eq!((report.reach, report.floor), (Some(2.0), Some(0.5)));
        let of = &report.configurations[0];
        assert_eq!((of.loss, of.std, of.best_loss, of.excess), (Some(2.0), Some(2f64.sqrt()), Some(2.0), Some(1.5)));
        // The loss to reach is 2, the average of the first seed's three records; the second seed never reaches it.
        assert_eq!((of.steps_to_reach, of.reached, of.diverged), (Some(21.0), 1, 1));
        assert!((of.first_ratio.unwrap() - 2.0).abs() < 1e-12, "a ratio of 0 has no logarithm");
        assert_eq!((of.largest_grad_norm, of.tokens_per_second), (Some(2.0), Some((200.0 + 200.0 + 300.0) / 3.0)));
        assert_eq!(of.curve, [[1.0, 4.0], [11.0, 3.0], [21.0, 2.0]]);
        let of = &report.configurations[1];
        assert_eq!((of.loss, of.steps_to_reach, of.diverged, of.curve.len()), (None, None, 1, 1));
        assert_eq!(report.panels().len(), 3);
    }

    #[test]
    fn a_run_that_did_not_learn_is_a_failure_and_sets_no_loss_to_reach() {
        let good = [run(Status::Finished, &[5.0, 1.0], [1.0, 1.0]), run(Status::Finished, &[5.0, 2.0], [1.0, 1.0])];
        let stuck = [run(Status::Finished, &[5.0, 4.5], [1.0, 1.0]), run(Status::Finished, &[5.0, 1.5], [1.0, 1.0])];
        let blown = [run(Status::Finished, &[5.0, 127.5], [1.0, 1.0]), run(Status::Diverged, &[5.0], [1.0, 1.0])];
        let report = |configs: &[&[Run]]| {
            let named: Vec<(String, &[Run])> = configs.iter().map(|runs| (String::new(), *runs)).collect();
            CompareReport::new(&named, &[1, 2], None, Vec::new())
        };
        let all = report(&[&good, &stuck, &blown]);
        assert_eq!(all.reach, Some(1.5), "of the runs that learned");
        let failures: Vec<(usize, usize)> = all.configurations.iter().map(|c| (c.diverged, c.did_not_learn)).collect();
        assert_eq!(failures, [(0, 0), (0, 1), (1, 1)]);
        assert!(!all.all_learned() && report(&[&good]).all_learned() && !report(&[]).all_learned());
        assert_eq!(report(&[&blown]).reach, None);
        // Seeds are compared in pairs: 4.5 - 1 and 1.5 - 2.
        let of = &all.configurations[1];
        assert_eq!((of.difference, of.difference_error), (Some(1.5), Some(2.0)));
        assert_eq!((all.configurations[0].difference, all.configurations[0].difference_error), (Some(0.0), Some(0.0)));
        assert_eq!((all.configurations[2].difference_error, all.configurations[2].difference), (None, Some(126.5)));
    }

    #[test]
    fn steps_are_counted_on_the_smoothed_loss() {
        let run = run(Status::Finished, &[5.0, 5.0, 0.0, 5.0, 5.0, 0.0, 0.0, 0.0], [1.0, 1.0]);
        assert_eq!(steps_to_reach(&run.records, 2.0), Some(61), "one low record is not enough");
        assert_eq!(steps_to_reach(&run.records, 0.5), None);
    }
}
