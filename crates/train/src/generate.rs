//! Text generation from a trained run.

use crate::data::Tokenizer;
use crate::device::memory::Need;
use crate::folder::checkpoint::Checkpoint;
use crate::{Error, device};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardUniform};
use std::ops::ControlFlow;
use std::path::Path;
use unitgain_init::sample;
use unitgain_model::{Cache, Transformer, Variant};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 picks the most likely token.
    pub temperature: f64,
    /// Number of most likely tokens to sample from; 0 for all.
    pub top_k: usize,
    /// Seed of the sampling.
    pub seed: u64,
}

impl Sampling {
    /// # Errors
    /// [`Error::Generate`] for a temperature that is negative or not finite.
    pub fn check(self) -> Result<(), Error> {
        match self.temperature >= 0.0 && self.temperature.is_finite() {
            true => Ok(()),
            false => Err(Error::Generate(format!("--temperature {} must be 0 or a positive number", self.temperature))),
        }
    }
}

/// A trained model that generates text.
#[derive(Debug)]
pub struct Writer {
    model: Transformer,
    device: Device,
    /// Its vocabulary.
    pub tokenizer: Tokenizer,
    context: usize,
    /// Number of training steps.
    step: usize,
}

impl Writer {
    /// Loads the newest checkpoint of a run folder.
    ///
    /// # Errors
    /// As [`Checkpoint::newest`] and [`Writer::of`].
    pub fn open(run: &Path, backend: &str) -> Result<Self, Error> {
        Self::of(&Checkpoint::newest(run)?, backend)
    }

    /// Builds the model of a checkpoint.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Checkpoint`], and [`Error::Generate`] for a norm over the sequence.
    pub fn of(checkpoint: &Checkpoint, backend: &str) -> Result<Self, Error> {
        let device = device::from_name(backend)?;
        let config = &checkpoint.config;
        let plan = config.plan()?;
        if let Some(norm) = plan.norms().find(|norm| norm.needs_the_sequence()) {
            return Err(Error::Generate(format!(
                "the run's norm {} normalizes over the whole sequence, which is not known while a text is generated; \
                 use a run with a norm per token",
                norm.about().name
            )));
        }
        if device::is_host(backend) {
            Need::of_reading(config, &plan).check(config)?;
        }
        let (model, _) = checkpoint.model(&plan, &device)?;
        let model = model.with_precision(config.train.precision);
        let tokenizer = checkpoint.progress.tokenizer.clone();
        Ok(Self { model, device, tokenizer, context: config.model.context, step: checkpoint.progress.step })
    }

    /// Continues `prompt` by `n` tokens and passes each to `on_token`, until that breaks.
    ///
    /// Keys and values are cached. Positions are absolute: when the context is full, the cache is rebuilt from its last
    /// half.
    ///
    /// # Errors
    /// [`Error::Generate`] for an empty prompt, a token outside the vocabulary, invalid settings, and logits that are
    /// not finite, as after a divergence.
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
        let vocab_size = self.tokenizer.vocab_size();
        let is_known = |token: &i32| usize::try_from(*token).is_ok_and(|token| token < vocab_size);
        if let Some(token) = prompt.iter().find(|token| !is_known(token)) {
            let problem = format!(
                "the prompt's token {token} is not in the vocabulary, whose tokens are 0 to {}",
                vocab_size - 1
            );
            return Err(Error::Generate(problem));
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
            let token = choose(&self.logits(&unseen, &mut cache), sampling, &mut rng).ok_or_else(|| {
                Error::Generate(format!(
                    "the checkpoint of step {} gives logits that are not finite, so no token can be sampled: the \
                     model diverged. Delete that checkpoint to use the one before, or train again with a lower \
                     optimizer.lr",
                    self.step
                ))
            })?;
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

/// Samples a token from the softmax of the logits; None if a logit is not finite, or there is none.
fn choose(logits: &[f32], sampling: Sampling, rng: &mut ChaCha8Rng) -> Option<i32> {
    if !logits.iter().all(|logit| logit.is_finite()) {
        return None;
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let likeliest = *order.first()?;
    if sampling.temperature == 0.0 {
        return i32::try_from(likeliest).ok();
    }
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let largest = f64::from(logits[likeliest]);
    let weight = |&i: &usize| ((f64::from(logits[i]) - largest) / sampling.temperature).exp();
    let total: f64 = order.iter().map(weight).sum();
    let uniform: f64 = StandardUniform.sample(rng);
    let mut rest = uniform * total;
    for i in &order {
        rest -= weight(i);
        if rest < 0.0 {
            return i32::try_from(*i).ok();
        }
    }
    // Rounding can leave a remainder after the last token.
    order.last().and_then(|i| i32::try_from(*i).ok())
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
            (0..20_000).for_each(|_| counts[choose(&logits, sampling, &mut rng).unwrap() as usize] += 1);
            counts
        };
        let top2 = count(Sampling { temperature: 2.0, top_k: 2, seed: 1 });
        assert_eq!((top2[0], top2[3]), (0, 0));
        let share = top2[2] as f64 / 20_000.0;
        let want = 1.0 / (1.0 + (-0.5f64).exp());
        assert!((share - want).abs() < 0.02, "{share} is not {want}");
        assert_eq!(count(Sampling { temperature: 0.0, top_k: 0, seed: 1 })[2], 20_000);
        for top_k in [4, 5, usize::MAX] {
            let sampling = Sampling { temperature: 2.0, top_k, seed: 1 };
            assert_eq!(count(sampling), count(Sampling { top_k: 0, ..sampling }), "as many as there are");
        }
    }

    #[test]
    fn nothing_is_drawn_from_what_is_not_finite() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..3 {
                let mut logits = [0.0f32, 1.0, 2.0];
                logits[at] = bad;
                for temperature in [0.0, 1.0] {
                    let mut rng = sample::stream(1, "test");
                    let chosen = choose(&logits, Sampling { temperature, top_k: 1, seed: 1 }, &mut rng);
                    assert_eq!(chosen, None, "{logits:?}");
                }
            }
        }
        assert_eq!(choose(&[], Sampling { temperature: 0.0, top_k: 0, seed: 1 }, &mut sample::stream(1, "test")), None);
    }

    /// The largest and the smallest positive temperature.
    #[test]
    fn every_temperature_chooses_a_token() {
        for temperature in [f64::MIN_POSITIVE, 5e-324, f64::MAX] {
            let mut rng = sample::stream(1, "test");
            let chosen = choose(&[f32::MIN, f32::MAX, 0.0], Sampling { temperature, top_k: 0, seed: 1 }, &mut rng);
            assert!(chosen.is_some_and(|token| (0..3).contains(&token)), "{temperature:e}: {chosen:?}");
        }
    }
}
