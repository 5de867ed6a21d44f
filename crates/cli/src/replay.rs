use super::progress::Count;
use super::{Outcome, printable, table};
use std::io::Write;
use std::path::PathBuf;
use unitgain_study::replay::{Replay, TensorStats, replay};
use unitgain_train::Summary;

/// Repeat one step of a run, and find its first number that is not finite
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain replay runs/post\n  unitgain replay runs/post --step 120 --full\n\n\
    The step is repeated from the newest checkpoint before it, or from the first step. Exit code 1 if a number is not \
        finite.")]
pub(crate) struct Args {
    /// The run folder
    run: PathBuf,
    /// The step [default: that of the run's last divergence]
    #[arg(long, value_name = "N")]
    step: Option<usize>,
    /// Print all tensors, not only those around the first that is not finite
    #[arg(long)]
    full: bool,
    /// Print JSON (an object)
    #[arg(long)]
    json: bool,
}

/// Number of tensors printed before and after the first that is not finite.
const AROUND: usize = 6;

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let step = match self.step {
            Some(step) => step,
            None => self.last_divergence()?,
        };
        let mut count: Option<Count> = None;
        let found = replay(&self.run, step, &mut |made, of| {
            count.get_or_insert_with(|| Count::new(of as u64, "step")).set(made as u64);
        })?;
        count.iter().for_each(Count::finish);
        if self.json {
            writeln!(printable::raw(), "{}", serde_json::to_string_pretty(&found)?)?;
        } else {
            self.print(&found)?;
        }
        Ok(if found.is_finite && found.first().is_none() { Outcome::Success } else { Outcome::Negative })
    }

    fn last_divergence(&self) -> anyhow::Result<usize> {
        let last = Summary::of_run(&self.run)?.divergences.last().map(|divergence| divergence.step);
        last.ok_or_else(|| {
            anyhow::anyhow!("the run in {} has not diverged; give a step with --step", self.run.display())
        })
    }

    fn print(&self, found: &Replay) -> anyhow::Result<()> {
        let mut out = printable::out();
        let first = found.looks.iter().position(|look| look.not_finite > 0);
        let shown = match first {
            Some(at) if !self.full => at.saturating_sub(AROUND)..(at + AROUND).min(found.looks.len()),
            Some(_) | None => 0..found.looks.len(),
        };
        let rows: Vec<Vec<String>> = found.looks[shown].iter().map(cells).collect();
        table::print(&["", "block", "role", "tensor", "largest", "not finite"], &rows, &[1, 4, 5])?;
        let from =
            if found.from == 0 { "the first step".into() } else { format!("the checkpoint of step {}", found.from) };
        writeln!(out, "\nstep {}, made again from {from}: loss {}, lr {:.3e}", found.step, found.loss, found.lr)?;
        match found.first() {
            Some(look) => writeln!(out, "the first number that is not finite: {}", describe(look))?,
            None if found.is_finite => writeln!(out, "every number of the step is finite")?,
            None => writeln!(
                out,
                "each tensor is finite when computed alone, but not as computed in the run: a sum of squares or a \
                 fused operation overflows"
            )?,
        }
        Ok(())
    }
}

fn describe(look: &TensorStats) -> String {
    let block = look.block.map_or(String::new(), |block| format!(", block {block}"));
    let role = look.role.as_ref().map_or(String::new(), |role| format!(", role {role}"));
    format!("{}{block}{role}: {} ({} of {} elements)", look.pass.name(), look.what, look.not_finite, look.elements)
}

fn cells(look: &TensorStats) -> Vec<String> {
    vec![
        look.pass.name().into(),
        look.block.map_or(String::new(), |block| block.to_string()),
        look.role.clone().unwrap_or_default(),
        look.what.clone(),
        table::number(look.largest),
        if look.not_finite > 0 { format!("{}/{}", look.not_finite, look.elements) } else { "0".into() },
    ]
}
