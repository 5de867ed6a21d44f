//! Replicas: copies of a model, each of which runs forward and backward on its own shard of a batch.

use crate::Error;
use crate::data::Batch;
use crate::device::{self, Modes, memory};
use burn::tensor::Device;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use unitgain_variant::shorthand;

/// The number of replicas, written as a number or `"auto"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaCount {
    /// On the CPU one for each thread, where the batch has the sequences; one on every device otherwise. Written `"auto"`.
    #[default]
    Auto,
    /// This many.
    Count(usize),
}

impl ReplicaCount {
    /// The number for a batch of `sequences` on this many CPU threads: the fewest replicas for which the largest shard is as
    /// small as it can be.
    pub(crate) fn of_threads(threads: usize, sequences: usize) -> usize {
        let largest = sequences.div_ceil(threads.clamp(1, sequences.max(1)));
        sequences.div_ceil(largest.max(1)).max(1)
    }
}

impl fmt::Display for ReplicaCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => n.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl Serialize for ReplicaCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = match self {
            Self::Count(n) => Some(*n),
            Self::Auto => None,
        };
        shorthand::write_number_or_word(number, "auto", serializer)
    }
}

impl<'de> Deserialize<'de> for ReplicaCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = shorthand::number_or_word(deserializer, "a number of replicas", "auto")?;
        Ok(number.map_or(Self::Auto, Self::Count))
    }
}

/// What replicas run on. Clones share the threads.
#[derive(Clone, Debug, Default)]
pub struct Replicas {
    /// Empty for a single replica, which runs on the threads of the caller.
    workers: Arc<[Worker]>,
}

#[derive(Debug)]
struct Worker {
    pool: rayon::ThreadPool,
    /// The plain device.
    device: Device,
}

/// The part of a micro-batch of one replica.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    pub(super) batch: Batch,
    /// Number of its first sequence in the step.
    pub(super) first: usize,
    /// Its part of the target tokens of the step, by weight.
    pub(super) of_loss: f64,
    /// Its part of the tokens of the step.
    pub(super) of_tokens: f64,
}

impl Replicas {
    /// One replica, on the threads of the caller.
    pub fn one() -> Self {
        Self::default()
    }

    /// `count` replicas on the CPU device `device`, which share `threads` threads: at least one thread each.
    ///
    /// # Errors
    /// [`Error::Value`] if the system refuses threads.
    pub fn on_threads(count: usize, threads: usize, device: &Device) -> Result<Self, Error> {
        Self::on(&vec![device.clone(); count], (threads / count.max(1)).max(1))
    }

    /// A replica on each of these plain devices. The model is on the first one; a device may come several times.
    ///
    /// # Errors
    /// [`Error::Value`] if the system refuses threads.
    pub fn on_devices(devices: &[Device]) -> Result<Self, Error> {
        Self::on(devices, 1)
    }

    fn on(devices: &[Device], threads: usize) -> Result<Self, Error> {
        if devices.len() < 2 {
            return Ok(Self::one());
        }
        let count = devices.len();
        let refused = |problem: &str| {
            let problem = format!("{count}: {}; or take fewer", device::no_threads(problem));
            Error::value("train.replicas", "", problem)
        };
        memory::check_threads(count * threads).map_err(|problem| refused(&problem))?;
        let worker = |device: &Device| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.map(|pool| Worker { pool, device: device.clone() }).map_err(|e| refused(&e.to_string()))
        };
        Ok(Self { workers: devices.iter().map(worker).collect::<Result<_, _>>()? })
    }

    /// Number of replicas.
    pub fn count(&self) -> usize {
        self.workers.len().max(1)
    }

    /// Calls `work` with the number and the part of each replica, at the same time; returns the results in order. A single
    /// replica works on the thread of the caller.
    ///
    /// # Panics
    /// If there are more parts than replicas, or `work` panics.
    pub fn each<P: Send, R: Send>(&self, parts: Vec<P>, work: impl Fn(usize, P) -> R + Sync) -> Vec<R> {
        assert!(parts.len() <= self.count(), "{} parts for {} replicas", parts.len(), self.count());
        if self.workers.is_empty() {
            return parts.into_iter().enumerate().map(|(i, part)| work(i, part)).collect();
        }
        let modes = Modes::here();
        let latch = Latch::new(parts.len());
        let work = |i, part| {
            let _done = Done(&latch);
            modes.call(|| work(i, part))
        };
        let job = |(index, (worker, part))| Job { worker, index, part: Some(part), result: None };
        let mut jobs: Vec<_> = self.workers.iter().zip(parts).enumerate().map(job).collect();
        all(&mut jobs, &work, &mut || latch.wait());
        jobs.into_iter().filter_map(|job| job.result).collect()
    }

    /// The plain device of a replica.
    pub(super) fn device(&self, index: usize) -> &Device {
        &self.workers[index].device
    }
}

/// Blocks until a number of jobs has ended. A thread of a pool that waits for a scope of another pool looks for work until
/// then, and takes processor time from the replicas.
struct Latch {
    left: Mutex<usize>,
    none: Condvar,
}

impl Latch {
    fn new(jobs: usize) -> Self {
        Self { left: Mutex::new(jobs), none: Condvar::new() }
    }

    fn wait(&self) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let _none = self.none.wait_while(left, |left| *left > 0);
    }
}

/// Says when it is dropped that a job has ended, by a panic too.
struct Done<'a>(&'a Latch);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let mut left = self.0.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left -= 1;
        if *left == 0 {
            self.0.none.notify_one();
        }
    }
}

/// The part of one replica, and what comes of it.
struct Job<'a, P, R> {
    worker: &'a Worker,
    index: usize,
    part: Option<P>,
    result: Option<R>,
}

/// Starts the first job of each half, which starts the others of its half, does `own`, and waits for all. Starting them one
/// within the other would take a stack as deep as there are jobs.
fn all<P: Send, R: Send>(jobs: &mut [Job<'_, P, R>], work: &(dyn Fn(usize, P) -> R + Sync), own: &mut dyn FnMut()) {
    let (left, right) = jobs.split_at_mut(jobs.len() / 2);
    half(left, work, &mut || half(right, work, own));
}

fn half<P: Send, R: Send>(jobs: &mut [Job<'_, P, R>], work: &(dyn Fn(usize, P) -> R + Sync), own: &mut dyn FnMut()) {
    let Some((first, rest)) = jobs.split_first_mut() else { return own() };
    let pool = &first.worker.pool;
    pool.in_place_scope(|scope| {
        scope.spawn(|_| {
            let Job { index, part, result, .. } = first;
            all(rest, work, &mut || *result = part.take().map(|part| work(*index, part)));
        });
        own();
    });
}

/// The shards of the micro-batches of a step, each micro-batch in at most `count` shards of whole sequences.
pub(super) fn shards(batches: &[Batch], count: usize) -> Vec<Vec<Shard>> {
    let asked: f64 = batches.iter().map(Batch::asked).sum();
    let tokens: usize = batches.iter().map(|batch| batch.rows * batch.time).sum();
    let mut first = 0;
    let mut cut = |batch: &Batch, count: usize| {
        let count = count.clamp(1, batch.rows.max(1));
        let each = |i: usize| {
            let rows = batch.rows * i / count..batch.rows * (i + 1) / count;
            let part = batch.part(rows.clone());
            Shard {
                first: first + rows.start,
                of_loss: part.asked() / asked,
                of_tokens: (part.rows * part.time) as f64 / tokens as f64,
                batch: part,
            }
        };
        let shards: Vec<Shard> = (0..count).map(each).collect();
        first += batch.rows;
        shards
    };
    let has_targets = |shards: &[Shard]| shards.iter().all(|shard| shard.of_loss > 0.0);
    batches
        .iter()
        .map(|batch| {
            let shards = cut(batch, count);
            // The mean loss of a shard without targets is undefined.
            if has_targets(&shards) { shards } else { vec![whole(batch, &shards)] }
        })
        .collect()
}

/// The shard of a whole micro-batch.
fn whole(batch: &Batch, shards: &[Shard]) -> Shard {
    let sum = |of: fn(&Shard) -> f64| shards.iter().map(of).sum();
    Shard { batch: batch.clone(), first: shards[0].first, of_loss: sum(|s| s.of_loss), of_tokens: sum(|s| s.of_tokens) }
}
