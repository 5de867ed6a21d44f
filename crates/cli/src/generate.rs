use super::{Outcome, printable};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use unitgain_train::generate::{Sampling, Writer};

/// Continue a text with a trained run
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  unitgain generate runs/shakespeare --prompt 'ROMEO:' --tokens 500\n  \
    unitgain generate runs/pre_norm --prompt '3 1' --tokens 20 --temperature 0")]
pub(crate) struct Args {
    /// The run folder
    run: PathBuf,
    /// The text to continue; numbers separated by spaces for synthetic tasks [default: a line break, or the first
    /// token]
    #[arg(long, allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Number of tokens to add
    #[arg(long, default_value_t = 200)]
    tokens: usize,
    /// Divisor of the logits; 0 picks the most likely token
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Sample among the K most likely tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Write control characters unchanged. A generated text may contain characters that control the terminal; by
    /// default those other than line breaks and tabs are written as escapes such as \u{1b}
    #[arg(long)]
    raw: bool,
    /// Seed of the sampling
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The compute backend
    #[arg(long, default_value = "flex")]
    backend: String,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k, seed: self.seed };
        sampling.check()?;
        let writer = Writer::open(&self.run, &self.backend)?;
        let prompt = writer.tokenizer.encode(&self.prompt.unwrap_or_else(|| writer.tokenizer.default_prompt()))?;
        let mut out: Box<dyn Write> = if self.raw { Box::new(printable::raw()) } else { Box::new(printable::out()) };
        let mut pending = prompt.clone();
        let mut show = |pending: &mut Vec<i32>, is_last: bool| {
            // Incomplete characters wait for their remaining bytes.
            let rest = if is_last { 0 } else { writer.tokenizer.unfinished(pending) };
            let rest = pending.split_off(pending.len() - rest);
            let text = writer.tokenizer.decode(pending);
            *pending = rest;
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
        show(&mut pending, false)?;
        let mut shown = Ok(());
        let written = writer.write(&prompt, self.tokens, sampling, &mut |token| {
            pending.push(token);
            shown = show(&mut pending, false);
            if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        shown?;
        show(&mut pending, true)?;
        writeln!(out)?;
        written?;
        Ok(Outcome::Success)
    }
}
