use super::{Outcome, printable, table};
use std::io::Write;
use unitgain_model::{
    Activation, NormConfig, Parametrization, Placement, Position, ScaleConfig, Scheme, WeightNormConfig,
};
use unitgain_train::data::TASKS;
use unitgain_train::{Calibrate, ClipConfig, OnDivergence, OptimizerConfig, ScheduleConfig};

/// List every variant of every axis with its formula and source
#[derive(clap::Args)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// Only this axis, by its name or its key in a configuration
    axis: Option<String>,
}

type About = (&'static str, &'static str, &'static str);

/// An axis: its name, its key in a configuration, its variants.
type Axis = (&'static str, &'static str, Vec<About>);

fn axes() -> [Axis; 14] {
    [
        ("norm", "model.norm", NormConfig::all().iter().map(NormConfig::about).collect()),
        ("weight_norm", "model.weight_norm", WeightNormConfig::ALL.map(WeightNormConfig::about).to_vec()),
        ("placement", "model.placement", Placement::ALL.map(Placement::about).to_vec()),
        ("scale", "model.scale", ScaleConfig::ALL.map(ScaleConfig::about).to_vec()),
        ("init", "model.init", Scheme::all().into_iter().map(Scheme::about).collect()),
        ("calibrate", "init.calibrate", Calibrate::ALL.map(Calibrate::about).to_vec()),
        ("parametrization", "model.parametrization", Parametrization::ALL.map(Parametrization::about).to_vec()),
        ("activation", "model.activation", Activation::ALL.map(Activation::about).to_vec()),
        ("position", "model.position", Position::all().into_iter().map(Position::about).collect()),
        ("task", "data.task", TASKS.to_vec()),
        ("optimizer", "optimizer", OptimizerConfig::all().into_iter().map(OptimizerConfig::about).collect()),
        ("clip", "train.clip", ClipConfig::all().into_iter().map(ClipConfig::about).collect()),
        ("on_divergence", "train.on_divergence", OnDivergence::ALL.into_iter().map(OnDivergence::about).collect()),
        ("schedule", "schedule", ScheduleConfig::all().into_iter().map(ScheduleConfig::about).collect()),
    ]
}

fn help() -> String {
    let list: String = axes().iter().map(|(name, key, _)| format!("  {name:<16} {key}\n")).collect();
    format!("Axes and their keys:\n{list}\nExamples:\n  unitgain configs\n  unitgain configs placement")
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let axes = axes();
        let is_asked = |(name, key, _): &&Axis| self.axis.as_ref().is_none_or(|axis| axis == name || axis == key);
        let chosen: Vec<_> = axes.iter().filter(is_asked).collect();
        if chosen.is_empty() {
            let named = |(name, key, _): &Axis| if name == key { name.to_string() } else { format!("{name} ({key})") };
            let names = axes.iter().map(named).collect::<Vec<_>>().join(", ");
            anyhow::bail!("{:?} is not an axis. Allowed: {names}", self.axis.unwrap_or_default());
        }
        for (i, (_, key, variants)) in chosen.into_iter().enumerate() {
            if i > 0 {
                writeln!(printable::out())?;
            }
            let rows: Vec<Vec<String>> =
                variants.iter().map(|(n, f, s)| vec![(*n).into(), (*f).into(), (*s).into()]).collect();
            table::print(&[key, "formula", "source"], &rows, &[])?;
        }
        Ok(Outcome::Success)
    }
}
