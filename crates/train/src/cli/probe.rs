use super::overrides::Overrides;
use super::progress::Count;
use super::{Outcome, table};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use unitgain_train::coord_check::{Axis, resized};
use unitgain_train::plot::{self, Panel};
use unitgain_train::signal::{self, BlockSignal, Signal};

/// Measure the signal at step 0: stream, branches, gradients and attention of every block
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain probe configs/pre_norm.toml\n  \
    unitgain probe configs/pre_norm.toml configs/post_norm.toml --depths 8,16,32,64 --seeds 3 --plot probe.svg")]
pub(crate) struct Args {
    /// TOML files of runs
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    /// Number of seeds, from that of the configuration on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Numbers of blocks, instead of that of the files
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    depths: Vec<usize>,
    /// Widths of the stream, instead of that of the files
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    widths: Vec<usize>,
    /// Leave out the singular values, whose cost grows with the cube of the width
    #[arg(long)]
    no_spectrum: bool,
    /// Draw the curves over the blocks, and with several depths or widths over those, into an SVG file, or a PNG file with the feature png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print an array of objects, with every seed
    #[arg(long)]
    json: bool,
}

/// One model, with its seeds.
#[derive(Serialize)]
struct Probed {
    config: String,
    depth: usize,
    width: usize,
    seeds: Vec<Signal>,
}

impl Probed {
    fn name(&self, several: [bool; 2]) -> String {
        let depth = if several[0] { format!(", {} blocks", self.depth) } else { String::new() };
        let width = if several[1] { format!(", width {}", self.width) } else { String::new() };
        format!("{}{depth}{width}", self.config)
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
        for path in &self.configs {
            let config = self.overrides.load(path)?;
            self.overrides.self_test(&config.backend)?;
            let or = |given: &[usize], own| {
                let mut sizes = if given.is_empty() { vec![own] } else { given.to_vec() };
                sizes.sort_unstable();
                sizes.dedup();
                sizes
            };
            for depth in or(&self.depths, config.model.n_layers) {
                for width in or(&self.widths, config.model.d_model) {
                    let config = resized(&resized(&config, Axis::Depth, depth)?, Axis::Width, width)?;
                    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                    jobs.push((Probed { config: name, depth, width, seeds: Vec::new() }, config));
                }
            }
        }
        let count = jobs.len() as u64 * self.seeds;
        let count = Count::new(count, "model");
        let mut probed = Vec::new();
        for (mut job, mut config) in jobs {
            for _ in 0..self.seeds {
                job.seeds.push(signal::measure(&config, !self.no_spectrum)?);
                config.seed += 1;
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
        let mut out = std::io::stdout();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&probed)?)?;
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
                    "{name}: {none} of {} blocks have no gradient at step 0, and no ratio says anything of them",
                    job.depth
                )?;
            }
        }
        if !is_finite {
            writeln!(out, "not every number is finite: something overflows at step 0")?;
        }
        Ok(outcome)
    }
}

fn blocks(job: &Probed) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{}", job.config)?;
    let header = [
        "block",
        "stream rms",
        "attention",
        "mlp",
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
    table::print(&header, &rows, &[0, 1, 2, 3, 4, 5, 6, 7, 8])?;
    writeln!(out)?;
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
        writeln!(std::io::stdout(), "\nexponents over {what}")?;
        let header = ["model", "last stream rms", "first gradient", "last gradient", "last / first"];
        table::print(&header, &rows, &[1, 2, 3, 4])?;
    }
    Ok(())
}

/// The models that differ by depth (0) or width (1) alone.
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
    vec![
        over_blocks("rms of the stream", true, &|b| b.stream),
        over_blocks("norm of the weights' gradient", true, &|b| b.gradient),
        over_blocks("entropy of attention, of uniform", false, &|b| b.entropy),
    ]
}
