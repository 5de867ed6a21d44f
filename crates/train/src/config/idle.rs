//! Keys that were set but have no effect.

use super::explain::{at, shown};
use super::file::parts;
use super::{RunConfig, path};
use crate::{Calibrate, OptimizerConfig, ScheduleConfig, device};
use toml::Value;
use unitgain_model::{Idle, Placement};

impl RunConfig {
    /// One sentence per key that differs from its default but has no effect on the numbers of the run, given the other
    /// keys. `resolved` is this configuration, resolved.
    pub fn idle_keys(&self, resolved: &Self) -> Vec<String> {
        let Ok(plan) = resolved.plan() else { return Vec::new() };
        let model = self.model.idle(&plan).into_iter();
        let model = model.map(|Idle { key, reason }| Idle { key: format!("model.{key}"), reason });
        let all: Vec<Idle> = model.chain(self.idle_around_the_model(resolved)).collect();
        let tell = |idle: Idle| {
            let key = parts(&idle.key);
            let value = self.asked(&key, resolved)?;
            let place = self.written.place(&key).map_or(String::new(), |place| format!("{place}: "));
            Some(format!("{place}{} = {value} does nothing: {}", shown(&key), idle.reason))
        };
        all.into_iter().filter_map(tell).collect()
    }

    /// Warns of the [`idle_keys`](Self::idle_keys), each once per process.
    pub(super) fn warn_of_idle_keys(&self, resolved: &Self) {
        self.idle_keys(resolved).iter().for_each(|said| path::warn(said));
    }

    fn idle_around_the_model(&self, resolved: &Self) -> Vec<Idle> {
        let mut found = Vec::new();
        let mut add = |key: &str, is_idle: bool, reason: &str| {
            if is_idle {
                found.push(Idle { key: key.into(), reason: reason.into() });
            }
        };
        // Whether the factor stays 1 after the warm-up, and the number of steps over which it falls.
        let (is_flat, falls) = match self.schedule {
            ScheduleConfig::Constant { .. } => (true, None),
            ScheduleConfig::Cosine { warmup, .. } | ScheduleConfig::Linear { warmup, .. } => {
                (false, Some(self.train.steps.saturating_sub(warmup)))
            }
            ScheduleConfig::WarmupStableDecay { decay, .. } => (true, Some(decay)),
        };
        let reason = "a schedule that falls over n steps starts with factor 1 and would reach min_ratio after the \
                      last, and here n is at most 1";
        add("schedule.min_ratio", falls.is_some_and(|steps| steps <= 1), reason);
        add("schedule.decay", self.schedule.decay() == 1, reason);
        let reason = "its single step has factor 1, like the following ones";
        add("schedule.warmup", is_flat && self.schedule.warmup() == 1, reason);
        let without_momentum = matches!(self.optimizer, OptimizerConfig::Sgd { momentum: 0.0, nesterov: true, .. });
        add("optimizer.nesterov", without_momentum, "optimizer.momentum is 0");
        add("threads", !device::is_host(&self.backend), "the backend is a GPU");
        if self.init.calibrate == Some(Calibrate::Admin {}) {
            let reason = "init.calibrate = \"admin\" measures it";
            let is_admin = |placement: Option<Placement>| matches!(placement, Some(Placement::Admin { .. }));
            add("model.placement.omega", is_admin(Some(resolved.model.placement)), reason);
            add("model.mlp_placement.omega", is_admin(resolved.model.mlp_placement), reason);
            for (i, block) in resolved.model.block.iter().enumerate() {
                add(&format!("model.block.{i}.placement.omega"), is_admin(block.placement), reason);
                add(&format!("model.block.{i}.mlp_placement.omega"), is_admin(block.mlp_placement), reason);
            }
        }
        found
    }

    /// The value of a key, if it differs from the value without the key.
    fn asked(&self, key: &[String], resolved: &Self) -> Option<String> {
        let value = |config: &Self| at(&config.to_value(), key).cloned();
        // A key that was not set needs no warning.
        value(self)?;
        let own = value(resolved)?;
        let without = self.without(key).and_then(|config| config.resolved(resolved.model.vocab_size?).ok());
        if without.is_some_and(|config| value(&config).as_ref() == Some(&own)) {
            return None;
        }
        let kind = own.get("kind").and_then(Value::as_str).map(|kind| format!("{kind:?}"));
        Some(kind.unwrap_or_else(|| own.to_string()))
    }
}
