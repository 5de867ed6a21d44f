//! `norm = "rms_norm"` as short for `norm = { kind = "rms_norm" }`.

use serde::de::value::{MapAccessDeserializer, MapDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// For `#[serde(deserialize_with = ..)]`: a table with a `kind`, or the kind alone as a string.
pub fn kind_or_table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct KindOrTable<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for KindOrTable<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the name of a kind, or a table with a `kind`")
        }
        fn visit_str<E: serde::de::Error>(self, kind: &str) -> Result<T, E> {
            T::deserialize(MapDeserializer::new([("kind", kind)].into_iter()))
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_any(KindOrTable(PhantomData))
}

/// [`kind_or_table`] for an optional key.
pub fn optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    kind_or_table(deserializer).map(Some)
}
