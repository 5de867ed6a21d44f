//! The held-out set depends on the data alone, so that all runs are evaluated on the same tokens.

use super::{Batch, Source, Task, TextTokens};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::ops::Range;
use unitgain_init::sample;
use unitgain_variant::shorthand;

/// Number of tokens in an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalTokens {
    /// At least this number of tokens: of a text in pieces spread over its held-out part (or all of it if it is
    /// shorter), of a Markov chain exactly this number of symbols, of other tasks as many whole sequences as needed.
    Count(usize),
    /// The whole held-out part of a text, written `"all"`.
    All,
}

/// The evaluation set of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOut {
    /// Number of target tokens.
    pub tokens: usize,
    /// Loss of the best prediction without context: the entropy of the target tokens' frequencies, in nats.
    pub unigram_loss: f64,
    /// Lowest expected mean loss on these tokens, in nats, where it is known: the loss of the distribution they were
    /// drawn from. It differs from [`Task::floor`] by sampling noise.
    pub floor: Option<f64>,
}

/// Margin below the unigram loss that shows learning: a model that is stuck ends slightly above that loss or, through
/// the noise of training, slightly below.
const BEATEN_BY: f64 = 0.01;

impl HeldOut {
    /// Whether an evaluation beats the unigram loss by a margin, and the loss at the start.
    pub(crate) fn is_beaten_by(&self, loss: f32, start: Option<f32>) -> bool {
        f64::from(loss) < self.unigram_loss - BEATEN_BY && start.is_none_or(|start| loss < start)
    }
}

/// Seed of the held-out set, independent of the run's seed.
const SEED: u64 = 0;
/// Tokens per forward pass, independent of the run's batch size.
const PASS: usize = 4096;
/// Maximum length of a piece of text, unless all of it is evaluated.
const PIECE: usize = 1024;

impl Task {
    /// The evaluation set of this size.
    pub fn held_out(&self, size: EvalTokens) -> HeldOut {
        let mut counts = BTreeMap::<i32, f64>::new();
        let mut of_chain = 0.0;
        for batch in self.evaluation(size) {
            for (i, target) in batch.asked_targets() {
                *counts.entry(target).or_default() += 1.0;
                if let Source::Markov(chain) = &self.source {
                    let row = i / batch.time * batch.time;
                    of_chain += chain.loss(&batch.tokens[row..=i], target);
                }
            }
        }
        let tokens: f64 = counts.values().sum();
        let unigram_loss = counts.values().map(|n| -n / tokens * (n / tokens).ln()).sum();
        let floor = match &self.source {
            Source::Markov(_) => Some(of_chain / tokens),
            Source::Recall(_) | Source::Copy(_) => Some(0.0),
            Source::Text(_) => None,
        };
        HeldOut { tokens: tokens as usize, unigram_loss, floor }
    }

    /// The batches of an evaluation. For a text or chain the targets are the same for every context length, each once.
    pub fn evaluation(&self, size: EvalTokens) -> impl Iterator<Item = Batch> + '_ {
        let time = self.time;
        let rows = (PASS / time).max(1);
        let (stream, windows) = match (&self.source, size) {
            (Source::Text(text), size) => {
                let [_, part] = text.sizes();
                (Some(Stream::Text(text)), windows(&pieces(part - 1, size), time))
            }
            (Source::Markov(chain), EvalTokens::Count(n)) => {
                let stream = chain.sequence(&mut generator("stream"), n.max(time) + 1);
                (Some(Stream::Drawn(stream)), windows(std::slice::from_ref(&(0..n)), time))
            }
            // The configuration check refuses `all` for an endless task.
            (Source::Markov(_) | Source::Recall(_) | Source::Copy(_), size) => {
                let n = match size {
                    EvalTokens::Count(n) => n,
                    EvalTokens::All => time,
                };
                (None, (0..n.div_ceil(time)).map(|row| Window { start: row, asked: 0..time }).collect())
            }
        };
        let batches = windows.len().div_ceil(rows);
        (0..batches).map(move |i| {
            let own = &windows[i * rows..((i + 1) * rows).min(windows.len())];
            match &stream {
                Some(stream) => cut(stream, own, time),
                None => self.drawn(i * rows..i * rows + own.len(), |row| generator(&row.to_string())),
            }
        })
    }
}

fn generator(name: &str) -> ChaCha8Rng {
    sample::stream(SEED, &format!("data/held_out/{name}"))
}

/// The inputs `start..start + time` of a stream, with the range whose next tokens are targets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    start: usize,
    asked: Range<usize>,
}

/// The targets among `all` tokens: evenly spread pieces.
fn pieces(all: usize, size: EvalTokens) -> Vec<Range<usize>> {
    let n = match size {
        EvalTokens::Count(n) if n < all => n,
        EvalTokens::Count(_) | EvalTokens::All => return std::iter::once(0..all).collect(),
    };
    let count = n.div_ceil(PIECE);
    (0..count)
        .map(|i| {
            // Piece sizes, and the gaps between pieces, differ by at most one.
            let [from, to] = [i, i + 1].map(|i| n * i / count);
            let start = from + if count > 1 { (all - n) * i / (count - 1) } else { 0 };
            start..start + to - from
        })
        .collect()
}

/// Cuts pieces into windows of `time` inputs. The last window of a piece is moved back if it would extend beyond the
/// end, and has only the targets that no other window has.
fn windows(pieces: &[Range<usize>], time: usize) -> Vec<Window> {
    let of_piece = |piece: &Range<usize>| {
        let Range { start, end } = piece.clone();
        (start..end).step_by(time).map(move |from| {
            let start = from.min(end.saturating_sub(time));
            Window { start, asked: from - start..end.min(start + time) - start }
        })
    };
    pieces.iter().flat_map(of_piece).collect()
}

/// A sequence of tokens.
enum Stream<'a> {
    Text(&'a TextTokens),
    Drawn(Vec<i32>),
}

impl Stream<'_> {
    fn of(&self, range: Range<usize>) -> Vec<i32> {
        match self {
            Self::Text(text) => text.held_out(range),
            Self::Drawn(tokens) => tokens[range].to_vec(),
        }
    }
}

fn cut(stream: &Stream<'_>, windows: &[Window], time: usize) -> Batch {
    let mut batch = Batch { rows: windows.len(), time, tokens: Vec::new(), targets: Vec::new(), weights: None };
    for Window { start, .. } in windows {
        let tokens = stream.of(*start..start + time + 1);
        batch.tokens.extend_from_slice(&tokens[..time]);
        batch.targets.extend_from_slice(&tokens[1..]);
    }
    if windows.iter().any(|window| window.asked != (0..time)) {
        let weight = |window: &Window, i| if window.asked.contains(&i) { 1.0 } else { 0.0 };
        batch.weights = Some(windows.iter().flat_map(|w| (0..time).map(move |i| weight(w, i))).collect());
    }
    batch
}

impl Serialize for EvalTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = match self {
            Self::Count(n) => Some(*n),
            Self::All => None,
        };
        shorthand::write_number_or_word(number, "all", serializer)
    }
}

impl<'de> Deserialize<'de> for EvalTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = shorthand::number_or_word(deserializer, "a number of tokens", "all")?;
        Ok(number.map_or(Self::All, Self::Count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataConfig;

    fn text(time: usize) -> Task {
        let path = std::env::temp_dir().join(format!("unitgain-held-out-{}-{time}.txt", std::process::id()));
        let bytes: Vec<u8> = (0..50_000u32).map(|i| (i * i / 7 % 251) as u8).collect();
        std::fs::write(&path, bytes).unwrap();
        let task = DataConfig::Text { path: path.clone(), tokenizer: crate::data::TokenizerKind::Byte }.load(time);
        let _ = std::fs::remove_file(path);
        task.unwrap()
    }

    /// The target tokens, in the order of the stream.
    fn asked(task: &Task, size: EvalTokens) -> Vec<i32> {
        let of_batch = |batch: Batch| batch.asked_targets().map(|(_, target)| target).collect::<Vec<_>>();
        task.evaluation(size).flat_map(of_batch).collect()
    }

    #[test]
    fn targets_do_not_depend_on_the_context() {
        for n in [1, 7, 100, 1024, 1025, 4096, 4999, 5000, 1 << 20] {
            let size = EvalTokens::Count(n);
            let text_of = |time| asked(&text(time), size);
            assert_eq!(text_of(8).len(), n.min(4999));
            assert!([9, 64, 1000, 4999].into_iter().all(|time| text_of(time) == text_of(8)), "text, {n} tokens");
            if n < 10_000 {
                let chain = |time| asked(&DataConfig::default().load(time).unwrap(), size);
                assert_eq!(chain(8).len(), n);
                assert!([9, 64, 2000].into_iter().all(|time| chain(time) == chain(8)), "chain, {n} tokens");
            }
        }
        assert_eq!(asked(&text(64), EvalTokens::All).len(), 4999);
    }

    #[test]
    fn pieces_are_spread_and_ask_nothing_twice() {
        for (all, n) in [(10_000, 5000), (10_000, 1024), (10_000, 1025), (10_000, 9999), (3000, 2999), (5, 4)] {
            let pieces = pieces(all, EvalTokens::Count(n));
            assert_eq!(pieces.iter().map(Range::len).sum::<usize>(), n, "{pieces:?}");
            assert!(pieces.windows(2).all(|pair| pair[0].end <= pair[1].start), "{pieces:?}");
            assert!(pieces.last().unwrap().end <= all && pieces.iter().all(|piece| !piece.is_empty()), "{pieces:?}");
            assert!(pieces.len() == 1 || pieces.last().unwrap().end == all, "{pieces:?}");
        }
    }

    #[test]
    fn tasks_with_a_form_ask_whole_sequences_that_are_always_the_same() {
        for data in [DataConfig::Recall { keys: 16, pairs: 4 }, DataConfig::Copy { symbols: 8 }] {
            let task = data.load(16).unwrap();
            let batches: Vec<Batch> = task.evaluation(EvalTokens::Count(5000)).collect();
            assert_eq!(batches.iter().map(|batch| batch.rows).sum::<usize>(), 313);
            assert_eq!(batches, task.evaluation(EvalTokens::Count(5000)).collect::<Vec<_>>());
            let held_out = task.held_out(EvalTokens::Count(5000));
            assert_eq!(held_out.tokens as f64, batches.iter().map(Batch::asked).sum::<f64>());
            // Answers are uniform over 16 values, repeated symbols over 8; the entropy of a sample is slightly lower.
            let uniform = if matches!(data, DataConfig::Copy { .. }) { 8f64 } else { 16.0 }.ln();
            assert!((uniform - 0.04..=uniform).contains(&held_out.unigram_loss), "{held_out:?}");
        }
    }

    #[test]
    fn the_floor_of_the_tokens_is_that_of_the_chain_but_for_chance() {
        for time in [8, 64] {
            let task = DataConfig::default().load(time).unwrap();
            let [few, many] = [1 << 10, 1 << 17].map(|n| task.held_out(EvalTokens::Count(n)).floor.unwrap());
            let floor = task.floor().unwrap();
            assert!((many - floor).abs() < 0.01 && (few - floor).abs() > (many - floor).abs(), "{few} {many} {floor}");
        }
        assert_eq!(text(8).held_out(EvalTokens::All).floor, None);
    }

    #[test]
    fn what_is_stuck_or_blown_up_is_not_better_than_frequencies() {
        let held_out = HeldOut { tokens: 100, unigram_loss: 3.35, floor: None };
        for (loss, start, expected) in [
            (2.0, Some(3.5), true),
            (2.0, None, true),
            (3.36, Some(3.5), false),
            (3.345, Some(3.5), false),
            (127.8, Some(3.5), false),
            (2.0, Some(1.9), false),
            (f32::NAN, Some(3.5), false),
        ] {
            assert_eq!(held_out.is_beaten_by(loss, start), expected, "{loss} from {start:?}");
        }
    }

    #[test]
    fn a_size_is_a_number_or_all() {
        #[derive(Deserialize, Serialize, PartialEq, Debug)]
        struct Holder {
            tokens: EvalTokens,
        }
        for (text, size) in [("tokens = 7", EvalTokens::Count(7)), ("tokens = \"all\"", EvalTokens::All)] {
            let holder: Holder = toml::from_str(text).unwrap();
            assert_eq!(holder.tokens, size);
            assert_eq!(toml::to_string(&holder).unwrap().trim_end(), text);
        }
        for text in ["tokens = -1", "tokens = \"every\"", "tokens = 1.5", "tokens = true"] {
            let message = toml::from_str::<Holder>(text).unwrap_err().to_string();
            assert!(message.contains("a number of tokens, or \"all\""), "{message}");
        }
    }
}
