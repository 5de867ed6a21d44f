//! Tables of settings that are numbers, all 1 by default.

use serde::Deserializer;
use serde::de::{Error, MapAccess, Visitor};
use std::fmt;

/// The numbers of these names; a table that has an `output_multiplier` is refused for the reason given.
pub(crate) fn of<'de, D: Deserializer<'de>, const N: usize>(
    deserializer: D,
    names: [&'static str; N],
    no_output_multiplier: &'static str,
) -> Result<[f64; N], D::Error> {
    deserializer.deserialize_map(Numbers { names, no_output_multiplier })
}

struct Numbers<const N: usize> {
    names: [&'static str; N],
    no_output_multiplier: &'static str,
}

impl<'de, const N: usize> Visitor<'de> for Numbers<N> {
    type Value = [f64; N];
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<[f64; N], A::Error> {
        let mut numbers = [1.0; N];
        while let Some(key) = map.next_key::<String>()? {
            match self.names.iter().position(|name| *name == key) {
                Some(i) => numbers[i] = map.next_value()?,
                None if key == "output_multiplier" => return Err(Error::custom(self.no_output_multiplier)),
                None => return Err(Error::custom(unknown(&key, &self.names))),
            }
        }
        Ok(numbers)
    }
}

/// serde's message for a name that is none of these.
fn unknown(key: &str, names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => format!("unknown field `{key}`, there are no fields"),
        [_, ..] => format!("unknown field `{key}`, expected one of {}", names.join(", ")),
    }
}
