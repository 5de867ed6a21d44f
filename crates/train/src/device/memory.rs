//! Available memory, and estimates of the memory that a run needs.

use crate::{DataConfig, Error, EvalTokens, OptimizerConfig, RunConfig, device};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use unitgain_model::{Compute, Plan, Position, Precision, Scheme};

/// Memory that this process can still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes available.
    pub bytes: u64,
    /// The tightest limit.
    pub limit: Limit,
}

/// A limit on the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Memory available on the machine (`MemAvailable`).
    Machine,
    /// Address space of a process (`ulimit -v`).
    AddressSpace,
    /// Data segment of a process (`ulimit -d`).
    DataSegment,
    /// Memory of the process's control group or one of its parents, as in a container.
    ControlGroup,
}

impl fmt::Display for Available {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = match self.limit {
            Limit::Machine => "free on this machine",
            Limit::AddressSpace => "left under `ulimit -v`",
            Limit::DataSegment => "left under `ulimit -d`",
            Limit::ControlGroup => "left under the memory limit of the control group (container)",
        };
        write!(f, "{} are {limit}", shown(self.bytes as f64))
    }
}

/// Bytes in readable units.
pub(crate) fn shown(bytes: f64) -> String {
    if bytes >= 1e9 { format!("{:.1} GB", bytes / 1e9) } else { format!("{:.0} MB", (bytes / 1e6).ceil()) }
}

/// The minimum over machine, process limits and control groups; None without `/proc`.
pub fn available() -> Option<Available> {
    /// A result is reused for this long: the plan of a sweep asks once per run.
    const MOMENT: Duration = Duration::from_millis(200);
    static LAST: Mutex<Option<(Instant, Option<Available>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match *last {
        Some((at, known)) if at.elapsed() < MOMENT => known,
        Some(_) | None => {
            let now = measured(&|path| std::fs::read_to_string(path).ok());
            *last = Some((Instant::now(), now));
            now
        }
    }
}

/// Checks that this number of bytes is available.
///
/// # Errors
/// The need, the available memory, and its limit.
pub fn check(bytes: f64) -> Result<(), String> {
    tracing::debug!("this takes about {bytes:.0} bytes of memory");
    match available() {
        Some(available) if bytes > available.bytes as f64 => {
            Err(format!("it takes about {} of memory, and {available}", shown(bytes)))
        }
        Some(_) | None => Ok(()),
    }
}

/// Stack size of a pool thread.
const STACK: u64 = 2 << 20;

/// Checks that there is address space for this number of threads. Otherwise the system would start some of them, and
/// abort the process when a thread gets no signal stack.
///
/// # Errors
/// The need, and the available address space.
pub(crate) fn check_threads(threads: usize) -> Result<(), String> {
    /// Memory of a thread besides its stack: its signal stack, and the allocator's arena.
    const BESIDE: u64 = 512 << 10;
    let need = threads as u64 * (STACK + BESIDE);
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let (status, limits) = (read("/proc/self/status"), read("/proc/self/limits"));
    for (limit, used, name) in [("Max address space", "VmSize:", "-v"), ("Max data size", "VmData:", "-d")] {
        let left = soft_limit(&limits, limit).map(|limit| limit.saturating_sub(kilobytes(&status, used).unwrap_or(0)));
        if let Some(left) = left.filter(|left| need > *left) {
            let [need, left] = [need, left].map(|bytes| shown(bytes as f64));
            return Err(format!("{threads} threads need {need}, and {left} are left under `ulimit {name}`"));
        }
    }
    Ok(())
}

/// A soft limit of a process by name; None if unlimited.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn measured(read: &dyn Fn(&Path) -> Option<String>) -> Option<Available> {
    let proc = |file: &str| read(&Path::new("/proc").join(file));
    let status = proc("self/status").unwrap_or_default();
    let own = |key| kilobytes(&status, key).unwrap_or(0);
    // Address space that the allocator has reserved but not touched is as good as free.
    let used = own("RssAnon:") + STACK * number(&status, "Threads:").unwrap_or(1);
    let fixed = own("VmSize:").saturating_sub(own("VmData:"));
    let limits = proc("self/limits").unwrap_or_default();
    let soft = |name| soft_limit(&limits, name);
    let left = |limit: Option<u64>, used: u64| limit.map(|limit| limit.saturating_sub(used));
    let machine = proc("meminfo").and_then(|text| kilobytes(&text, "MemAvailable:"));
    let all = [
        (machine, Limit::Machine),
        (left(soft("Max address space"), fixed + used), Limit::AddressSpace),
        (left(soft("Max data size"), used), Limit::DataSegment),
        (groups(read), Limit::ControlGroup),
    ];
    let known = all.into_iter().filter_map(|(bytes, limit)| bytes.map(|bytes| Available { bytes, limit }));
    known.min_by_key(|available| available.bytes)
}

fn number(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A memory size from a file of `/proc`, in bytes.
pub(crate) fn of_proc(file: &str, key: &str) -> Option<u64> {
    kilobytes(&std::fs::read_to_string(file).ok()?, key)
}

fn kilobytes(text: &str, key: &str) -> Option<u64> {
    number(text, key).map(|kib| kib.saturating_mul(1024))
}

/// Memory left in the control groups of this process, of both versions.
fn groups(read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let own = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let version = match controllers {
            "" => Version::SECOND,
            all if all.split(',').any(|name| name == "memory") => Version::FIRST,
            _ => return None,
        };
        let folder = version.folder(&mounts, path)?;
        let of = |folder: &Path| version.left(folder, read);
        folder.1.ancestors().take_while(|at| at.starts_with(&folder.0)).filter_map(of).min()
    };
    own.lines().filter_map(of_line).min()
}

/// File names of a version of control groups.
#[derive(Clone, Copy)]
struct Version {
    kind: &'static str,
    controller: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The part of the used memory that the kernel reclaims first.
    cache: &'static str,
}

impl Version {
    const FIRST: Self = Self {
        kind: "cgroup",
        controller: "memory",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        cache: "total_inactive_file",
    };
    const SECOND: Self =
        Self { kind: "cgroup2", controller: "", limit: "memory.max", used: "memory.current", cache: "inactive_file" };

    /// Mount point of the hierarchy, and folder of the group in it.
    fn folder(self, mounts: &str, group: &str) -> Option<(PathBuf, PathBuf)> {
        let of_line = |line: &str| {
            let (place, kind) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let (root, at) = (place.next()?, place.next()?);
            let mut kind = kind.split(' ');
            let (name, options) = (kind.next()?, kind.nth(1)?);
            let is_own =
                name == self.kind && (self.controller.is_empty() || options.split(',').any(|o| o == self.controller));
            // A container may see its own group as the root, whatever its name outside.
            let inside = Path::new(group).strip_prefix(root).ok().or(Path::new(group).strip_prefix("/").ok());
            is_own.then(|| (PathBuf::from(at), Path::new(at).join(inside.unwrap_or(Path::new("")))))
        };
        mounts.lines().find_map(of_line)
    }

    /// Memory left in a group; None without a limit, or if the group is not visible.
    fn left(self, folder: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
        let number_in = |file: &str| read(&folder.join(file))?.trim().parse::<u64>().ok();
        let limit = number_in(self.limit)?;
        let used = number_in(self.used)?;
        let cache = read(&folder.join("memory.stat")).and_then(|text| number(&text, self.cache)).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cache)))
    }
}

/// Estimated peak memory of a run in bytes, by purpose. It counts the tensors that are kept, with factors fitted to
/// measured peaks.
#[derive(Clone, Debug, Default)]
pub struct Need {
    /// Needed throughout the run.
    always: Vec<Part>,
    /// Needed one after the other: the update of a step, a checkpoint, an evaluation.
    moments: Vec<Vec<Part>>,
}

/// One part of the need.
#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: f64,
    /// The key that affects it most.
    key: &'static str,
    what: &'static str,
    fix: &'static str,
}

/// Memory of the process without a model.
const BASE: f64 = 40e6;
/// Bytes per block besides its weights: its modules and graph nodes.
const BLOCK: f64 = 20e3;
/// Bytes per replica besides its gradients: what its threads keep for themselves.
const REPLICA: f64 = 8e6;
/// Bytes per weight tensor, whatever its size: table entries, gradient and states, names in a checkpoint.
const TENSOR: f64 = 5e3;
/// Tokens per forward pass of an evaluation.
const PASS: f64 = 4096.0;
/// Bytes of an `f32`.
const FLOAT: f64 = 4.0;

impl Need {
    /// The need of a run with this plan.
    pub(crate) fn of(config: &RunConfig, plan: &Plan) -> Self {
        let sizes = Sizes::of(config, plan);
        let part = |bytes, key, what, fix| Part { bytes, key, what, fix };
        let unusual = |among: &[&str]| sizes.unusual(among);
        let blocks = part(sizes.of_blocks(), "model.n_layers", "what each block takes", "fewer blocks");
        let weights = |each: f64, what| {
            let (hidden, tables) = (plan.block_weights(), plan.table_weights());
            let (key, fix) = unusual(&["model.n_layers", "model.d_model"]);
            let of_tables = part(
                each * tables,
                "model.d_model",
                "embedding and head",
                "a narrower model, or a smaller vocabulary or context",
            );
            [part(each * hidden, key, what, fix), of_tables]
        };
        let states = config.optimizer.most_states() as f64;
        let mut always = vec![blocks];
        always.extend(weights(FLOAT * (1.0 + states), "weights and the optimizer's averages"));
        always.extend(sizes.data(config));
        let others = config.replica_count(plan) as f64 - 1.0;
        let of_others = |each: f64, what| part(each * others, "train.replicas", what, "fewer replicas");
        always.push(of_others(REPLICA, "the threads of the other replicas"));
        let rows = config.train.batch_size as f64 * sizes.time;
        let (key, fix) = unusual(&["train.batch_size", "model.context", "model.n_layers", "model.d_model"]);
        let (of_logits, fewer) = unusual(&["train.batch_size", "model.context"]);
        // With micro-batches there is the sum of their gradients.
        let sum = if config.train.accumulate > 1 { 1.0 } else { 0.0 };
        let mut step = weights(FLOAT * (1.0 + sum), "gradients").to_vec();
        step.push(of_others(FLOAT * plan.weights(), "the gradients of the other replicas"));
        step.push(part(FLOAT * rows * plan.activations(sizes.compute), key, "activations", fix));
        step.push(part(FLOAT * rows * plan.logits(sizes.compute), of_logits, "logits", fewer));
        step.push(part(
            12.0 * rows * config.train.accumulate as f64,
            "train.accumulate",
            "the tokens of a step",
            "fewer micro-batches",
        ));
        // The weights as vectors, and all tensors twice as bytes.
        let checkpoint = weights(FLOAT * (1.0 + 2.0 * (1.0 + states)), "a checkpoint").to_vec();
        let pass = PASS.max(sizes.time);
        let of_pass = FLOAT * pass * (plan.forward_activations(sizes.compute) + plan.logits(sizes.compute));
        let evaluation = vec![
            part(of_pass, "model.context", "a pass of an evaluation", "a shorter context, or a narrower model"),
            of_others(of_pass, "the passes of an evaluation on the other replicas"),
        ];
        // The singular value decomposition of a square f64 matrix: the matrix, its factors, and working space.
        let drawn = if matches!(plan.init, Scheme::Mimetic { .. }) { 6.0 * 8.0 * sizes.d * sizes.d } else { 0.0 };
        let drawing =
            vec![part(drawn, "model.init", "the matrices of \"mimetic\"", "another init, or a narrower model")];
        Self { always, moments: vec![drawing, step, checkpoint, evaluation] }
    }

    /// The peak of a run of this configuration, in bytes; 0 if its model is invalid, which is reported elsewhere.
    fn of_own(config: &RunConfig) -> f64 {
        config.plan().map_or(0.0, |plan| Self::of(config, &plan).bytes())
    }

    /// The need of loading a checkpoint for forward passes only.
    pub(crate) fn of_reading(config: &RunConfig, plan: &Plan) -> Self {
        let Sizes { compute, layers, time, .. } = Sizes::of(config, plan);
        let plain = RunConfig { optimizer: OptimizerConfig::default(), ..config.clone() };
        let Self { mut always, .. } = Self::of(&plain, plan);
        let cached = 2.0 * layers * plan.blocks[0].attention.widths()[1] as f64;
        let pass = FLOAT * time * (plan.forward_activations(compute) + plan.logits(compute) + cached);
        let what = "a pass of the model, with the keys and values of all blocks";
        always.push(Part { bytes: pass, key: "model.context", what, fix: "a shorter context" });
        // The file's bytes, all tensors, and a second copy of the weights.
        let file = FLOAT * 4.0 * plan.weights();
        always.push(Part { bytes: file, key: "model.d_model", what: "the checkpoint", fix: "a smaller model" });
        Self { always, moments: Vec::new() }
    }

    /// The need of a coordinate check. It keeps activations of a batch twice (of all blocks, or of the first and last),
    /// and the graph of that pass, which no backward pass frees, during the next step.
    pub fn of_seen(config: &RunConfig, plan: &Plan, every_block: bool) -> Self {
        let mut need = Self::of(config, plan);
        let Sizes { compute, layers, time, d, .. } = Sizes::of(config, plan);
        let rows = config.train.batch_size as f64 * time;
        let blocks = if every_block { layers } else { 2.0 };
        let heads = plan.blocks[0].attention.heads as f64;
        let seen = 2.0 * (blocks * (3.0 * d + heads * time) + plan.vocabulary as f64);
        let graph = plan.activations(compute) + plan.logits(compute);
        let what = "what is seen of a batch, with the logits of attention";
        need.always.push(Part {
            bytes: FLOAT * rows * (seen + graph),
            key: "train.batch_size",
            what,
            fix: "fewer sequences",
        });
        need
    }

    /// The peak, in bytes.
    pub(crate) fn bytes(&self) -> f64 {
        BASE + sum(&self.always) + self.moments.iter().map(|moment| sum(moment)).fold(0.0, f64::max)
    }

    /// Checks that the memory for a run of this configuration is available.
    ///
    /// # Errors
    /// [`Error::Value`] with the key that affects the need most.
    pub fn check(&self, config: &RunConfig) -> Result<(), Error> {
        match available() {
            Some(available) => self.fits(config, available),
            None => Ok(()),
        }
    }

    fn fits(&self, config: &RunConfig, available: Available) -> Result<(), Error> {
        let need = self.bytes();
        tracing::debug!("at its peak this takes about {need:.0} bytes of memory, and {available}");
        if need <= available.bytes as f64 {
            return Ok(());
        }
        let largest = self.moments.iter().max_by(|a, b| sum(a).total_cmp(&sum(b)));
        let parts = self.always.iter().chain(largest.into_iter().flatten());
        let Some(most) = parts.max_by(|a, b| a.bytes.total_cmp(&b.bytes)) else { return Ok(()) };
        let model = &config.model;
        let value = match most.key {
            "model.n_layers" => model.n_layers,
            "model.d_model" => model.d_model,
            "model.context" => model.context,
            "train.batch_size" => config.train.batch_size,
            "train.accumulate" => config.train.accumulate,
            "train.replicas" => config.plan().map_or(0, |plan| config.replica_count(&plan)),
            _ => 0,
        };
        let value = if value == 0 { String::new() } else { format!("{value}: ") };
        let problem = format!(
            "{value}a run takes about {} of memory, {} of it for {}, and {available}. Take {}",
            shown(need),
            shown(most.bytes),
            most.what,
            most.fix
        );
        Err(Error::value(most.key, "", problem))
    }
}

fn sum(parts: &[Part]) -> f64 {
    parts.iter().map(|part| part.bytes).sum()
}

/// Configuration and plan of a run, with sizes as f64.
struct Sizes<'a> {
    config: &'a RunConfig,
    plan: &'a Plan,
    compute: Compute,
    layers: f64,
    time: f64,
    d: f64,
}

impl<'a> Sizes<'a> {
    fn of(config: &'a RunConfig, plan: &'a Plan) -> Self {
        let on_host = config.backend == "flex" && config.train.precision == Precision::F32;
        Self {
            config,
            plan,
            compute: Compute {
                fused: config.train.fused && on_host,
                fused_norms: config.train.fused,
                precision: config.train.precision,
            },
            layers: plan.shape.blocks as f64,
            time: plan.context as f64,
            d: plan.shape.width as f64,
        }
    }

    /// The size among `among` that exceeds its usual value most, with advice.
    fn unusual(&self, among: &[&str]) -> (&'static str, &'static str) {
        let d_ff = self.plan.blocks[0].mlp.d_ff as f64;
        let all = [
            (
                "train.batch_size",
                self.config.train.batch_size as f64 / 16.0,
                "fewer sequences, and more train.accumulate",
            ),
            ("model.context", self.time / 64.0, "a shorter context"),
            ("model.n_layers", self.layers / 4.0, "fewer blocks"),
            ("model.d_model", self.d.max(d_ff / 4.0) / 128.0, "a narrower model"),
        ];
        let among = all.into_iter().filter(|(key, ..)| among.contains(key));
        let most = among.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(all[0]);
        (most.0, most.2)
    }

    /// Bytes of all blocks besides their weights.
    fn of_blocks(&self) -> f64 {
        let attention = &self.plan.blocks[0].attention;
        let turns = self.plan.blocks.iter().any(|block| matches!(block.attention.position, Position::Rope { .. }));
        let rotary = if turns { FLOAT * self.time * attention.widths()[1] as f64 } else { 0.0 };
        self.layers * (BLOCK + rotary) + TENSOR * self.plan.tensors()
    }

    fn data(&self, config: &RunConfig) -> Vec<Part> {
        let part = |bytes, key, what, fix| Part { bytes, key, what, fix };
        let evaluated = match config.eval.tokens {
            EvalTokens::Count(n) => n as f64,
            EvalTokens::All => 0.0,
        };
        let windows = part(
            evaluated * (FLOAT + 40.0 / self.time.max(1.0)),
            "eval.tokens",
            "the tokens of an evaluation",
            "fewer of them",
        );
        let task = match &config.data {
            DataConfig::Markov { vocab_size, order, branching, .. } => {
                let contexts = (*vocab_size as f64).powf(*order as f64);
                part(
                    contexts * (12.0 * *branching as f64 + 64.0),
                    "data.order",
                    "the chain",
                    "a lower order or branching",
                )
            }
            DataConfig::Recall { keys, .. } => part(32.0 * *keys as f64, "data.keys", "the symbols", "fewer of them"),
            DataConfig::Copy { symbols } => part(8.0 * *symbols as f64, "data.symbols", "the symbols", "fewer of them"),
            // A text is checked separately, before it is read.
            DataConfig::Text { .. } => part(0.0, "data.path", "the text", "a shorter one"),
        };
        vec![windows, task]
    }
}

/// Memory of the machine benchmark: matrices of 32 MiB, and the graph of a norm of one of them.
const MACHINE: f64 = 250e6;

/// Bytes of a text's tokens, which a run checks separately before it reads them.
fn of_text(config: &RunConfig) -> f64 {
    match &config.data {
        DataConfig::Text { path, tokenizer } => {
            tokenizer.bytes_each() * std::fs::metadata(path).map_or(0.0, |file| file.len() as f64)
        }
        DataConfig::Markov { .. } | DataConfig::Recall { .. } | DataConfig::Copy { .. } => 0.0,
    }
}

/// Checks that there is memory for these models together, and for the machine benchmark.
///
/// # Errors
/// [`Error::Value`] with the need.
pub fn check_all<'a>(configs: impl IntoIterator<Item = &'a RunConfig>) -> Result<(), Error> {
    let on_host = configs.into_iter().filter(|config| device::is_host(&config.backend));
    let needs: Vec<f64> = on_host.map(Need::of_own).collect();
    if needs.is_empty() {
        return Ok(());
    }
    let all = needs.iter().sum::<f64>() + MACHINE;
    check(all).map_err(|problem| {
        Error::value("configurations", needs.len(), format!("at once: {problem}. Give fewer, or smaller ones"))
    })
}

/// Number of runs that fit into memory at once, assuming the largest of the given configurations, each on this many
/// threads unless it says otherwise; None if unknown.
pub fn at_once<'a>(configs: impl IntoIterator<Item = &'a RunConfig>, threads: usize) -> Option<usize> {
    let on_host = configs.into_iter().filter(|config| device::is_host(&config.backend));
    let need = |config: &RunConfig| {
        let threads = if config.threads == 0 { threads } else { config.threads };
        Need::of_own(&RunConfig { threads, ..config.clone() }) + of_text(config)
    };
    let largest = on_host.map(need).fold(0.0, f64::max);
    available().filter(|_| largest > 0.0).map(|available| (available.bytes as f64 / largest) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The available memory, given the contents of some files.
    fn of(files: &[(&str, &str)]) -> Option<Available> {
        let files: HashMap<PathBuf, String> = files.iter().map(|(path, text)| (path.into(), (*text).into())).collect();
        measured(&|path| files.get(path).cloned())
    }

    const MEMORY: (&str, &str) = ("/proc/meminfo", "MemTotal: 16000 kB\nMemAvailable:    8000 kB\n");
    const STATUS: (&str, &str) = (
        "/proc/self/status",
        "VmPeak:\t 9000 kB\nVmSize:\t 3000 kB\nVmData:\t 2000 kB\nRssAnon:\t 500 kB\nThreads:\t1\n",
    );

    #[test]
    fn the_least_limit_counts() {
        assert_eq!(of(&[]), None);
        let machine = Available { bytes: 8000 << 10, limit: Limit::Machine };
        assert_eq!(of(&[MEMORY, STATUS]), Some(machine));
        let unlimited = "Limit  Soft Limit  Hard Limit  Units\nMax data size  unlimited  unlimited  bytes\n";
        assert_eq!(of(&[MEMORY, STATUS, ("/proc/self/limits", unlimited)]), Some(machine));
        // Untouched memory of the allocator counts as free; a stack of 2 MiB does not.
        let limits = "Max data size             6000000              unlimited            bytes\n\
                      Max address space         5000000              unlimited            bytes\n";
        let left = of(&[MEMORY, STATUS, ("/proc/self/limits", limits)]).unwrap();
        assert_eq!(left, Available { bytes: 5_000_000 - (1500 << 10) - STACK, limit: Limit::AddressSpace });
        assert!(
            left.to_string().contains("1 MB are left under `ulimit -v`") || left.to_string().contains("2 MB"),
            "{left}"
        );
    }

    #[test]
    fn groups_of_both_versions_bound_from_any_level() {
        // The parent group is the tighter one; part of its use is cache.
        let first = [
            MEMORY,
            ("/proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/outer/inner\n0::/\n"),
            (
                "/proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "50\n"),
            ("/sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/outer/memory.usage_in_bytes", "700\n"),
            ("/sys/fs/cgroup/memory/outer/memory.stat", "inactive_file 9\ntotal_inactive_file 100\n"),
            ("/sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", "900\n"),
            ("/sys/fs/cgroup/memory/outer/inner/memory.usage_in_bytes", "100\n"),
        ];
        assert_eq!(of(&first), Some(Available { bytes: 400, limit: Limit::ControlGroup }));
        // A container sees its own group as the root.
        let second = [
            MEMORY,
            ("/proc/self/cgroup", "0::/docker/x/job\n"),
            ("/proc/self/mountinfo", "30 23 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            ("/sys/fs/cgroup/memory.max", "max\n"),
            ("/sys/fs/cgroup/memory.current", "10\n"),
            ("/sys/fs/cgroup/job/memory.max", "600\n"),
            ("/sys/fs/cgroup/job/memory.current", "300\n"),
            ("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 50\n"),
        ];
        assert_eq!(of(&second), Some(Available { bytes: 350, limit: Limit::ControlGroup }));
        let third = [
            MEMORY,
            ("/proc/self/cgroup", "0::/\n"),
            ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            ("/sys/fs/cgroup/memory.max", "0\n"),
            ("/sys/fs/cgroup/memory.current", "10\n"),
        ];
        assert_eq!(of(&third).map(|left| left.bytes), Some(0));
    }

    #[test]
    fn what_takes_most_is_named() {
        let few = Available { bytes: 1 << 29, limit: Limit::ControlGroup };
        let message = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
            let config = RunConfig::parse("", "test", &settings).unwrap();
            Need::of(&config, &config.plan().unwrap())
                .fits(&config, few)
                .map_or_else(|e| e.to_string(), |()| String::new())
        };
        assert_eq!(message(&[]), "");
        for (settings, expected) in [
            (&["model.n_layers=60000", "model.d_model=8"][..], "model.n_layers: 60000: a run takes about"),
            (&["train.batch_size=1048576", "model.context=16"], "train.batch_size: 1048576: "),
            (&["model.d_model=16384", "model.n_layers=1"], "model.d_model: 16384: "),
            (&["train.batch_size=1", "model.context=1048576"], "model.context: 1048576: "),
            (&["train.accumulate=1048576"], "train.accumulate: 1048576: "),
            (&["eval.tokens=16777216", "model.context=1", "data.order=1"], "eval.tokens: "),
            (&["data.order=4", "data.vocab_size=64"], "data.order: "),
        ] {
            let said = message(settings);
            assert!(said.contains(expected), "{settings:?}: {said}");
            assert!(said.contains("537 MB are left under the memory limit of the control group"), "{said}");
        }
    }

    /// Peaks measured with this version, in MB.
    #[test]
    fn the_estimate_is_near_what_was_measured() {
        let small =
            ["model.context=16", "model.d_model=16", "model.n_heads=2", "train.batch_size=1", "eval.tokens=2048"];
        let wide =
            ["model.context=64", "model.d_model=128", "model.n_layers=8", "train.batch_size=128", "eval.tokens=2048"];
        for (base, settings, measured) in [
            (&small[..], &["model.n_layers=1"][..], 34.1),
            (&small, &["model.n_layers=1000"], 204.9),
            (&small, &["model.n_layers=2000"], 397.9),
            (&small, &["model.n_layers=1000", "model.bias=true"], 255.2),
            (&small, &["model.n_layers=8", "model.d_model=512"], 990.9),
            (&small, &["model.n_layers=8", "model.d_model=512", "optimizer.kind=sgd"], 679.2),
            (&wide, &[], 676.6),
            (&wide, &["train.batch_size=256"], 1302.7),
            (&wide, &["train.fused=false"], 1317.8),
            (&wide, &["train.precision=bf16"], 832.1),
            (&wide, &["model.activation=swi_glu"], 696.1),
            (&wide, &["model.norm=batch_norm"], 832.6),
            (&wide, &["model.placement=normformer"], 896.0),
            (&wide, &["model.placement=none"], 605.2),
            (&wide, &["model.scale=layer_scale"], 772.7),
            (&wide, &["model.context=2048", "train.batch_size=4"], 695.8),
        ] {
            let of_chain = ["data.vocab_size=16", "data.order=1", "data.branching=2", "threads=2"];
            let all = base.iter().chain(settings).chain(&of_chain).map(ToString::to_string).collect::<Vec<_>>();
            let config = RunConfig::parse("", "test", &all).unwrap().resolved(16).unwrap();
            let part = measured * 1e6 / Need::of_own(&config);
            assert!((0.6..1.3).contains(&part), "{settings:?}: {measured} MB are {part:.2} of the estimate");
        }
    }
}
