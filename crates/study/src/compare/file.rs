//! The TOML file of a comparison.

use crate::sweep::{file_safe, keys_in_order};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use toml::Table;
use unitgain_train::config::{ConfigFile, read, setting_of};
use unitgain_train::folder::read::{MOST_WRITTEN, text};
use unitgain_train::{Error, RunConfig};

/// A base run and its variants. Unknown keys are errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// TOML file of the base run, relative to this file.
    run: PathBuf,
    /// `key.path=value` settings for all variants.
    #[serde(default)]
    set: Vec<String>,
    /// Settings of each variant by name; an empty list is the base run.
    variants: Table,
}

/// The named configurations of a file: of the variants in file order, or of a single run. `settings` are applied after the
/// file's.
///
/// # Errors
/// As [`RunConfig::load`]; in a comparison with the name of the variant.
pub(super) fn configurations(path: &Path, settings: &[String]) -> Result<Vec<(String, RunConfig)>, Error> {
    let written = text(path, MOST_WRITTEN)?;
    let is_comparison = toml::from_str::<Table>(&written).is_ok_and(|table| table.contains_key("variants"));
    if !is_comparison {
        let name = file_safe(&path.file_stem().unwrap_or_default().to_string_lossy());
        return Ok(vec![(name, RunConfig::load(path, settings)?)]);
    }
    let origin = path.display().to_string();
    let error =
        |key: &str, problem: &str| Error::Config { origin: origin.clone(), key: key.into(), problem: problem.into() };
    let File { run, set, variants } = read(&written, &origin)?;
    let file = ConfigFile::load(&path.parent().unwrap_or(Path::new("")).join(run))?;
    let mut all: Vec<(String, RunConfig)> = Vec::new();
    for name in keys_in_order(&written, "variants") {
        let key = format!("variants.{name}");
        let own: Option<Vec<String>> = variants.get(&name).and_then(|own| own.clone().try_into().ok());
        let own = own.ok_or_else(|| error(&key, "must be a list of settings, as [\"model.placement=post_norm\"]"))?;
        if file_safe(&name) != name {
            return Err(error(&key, "is the name of a folder: take letters, digits and \"_\" alone"));
        }
        let of_file = set.iter().chain(&own).map(|setting| setting_of(path, setting));
        let given: Vec<String> = of_file.chain(settings.iter().cloned()).collect();
        let config = file.with_those_of("the comparison", &given).map_err(|e| error(&key, &e.to_string()))?;
        if let Some((other, _)) = all.iter().find(|(_, other)| *other == config) {
            return Err(error(&key, &format!("is the same configuration as {other}; change one, or take it away")));
        }
        all.push((name, config));
    }
    match all.is_empty() {
        true => Err(error("variants", "is empty; give at least one, as post_norm = [\"model.placement=post_norm\"]")),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_its_variants_in_its_order() {
        let folder = std::env::temp_dir().join(format!("unitgain-compare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("run.toml"), "[model]\nn_layers = 2").unwrap();
        let of = |text: &str| {
            std::fs::write(folder.join("depth.toml"), text).unwrap();
            configurations(&folder.join("depth.toml"), &["train.steps=7".into()]).map_err(|e| e.to_string())
        };
        let base = "run = 'run.toml'\nset = ['model.n_layers=3']\n[variants]\n";
        let all = of(&format!("{base}post = ['model.placement=post_norm']\nbase = []")).unwrap();
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["post", "base"]);
        assert!(all.iter().all(|(_, config)| config.model.n_layers == 3 && config.train.steps == 7));
        assert_ne!(all[0].1.model.placement, all[1].1.model.placement);
        for (text, parts) in [
            ("run = 'run.toml'\n[variants]".into(), &["variants", "is empty"][..]),
            (format!("{base}a = 1"), &["variants.a", "a list of settings"]),
            (format!("{base}a = ['model.placment=x']"), &["variants.a", "placment"]),
            (format!("{base}a = []\nb = ['model.n_layers=3']"), &["variants.b", "the same configuration as a"]),
            (format!("{base}'a b' = []"), &["variants.a b", "letters, digits"]),
            (format!("runs = 1\n{base}a = []"), &["runs"]),
            ("run = 'none.toml'\n[variants]\na = []".into(), &["none.toml"]),
        ] {
            let said = of(&text).unwrap_err();
            assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
        }
        // A run is a comparison with a single configuration.
        let run = configurations(&folder.join("run.toml"), &[]).unwrap();
        assert_eq!((run.len(), run[0].0.as_str()), (1, "run"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
