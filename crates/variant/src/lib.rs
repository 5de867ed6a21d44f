//! The common interface of all axes of a configuration.
//!
//! An axis is an enum whose variants, its kinds, have settings of their own. In TOML it is a table with a `kind`, or the
//! name of the kind alone ([`shorthand`]). [`Variant`] lists and describes the kinds; a [`Fault`] is an invalid setting.

mod fault;
pub mod shorthand;

use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer};
use std::fmt::{Debug, Display};

pub use fault::{Fault, factor, fraction, from_one, positive_factor, proper_fraction, require, short, within};

/// The description of a kind, as `unitgain configs` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Name in a configuration.
    pub name: &'static str,
    /// Formula, or a description in a few words.
    pub formula: &'static str,
    /// Paper, equation or code that defines the kind.
    pub source: &'static str,
}

impl About {
    /// The description of these parts.
    pub const fn of((name, formula, source): (&'static str, &'static str, &'static str)) -> Self {
        Self { name, formula, source }
    }
}

/// An axis of a configuration. Its list of kinds is read from serde, so a new kind is in every list.
pub trait Variant: DeserializeOwned {
    /// The key that holds the name of the kind.
    const TAG: &'static str = "kind";

    /// Name, formula and source of this kind.
    fn about(&self) -> About;

    /// Checks that the settings are in range and consistent.
    ///
    /// # Errors
    /// The first fault, its key relative to the axis.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// One value of each kind that has a setting without a default.
    fn examples() -> Vec<Self> {
        Vec::new()
    }

    /// The names of all kinds, in the order of the enum.
    fn names() -> &'static [&'static str] {
        match read::<Self>("") {
            Err(Refused::Kind(names)) => names,
            Ok(_) | Err(Refused::Other(_)) => &[],
        }
    }

    /// The kind of this name, with default settings or those of [`Variant::examples`].
    fn named(name: &str) -> Option<Self> {
        let example = || Self::examples().into_iter().find(|example| example.about().name == name);
        read(name).ok().or_else(example)
    }

    /// Every kind as [`Variant::named`], in the order of the enum.
    fn all() -> Vec<Self> {
        Self::names().iter().filter_map(|name| Self::named(name)).collect()
    }
}

/// Reads a kind from its name alone, with default settings.
fn read<V: Variant>(name: &str) -> Result<V, Refused> {
    match V::deserialize(name.into_deserializer()) {
        // serde reads a kind with settings only from a table.
        Err(Refused::Other(_)) => V::deserialize(MapDeserializer::new([(V::TAG, name)].into_iter())),
        read => read,
    }
}

/// Why serde rejects a value.
#[derive(Debug, thiserror::Error)]
enum Refused {
    /// The name is not one of these kinds.
    #[error("not one of {0:?}")]
    Kind(&'static [&'static str]),
    #[error("{0}")]
    Other(String),
}

impl serde::de::Error for Refused {
    fn custom<T: Display>(message: T) -> Self {
        Self::Other(message.to_string())
    }
    fn unknown_variant(_: &str, names: &'static [&'static str]) -> Self {
        Self::Kind(names)
    }
}

/// Tests an axis: every kind is in [`Variant::all`], is described under its name in serde, passes [`Variant::check`] with its
/// defaults, and rejects unknown keys.
///
/// # Panics
/// If the test fails.
pub fn assert_listed<V: Variant + Debug>() {
    let axis = std::any::type_name::<V>();
    assert!(!V::names().is_empty(), "{axis}: serde names no kind");
    for name in V::names() {
        let kind =
            V::named(name).unwrap_or_else(|| panic!("{axis}: {name} has a setting without a default, and no example"));
        let About { name: own, formula, source } = kind.about();
        assert_eq!(own, *name, "{axis}: {kind:?} is described under another name");
        assert!(!formula.is_empty() && !source.is_empty(), "{axis}: {name} has no formula or no source");
        assert_eq!(kind.check(), Ok(()), "{axis}: the defaults of {name}");
        let other = MapDeserializer::<_, Refused>::new([(V::TAG, *name), ("?", "")].into_iter());
        assert!(V::deserialize(other).is_err(), "{axis}: {name} takes any key");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::panic::catch_unwind;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
    enum Axis {
        Plain {},
        OfSize {
            #[serde(default)]
            size: u32,
        },
        Asking {
            size: u32,
        },
    }

    impl Variant for Axis {
        fn about(&self) -> About {
            About::of(match self {
                Self::Plain {} => ("plain", "x", "here"),
                Self::OfSize { .. } => ("of_size", "size x", "here"),
                Self::Asking { .. } => ("asking", "size x", "here"),
            })
        }
        fn examples() -> Vec<Self> {
            vec![Self::Asking { size: 3 }]
        }
    }

    /// An axis without the example that it needs.
    #[derive(Debug, Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
    enum Missing {
        Plain { _size: u32 },
    }

    #[derive(Debug, Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
    enum Misnamed {
        Plane {},
    }

    /// serde ignores the keys of a tagged variant without fields.
    #[derive(Debug, Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
    enum Lax {
        Plain,
    }

    macro_rules! plain {
        ($($axis:ty),*) => {$(
            impl Variant for $axis {
                fn about(&self) -> About {
                    About::of(("plain", "x", "here"))
                }
            }
        )*};
    }
    plain!(Missing, Misnamed, Lax);

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Bare {
        One,
        Two,
    }

    impl Variant for Bare {
        fn about(&self) -> About {
            About::of(if *self == Self::One { ("one", "1", "here") } else { ("two", "2", "here") })
        }
    }

    #[test]
    fn the_kinds_are_those_that_serde_reads() {
        assert_eq!(Axis::names(), ["plain", "of_size", "asking"]);
        assert_eq!(Axis::all(), [Axis::Plain {}, Axis::OfSize { size: 0 }, Axis::Asking { size: 3 }]);
        assert_eq!(Bare::all(), [Bare::One, Bare::Two]);
        assert_eq!(Axis::named("other"), None);
        assert_listed::<Axis>();
        assert_listed::<Bare>();
    }

    #[test]
    fn an_axis_that_is_not_as_it_is_listed_is_told() {
        let said = |checked: fn()| *catch_unwind(checked).unwrap_err().downcast::<String>().unwrap();
        assert!(said(assert_listed::<Missing>).contains("plain has a setting without a default, and no example"));
        assert!(said(assert_listed::<Misnamed>).contains("Plane is described under another name"));
        assert!(said(assert_listed::<Lax>).contains("plain takes any key"));
    }
}
