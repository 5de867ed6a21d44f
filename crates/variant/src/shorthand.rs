//! `norm = "rms_norm"` as shorthand for `norm = { kind = "rms_norm" }`.

use serde::de::value::{MapAccessDeserializer, MapDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde::ser::Serializer;
use std::fmt;
use std::marker::PhantomData;

/// Reads a table with a `kind`, or the kind alone as a string; for `#[serde(deserialize_with = ..)]`.
pub fn kind_or_table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(Shorthand { number: None, kind: PhantomData })
}

/// [`kind_or_table`] for a type that can also be written as a number.
pub fn number_kind_or_table<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f64>,
{
    deserializer.deserialize_any(Shorthand { number: Some(T::from), kind: PhantomData })
}

struct Shorthand<T> {
    number: Option<fn(f64) -> T>,
    kind: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Shorthand<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.number.is_some() { "a number, " } else { "" })?;
        f.write_str("the name of a kind, or a table with a `kind`")
    }
    fn visit_f64<E: Error>(self, x: f64) -> Result<T, E> {
        self.number.map(|number| number(x)).ok_or_else(|| E::invalid_type(Unexpected::Float(x), &self))
    }
    fn visit_i64<E: Error>(self, x: i64) -> Result<T, E> {
        self.number.map(|number| number(x as f64)).ok_or_else(|| E::invalid_type(Unexpected::Signed(x), &self))
    }
    fn visit_str<E: Error>(self, kind: &str) -> Result<T, E> {
        T::deserialize(MapDeserializer::new([("kind", kind)].into_iter()))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// [`kind_or_table`] for an optional key.
pub fn optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    kind_or_table(deserializer).map(Some)
}

/// [`number_kind_or_table`] for an optional key.
pub fn optional_number<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f64>,
{
    number_kind_or_table(deserializer).map(Some)
}

/// Reads a whole number, or None where `word` is written. `what` describes the number.
pub fn number_or_word<'de, D: Deserializer<'de>>(
    deserializer: D,
    what: &'static str,
    word: &'static str,
) -> Result<Option<usize>, D::Error> {
    struct NumberOrWord([&'static str; 2]);
    impl Visitor<'_> for NumberOrWord {
        type Value = Option<usize>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}, or {:?}", self.0[0], self.0[1])
        }
        fn visit_u64<E: Error>(self, n: u64) -> Result<Option<usize>, E> {
            usize::try_from(n).map(Some).map_err(|_| E::invalid_value(Unexpected::Unsigned(n), &self))
        }
        fn visit_i64<E: Error>(self, n: i64) -> Result<Option<usize>, E> {
            usize::try_from(n).map(Some).map_err(|_| E::invalid_value(Unexpected::Signed(n), &self))
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Option<usize>, E> {
            if text == self.0[1] { Ok(None) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
        }
    }
    deserializer.deserialize_any(NumberOrWord([what, word]))
}

/// Writes what [`number_or_word`] reads.
pub fn write_number_or_word<S: Serializer>(
    number: Option<usize>,
    word: &'static str,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match number {
        Some(n) => serializer.serialize_u64(n as u64),
        None => serializer.serialize_str(word),
    }
}
