//! Differences between configurations, and which of them are confounds.

use serde::Serialize;
use std::collections::BTreeSet;
use toml::Value;
use unitgain_train::RunConfig;
use unitgain_train::config::{TAGS, is_within};

/// A key with different values in some configurations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The key, e.g. `model.placement`.
    pub key: String,
    /// The value in each configuration; `-` if it has none.
    pub values: Vec<String>,
    /// Whether the difference is not set explicitly but follows from another key, e.g. DeepNorm's init from its
    /// placement.
    pub follows: bool,
}

/// The axes under study. If one differs without being set, it is a second explanation of any result.
const AXES: [&str; 5] = ["model.norm", "model.placement", "model.scale", "model.init", "model.parametrization"];

impl Difference {
    /// Whether an axis differs that was not set explicitly.
    pub fn is_confound(&self) -> bool {
        self.follows && AXES.iter().any(|axis| is_within(&self.key, axis))
    }
}

/// The keys that differ between resolved configurations (except the seed), and whether they also differ as written.
pub(super) fn between(written: &[RunConfig], resolved: &[RunConfig]) -> Vec<Difference> {
    let values = |configs: &[RunConfig]| {
        let value =
            |config: &RunConfig| RunConfig { seed: 0, versions: None, origin: None, ..config.clone() }.to_value();
        configs.iter().map(value).collect::<Vec<_>>()
    };
    let keys = |all: &[Value]| {
        let mut found = Vec::new();
        collect("", &all.iter().map(Some).collect::<Vec<_>>(), &mut found);
        found
    };
    let asked = keys(&values(written));
    let is_asked = |key: &str| asked.iter().any(|(other, _)| is_within(key, other) || is_within(other, key));
    keys(&values(resolved))
        .into_iter()
        .map(|(key, values)| Difference { follows: !is_asked(&key), key, values })
        .collect()
}

/// Descends into tables of the same kind. Tables of different kinds are compared as a whole, because their settings are
/// unrelated.
fn collect(path: &str, values: &[Option<&Value>], found: &mut Vec<(String, Vec<String>)>) {
    if values.windows(2).all(|pair| pair[0] == pair[1]) {
        return;
    }
    let tables: Option<Vec<_>> = values.iter().map(|value| value.and_then(Value::as_table)).collect();
    let kind = |value: &Value| TAGS.iter().find_map(|tag| value.get(tag)?.as_str().map(String::from));
    let kinds: BTreeSet<Option<String>> = values.iter().map(|value| value.and_then(kind)).collect();
    match tables {
        Some(tables) if kinds.len() == 1 => {
            let keys: BTreeSet<&String> = tables.iter().flat_map(|table| table.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(&path, &tables.iter().map(|table| table.get(key)).collect::<Vec<_>>(), found);
            }
        }
        Some(_) | None => {
            let shown = |value: &Option<&Value>| match value {
                None => "-".to_string(),
                Some(Value::String(text)) => text.clone(),
                Some(value) => kind(value).unwrap_or_else(|| value.to_string()),
            };
            found.push((path.to_string(), values.iter().map(shown).collect()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: &[&[&str]]) -> Vec<(String, String, bool)> {
        let parse = |settings: &&[&str]| {
            let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
            RunConfig::parse("", "test", &settings).unwrap()
        };
        let written: Vec<RunConfig> = settings.iter().map(parse).collect();
        let resolved: Vec<RunConfig> = written.iter().map(|config| config.resolved(32).unwrap()).collect();
        let shown = |d: Difference| (d.key, d.values.join(" "), d.follows);
        between(&written, &resolved).into_iter().map(shown).collect()
    }

    fn has(found: &[(String, String, bool)], key: &str, values: &str, follows: bool) -> bool {
        found.iter().any(|(k, v, f)| k == key && v == values && *f == follows)
    }

    #[test]
    fn what_a_placement_brings_is_told_apart_from_what_was_asked() {
        let found = of(&[&[], &["model.placement=deep_norm", "schedule.warmup=100"]]);
        assert!(has(&found, "model.placement", "pre_norm deep_norm", false), "{found:?}");
        assert!(has(&found, "schedule.warmup", "0 100", false), "{found:?}");
        assert!(has(&found, "model.init", "gpt2 xavier", true), "{found:?}");
        assert!(has(&found, "model.final_norm", "true false", true), "{found:?}");
        let is_confound =
            |key: &str, follows| Difference { key: key.into(), values: Vec::new(), follows }.is_confound();
        assert!(is_confound("model.init", true) && is_confound("model.init.gain", true));
        assert!(!is_confound("model.init", false) && !is_confound("model.final_norm", true));
        let found = of(&[&["model.init=xavier"], &["model.init=xavier", "model.placement=deep_norm"]]);
        assert!(!found.iter().any(|(key, ..)| key == "model.init"), "{found:?}");
    }

    #[test]
    fn the_seed_is_no_difference_and_kinds_are_not_mixed() {
        assert_eq!(of(&[&["seed=1"], &["seed=2"]]), []);
        let found = of(&[&["optimizer.lr=0.1"], &["optimizer.lr=0.2"], &["optimizer.lr=0.1"]]);
        assert_eq!(found, [("optimizer.lr".into(), "0.1 0.2 0.1".into(), false)]);
        let found = of(&[&[], &["optimizer.kind=sgd"]]);
        assert_eq!(found, [("optimizer".into(), "adamw sgd".into(), false)]);
        let found = of(&[&[], &["model.d_model=256"]]);
        assert!(
            has(&found, "model.d_model", "128 256", false) && has(&found, "model.d_ff", "512 1024", true),
            "{found:?}"
        );
    }
}
