//! Data: text, and synthetic tasks whose lowest possible loss is known.
//!
//! A training batch is a pure function of (seed, step, row): the same on every backend, after a resume, and for any
//! split of a step into micro-batches. The held-out set depends on the data alone.

mod copy;
mod held_out;
mod markov;
mod recall;
mod text;
mod tokenizer;

use crate::Error;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;
use unitgain_init::sample;
use unitgain_variant::{About, Variant};

pub use held_out::{EvalTokens, HeldOut};
pub use text::TextTokens;
pub use tokenizer::Tokenizer;

/// The training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case", deny_unknown_fields)]
pub enum DataConfig {
    /// A Markov chain of order `order`: any `order` symbols are followed by one of `branching` of the `vocab_size`
    /// symbols, with probabilities drawn once from a flat Dirichlet distribution. The floor is exact: the entropy rate
    /// for targets whose context is in the sequence, and the entropy given a shorter context for the first `order - 1`.
    Markov {
        /// Number of symbols. Default 32.
        #[serde(default = "markov::vocab_size")]
        vocab_size: usize,
        /// Number of symbols that determine the distribution of the next. Default 2.
        #[serde(default = "markov::order")]
        order: usize,
        /// Number of possible next symbols. Default 4.
        #[serde(default = "markov::branching")]
        branching: usize,
        /// Seed of the chain (the task, not the samples). Default 1.
        #[serde(default = "one")]
        seed: u64,
    },
    /// Associative recall (arXiv:2312.04927): `pairs` of a key and a value, then keys whose values the model must give.
    /// The loss is over the answers; the floor is 0.
    Recall {
        /// Number of keys, and of values, which are other symbols. Default 32.
        #[serde(default = "recall::keys")]
        keys: usize,
        /// Number of pairs before the first question. Default 8.
        #[serde(default = "recall::pairs")]
        pairs: usize,
    },
    /// Random symbols, a separator, and the same symbols again. The loss is over the repetition; the floor is 0.
    Copy {
        /// Number of symbols, besides the separator. Default 32.
        #[serde(default = "copy::symbols")]
        symbols: usize,
    },
    /// A text file: the first 90 % for training, the rest for evaluation. The floor is unknown.
    Text {
        /// Path of the file, relative to the configuration file; in a setting, to the working folder.
        path: PathBuf,
        /// The tokenizer. Default `byte`.
        #[serde(default)]
        tokenizer: TokenizerKind,
    },
}

/// Tokenization of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// One token per byte: 256 tokens.
    #[default]
    Byte,
    /// One token per character that occurs in the file, in code point order.
    Char,
}

impl TokenizerKind {
    /// Memory while a text is read, in bytes per byte of text, at most.
    pub(crate) fn bytes_each(self) -> f64 {
        match self {
            Self::Byte => 1.0,
            // The text plus one or two bytes per character; four for over 65,536 different characters, which are long
            // in most texts.
            Self::Char => 3.0,
        }
    }
}

fn one() -> u64 {
    1
}

impl Default for DataConfig {
    fn default() -> Self {
        Self::Markov {
            vocab_size: markov::vocab_size(),
            order: markov::order(),
            branching: markov::branching(),
            seed: one(),
        }
    }
}

impl Variant for DataConfig {
    const TAG: &'static str = "task";

    fn about(&self) -> About {
        About::of(match self {
            Self::Markov { .. } => {
                ("markov", "order-k chain, sparse transitions; floor: its exact conditional entropy", "this project")
            }
            Self::Recall { .. } => ("recall", "key-value pairs, then questions; floor 0", "arXiv:2312.04927"),
            Self::Copy { .. } => {
                ("copy", "symbols, separator, the symbols again; floor 0", "arXiv:1410.5401 section 4.1")
            }
            Self::Text { .. } => ("text", "a file by bytes or characters, 90/10 split; no floor", "nanoGPT (char)"),
        })
    }

    fn examples() -> Vec<Self> {
        vec![Self::Text { path: "input.txt".into(), tokenizer: TokenizerKind::default() }]
    }
}

/// Token sequences with their targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Number of sequences.
    pub rows: usize,
    /// Tokens per sequence.
    pub time: usize,
    /// Inputs, row by row.
    pub tokens: Vec<i32>,
    /// The token after each input.
    pub targets: Vec<i32>,
    /// 1 for tokens whose loss counts, 0 for others; None if all count.
    pub weights: Option<Vec<f32>>,
}

impl Batch {
    /// Inputs and targets, `[rows, time]` each.
    pub fn tensors(&self, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let tensor =
            |values: &Vec<i32>| Tensor::from_data(TensorData::new(values.clone(), [self.rows, self.time]), device);
        (tensor(&self.tokens), tensor(&self.targets))
    }

    /// The sequences `rows`.
    pub fn part(&self, rows: Range<usize>) -> Self {
        let tokens = rows.start * self.time..rows.end * self.time;
        Self {
            rows: rows.len(),
            time: self.time,
            tokens: self.tokens[tokens.clone()].to_vec(),
            targets: self.targets[tokens.clone()].to_vec(),
            weights: self.weights.as_ref().map(|weights| weights[tokens].to_vec()),
        }
    }

    /// Number of tokens whose loss counts: the sum of the weights.
    pub fn asked(&self) -> f64 {
        match &self.weights {
            Some(weights) => weights.iter().map(|w| f64::from(*w)).sum(),
            None => (self.rows * self.time) as f64,
        }
    }

    /// Index and value of the targets whose loss counts.
    pub fn asked_targets(&self) -> impl Iterator<Item = (usize, i32)> + '_ {
        let is_asked = |i: usize| self.weights.as_ref().is_none_or(|weights| weights[i] > 0.0);
        self.targets.iter().copied().enumerate().filter(move |(i, _)| is_asked(*i))
    }

    /// Weights, `[rows, time]`.
    pub fn weights(&self, device: &Device) -> Option<Tensor<2>> {
        self.weights.as_ref().map(|w| Tensor::from_data(TensorData::new(w.clone(), [self.rows, self.time]), device))
    }
}

/// Loaded data, from which batches are drawn.
#[derive(Clone, Debug)]
pub struct Task {
    source: Source,
    time: usize,
}

#[derive(Clone, Debug)]
enum Source {
    Markov(markov::Chain),
    Recall(recall::Recall),
    Copy(copy::Copy),
    Text(TextTokens),
}

impl DataConfig {
    /// Prepares sequences of `time` tokens: draws the chain, or reads the file.
    ///
    /// # Errors
    /// [`Error::Value`] for invalid settings, [`Error::Data`] for a file that is missing, empty, too short, or not
    /// UTF-8 (`char`).
    pub fn load(&self, time: usize) -> Result<Task, Error> {
        let source = match self {
            Self::Markov { vocab_size, order, branching, seed } => {
                Source::Markov(markov::Chain::new(*vocab_size, *order, *branching, *seed, time)?)
            }
            Self::Recall { keys, pairs } => Source::Recall(recall::Recall::new(*keys, *pairs, time)?),
            Self::Copy { symbols } => Source::Copy(copy::Copy::new(*symbols, time)?),
            Self::Text { path, tokenizer } => Source::Text(TextTokens::read(path, *tokenizer, time)?),
        };
        Ok(Task { source, time })
    }
}

impl Task {
    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        match &self.source {
            Source::Markov(chain) => chain.vocab_size(),
            Source::Recall(recall) => recall.vocab_size(),
            Source::Copy(copy) => copy.vocab_size(),
            Source::Text(text) => text.tokenizer().vocab_size(),
        }
    }

    /// The lowest possible mean loss on these sequences, in nats per target token.
    pub fn floor(&self) -> Option<f64> {
        match &self.source {
            Source::Markov(chain) => Some(chain.floor(self.time)),
            Source::Recall(_) | Source::Copy(_) => Some(0.0),
            Source::Text(_) => None,
        }
    }

    /// The amount of data, in words.
    pub(crate) fn amount(&self) -> String {
        let amount = match &self.source {
            Source::Markov(_) | Source::Recall(_) | Source::Copy(_) => "sequences drawn without end".into(),
            Source::Text(text) => {
                let [learned, held_out] = text.sizes();
                format!("{learned} tokens to learn from, {held_out} held out")
            }
        };
        format!("{amount}, a vocabulary of {}, a context of {}", self.vocab_size(), self.time)
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> Tokenizer {
        match &self.source {
            Source::Markov(_) | Source::Recall(_) | Source::Copy(_) => Tokenizer::Symbols(self.vocab_size()),
            Source::Text(text) => text.tokenizer().clone(),
        }
    }

    /// Fingerprint of the data, to refuse a resume on other data.
    pub fn fingerprint(&self) -> u64 {
        match &self.source {
            Source::Markov(_) | Source::Recall(_) | Source::Copy(_) => 0,
            Source::Text(text) => text.fingerprint(),
        }
    }

    /// The training sequences `rows` of a step.
    pub fn batch(&self, seed: u64, step: usize, rows: Range<usize>) -> Batch {
        self.drawn(rows, |row| sample::stream(seed, &format!("data/train/{step}/{row}")))
    }

    /// The sequences `rows`, each with its own generator.
    fn drawn(&self, rows: Range<usize>, generator: impl Fn(usize) -> ChaCha8Rng) -> Batch {
        let time = self.time;
        let mut batch = Batch { rows: rows.len(), time, tokens: Vec::new(), targets: Vec::new(), weights: None };
        for row in rows.clone() {
            let sequence = self.sequence(&mut generator(row));
            batch.tokens.extend_from_slice(&sequence[..time]);
            batch.targets.extend_from_slice(&sequence[1..]);
        }
        let asked = match &self.source {
            Source::Markov(_) | Source::Text(_) => None,
            Source::Recall(recall) => Some(recall.asked()),
            Source::Copy(copy) => Some(copy.asked()),
        };
        batch.weights = asked.map(|asked| asked.repeat(rows.len()));
        batch
    }

    /// A sequence of one token more than the context.
    fn sequence(&self, rng: &mut ChaCha8Rng) -> Vec<i32> {
        match &self.source {
            Source::Markov(chain) => chain.sequence(rng, self.time + 1),
            Source::Recall(recall) => recall.sequence(rng),
            Source::Copy(copy) => copy.sequence(rng),
            Source::Text(text) => text.sequence(rng),
        }
    }
}

/// A uniform integer below `n`.
fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    use rand_chacha::rand_core::Rng;
    // The product's high half is uniform to within n / 2^64.
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}

/// `k` different integers below `n`, in random order.
fn distinct(rng: &mut ChaCha8Rng, n: usize, k: usize) -> Vec<usize> {
    sample::chosen(n, k, |left| below(rng, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Vec<Task> {
        let recall = DataConfig::Recall { keys: 16, pairs: 4 };
        let copy = DataConfig::Copy { symbols: 8 };
        [DataConfig::default(), recall, copy].iter().map(|data| data.load(16).unwrap()).collect()
    }

    #[test]
    fn a_batch_is_a_function_of_seed_step_and_row() {
        for task in tasks() {
            let batch = task.batch(1, 5, 0..4);
            assert_eq!(batch, task.batch(1, 5, 0..4));
            assert_ne!(batch.tokens, task.batch(2, 5, 0..4).tokens);
            assert_ne!(batch.tokens, task.batch(1, 6, 0..4).tokens);
            let (a, b) = (task.batch(1, 5, 0..2), task.batch(1, 5, 2..4));
            assert_eq!(batch.tokens, [a.tokens, b.tokens].concat());
        }
    }

    #[test]
    fn tokens_are_in_the_vocabulary_and_targets_follow_them() {
        for task in tasks() {
            let batch = task.batch(1, 0, 0..8);
            assert!(batch.tokens.iter().chain(&batch.targets).all(|&t| (0..task.vocab_size() as i32).contains(&t)));
            for row in 0..batch.rows {
                let at = row * batch.time;
                assert_eq!(batch.tokens[at + 1..at + batch.time], batch.targets[at..at + batch.time - 1]);
            }
        }
    }
}
