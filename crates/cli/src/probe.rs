use super::overrides::Overrides;
use super::progress::Count;
use super::{Outcome, printable, table};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use unitgain_study::coord_check::{Axis, resized};
use unitgain_study::plot::{self, Panel};
use unitgain_study::signal::{self, BlockSignal, Signal, Spectrum};
use unitgain_train::RunConfig;
use unitgain_train::folder::checkpoint::Checkpoint;

/// Measure the signal of new or trained models: stream, branches, gradients and attention of each block, and weights
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain probe configs/pre_norm.toml\n  \
    unitgain probe configs/pre_norm.toml configs/post_norm.toml --depths 8,16,32,64 --seeds 3 --plot probe.svg\n  \
    unitgain probe configs/pre_norm.toml runs/pre_norm runs/pre_norm/checkpoints/step_00000500.safetensors\n\n\
    All models, also trained ones, are measured on the batch of the first step; seeds of a trained model change only \
        the batch.")]
pub(crate) struct Args {
    /// TOML files of runs (measured at step 0), run folders (at their newest checkpoint), or checkpoints
    #[arg(required = true, value_name = "CONFIG|RUN|CHECKPOINT")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    /// Number of seeds, counting up from the configuration's
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Numbers of blocks, instead of the files'
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    depths: Vec<usize>,
    /// Widths of the model, instead of the files'
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    widths: Vec<usize>,
    /// Skip the singular values, whose cost grows with the cube of the width
    #[arg(long)]
    no_spectrum: bool,
    /// Plot the curves over the blocks (and over several depths or widths), as SVG, or as PNG with the feature png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON (an array of objects, with every seed)
    #[arg(long)]
    json: bool,
}

/// A model to measure.
enum Source {
    New(RunConfig),
    Trained(Box<Checkpoint>, RunConfig),
}

impl Source {
    /// A new model from a TOML file, or a trained one from a run folder or checkpoint, with its name.
    fn open(path: &Path, overrides: &Overrides) -> anyhow::Result<(String, Self)> {
        let is_checkpoint = path.extension().is_some_and(|extension| extension == "safetensors");
        if !path.is_dir() && !is_checkpoint {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return Ok((name, Self::New(overrides.load(path)?)));
        }
        let checkpoint = if is_checkpoint { Checkpoint::read(path)? } else { Checkpoint::newest(path)? };
        // Name of the run's folder, for a path such as `.` and for one of its checkpoints.
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let folder = whole.parent().filter(|folder| folder.ends_with("checkpoints")).and_then(Path::parent);
        let name = match (is_checkpoint, folder) {
            (true, Some(run)) => run.file_name(),
            (true, None) => whole.file_stem(),
            (false, _) => whole.file_name(),
        };
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        let config =
            RunConfig::parse(&checkpoint.config.to_toml(), &path.display().to_string(), &overrides.settings())?;
        Ok((name, Self::Trained(Box::new(checkpoint), config)))
    }

    fn config(&self) -> &RunConfig {
        match self {
            Self::New(config) | Self::Trained(_, config) => config,
        }
    }

    /// Number of training steps of the model.
    fn step(&self) -> usize {
        match self {
            Self::New(_) => 0,
            Self::Trained(checkpoint, _) => checkpoint.progress.step,
        }
    }

    /// The model with another number of blocks and another width.
    fn resized(&self, depth: usize, width: usize) -> anyhow::Result<Self> {
        match self {
            Self::New(config) => Ok(Self::New(resized(&resized(config, Axis::Depth, depth)?, Axis::Width, width)?)),
            Self::Trained(checkpoint, config) => Ok(Self::Trained(checkpoint.clone(), config.clone())),
        }
    }

    /// Measures the model with the configuration's seed plus `more`.
    fn measure(&self, more: u64, spectrum: bool) -> anyhow::Result<Signal> {
        let mut config = self.config().clone();
        config.seed = config.seed.saturating_add(more);
        Ok(match self {
            Self::New(_) => signal::measure(&config, spectrum)?,
            Self::Trained(checkpoint, _) => signal::measure_trained(checkpoint, &config, spectrum)?,
        })
    }
}

/// Results for one model, over seeds.
#[derive(Serialize)]
struct Probed {
    config: String,
    /// Number of training steps.
    step: usize,
    depth: usize,
    width: usize,
    seeds: Vec<Signal>,
}

impl Probed {
    fn name(&self, several: [bool; 2]) -> String {
        let depth = if several[0] { format!(", {} blocks", self.depth) } else { String::new() };
        let width = if several[1] { format!(", width {}", self.width) } else { String::new() };
        format!("{}{depth}{width}", self.title())
    }

    fn title(&self) -> String {
        let step = if self.step > 0 { format!(", step {}", self.step) } else { String::new() };
        format!("{}{step}", self.config)
    }

    fn of(&self, f: impl Fn(&Signal) -> f64) -> Spread {
        Spread::of(self.seeds.iter().map(f).collect())
    }

    fn block(&self, l: usize, f: impl Fn(&BlockSignal) -> f64) -> Spread {
        self.of(|signal| f(&signal.blocks[l]))
    }
}

/// Mean and standard deviation over seeds.
struct Spread {
    mean: f64,
    std: f64,
    count: usize,
}

impl Spread {
    fn of(values: Vec<f64>) -> Self {
        let (mean, std) = signal::mean_and_std(&values);
        Self { mean, std, count: values.len() }
    }

    fn shown(&self) -> String {
        let number = table::number;
        match self.count {
            1 => number(self.mean),
            _ => format!("{} +- {}", number(self.mean), number(self.std)),
        }
    }
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        self.plot.as_deref().map_or(Ok(()), plot::check)?;
        let mut jobs = Vec::new();
        for path in &self.models {
            let (name, source) = Source::open(path, &self.overrides)?;
            let config = source.config();
            self.overrides.self_test(&config.backend)?;
            let is_trained = matches!(source, Source::Trained(..));
            if is_trained && !(self.depths.is_empty() && self.widths.is_empty()) {
                anyhow::bail!(
                    "--depths and --widths are for configurations, and {} is trained: its size is fixed. Leave them \
                     out, or give the run of each size",
                    path.display()
                );
            }
            let or = |given: &[usize], own| {
                let mut sizes = if given.is_empty() { vec![own] } else { given.to_vec() };
                sizes.sort_unstable();
                sizes.dedup();
                sizes
            };
            for depth in or(&self.depths, config.model.n_layers) {
                for width in or(&self.widths, config.model.d_model) {
                    let job = Probed { config: name.clone(), step: source.step(), depth, width, seeds: Vec::new() };
                    jobs.push((job, source.resized(depth, width)?));
                }
            }
        }
        let count = jobs.len() as u64 * self.seeds;
        let count = Count::new(count, "model");
        let mut probed = Vec::new();
        for (mut job, source) in jobs {
            for more in 0..self.seeds {
                job.seeds.push(source.measure(more, !self.no_spectrum)?);
                count.inc();
            }
            probed.push(job);
        }
        count.finish();
        let several = [|job: &Probed| job.depth, |job: &Probed| job.width]
            .map(|size| probed.iter().any(|job| size(job) != size(&probed[0])));
        let is_finite = probed.iter().flat_map(|job| &job.seeds).all(Signal::is_finite);
        let outcome = if is_finite { Outcome::Success } else { Outcome::Negative };
        if let Some(path) = &self.plot {
            plot::write(path, &panels(&probed, several))?;
        }
        let mut out = printable::out();
        if self.json {
            writeln!(printable::raw(), "{}", serde_json::to_string_pretty(&probed)?)?;
            return Ok(outcome);
        }
        if several == [false; 2] {
            for job in &probed {
                blocks(job)?;
            }
        }
        summary(&probed, several)?;
        for job in &probed {
            let none = job.seeds.iter().map(|signal| signal.without_gradient().len()).max().unwrap_or(0);
            if none > 0 {
                let name = job.name(several);
                writeln!(
                    out,
                    "{name}: {none} of {} blocks have no gradient at step 0, so their ratios mean nothing",
                    job.depth
                )?;
            }
        }
        if !is_finite {
            writeln!(out, "some numbers are not finite: something overflows at step 0")?;
        }
        Ok(outcome)
    }
}

fn blocks(job: &Probed) -> anyhow::Result<()> {
    let mut out = printable::out();
    writeln!(out, "{}", job.title())?;
    let header = [
        "block",
        "stream rms",
        "attention",
        "mlp",
        "attention / stream",
        "mlp / stream",
        "d stream",
        "d weights",
        "entropy",
        "largest logit",
        "singular values",
    ];
    let cells = |l: usize| {
        let of = |f: &dyn Fn(&BlockSignal) -> f64| job.block(l, f).shown();
        let range = job.seeds[0].blocks[l].singular_values;
        vec![
            (l + 1).to_string(),
            of(&|b| b.stream),
            of(&|b| b.attention),
            of(&|b| b.mlp),
            of(&|b| b.attention_share),
            of(&|b| b.mlp_share),
            of(&|b| b.stream_gradient),
            of(&|b| b.gradient),
            of(&|b| b.entropy),
            of(&|b| b.largest_logit),
            range.map_or("left out".into(), |[most, least]| {
                format!("{} to {}", table::number(least), table::number(most))
            }),
        ]
    };
    let rows: Vec<_> = (0..job.depth).map(cells).collect();
    table::print(&header, &rows, &(0..header.len()).collect::<Vec<_>>())?;
    writeln!(out)?;
    spectra(job)
}

/// The singular values of the weight matrices, one row per role: ranges over its matrices and over seeds.
fn spectra(job: &Probed) -> anyhow::Result<()> {
    let mut roles: Vec<(&str, Vec<&Spectrum>)> = Vec::new();
    for matrix in job.seeds.iter().flat_map(|signal| &signal.matrices) {
        match roles.iter_mut().find(|(role, _)| *role == matrix.role) {
            Some((_, matrices)) => matrices.push(matrix),
            None => roles.push((matrix.role, vec![matrix])),
        }
    }
    if roles.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> = roles
        .iter()
        .map(|(role, matrices)| {
            let range = |f: fn(&Spectrum) -> f64| {
                let [least, most] = [f64::min, f64::max].map(|of| {
                    let all = matrices.iter().map(|matrix| f(matrix));
                    table::number(all.reduce(of).unwrap_or(f64::NAN))
                });
                if least == most { most } else { format!("{least} to {most}") }
            };
            vec![
                (*role).into(),
                (matrices.len() / job.seeds.len()).to_string(),
                range(|matrix| matrix.largest),
                range(|matrix| matrix.smallest),
                range(|matrix| matrix.stable_rank),
            ]
        })
        .collect();
    let header = ["weights", "count", "largest singular value", "smallest", "stable rank"];
    table::print(&header, &rows, &[1, 2, 3, 4])?;
    writeln!(printable::out())?;
    Ok(())
}

fn summary(probed: &[Probed], several: [bool; 2]) -> anyhow::Result<()> {
    let header = [
        "model",
        "loss",
        "embedding rms",
        "last stream rms",
        "logits rms",
        "growth exponent",
        "first gradient",
        "last gradient",
        "last / first",
    ];
    let rows: Vec<Vec<String>> = probed
        .iter()
        .map(|job| {
            let last = job.depth - 1;
            vec![
                job.name(several),
                job.of(|s| s.loss).shown(),
                job.of(|s| s.embedding).shown(),
                job.block(last, |b| b.stream).shown(),
                job.of(|s| s.logits).shown(),
                job.of(|s| s.growth).shown(),
                job.block(0, |b| b.gradient).shown(),
                job.block(last, |b| b.gradient).shown(),
                job.of(|s| s.last_over_first).shown(),
            ]
        })
        .collect();
    table::print(&header, &rows, &[1, 2, 3, 4, 5, 6, 7, 8])?;
    for (index, what) in [(0, "depth"), (1, "width")] {
        if !several[index] {
            continue;
        }
        let size = |job: &Probed| if index == 0 { job.depth } else { job.width } as f64;
        let rows: Vec<Vec<String>> = groups(probed, index, several)
            .into_iter()
            .filter(|(_, jobs)| jobs.len() > 1)
            .map(|(name, jobs)| {
                let fit = |f: &dyn Fn(&Probed) -> f64| {
                    let points: Vec<(f64, f64)> = jobs.iter().map(|job| (size(job).ln(), f(job).ln())).collect();
                    format!("{:+.2}", signal::slope(&points))
                };
                let last = |job: &Probed| job.block(job.depth - 1, |b| b.gradient).mean;
                vec![
                    name,
                    fit(&|job| job.block(job.depth - 1, |b| b.stream).mean),
                    fit(&|job| job.block(0, |b| b.gradient).mean),
                    fit(&last),
                    fit(&|job| job.of(|s| s.last_over_first).mean),
                ]
            })
            .collect();
        if rows.is_empty() {
            continue;
        }
        writeln!(printable::out(), "\nexponents over {what}")?;
        let header = ["model", "last stream rms", "first gradient", "last gradient", "last / first"];
        table::print(&header, &rows, &[1, 2, 3, 4])?;
    }
    Ok(())
}

/// Groups of models that differ only in depth (0) or width (1).
fn groups(probed: &[Probed], index: usize, several: [bool; 2]) -> Vec<(String, Vec<&Probed>)> {
    let mut groups: Vec<(String, Vec<&Probed>)> = Vec::new();
    for job in probed {
        let mut named = several;
        named[index] = false;
        let name = job.name(named);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, jobs)) => jobs.push(job),
            None => groups.push((name, vec![job])),
        }
    }
    groups
}

fn panels(probed: &[Probed], several: [bool; 2]) -> Vec<Panel> {
    let over_blocks = |title: &str, log: bool, f: &dyn Fn(&BlockSignal) -> f64| Panel {
        title: title.into(),
        labels: ["block".into(), String::new()],
        log: [false, log],
        curves: probed
            .iter()
            .map(|job| {
                let points = (0..job.depth).map(|l| [(l + 1) as f64, job.block(l, f).mean]).collect();
                (job.name(several), points)
            })
            .collect(),
        marks: Vec::new(),
    };
    let mut panels = vec![
        over_blocks("rms of the stream", true, &|b| b.stream),
        over_blocks("norm of the weights' gradient", true, &|b| b.gradient),
        over_blocks("entropy of attention, of uniform", false, &|b| b.entropy),
    ];
    for (index, what) in [(0, "blocks"), (1, "width")] {
        let groups: Vec<_> = groups(probed, index, several).into_iter().filter(|(_, jobs)| jobs.len() > 1).collect();
        if !several[index] || groups.is_empty() {
            continue;
        }
        let size = |job: &Probed| if index == 0 { job.depth } else { job.width } as f64;
        let over_sizes = |title: &str, f: &dyn Fn(&Probed) -> f64| Panel {
            title: title.into(),
            labels: [what.into(), String::new()],
            log: [true, true],
            curves: groups
                .iter()
                .map(|(name, jobs)| (name.clone(), jobs.iter().map(|job| [size(job), f(job)]).collect()))
                .collect(),
            marks: Vec::new(),
        };
        panels.extend([
            over_sizes("rms of the last stream", &|job| job.block(job.depth - 1, |b| b.stream).mean),
            over_sizes("gradient of the first block", &|job| job.block(0, |b| b.gradient).mean),
            over_sizes("gradient of the last block", &|job| job.block(job.depth - 1, |b| b.gradient).mean),
        ]);
    }
    panels
}
