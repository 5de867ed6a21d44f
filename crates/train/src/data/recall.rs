use super::{below, distinct};
use crate::Error;
use rand_chacha::ChaCha8Rng;
use unitgain_variant::require;

pub(super) fn keys() -> usize {
    32
}
pub(super) fn pairs() -> usize {
    8
}

/// `k1 v1 .. kp vp`, then `k v` of keys among them: keys are `0..keys`, values `keys..2 keys`.
#[derive(Clone, Debug)]
pub(super) struct Recall {
    keys: usize,
    pairs: usize,
    time: usize,
}

impl Recall {
    pub(super) fn new(keys: usize, pairs: usize, time: usize) -> Result<Self, Error> {
        require(keys <= 1 << 16, "data.keys", keys, format!("must be at most {}", 1 << 16))?;
        let problem = format!("must be from 1 to data.keys = {keys}");
        require((1..=keys).contains(&pairs), "data.pairs", pairs, problem)?;
        let tokens = 2 * pairs + 1;
        let problem = format!(
            "pairs and one question are {tokens} tokens, more than model.context = {time}; take fewer pairs or a longer \
             context"
        );
        require(tokens <= time, "data.pairs", pairs, problem)?;
        Ok(Self { keys, pairs, time })
    }

    pub(super) fn vocab_size(&self) -> usize {
        2 * self.keys
    }

    pub(super) fn sequence(&self, rng: &mut ChaCha8Rng) -> Vec<i32> {
        let keys = distinct(rng, self.keys, self.pairs);
        let pairs: Vec<[i32; 2]> =
            keys.into_iter().map(|k| [k as i32, (self.keys + below(rng, self.keys)) as i32]).collect();
        let mut tokens: Vec<i32> = pairs.iter().flatten().copied().collect();
        while tokens.len() < self.time + 1 {
            tokens.extend(pairs[below(rng, self.pairs)]);
        }
        tokens.truncate(self.time + 1);
        tokens
    }

    /// Marks the positions that hold a key after the pairs; their target is the value.
    pub(super) fn asked(&self) -> Vec<f32> {
        let is_question = |i: usize| i >= 2 * self.pairs && i.is_multiple_of(2);
        (0..self.time).map(|i| f32::from(u8::from(is_question(i)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unitgain_init::sample;

    #[test]
    fn every_answer_is_in_the_pairs() {
        let recall = Recall::new(16, 5, 32).unwrap();
        let mut rng = sample::stream(1, "test");
        for _ in 0..100 {
            let s = recall.sequence(&mut rng);
            assert_eq!(s.len(), 33);
            let asked = recall.asked();
            assert_eq!(asked.iter().sum::<f32>(), 11.0);
            for (i, _) in asked.iter().enumerate().filter(|(_, w)| **w == 1.0) {
                let pair = s[..10].chunks(2).find(|pair| pair[0] == s[i]).expect("a known key");
                assert_eq!(pair[1], s[i + 1]);
            }
        }
    }

    #[test]
    fn settings_that_do_not_fit_are_named() {
        assert!(Recall::new(4, 5, 64).unwrap_err().to_string().contains("data.keys = 4"));
        assert!(Recall::new(64, 40, 64).unwrap_err().to_string().contains("model.context = 64"));
    }
}
