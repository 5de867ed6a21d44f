//! Parametrizations: one table from the role of a weight to the factors of its init, forward pass,
//! learning rate, weight decay and Adam eps.
//!
//! Everything is relative to a base model: where the width equals the base width, muP *is* the
//! standard parametrization, bit for bit.

use serde::{Deserialize, Serialize};
use unitgain_init::{Role, Spec};

/// Name, formula and source of one variant, as `unitgain configs` prints them.
pub type About = (&'static str, &'static str, &'static str);

/// How init, multipliers and learning rates depend on width.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Parametrization {
    /// Every factor is 1; attention logits are `q.k / sqrt(head_dim)`.
    Standard {},
    /// muP in the form of Table 8 (arXiv:2203.03466): with m = width / base_width, hidden matrices
    /// have init std x 1/sqrt(m) and Adam learning rate x 1/m, logits are multiplied by 1/m, and
    /// attention logits are `q.k sqrt(base_head_dim) / head_dim`.
    Mup {
        /// Width at which this equals the standard parametrization. Required.
        base_width: usize,
        /// Head size of the base model. Default `head_dim * base_width / width`: the number of heads
        /// is the same at every width. With a constant head size set it to `head_dim`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base_head_dim: Option<f64>,
    },
}

/// The sizes of a model that grow with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of the stream.
    pub width: usize,
    /// Size of one attention head.
    pub head_dim: usize,
}

/// How an optimizer's step depends on the size of the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The step is proportional to the gradient (SGD).
    Proportional,
    /// The step does not depend on the gradient's size (Adam, AdamW, Lion).
    Normalized,
}

/// What the settings of one weight are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Standard deviation at init.
    pub init: f64,
    /// The weight itself, in the forward pass.
    pub forward: f64,
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub decay: f64,
    /// Adam's eps.
    pub eps: f64,
}

impl Factors {
    const ONE: Self = Self { init: 1.0, forward: 1.0, lr: 1.0, decay: 1.0, eps: 1.0 };
}

impl Parametrization {
    /// One value of each kind.
    pub const ALL: [Self; 2] = [Self::Standard {}, Self::Mup { base_width: 64, base_head_dim: None }];

    /// Name, formula and source.
    pub fn about(self) -> About {
        match self {
            Self::Standard {} => ("standard", "all factors 1; attention q.k / sqrt(head_dim)", "common practice"),
            Self::Mup { .. } => (
                "mup",
                "m = width / base_width: hidden std / sqrt(m), hidden Adam lr / m, logits / m, attention ~ 1 / head_dim",
                "arXiv:2203.03466 table 8",
            ),
        }
    }

    /// What is wrong with the settings, if anything.
    pub fn check(self) -> Result<(), String> {
        match self {
            Self::Standard {} => Ok(()),
            Self::Mup { base_width: 0, .. } => Err("base_width = 0 must be at least 1".into()),
            Self::Mup { base_head_dim: Some(d), .. } if !(d > 0.0 && d.is_finite()) => {
                Err(format!("base_head_dim = {d} must be a positive number"))
            }
            Self::Mup { .. } => Ok(()),
        }
    }

    /// The width of the base model: that of the model itself where there is none.
    pub fn base_width(self, width: usize) -> usize {
        match self {
            Self::Mup { base_width, .. } => base_width,
            Self::Standard {} => width,
        }
    }

    /// Writes out the defaults that depend on the model's shape.
    pub fn resolved(self, shape: Shape) -> Self {
        match self {
            Self::Mup { base_width, base_head_dim: None } => Self::Mup {
                base_width,
                base_head_dim: Some(shape.head_dim as f64 * base_width as f64 / shape.width as f64),
            },
            Self::Mup { .. } | Self::Standard {} => self,
        }
    }

    /// The factors of a weight in a model of `shape`. Only `lr` and `decay` depend on `update`.
    ///
    /// Weight decay is coupled (a step subtracts `lr * decay * w`), so under muP a decay is divided
    /// by what its learning rate is multiplied by, as microsoft/mup 1.0.0 does.
    pub fn factors(self, spec: &Spec, shape: Shape, update: Update) -> Factors {
        let Self::Mup { base_width, base_head_dim } = self.resolved(shape) else { return Factors::ONE };
        let m = shape.width as f64 / base_width as f64;
        // How much longer than in the base model the side is that grows.
        let growth = match spec.role {
            // A scalar, as ScaleNorm's g or ReZero's alpha.
            Role::Norm | Role::QkNorm | Role::Scale if spec.fan_out == 1.0 => 1.0,
            Role::Statistic => 1.0,
            // As many as there are heads.
            Role::HeadScale => base_head_dim.map_or(1.0, |base| m * base / shape.head_dim as f64),
            Role::QkNorm => base_head_dim.map_or(m, |base| shape.head_dim as f64 / base),
            _ => m,
        };
        let forward = if spec.role == Role::Head { 1.0 / m } else { 1.0 };
        let hidden = spec.role.is_hidden();
        let init = if hidden { m.powf(-0.5) } else { 1.0 };
        let lr = match update {
            Update::Normalized if hidden => 1.0 / m,
            Update::Proportional if !hidden => growth,
            Update::Normalized | Update::Proportional => 1.0,
        };
        Factors { init, forward, lr, decay: 1.0 / lr, eps: 1.0 }
    }

    /// The same weight in the base model: the sides that grow with the width shrink to it.
    pub fn base(self, spec: &Spec, width: usize) -> Spec {
        let shrink = |fan: f64| match self {
            Self::Standard {} => fan,
            Self::Mup { base_width, .. } => fan * base_width as f64 / width as f64,
        };
        match spec.role {
            Role::Embedding => Spec { fan_out: shrink(spec.fan_out), width: shrink(spec.width), ..*spec },
            Role::Head => Spec { fan_in: shrink(spec.fan_in), width: shrink(spec.width), ..*spec },
            _ => {
                Spec { fan_in: shrink(spec.fan_in), fan_out: shrink(spec.fan_out), width: shrink(spec.width), ..*spec }
            }
        }
    }

    /// What attention logits `q.k` are multiplied by.
    pub fn attention_scale(self, shape: Shape) -> f64 {
        let head_dim = shape.head_dim as f64;
        let base_head_dim = match self.resolved(shape) {
            Self::Mup { base_head_dim: Some(base), .. } => base,
            Self::Mup { base_head_dim: None, .. } | Self::Standard {} => head_dim,
        };
        (base_head_dim / head_dim).sqrt() / head_dim.sqrt()
    }

    /// What every residual branch is multiplied by, in a model of `layers` blocks.
    pub fn branch_multiplier(self, _layers: usize) -> f64 {
        match self {
            Self::Standard {} | Self::Mup { .. } => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUP: Parametrization = Parametrization::Mup { base_width: 64, base_head_dim: None };

    fn spec(role: Role, fan_in: u32, fan_out: u32) -> Spec {
        Spec { role, fan_in: fan_in.into(), fan_out: fan_out.into(), layers: 2, layer: None, width: 64.0 }
    }

    #[test]
    fn every_parametrization_is_listed_under_its_own_name() {
        for parametrization in Parametrization::ALL {
            let json = serde_json::to_string(&parametrization).unwrap();
            assert!(json.contains(parametrization.about().0), "{json}");
            assert_eq!(serde_json::from_str::<Parametrization>(&json).unwrap(), parametrization);
        }
    }

    #[test]
    fn at_the_base_width_mup_is_standard() {
        let shape = Shape { width: 64, head_dim: 16 };
        for role in Role::ALL {
            for update in [Update::Normalized, Update::Proportional] {
                assert_eq!(MUP.factors(&spec(role, 64, 64), shape, update), Factors::ONE, "{role:?}");
            }
            assert_eq!(MUP.base(&spec(role, 64, 64), 64), spec(role, 64, 64));
        }
        assert_eq!(MUP.attention_scale(shape), Parametrization::Standard {}.attention_scale(shape));
    }

    /// Table 8 of arXiv:2203.03466 at m = 4, in the numbers that microsoft/mup 1.0.0 reports.
    #[test]
    fn factors_are_those_of_table_8() {
        let shape = Shape { width: 256, head_dim: 64 };
        let at = |role, update| {
            let f = MUP.factors(&spec(role, 256, 256), shape, update);
            (f.init, f.forward, f.lr, f.decay)
        };
        use Update::{Normalized, Proportional};
        assert_eq!(at(Role::Query, Normalized), (0.5, 1.0, 0.25, 4.0));
        assert_eq!(at(Role::Query, Proportional), (0.5, 1.0, 1.0, 1.0));
        assert_eq!(at(Role::Head, Normalized), (1.0, 0.25, 1.0, 1.0));
        assert_eq!(at(Role::Head, Proportional), (1.0, 0.25, 4.0, 0.25));
        assert_eq!(at(Role::Embedding, Normalized), (1.0, 1.0, 1.0, 1.0));
        assert_eq!(at(Role::Norm, Proportional), (1.0, 1.0, 4.0, 0.25));
        for role in [Role::Scale, Role::Norm, Role::QkNorm] {
            assert_eq!(MUP.factors(&spec(role, 1, 1), shape, Proportional), Factors::ONE);
        }
    }

    #[test]
    fn with_a_constant_head_size_the_scale_is_constant() {
        let fixed = Parametrization::Mup { base_width: 64, base_head_dim: Some(16.0) };
        let at = |p: Parametrization, width, head_dim| p.attention_scale(Shape { width, head_dim });
        assert_eq!(at(fixed, 512, 16), at(fixed, 64, 16));
        assert_eq!(at(MUP, 256, 64), 4.0 / 64.0);
        let gain = fixed.factors(&spec(Role::QkNorm, 1, 16), Shape { width: 512, head_dim: 16 }, Update::Proportional);
        assert_eq!(gain.lr, 1.0);
    }

    #[test]
    fn the_base_spec_keeps_the_vocabulary() {
        let wide = |role, fan_in, fan_out| Spec { width: 256.0, ..spec(role, fan_in, fan_out) };
        assert_eq!(MUP.base(&wide(Role::Head, 256, 100), 256), spec(Role::Head, 64, 100));
        assert_eq!(MUP.base(&wide(Role::Embedding, 100, 256), 256), spec(Role::Embedding, 100, 64));
        assert_eq!(MUP.base(&wide(Role::MlpIn, 256, 1024), 256), spec(Role::MlpIn, 64, 256));
    }
}
