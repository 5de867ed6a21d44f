use crate::Error;
use serde::{Deserialize, Serialize};

/// How tokens are written as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// A token is a byte.
    Byte,
    /// A token is the index of a character in this string.
    Char(String),
    /// A token is written as its number; numbers are separated by spaces.
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

    /// A prompt of one token that every model of this vocabulary knows: a line break where there is one.
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
    /// [`Error::Generate`] names the first piece that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, Error> {
        match self {
            Self::Byte => Ok(text.bytes().map(i32::from).collect()),
            Self::Char(characters) => text
                .chars()
                .map(|c| match characters.chars().position(|known| known == c) {
                    Some(index) => Ok(index as i32),
                    None => Err(Error::Generate(format!(
                        "the character {c:?} does not occur in the text the model was trained on"
                    ))),
                })
                .collect(),
            Self::Symbols(n) => text
                .split_whitespace()
                .map(|word| match word.parse::<usize>() {
                    Ok(symbol) if symbol < *n => Ok(symbol as i32),
                    Ok(_) | Err(_) => Err(Error::Generate(format!(
                        "{word:?} is not a symbol of this task; write numbers from 0 to {}",
                        n - 1
                    ))),
                })
                .collect(),
        }
    }

    /// The text of `tokens`; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[i32]) -> String {
        match self {
            Self::Byte => {
                let bytes: Vec<u8> = tokens.iter().map(|&t| t as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Char(characters) => {
                let characters: Vec<char> = characters.chars().collect();
                tokens.iter().map(|&t| characters[t as usize]).collect()
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
    }
}
