//! Text from a trained run.

use crate::checkpoint::Checkpoint;
use crate::data::Tokenizer;
use crate::memory::Need;
use crate::{Error, device};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardUniform};
use std::ops::ControlFlow;
use std::path::Path;
use unitgain_init::sample;
use unitgain_model::{Cache, Transformer};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Number of tokens to choose among; 0 for all.
    pub top_k: usize,
    /// Seed of the choice.
    pub seed: u64,
}

impl Sampling {
    /// # Errors
    /// [`Error::Generate`] for a temperature that is not 0 or a positive number.
    pub fn check(self) -> Result<(), Error> {
        match self.temperature >= 0.0 && self.temperature.is_finite() {
            true => Ok(()),
            false => Err(Error::Generate(format!("--temperature {} must be 0 or a positive number", self.temperature))),
        }
    }
}

/// A trained model, ready to write.
#[derive(Debug)]
pub struct Writer {
    model: Transformer,
    device: Device,
    /// How its tokens are written.
    pub tokenizer: Tokenizer,
    context: usize,
}

impl Writer {
    /// Loads the newest checkpoint of a run folder.
    ///
    /// # Errors
    /// As [`Checkpoint::newest`], [`Error::Device`], and [`Error::Generate`] for a norm over the sequence.
    pub fn open(run: &Path, backend: &str) -> Result<Self, Error> {
        let device = device::from_name(backend)?;
        let checkpoint = Checkpoint::newest(run)?;
        let config = &checkpoint.config;
        if let Some(norm) = config.model.norms().find(|norm| norm.needs_the_sequence()) {
            return Err(Error::Generate(format!(
                "the run's norm {} is over a whole sequence, which a text that grows token by token does not have; \
                 generate from a run with a norm of one token",
                norm.about().0
            )));
        }
        if device::is_host(backend) {
            Need::of_reading(config).check(config)?;
        }
        let (model, table) = config.model.build(config.seed, &device)?;
        let model = model.with_precision(config.train.precision);
        let model = checkpoint.load_model(model, &table)?;
        Ok(Self { model, device, tokenizer: checkpoint.position.tokenizer.clone(), context: config.model.context })
    }

    /// Continues `prompt` by `n` tokens, telling `on_token` each, until it breaks off.
    ///
    /// Keys and values are cached. Positions are absolute, so when the context is full the cache is
    /// filled anew with the last half of it.
    ///
    /// # Errors
    /// [`Error::Generate`] for an empty prompt or settings out of range.
    pub fn write(
        &self,
        prompt: &[i32],
        n: usize,
        sampling: Sampling,
        on_token: &mut dyn FnMut(i32) -> ControlFlow<()>,
    ) -> Result<Vec<i32>, Error> {
        if prompt.is_empty() {
            return Err(Error::Generate("the prompt has no token; give at least one with --prompt".into()));
        }
        sampling.check()?;
        let mut rng = sample::stream(sampling.seed, "generate");
        let mut all = prompt.to_vec();
        let mut cache = Cache::new();
        for _ in 0..n {
            if cache.len() == self.context {
                cache = Cache::new();
            }
            let unseen = if cache.is_empty() {
                let most = if all.len() > self.context { (self.context / 2).max(1) } else { self.context };
                all[all.len().saturating_sub(most)..].to_vec()
            } else {
                all[all.len() - 1..].to_vec()
            };
            let token = choose(&self.logits(&unseen, &mut cache), sampling, &mut rng);
            all.push(token);
            if on_token(token).is_break() {
                break;
            }
        }
        Ok(all)
    }

    /// Logits after the last of `tokens`.
    fn logits(&self, tokens: &[i32], cache: &mut Cache) -> Vec<f32> {
        let time = tokens.len();
        let input = Tensor::<2, Int>::from_data(TensorData::new(tokens.to_vec(), [1, time]), &self.device);
        let logits = self.model.forward_cached(input, cache);
        let vocab = logits.dims()[2];
        logits.slice([0..1, time - 1..time, 0..vocab]).into_data().iter::<f32>().collect()
    }
}

fn choose(logits: &[f32], sampling: Sampling, rng: &mut ChaCha8Rng) -> i32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.temperature == 0.0 {
        return order[0] as i32;
    }
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let largest = f64::from(logits[order[0]]);
    let weight = |&i: &usize| ((f64::from(logits[i]) - largest) / sampling.temperature).exp();
    let total: f64 = order.iter().map(weight).sum();
    let uniform: f64 = StandardUniform.sample(rng);
    let mut rest = uniform * total;
    for i in &order {
        rest -= weight(i);
        if rest < 0.0 {
            return *i as i32;
        }
    }
    order[order.len() - 1] as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_the_softmax_of_the_top_k() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let count = |sampling: Sampling| {
            let mut rng = sample::stream(sampling.seed, "test");
            let mut counts = [0usize; 4];
            (0..20_000).for_each(|_| counts[choose(&logits, sampling, &mut rng) as usize] += 1);
            counts
        };
        let top2 = count(Sampling { temperature: 2.0, top_k: 2, seed: 1 });
        assert_eq!((top2[0], top2[3]), (0, 0));
        let share = top2[2] as f64 / 20_000.0;
        let want = 1.0 / (1.0 + (-0.5f64).exp());
        assert!((share - want).abs() < 0.02, "{share} is not {want}");
        assert_eq!(count(Sampling { temperature: 0.0, top_k: 0, seed: 1 })[2], 20_000);
    }
}
