use super::{Outcome, printable, table};
use std::io::Write;
use unitgain_model::{
    About, Activation, NormConfig, Parametrization, Placement, Position, ScaleConfig, Scheme, Variant, WeightNormConfig,
};
use unitgain_train::{Calibrate, ClipConfig, DataConfig, OnDivergence, OptimizerConfig, ScheduleConfig};

/// List every variant of every axis with its formula and source
#[derive(clap::Args)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// Show only this axis, by its name or its configuration key
    axis: Option<String>,
}

/// An axis: name, configuration key, kinds.
type Axis = (&'static str, &'static str, Vec<About>);

fn axes() -> [Axis; 14] {
    fn kinds<V: Variant>() -> Vec<About> {
        V::all().iter().map(V::about).collect()
    }
    [
        ("norm", "model.norm", kinds::<NormConfig>()),
        ("weight_norm", "model.weight_norm", kinds::<WeightNormConfig>()),
        ("placement", "model.placement", kinds::<Placement>()),
        ("scale", "model.scale", kinds::<ScaleConfig>()),
        ("init", "model.init", kinds::<Scheme>()),
        ("calibrate", "init.calibrate", kinds::<Calibrate>()),
        ("parametrization", "model.parametrization", kinds::<Parametrization>()),
        ("activation", "model.activation", kinds::<Activation>()),
        ("position", "model.position", kinds::<Position>()),
        ("task", "data.task", kinds::<DataConfig>()),
        ("optimizer", "optimizer", kinds::<OptimizerConfig>()),
        ("clip", "train.clip", kinds::<ClipConfig>()),
        ("on_divergence", "train.on_divergence", kinds::<OnDivergence>()),
        ("schedule", "schedule", kinds::<ScheduleConfig>()),
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
        for (i, (_, key, kinds)) in chosen.into_iter().enumerate() {
            if i > 0 {
                writeln!(printable::out())?;
            }
            let rows: Vec<Vec<String>> =
                kinds.iter().map(|kind| [kind.name, kind.formula, kind.source].map(String::from).to_vec()).collect();
            table::print(&[key, "formula", "source"], &rows, &[])?;
        }
        Ok(Outcome::Success)
    }
}
