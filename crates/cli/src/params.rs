use super::overrides::Overrides;
use super::{Outcome, printable, table};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use unitgain_model::{LogitScale, ParamEntry, weights};
use unitgain_train::Trainer;

/// Print the parameters of each role, or each parameter, with init, multipliers and effective settings
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain params configs/pre_norm.toml\n  \
    unitgain params configs/pre_norm.toml --full\n  \
    unitgain params configs/pre_norm.toml --set model.placement=deep_norm --json\n\n\
    lr is the weight's at the peak of the schedule; a step removes the fraction lr x weight_decay of the weight, for \
    either kind of decay.")]
pub(crate) struct Args {
    /// The run's TOML file
    config: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Print each parameter instead of each role
    #[arg(long)]
    full: bool,
    /// Print JSON (an array of objects, one per parameter)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    path: String,
    role: &'static str,
    shape: Vec<usize>,
    /// The common initial value of all elements, if there is one.
    init_value: Option<f32>,
    init_std: f64,
    multiplier: f64,
    lr_factor: f64,
    /// Learning rate at the peak of the schedule.
    lr: f64,
    weight_decay: f64,
    eps: f64,
    elements: usize,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let (config, _) = self.overrides.load(&self.config)?.prepare()?;
        let device = config.device()?;
        let trainer = Trainer::new(&config.model, config.optimizer, config.train.clip, config.seed, &device)?;
        let lr_factor = |entry: &ParamEntry| if entry.role().is_trainable() { entry.factors.lr } else { 0.0 };
        let equal = |values: &[f32]| values.iter().all(|v| *v == values[0]).then_some(values[0]);
        let rows: Vec<Row> = trainer
            .table
            .iter()
            .zip(weights::of(&trainer.model))
            .map(|(entry, (.., values))| Row {
                path: entry.path.clone(),
                role: entry.role().name(),
                shape: entry.shape.clone(),
                init_value: equal(&values),
                init_std: entry.init_std,
                multiplier: entry.factors.forward,
                lr_factor: lr_factor(entry),
                lr: lr_factor(entry) * config.optimizer.lr(),
                weight_decay: config.optimizer.decay_of(entry),
                eps: if entry.role().is_trainable() { config.optimizer.eps_of(entry) } else { 0.0 },
                elements: entry.elements(),
            })
            .collect();
        if self.json {
            writeln!(printable::raw(), "{}", serde_json::to_string_pretty(&rows)?)?;
            return Ok(Outcome::Success);
        }
        if self.full {
            print_each(&rows)?;
        } else {
            print_roles(&rows)?;
        }
        let mut out = printable::out();
        let trainable = trainer.table.iter().filter(|entry| entry.role().is_trainable()).count();
        write!(out, "{} parameters in {trainable} tensors", trainer.table.elements())?;
        let statistics = rows.len() - trainable;
        writeln!(out, "{}", if statistics > 0 { format!(", {statistics} running statistics") } else { String::new() })?;
        if !self.full {
            writeln!(out, "each of them: --full")?;
        }
        let plan = config.plan()?;
        if let LogitScale::HeadDim(factor) = plan.blocks[0].attention.logit_scale {
            writeln!(out, "attention logits are multiplied by {}", number(factor))?;
        }
        let first = plan.blocks[0].attention.branch.site.joint;
        let last = plan.blocks[plan.blocks.len() - 1].mlp.branch.site.joint;
        if first.after != 1.0 {
            let [first, last] = [first, last].map(|joint| number(joint.gain));
            writeln!(out, "branches are joined as (x + tau f) / sqrt(1 + tau^2), tau from {first} to {last}")?;
        } else if first.gain != 1.0 {
            writeln!(out, "every branch is multiplied by {}", number(first.gain))?;
        }
        let readout = trainer.model.head_multiplier();
        if plan.tie_embeddings && readout != 1.0 {
            writeln!(out, "as the tied head, embedding has the multiplier {}", number(readout))?;
        }
        Ok(Outcome::Success)
    }
}

fn print_each(rows: &[Row]) -> std::io::Result<()> {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.path.clone(),
                row.role.into(),
                format!("{:?}", row.shape),
                row.init_value.map_or("drawn".into(), |value| number(value.into())),
                number(row.init_std),
                number(row.multiplier),
                number(row.lr_factor),
                number(row.lr),
                number(row.weight_decay),
                number(row.eps),
                row.elements.to_string(),
            ]
        })
        .collect();
    let header = [
        "path",
        "role",
        "shape",
        "init",
        "init_std",
        "multiplier",
        "lr_factor",
        "lr",
        "weight_decay",
        "eps",
        "elements",
    ];
    table::print(&header, &cells, &[3, 4, 5, 6, 7, 8, 9, 10])
}

/// One row per role, in the model's order.
fn print_roles(rows: &[Row]) -> std::io::Result<()> {
    let mut roles: Vec<&str> = Vec::new();
    for row in rows {
        if !roles.contains(&row.role) {
            roles.push(row.role);
        }
    }
    let cells: Vec<Vec<String>> = roles
        .iter()
        .map(|role| {
            let own = || rows.iter().filter(|row| row.role == *role);
            let all = |f: fn(&Row) -> f64| range(own().map(f));
            vec![
                (*role).into(),
                own().count().to_string(),
                own().map(|row| row.elements).sum::<usize>().to_string(),
                range(own().filter_map(|row| row.init_value.map(f64::from))),
                range(own().filter(|row| row.init_value.is_none()).map(|row| row.init_std)),
                all(|row| row.multiplier),
                all(|row| row.lr_factor),
                all(|row| row.lr),
                all(|row| row.weight_decay),
                all(|row| row.eps),
            ]
        })
        .collect();
    let header = [
        "role",
        "count",
        "elements",
        "constant init",
        "init std",
        "multiplier",
        "lr factor",
        "lr",
        "weight decay",
        "eps",
    ];
    table::print(&header, &cells, &[1, 2, 3, 4, 5, 6, 7, 8, 9])
}

/// Minimum and maximum if they differ; a dash for no values.
fn range(values: impl Iterator<Item = f64> + Clone) -> String {
    let [least, most] = [f64::min, f64::max].map(|of| values.clone().reduce(of).map(number));
    match (least, most) {
        (Some(least), Some(most)) if least == most => most,
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (None, _) | (_, None) => "-".into(),
    }
}

/// Six decimals, or three in exponent form for small numbers, without trailing zeros.
fn number(x: f64) -> String {
    let short = |text: &str| text.trim_end_matches('0').trim_end_matches('.').to_string();
    if x == 0.0 || (1e-3..1e6).contains(&x.abs()) {
        return short(&format!("{x:.6}"));
    }
    match format!("{x:.3e}").split_once('e') {
        Some((digits, exponent)) => format!("{}e{exponent}", short(digits)),
        None => x.to_string(),
    }
}
