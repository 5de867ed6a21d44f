use crate::Error;
use serde::{Deserialize, Serialize};

/// The mapping between tokens and text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// A token is a byte.
    Byte,
    /// A token is the index of a character in this string.
    Char(String),
    /// A token is written as its number, with spaces between numbers.
    Symbols(usize),
}

impl Tokenizer {
    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Byte => 256,
            Self::Char(characters) => characters.chars().count(),
            Self::Symbols(n) => *n,
        }
    }

    /// A one-token prompt that exists in every such vocabulary: a line break if there is one.
    pub fn default_prompt(&self) -> String {
        match self {
            Self::Byte => "\n".into(),
            Self::Char(characters) if characters.contains('\n') => "\n".into(),
            Self::Char(characters) => characters.chars().take(1).collect(),
            Self::Symbols(_) => "0 ".into(),
        }
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`Error::Generate`] with the first piece that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, Error> {
        match self {
            Self::Byte => Ok(text.bytes().map(i32::from).collect()),
            Self::Char(characters) => text
                .chars()
                .map(|c| match characters.chars().position(|known| known == c).map(i32::try_from) {
                    Some(Ok(index)) => Ok(index),
                    Some(Err(_)) | None => Err(Error::Generate(format!(
                        "the character {c:?} does not occur in the text the model was trained on"
                    ))),
                })
                .collect(),
            Self::Symbols(n) => text
                .split_whitespace()
                .map(|word| match word.parse::<i32>() {
                    Ok(symbol) if usize::try_from(symbol).is_ok_and(|symbol| symbol < *n) => Ok(symbol),
                    Ok(_) | Err(_) => Err(Error::Generate(format!(
                        "{word:?} is not a symbol of this task; write numbers from 0 to {}",
                        n.saturating_sub(1)
                    ))),
                })
                .collect(),
        }
    }

    /// Number of trailing tokens that are an incomplete character.
    pub fn unfinished(&self, tokens: &[i32]) -> usize {
        match self {
            Self::Byte => {
                let last: Vec<u8> = tokens.iter().rev().take(3).rev().map(|&token| token as u8).collect();
                (0..last.len())
                    .find(|start| {
                        let ends = std::str::from_utf8(&last[*start..]);
                        ends.is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
                    })
                    .map_or(0, |start| last.len() - start)
            }
            Self::Char(_) | Self::Symbols(_) => 0,
        }
    }

    /// The text of `tokens`. Invalid UTF-8 and tokens outside the vocabulary become U+FFFD.
    pub fn decode(&self, tokens: &[i32]) -> String {
        match self {
            Self::Byte => {
                // 0xFF is invalid in UTF-8.
                let bytes: Vec<u8> = tokens.iter().map(|&t| u8::try_from(t).unwrap_or(0xFF)).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Char(characters) => {
                let characters: Vec<char> = characters.chars().collect();
                let character = |t: &i32| usize::try_from(*t).ok().and_then(|t| characters.get(t).copied());
                tokens.iter().map(|t| character(t).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
            }
            Self::Symbols(_) => tokens.iter().map(|t| format!("{t} ")).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_and_decoding_are_inverse() {
        for (tokenizer, text) in
            [(Tokenizer::Byte, "a\nß"), (Tokenizer::Char("\n aß".into()), "ß a\n"), (Tokenizer::Symbols(12), "0 11 3 ")]
        {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text);
        }
    }

    #[test]
    fn what_is_not_in_the_vocabulary_is_named() {
        let problem = |t: Tokenizer, text| t.encode(text).unwrap_err().to_string();
        assert!(problem(Tokenizer::Char("ab".into()), "abc").contains("'c'"));
        assert!(problem(Tokenizer::Symbols(4), "1 4").contains("\"4\""));
        assert!(problem(Tokenizer::Symbols(4), "x").contains("from 0 to 3"));
        // Larger than any token, whatever vocabulary size a file claims.
        for symbol in ["-1", "2147483648", "1099511627776", "18446744073709551615", "99999999999999999999"] {
            for n in [0, 4, usize::MAX] {
                assert!(problem(Tokenizer::Symbols(n), symbol).contains(symbol), "{symbol} of {n}");
            }
        }
    }

    #[test]
    fn the_beginning_of_a_character_waits_for_its_end() {
        for (bytes, expected) in [
            (&b"abc"[..], 0),
            (&[b'a', 0xE2], 1),
            (&[0xE2, 0x82], 2),
            (&[0xE2, 0x82, 0xAC], 0),
            (&[0xFF, 0xFF, 0xE2, 0x82], 2),
            (&[0xF0, 0x9F, 0x98], 3),
            (&[0xFF, 0xFF, 0xFF], 0),
            (&[0x80], 0),
            (&[], 0),
        ] {
            let tokens: Vec<i32> = bytes.iter().map(|b| i32::from(*b)).collect();
            assert_eq!(Tokenizer::Byte.unfinished(&tokens), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_no_index() {
        for token in [-1, 3, 256, i32::MAX, i32::MIN] {
            assert_eq!(Tokenizer::Char("abc".into()).decode(&[0, token, 2]), "a\u{fffd}c");
        }
        for token in [-1, 256, i32::MAX, i32::MIN] {
            assert_eq!(Tokenizer::Byte.decode(&[97, token, 99]), "a\u{fffd}c");
        }
    }
}
