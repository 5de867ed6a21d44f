use super::{Tokenizer, TokenizerKind, below};
use crate::{Error, folder::files, folder::read};
use rand_chacha::ChaCha8Rng;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A tokenized file, split 90 to 10.
#[derive(Clone, Debug)]
pub struct TextTokens {
    tokens: Arc<Tokens>,
    train: usize,
    tokenizer: Tokenizer,
    time: usize,
}

/// Token ids in the narrowest type for the vocabulary, because a text may be as large as the memory.
#[derive(Debug)]
enum Tokens {
    Narrow(Vec<u8>),
    Middle(Vec<u16>),
    Wide(Vec<u32>),
}

impl Tokens {
    fn len(&self) -> usize {
        match self {
            Self::Narrow(tokens) => tokens.len(),
            Self::Middle(tokens) => tokens.len(),
            Self::Wide(tokens) => tokens.len(),
        }
    }

    fn of(&self, range: Range<usize>) -> Vec<i32> {
        match self {
            Self::Narrow(tokens) => tokens[range].iter().map(|t| i32::from(*t)).collect(),
            Self::Middle(tokens) => tokens[range].iter().map(|t| i32::from(*t)).collect(),
            Self::Wide(tokens) => tokens[range].iter().map(|t| *t as i32).collect(),
        }
    }
}

/// Number of code points.
const CODE_POINTS: usize = char::MAX as usize + 1;

impl TextTokens {
    pub(super) fn read(path: &Path, kind: TokenizerKind, time: usize) -> Result<Self, Error> {
        let bytes = read::fitting(path, kind.bytes_each()).map_err(|e| {
            let folder = std::env::current_dir().unwrap_or_default();
            let hint = match e.kind() {
                io::ErrorKind::NotFound => {
                    format!(". A path in a configuration is relative to its file, one of --set to {}", folder.display())
                }
                _ => String::new(),
            };
            Error::Data(format!("cannot read data.path = {}: {e}{hint}", path.display()))
        })?;
        Self::new(bytes, kind, time)
            .map_err(|problem| Error::Data(format!("data.path = {}: {problem}", path.display())))
    }

    fn new(bytes: Vec<u8>, kind: TokenizerKind, time: usize) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("the file is empty".into());
        }
        let (tokens, tokenizer) = match kind {
            TokenizerKind::Byte => (Tokens::Narrow(bytes), Tokenizer::Byte),
            TokenizerKind::Char => characters(bytes)?,
        };
        let train = tokens.len() - tokens.len().div_ceil(10);
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

    /// Numbers of training tokens and of held-out tokens.
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.train, self.tokens.len() - self.train]
    }

    pub(super) fn fingerprint(&self) -> u64 {
        // Hash four bytes per token, in whatever type they are stored.
        let one = |hash, token: i32| files::hash(hash, &token.to_le_bytes());
        match &*self.tokens {
            Tokens::Narrow(tokens) => tokens.iter().fold(files::HASH_START, |hash, t| one(hash, i32::from(*t))),
            Tokens::Middle(tokens) => tokens.iter().fold(files::HASH_START, |hash, t| one(hash, i32::from(*t))),
            Tokens::Wide(tokens) => tokens.iter().fold(files::HASH_START, |hash, t| one(hash, *t as i32)),
        }
    }

    /// A range of the held-out tokens.
    pub(super) fn held_out(&self, range: Range<usize>) -> Vec<i32> {
        self.tokens.of(self.train + range.start..self.train + range.end)
    }

    pub(super) fn sequence(&self, rng: &mut ChaCha8Rng) -> Vec<i32> {
        let start = below(rng, self.train - self.time);
        self.tokens.of(start..start + self.time + 1)
    }
}

/// One token per character, in code point order.
fn characters(bytes: Vec<u8>) -> Result<(Tokens, Tokenizer), String> {
    let text = std::str::from_utf8(&bytes).map_err(|e| {
        format!("not valid UTF-8 at byte {}; convert the file, or set tokenizer = \"byte\"", e.valid_up_to())
    })?;
    // For each code point first whether it occurs, then its token.
    let mut numbers = vec![0u32; CODE_POINTS];
    let mut length = 0usize;
    for c in text.chars() {
        numbers[c as usize] = 1;
        length += 1;
    }
    let mut vocabulary = String::new();
    let mut size = 0u32;
    for (point, number) in (0..).zip(&mut numbers).filter(|(_, number)| **number > 0) {
        vocabulary.extend(char::from_u32(point));
        *number = size;
        size += 1;
    }
    let all = text.chars().map(|c| numbers[c as usize]);
    let tokens = if size <= 1 << 8 {
        Tokens::Narrow(collected(length, all.map(|n| n as u8)))
    } else if size <= 1 << 16 {
        Tokens::Middle(collected(length, all.map(|n| n as u16)))
    } else {
        Tokens::Wide(collected(length, all))
    };
    Ok((tokens, Tokenizer::Char(vocabulary)))
}

/// Collects a known number of items, without the spare capacity of a growing vector.
fn collected<T>(length: usize, items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::with_capacity(length);
    all.extend(items);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use unitgain_init::sample;

    #[test]
    fn characters_are_numbered_by_code_point_and_split_90_to_10() {
        let text: String = "héllo wörld ".repeat(20);
        let data = TextTokens::new(text.as_bytes().to_vec(), TokenizerKind::Char, 8).unwrap();
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
        let problem = |bytes: &[u8], kind| TextTokens::new(bytes.to_vec(), kind, 8).unwrap_err();
        assert!(problem(b"", TokenizerKind::Byte).contains("empty"));
        assert!(problem(&[b'a'; 80], TokenizerKind::Byte).contains("leave 8 for evaluation"));
        assert!(TextTokens::new(vec![b'a'; 90], TokenizerKind::Byte, 8).is_ok());
        assert!(problem(b"abc\xff", TokenizerKind::Char).contains("at byte 3"));
        let missing = TextTokens::read(Path::new("no/such/file"), TokenizerKind::Byte, 8).unwrap_err();
        assert!(missing.to_string().contains("no/such/file"));
        let folder = TextTokens::read(&std::env::temp_dir(), TokenizerKind::Byte, 8).unwrap_err().to_string();
        assert!(folder.contains("it is a folder, not a file"), "{folder}");
    }

    /// The fingerprint must not depend on the type in which tokens are stored.
    #[test]
    fn a_text_has_one_number_however_wide_its_tokens_are() {
        let many = |n: u32| -> String { (0..n).filter_map(|i| char::from_u32(0x4E00 + i)).collect() };
        let huge: String = (0x20..0x20000).filter_map(char::from_u32).collect();
        for (text, kind) in [
            ("to be or not to be".repeat(9), TokenizerKind::Byte),
            ("to be or not to be".repeat(9), TokenizerKind::Char),
            (many(256), TokenizerKind::Char),
            (many(257), TokenizerKind::Char),
            (huge, TokenizerKind::Char),
        ] {
            let data = TextTokens::new(text.as_bytes().to_vec(), kind, 8).unwrap();
            let mut characters: Vec<char> = text.chars().collect();
            characters.sort_unstable();
            characters.dedup();
            let tokens: Vec<i32> = match kind {
                TokenizerKind::Byte => text.bytes().map(i32::from).collect(),
                TokenizerKind::Char => text.chars().map(|c| characters.binary_search(&c).unwrap() as i32).collect(),
            };
            assert_eq!(data.tokenizer.decode(&tokens), text);
            let bytes: u64 = tokens.iter().fold(files::HASH_START, |hash, t| files::hash(hash, &t.to_le_bytes()));
            assert_eq!(data.fingerprint(), bytes);
            assert_eq!(data.tokens.of(0..tokens.len()), tokens);
            assert_eq!(data.train, tokens.len() * 9 / 10);
            assert_eq!(data.held_out(1..3), tokens[data.train + 1..data.train + 3]);
        }
    }
}
