use super::{Tokenizer, TokenizerKind, below};
use crate::{Error, files};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// A tokenized file, cut 90 to 10.
#[derive(Clone, Debug)]
pub struct TextTokens {
    tokens: Arc<[i32]>,
    train: usize,
    tokenizer: Tokenizer,
    time: usize,
}

impl TextTokens {
    pub(super) fn read(path: &Path, kind: TokenizerKind, time: usize) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|e| {
            let folder = std::env::current_dir().unwrap_or_default();
            Error::Data(format!(
                "cannot read data.path = {}: {e}. A path in a configuration is relative to its file, one of --set to {}",
                path.display(),
                folder.display()
            ))
        })?;
        Self::new(&bytes, kind, time)
            .map_err(|problem| Error::Data(format!("data.path = {}: {problem}", path.display())))
    }

    fn new(bytes: &[u8], kind: TokenizerKind, time: usize) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("the file is empty".into());
        }
        let (tokens, tokenizer): (Vec<i32>, _) = match kind {
            TokenizerKind::Byte => (bytes.iter().map(|&b| i32::from(b)).collect(), Tokenizer::Byte),
            TokenizerKind::Char => {
                let text = std::str::from_utf8(bytes).map_err(|e| {
                    format!(
                        "not valid UTF-8 at byte {}; convert the file, or set tokenizer = \"byte\"",
                        e.valid_up_to()
                    )
                })?;
                let characters: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
                let index = |c: char| characters.binary_search(&c).map_or(0, |i| i as i32);
                (text.chars().map(index).collect(), Tokenizer::Char(characters.iter().collect()))
            }
        };
        let train = tokens.len() * 9 / 10;
        let shorter = train.min(tokens.len() - train);
        if shorter < time + 1 {
            return Err(format!(
                "too short: {} tokens leave {shorter} for evaluation, less than model.context + 1 = {}; \
                 use a longer file or a shorter context",
                tokens.len(),
                time + 1
            ));
        }
        Ok(Self { tokens: tokens.into(), train, tokenizer, time })
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens to train on, and the others.
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.train, self.tokens.len() - self.train]
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.tokens.iter().fold(files::HASH_START, |hash, token| files::hash(hash, &token.to_le_bytes()))
    }

    /// What is not trained on.
    pub(super) fn held_out(&self) -> &[i32] {
        &self.tokens[self.train..]
    }

    pub(super) fn sequence(&self, rng: &mut ChaCha8Rng) -> Vec<i32> {
        let part = &self.tokens[..self.train];
        let start = below(rng, part.len() - self.time);
        part[start..=start + self.time].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unitgain_init::sample;

    #[test]
    fn characters_are_numbered_by_code_point_and_split_90_to_10() {
        let text: String = "héllo wörld ".repeat(20);
        let data = TextTokens::new(text.as_bytes(), TokenizerKind::Char, 8).unwrap();
        assert_eq!(data.tokenizer, Tokenizer::Char(" dhlorwéö".into()));
        assert_eq!((data.tokens.len(), data.train), (240, 216));
        let mut rng = sample::stream(1, "test");
        for _ in 0..200 {
            let s = data.tokenizer.decode(&data.sequence(&mut rng));
            assert!(text[..].contains(&s) && s.chars().count() == 9);
        }
    }

    #[test]
    fn files_that_cannot_be_used_say_why() {
        let problem = |bytes: &[u8], kind| TextTokens::new(bytes, kind, 8).unwrap_err();
        assert!(problem(b"", TokenizerKind::Byte).contains("empty"));
        assert!(problem(&[b'a'; 80], TokenizerKind::Byte).contains("leave 8 for evaluation"));
        assert!(TextTokens::new(&[b'a'; 90], TokenizerKind::Byte, 8).is_ok());
        assert!(problem(b"abc\xff", TokenizerKind::Char).contains("at byte 3"));
        let missing = TextTokens::read(Path::new("no/such/file"), TokenizerKind::Byte, 8).unwrap_err();
        assert!(missing.to_string().contains("no/such/file"));
    }
}
