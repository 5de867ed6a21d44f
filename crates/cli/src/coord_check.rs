use super::overrides::Overrides;
use super::progress::Count;
use super::{Outcome, printable, table};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use unitgain_study::coord_check::{self, Axis, Conclusion, CoordCheckOptions, Growth, Layer};
use unitgain_study::plot::{self, Panel};

/// Check a parametrization: the changes over a few steps must not grow with the width or the depth
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain coord-check configs/mup.toml --widths 64,128,256,512\n  \
    unitgain coord-check configs/mup.toml --set model.parametrization.kind=standard\n\n\
    The learning rate is the optimizer's, constant from the first step, and all steps use the same batch, without \
    weight decay and dropout. A few steps do not show the later effect of a learning rate.\n\n\
    Exit code 1 if an activation grows, or if the check is inconclusive: an activation does not change by more than \
    rounding at every size, slopes spread over seeds by more than the tolerance, or the data have a single target \
    token.")]
pub(crate) struct Args {
    /// The run's TOML file
    config: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Widths of the model [default: 64,128,256,512]
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "depths")]
    widths: Vec<usize>,
    /// Numbers of blocks, instead of widths
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    depths: Vec<usize>,
    /// Number of updates
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Number of seeds, counting up from the configuration's
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Maximum slope that does not count as growth, in octaves of change per octave of size
    #[arg(long, value_name = "X", default_value_t = 0.25, allow_negative_numbers = true)]
    tolerance: f64,
    /// Plot the changes of every activation over the sizes, as SVG, or as PNG with the feature png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON (an object)
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        self.plot.as_deref().map_or(Ok(()), plot::check)?;
        let config = self.overrides.load(&self.config)?;
        self.overrides.self_test(&config.backend)?;
        let (axis, mut sizes) = match (self.widths.is_empty(), self.depths.is_empty()) {
            (_, false) => (Axis::Depth, self.depths.clone()),
            (true, true) => (Axis::Width, vec![64, 128, 256, 512]),
            (false, true) => (Axis::Width, self.widths.clone()),
        };
        sizes.sort_unstable();
        sizes.dedup();
        let options =
            CoordCheckOptions { axis, sizes, steps: self.steps as usize, seeds: self.seeds, tolerance: self.tolerance };
        let count = options.sizes.len() as u64 * options.seeds;
        let count = Count::new(count, "model");
        let report = coord_check::run(&config, &options, &mut || count.inc())?;
        count.finish();
        let layers = &report.layers;
        if let Some(path) = &self.plot {
            plot::write(path, &panels(layers, &options))?;
        }
        let (conclusion, targets) = (report.conclusion(), report.targets);
        let passed = conclusion == Conclusion::Holds;
        let mut out = printable::out();
        if self.json {
            let report = json!({
                "axis": axis, "sizes": options.sizes, "layers": layers, "targets": targets, "conclusion": conclusion,
                "said": report.said(&options), "passed": passed,
            });
            writeln!(printable::raw(), "{}", serde_json::to_string_pretty(&report)?)?;
        } else {
            print(layers, &options)?;
            writeln!(out, "\n{}. The steps are without weight decay.", report.said(&options))?;
        }
        Ok(if passed { Outcome::Success } else { Outcome::Negative })
    }
}

fn print(layers: &[Layer], options: &CoordCheckOptions) -> anyhow::Result<()> {
    let over = options.axis.name();
    let mut header: Vec<String> = vec![format!("change after step {}", options.steps)];
    header.extend(options.sizes.iter().map(|size| format!("{over} {size}")));
    header.extend(["slope at step 1", "at the last", "largest", "verdict"].map(String::from));
    let rows: Vec<Vec<String>> = layers
        .iter()
        .map(|layer| {
            let last = options.steps - 1;
            let has_slope = |step: &usize| layer.slopes[*step].is_finite();
            let at = |step: usize| match layer.spread[step].is_finite() {
                _ if !has_slope(&step) => "-".into(),
                true => format!("{:+.2} +- {:.2}", layer.slopes[step], layer.spread[step]),
                false => format!("{:+.2}", layer.slopes[step]),
            };
            let by_slope = |a: &usize, b: &usize| layer.slopes[*a].total_cmp(&layer.slopes[*b]);
            let largest = (0..options.steps).filter(has_slope).max_by(by_slope);
            let verdict = match layer.verdict {
                Growth::Holds => "holds",
                Growth::Grows => "GROWS",
                Growth::Shrinks => "shrinks",
                Growth::Still => "STILL",
                Growth::Undecided => "UNDECIDED",
                Growth::Overflows => "OVERFLOWS",
            };
            let mut cells = vec![layer.name.clone()];
            cells.extend(layer.changes.iter().map(|of_size| table::number(of_size[last])));
            let of_largest = largest.map_or("-".into(), |step| format!("{:+.2} at {}", layer.slopes[step], step + 1));
            cells.extend([at(0), at(last), of_largest, verdict.into()]);
            cells
        })
        .collect();
    let right: Vec<usize> = (1..header.len() - 1).collect();
    table::print(&header.iter().map(String::as_str).collect::<Vec<_>>(), &rows, &right)?;
    Ok(())
}

fn panels(layers: &[Layer], options: &CoordCheckOptions) -> Vec<Panel> {
    let over = options.axis.name();
    let mut steps = vec![0, options.steps - 1];
    steps.dedup();
    let panel = |step: usize| Panel {
        title: format!("rms of the change after step {}", step + 1),
        labels: [over.into(), String::new()],
        log: [true, true],
        curves: layers
            .iter()
            .map(|layer| {
                let points = options.sizes.iter().zip(&layer.changes);
                (layer.name.clone(), points.map(|(size, of_size)| [*size as f64, of_size[step]]).collect())
            })
            .collect(),
        marks: Vec::new(),
    };
    steps.into_iter().map(panel).collect()
}
