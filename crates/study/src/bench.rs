//! Training speed of configurations, compared with the speed of the machine.

use burn::tensor::{Device, Tensor, TensorData};
use serde::Serialize;
use std::time::Instant;
use unitgain_init::sample;
use unitgain_kernels::composed;
use unitgain_model::{NormConfig, Variant};
use unitgain_norms::NormSite;
use unitgain_train::step::read_rows;
use unitgain_train::{Error, RunConfig, Task, Trainer, device, device::memory, folder::metrics};

/// Number of steps and rounds of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Warm-up steps per configuration before the first round. Default 3.
    pub warmup: usize,
    /// Steps per configuration and round. Default 10.
    pub steps: usize,
    /// Number of rounds; in each, all configurations run in turn. Default 3.
    pub rounds: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { warmup: 3, steps: 10, rounds: 3 }
    }
}

/// Measurements of one configuration. Times are in milliseconds per step, logging included.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name of the configuration.
    pub name: String,
    /// Number of trainable parameters.
    pub parameters: usize,
    /// Tokens per step.
    pub tokens: usize,
    /// Median time per step.
    pub ms: f64,
    /// First and third quartile of the time per step.
    pub quartiles: [f64; 2],
    /// Mean time of the forward pass.
    pub forward: f64,
    /// Mean time of the backward pass.
    pub backward: f64,
    /// Mean time of gradient norms, clip and update.
    pub optimizer: f64,
    /// Mean time of the rest: data, and reading logged values.
    pub logging: f64,
    /// Floating-point operations per step, counting matrix products only, and causal attention by half.
    pub flops: f64,
    /// Rate of `flops` relative to the machine's matrix product.
    pub utilization: f64,
    /// Number of replicas.
    pub replicas: usize,
    /// Page faults per step, each a page that the kernel cleared, in the round with the fewest.
    pub page_faults: Option<f64>,
    /// Peak memory of the process so far, in bytes.
    pub peak_memory: Option<u64>,
}

impl Measured {
    /// Tokens per second, from the median step.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.ms * 1e3
    }
}

/// Speed of the machine, measured in the same session.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Maximum rate of f32 matrix products, in operations per second.
    pub product: f64,
    /// Bytes read and written per second by a copy.
    pub copy: f64,
    /// Forward and backward pass of each norm on 8192 rows of 1024: name, milliseconds, and memory bandwidth (reading
    /// and writing x and y; x, dy and dx) relative to the copy's.
    pub norms: Vec<(&'static str, f64, f64)>,
}

/// State of a configuration under measurement.
struct Bench {
    name: String,
    /// Operations per token of a step.
    flops: f64,
    config: RunConfig,
    task: Task,
    trainer: Option<Trainer>,
    step: usize,
    times: Vec<f64>,
    /// The least page faults per step of a round.
    page_faults: Option<f64>,
}

/// Measures configurations in turns, and the machine. The parts of a step are those of a run's clock: on an
/// asynchronous device the times to enqueue them, while `logging` includes the wait for the step.
///
/// # Errors
/// As [`RunConfig::prepare`] and [`threads`].
pub fn run(
    configs: &[(String, RunConfig)],
    effort: Effort,
    progress: &mut (dyn FnMut() + Send),
) -> Result<(Vec<Measured>, Machine), Error> {
    let is_host = configs.iter().all(|(_, config)| device::is_host(&config.backend));
    let mut work = || measure(configs, effort, progress);
    if is_host { device::on_threads(threads(configs)?, work)? } else { work() }
}

/// The number of threads shared by all configurations, and used to measure the machine.
///
/// # Errors
/// [`Error::Value`] if they differ.
pub fn threads(configs: &[(String, RunConfig)]) -> Result<usize, Error> {
    let first = configs.first().map_or(0, |(_, config)| config.threads);
    match configs.iter().find(|(_, config)| config.threads != first) {
        Some((name, config)) => {
            let problem = format!(
                "of {} and {} of {name} differ; set one value for all with --set threads=N",
                configs[0].0, config.threads
            );
            Err(Error::value("threads", first, problem))
        }
        None if first == 0 => device::threads(),
        None => Ok(first),
    }
}

fn measure(
    configs: &[(String, RunConfig)],
    effort: Effort,
    progress: &mut (dyn FnMut() + Send),
) -> Result<(Vec<Measured>, Machine), Error> {
    let mut benches = Vec::new();
    let prepared = configs.iter().map(|(name, config)| Ok((name, config.prepare()?)));
    let prepared = prepared.collect::<Result<Vec<_>, Error>>()?;
    // All models are in memory at once.
    memory::check_all(prepared.iter().map(|(_, (config, _))| config))?;
    for (name, (config, task)) in prepared {
        let device = config.device()?;
        let trainer = Trainer::of(&config, &device)?;
        let (name, trainer) = (name.clone(), Some(trainer));
        let flops = config.plan()?.flops_per_token();
        benches.push(Bench { name, flops, config, task, trainer, step: 0, times: Vec::new(), page_faults: None });
    }
    for bench in &mut benches {
        bench.steps(effort.warmup);
        bench.times.clear();
        bench.page_faults = None;
        if let Some(trainer) = &mut bench.trainer {
            trainer.clock = Default::default();
        }
    }
    for _ in 0..effort.rounds {
        for bench in &mut benches {
            bench.steps(effort.steps);
            progress();
        }
    }
    let device = benches.first().map_or_else(|| device::from_name("flex"), |bench| bench.config.device())?;
    let machine = machine(&device);
    Ok((benches.into_iter().map(|bench| bench.measured(machine.product)).collect(), machine))
}

impl Bench {
    fn steps(&mut self, n: usize) {
        let before = metrics::page_faults();
        for _ in 0..n {
            let started = Instant::now();
            let Some(trainer) = self.trainer.take() else { return };
            let batches = self.config.batches(&self.task, self.step);
            let lr = self.config.optimizer.lr();
            let step = || trainer.step(&batches, lr, true);
            let (trainer, row) = if self.config.train.fused { step() } else { composed(step) };
            read_rows(&[row]);
            self.trainer = Some(trainer);
            self.step += 1;
            self.times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        let faults = before.zip(metrics::page_faults()).map(|(before, after)| (after - before) as f64 / n as f64);
        self.page_faults = [self.page_faults, faults].into_iter().flatten().reduce(f64::min);
    }

    fn measured(mut self, product: f64) -> Measured {
        self.times.sort_by(f64::total_cmp);
        let quantile = |q: f64| self.times[((self.times.len() - 1) as f64 * q).round() as usize];
        let tokens = self.config.tokens_of_step();
        let steps = self.times.len() as f64;
        let (clock, parameters, flops) = match &self.trainer {
            Some(trainer) => (trainer.clock, trainer.table.elements(), self.flops * tokens as f64),
            None => (Default::default(), 0, 0.0),
        };
        let part = |time: std::time::Duration| time.as_secs_f64() * 1e3 / steps;
        let [forward, backward, optimizer] = [clock.forward, clock.backward, clock.optimizer].map(part);
        let ms = quantile(0.5);
        Measured {
            name: self.name,
            parameters,
            tokens,
            ms,
            quartiles: [quantile(0.25), quantile(0.75)],
            forward,
            backward,
            optimizer,
            logging: (self.times.iter().sum::<f64>() / steps - forward - backward - optimizer).max(0.0),
            flops,
            utilization: flops / (ms / 1e3) / product,
            replicas: self.trainer.as_ref().map_or(1, |trainer| trainer.replicas().count()),
            page_faults: self.page_faults,
            peak_memory: metrics::peak_memory(),
        }
    }
}

/// The minimum time of `f` over several calls, in seconds.
fn shortest(times: usize, mut f: impl FnMut()) -> f64 {
    let time = |_| {
        let started = Instant::now();
        f();
        started.elapsed().as_secs_f64()
    };
    (0..times).map(time).fold(f64::INFINITY, f64::min)
}

fn machine(device: &Device) -> Machine {
    let matrix = |path: &str, shape: [usize; 2]| {
        let values = sample::normal(1, path, shape[0] * shape[1], 1.0);
        Tensor::<2>::from_data(TensorData::new(values, shape), device)
    };
    let product = product(&|n| matrix("bench/product", [n, n]));
    let (rows, width) = (8192, 1024);
    let copy = copy(&matrix("bench/copy", [rows, width]));
    let bytes = (rows * width * 4) as f64;
    let on_graph = device.clone().autodiff();
    let x = Tensor::from_inner(matrix("bench/x", [rows, width]));
    let dy = Tensor::from_inner(matrix("bench/dy", [rows, width]));
    let mut norms = Vec::new();
    for config in [NormConfig::layer_norm(), NormConfig::rms_norm()] {
        let norm = config.build(NormSite::of(width), &on_graph);
        // Subtract the time of the product with dy and its sum, which is not the norm's.
        let with = |f: &dyn Fn(Tensor<2>) -> Tensor<2>| {
            shortest(8, || {
                let x = x.clone().require_grad();
                let loss = (f(x.clone()) * dy.clone()).sum();
                let gradients = loss.backward();
                let gradient = x.grad(&gradients);
                gradient.map(|g| g.sum().into_scalar::<f32>());
            })
        };
        let seconds = (with(&|x| norm.forward(x)) - with(&|x| x)).max(1e-9);
        norms.push((config.about().name, seconds * 1e3, 5.0 * bytes / seconds / copy));
    }
    Machine { product, copy, norms }
}

/// Operations per second of the fastest product: our own on the CPU, otherwise the backend's.
fn product(matrix: &dyn Fn(usize) -> Tensor<2>) -> f64 {
    let mut fastest = 0.0f64;
    for n in [512, 1024, 2048] {
        let (a, b) = (matrix(n), matrix(n));
        let operations = |seconds: f64| 2.0 * (n as f64).powi(3) / seconds;
        let seconds = shortest(5, || {
            let product = a.clone().matmul(b.clone());
            product.sum().into_scalar::<f32>();
        });
        fastest = fastest.max(operations(seconds));
        #[cfg(feature = "flex")]
        if let (Some(a), Some(b)) = (host(&a), host(&b)) {
            use unitgain_kernels::{Matrix, product};
            let seconds = shortest(5, || {
                product((n, n, n), Matrix::new(&a, n, 1), Matrix::new(&b, n, 1));
            });
            fastest = fastest.max(operations(seconds));
        }
    }
    fastest
}

/// Bytes read and written per second by a copy of `x`.
fn copy(x: &Tensor<2>) -> f64 {
    let bytes = 2.0 * 4.0 * x.shape().num_elements() as f64;
    #[cfg(feature = "flex")]
    if let Some(x) = host(x) {
        use rayon::prelude::*;
        let mut out = vec![0f32; x.len()];
        let n = unitgain_kernels::threads::piece(x.len(), 64, 1);
        let seconds = shortest(10, || {
            out.par_chunks_mut(n).zip(x.par_chunks(n)).for_each(|(out, x)| out.copy_from_slice(x));
        });
        return bytes / seconds;
    }
    let seconds = shortest(10, || {
        let copy = x.clone() + 0.0;
        copy.sum().into_scalar::<f32>();
    });
    bytes / seconds
}

/// The elements of a tensor of the CPU backend; None on other backends.
#[cfg(feature = "flex")]
fn host(x: &Tensor<2>) -> Option<Vec<f32>> {
    Some(unitgain_kernels::slice(&unitgain_kernels::Native::of(x)?.values()).to_vec())
}
