use super::below;
use crate::Error;
use rand_chacha::ChaCha8Rng;
use unitgain_variant::{from_one, require};

pub(super) fn symbols() -> usize {
    32
}

/// `r1 .. rn SEP r1 .. rn` with n = time / 2; an odd time ends in another separator.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    symbols: usize,
    time: usize,
}

impl Copy {
    pub(super) fn new(symbols: usize, time: usize) -> Result<Self, Error> {
        from_one("data.symbols", symbols, 1 << 16)?;
        require(time >= 2, "model.context", time, "must be at least 2 for data.task = \"copy\"")?;
        Ok(Self { symbols, time })
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.symbols + 1
    }

    pub(super) fn sequence(&self, rng: &mut ChaCha8Rng) -> Vec<i32> {
        let separator = [self.symbols as i32];
        let half: Vec<i32> = (0..self.time / 2).map(|_| below(rng, self.symbols) as i32).collect();
        let mut tokens = [half.as_slice(), &separator, &half, &separator].concat();
        tokens.truncate(self.time + 1);
        tokens
    }

    /// Marks the positions whose target is in the repetition.
    pub(super) fn asked(&self) -> Vec<f32> {
        let half = self.time / 2;
        (0..self.time).map(|i| f32::from(u8::from((half..2 * half).contains(&i)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unitgain_init::sample;

    #[test]
    fn what_is_asked_is_what_was_shown() {
        for time in [2, 7, 16] {
            let copy = Copy::new(5, time).unwrap();
            let s = copy.sequence(&mut sample::stream(1, "test"));
            assert_eq!(s.len(), time + 1);
            let half = time / 2;
            for (i, _) in copy.asked().iter().enumerate().filter(|(_, w)| **w == 1.0) {
                assert_eq!(s[i + 1], s[i - half]);
            }
            assert_eq!(copy.asked().iter().sum::<f32>(), half as f32);
        }
    }
}
