use crate::{About, Role, Spec};
use serde::{Deserialize, Serialize};

/// How the matrices are drawn: a zero-mean normal whose standard deviation is [`Scheme::std`].
///
/// The fan rules say nothing about a table of which one row is read at a time; token and position
/// embeddings have an explicit standard deviation instead.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Scheme {
    /// `std`, and `std / sqrt(2L)` for the weights that write the stream (GPT-2).
    Gpt2 {
        /// Default 0.02.
        #[serde(default = "default_std")]
        std: f64,
    },
    /// `sqrt(2 / (fan_in + fan_out))` (Glorot and Bengio 2010, eq. 16).
    Xavier {
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// `sqrt(2 / fan_in)`: keeps E[y^2] through ReLU layers (arXiv:1502.01852, eq. 10).
    Kaiming {
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// `sqrt(1 / fan_in)`: keeps the variance through linear layers (LeCun et al. 1998, eq. 16).
    Lecun {
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
}

fn default_std() -> f64 {
    0.02
}

impl Scheme {
    /// One value of each kind, with its defaults.
    pub fn all() -> Vec<Self> {
        vec![Self::gpt2(), Self::xavier(), Self::kaiming(), Self::lecun()]
    }

    /// [`Scheme::Gpt2`] with its default.
    pub fn gpt2() -> Self {
        Self::Gpt2 { std: default_std() }
    }

    /// [`Scheme::Xavier`] with its default.
    pub fn xavier() -> Self {
        Self::Xavier { embedding_std: default_std() }
    }

    /// [`Scheme::Kaiming`] with its default.
    pub fn kaiming() -> Self {
        Self::Kaiming { embedding_std: default_std() }
    }

    /// [`Scheme::Lecun`] with its default.
    pub fn lecun() -> Self {
        Self::Lecun { embedding_std: default_std() }
    }

    /// Name, formula and source.
    pub fn about(self) -> About {
        match self {
            Self::Gpt2 { .. } => {
                ("gpt2", "std = 0.02; writers of the stream 0.02 / sqrt(2L)", "GPT-2 (Radford et al. 2019)")
            }
            Self::Xavier { .. } => ("xavier", "std = sqrt(2 / (fan_in + fan_out))", "Glorot and Bengio 2010 eq. 16"),
            Self::Kaiming { .. } => ("kaiming", "std = sqrt(2 / fan_in)", "arXiv:1502.01852 eq. 10"),
            Self::Lecun { .. } => ("lecun", "std = sqrt(1 / fan_in)", "LeCun et al. 1998 eq. 16"),
        }
    }

    /// What is wrong with the settings, if anything.
    pub fn check(self) -> Result<(), String> {
        let (key, std) = match self {
            Self::Gpt2 { std } => ("std", std),
            Self::Xavier { embedding_std } | Self::Kaiming { embedding_std } | Self::Lecun { embedding_std } => {
                ("embedding_std", embedding_std)
            }
        };
        match std > 0.0 && std.is_finite() {
            true => Ok(()),
            false => Err(format!("{key} = {std} must be a positive number")),
        }
    }

    /// Whether the scheme sets the size of a branch by the number of blocks.
    pub fn counts_depth(self) -> bool {
        match self {
            Self::Gpt2 { .. } => true,
            Self::Xavier { .. } | Self::Kaiming { .. } | Self::Lecun { .. } => false,
        }
    }

    /// Standard deviation of a matrix.
    ///
    /// Under a width-aware parametrization `spec` is the weight as it is in the *base* model, or else
    /// a fan-in scheme and the parametrization would both divide by sqrt(width).
    pub fn std(self, spec: &Spec) -> f64 {
        let Spec { fan_in, fan_out, .. } = *spec;
        match self {
            Self::Gpt2 { std } if spec.role.writes_stream() => std / (2.0 * spec.layers as f64).sqrt(),
            Self::Gpt2 { std } => std,
            Self::Xavier { embedding_std } | Self::Kaiming { embedding_std } | Self::Lecun { embedding_std }
                if spec.role == Role::Embedding =>
            {
                embedding_std
            }
            Self::Xavier { .. } => (2.0 / (fan_in + fan_out)).sqrt(),
            Self::Kaiming { .. } => (2.0 / fan_in).sqrt(),
            Self::Lecun { .. } => (1.0 / fan_in).sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_listed_under_its_own_name() {
        for scheme in Scheme::all() {
            let json = format!("{{\"kind\":\"{}\"}}", scheme.about().0);
            assert_eq!(serde_json::from_str::<Scheme>(&json).unwrap(), scheme);
        }
    }

    #[test]
    fn standard_deviations_are_the_formulas() {
        let spec = |role| Spec { role, fan_in: 256.0, fan_out: 64.0, layers: 6 };
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-6, "{got} is not {want}");
        close(Scheme::gpt2().std(&spec(Role::Query)), 0.02);
        close(Scheme::gpt2().std(&spec(Role::MlpOut)), 0.005774);
        close(Scheme::xavier().std(&spec(Role::MlpOut)), 0.079057);
        close(Scheme::kaiming().std(&spec(Role::MlpOut)), 0.088388);
        close(Scheme::lecun().std(&spec(Role::Head)), 0.0625);
        close(Scheme::lecun().std(&spec(Role::Embedding)), 0.02);
    }
}
