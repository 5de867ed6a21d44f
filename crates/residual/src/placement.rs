use crate::About;
use serde::{Deserialize, Serialize};

/// Where the norms of a branch sit. `x` is the stream, `f` the branch with its scale, `n` and `m`
/// its norms; [`Residual::forward`](crate::Residual::forward) holds the equations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// `x + f(n(x))` (arXiv:2002.04745). The stream is never normalized, so its rms grows with
    /// depth and a final norm is needed.
    PreNorm,
    /// `n(x + f(x))` (arXiv:1706.03762). Needs warm-up when deep.
    PostNorm,
    /// `n(alpha x + f(x))` with alpha = (2L)^(1/4), and the value, output and MLP weights drawn with
    /// gain beta = (8L)^(-1/4) (arXiv:2203.00555, decoder-only constants; L counts blocks).
    DeepNorm,
    /// `x + m(f(n(x)))` (arXiv:2105.13290, arXiv:2408.00118).
    Sandwich,
}

/// Where a norm stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The branch reads it.
    BeforeBranch,
    /// It reads the branch.
    AfterBranch,
    /// It normalizes the stream after the addition.
    OnStream,
}

impl Placement {
    /// Every placement.
    pub const ALL: [Self; 4] = [Self::PreNorm, Self::PostNorm, Self::DeepNorm, Self::Sandwich];

    /// Name, formula and source.
    pub fn about(self) -> About {
        match self {
            Self::PreNorm => ("pre_norm", "x + f(n(x)); final norm", "arXiv:2002.04745"),
            Self::PostNorm => ("post_norm", "n(x + f(x))", "arXiv:1706.03762"),
            Self::DeepNorm => {
                ("deep_norm", "n((2L)^(1/4) x + f(x)); value, output and MLP weights x (8L)^(-1/4)", "arXiv:2203.00555")
            }
            Self::Sandwich => ("sandwich", "x + m(f(n(x))); final norm", "arXiv:2105.13290"),
        }
    }

    /// The norms that one branch owns, in the order of the equation's letters.
    pub fn norms(self) -> &'static [Position] {
        match self {
            Self::PreNorm => &[Position::BeforeBranch],
            Self::PostNorm | Self::DeepNorm => &[Position::OnStream],
            Self::Sandwich => &[Position::BeforeBranch, Position::AfterBranch],
        }
    }

    /// The constant of the equation: DeepNorm's alpha = (2L)^(1/4), 1 elsewhere.
    pub fn alpha(self, layers: usize) -> f64 {
        match self {
            Self::DeepNorm => (2.0 * layers as f64).powf(0.25),
            Self::PreNorm | Self::PostNorm | Self::Sandwich => 1.0,
        }
    }

    /// Gain of the value, output and MLP weights at init: DeepNorm's beta = (8L)^(-1/4), 1
    /// elsewhere. It is a factor of the drawn standard deviation.
    pub fn branch_gain(self, layers: usize) -> f64 {
        match self {
            Self::DeepNorm => (8.0 * layers as f64).powf(-0.25),
            Self::PreNorm | Self::PostNorm | Self::Sandwich => 1.0,
        }
    }

    /// Whether the stack needs a norm before the head: where no norm closes the stream.
    pub fn final_norm(self) -> bool {
        match self {
            Self::PreNorm | Self::Sandwich => true,
            Self::PostNorm | Self::DeepNorm => false,
        }
    }

    /// Whether the equation already sets the size of a branch by depth, so that a second rule that
    /// does the same (a 1/sqrt(2L) in scale or init) counts depth twice.
    pub fn counts_depth(self) -> bool {
        match self {
            Self::DeepNorm => true,
            Self::PreNorm | Self::PostNorm | Self::Sandwich => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_is_listed_under_its_own_name() {
        for placement in Placement::ALL {
            let json = format!("\"{}\"", placement.about().0);
            assert_eq!(serde_json::from_str::<Placement>(&json).unwrap(), placement);
        }
    }

    #[test]
    fn deep_norm_has_the_papers_decoder_only_constants() {
        for (layers, alpha, beta) in
            [(1, 1.189207, 0.594604), (6, 1.861210, 0.379918), (24, 2.632148, 0.268642), (1000, 6.687403, 0.105737)]
        {
            assert!((Placement::DeepNorm.alpha(layers) - alpha).abs() < 1e-6);
            assert!((Placement::DeepNorm.branch_gain(layers) - beta).abs() < 1e-6);
        }
    }
}
