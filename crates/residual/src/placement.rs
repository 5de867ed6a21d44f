use crate::{About, Branch};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// `[rows, width]`.
type Stream = Tensor<2>;

/// Where the norms of a branch sit. `x` is the stream, `f` the branch with its scale, `n` and `m`
/// its norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// `x + f(n(x))` (arXiv:2002.04745). The stream is never normalized, so its rms grows with
    /// depth and a final norm is needed.
    PreNorm,
    /// `x + f(c n(x))` with c = 1/sqrt(l), l = 1..L the block's number: LayerNorm Scaling
    /// (arXiv:2502.05795, eq. 6). It keeps the stream of deep blocks from growing; the final norm is not
    /// scaled.
    ScaledPreNorm,
    /// `n(x + f(x))` (arXiv:1706.03762). Needs warm-up when deep.
    PostNorm,
    /// `n(alpha x + f(x))` with alpha = (2L)^(1/4), and the value, output and MLP weights drawn with
    /// gain beta = (8L)^(-1/4) (arXiv:2203.00555, decoder-only constants; L counts blocks).
    DeepNorm,
    /// `x + m(f(n(x)))` (arXiv:2105.13290, arXiv:2408.00118).
    Sandwich,
    /// `x + m(f(n(x)))` and a norm of the embedding: Peri-LN (arXiv:2502.02732).
    PeriNorm,
    /// `x + n(f(x))`, the reordered norm of OLMo 2 (arXiv:2501.00656). The branch reads the stream as it
    /// is.
    OutputNorm,
    /// `x + f(n(x))` with a second norm inside the branch, before the weight that writes the stream, and
    /// the value, output and MLP weights drawn with gain sqrt(ln 2L): Sub-LN of Magneto
    /// (arXiv:2210.06423, decoder-only constant; L counts blocks).
    SubNorm,
    /// `x + m(f(n(x)))` around attention, `x + f(n(x))` around an MLP with a norm after its activation:
    /// NormFormer (arXiv:2110.09456), without its learned scale of the heads.
    Normformer,
    /// `x + f(n(x)) + g(m(x))`, attention f and MLP g side by side, each with its norm (GPT-NeoX,
    /// arXiv:2204.06745). Of both branches of a block, or of none.
    Parallel,
    /// `x + f(n(x)) + g(n(x))`, side by side behind one norm (GPT-J, PaLM, arXiv:2204.02311). Of both
    /// branches of a block, or of none.
    ParallelShared,
    /// `x + f(x)`: norm-free; a scale or an init has to keep the stream in size.
    None,
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
    pub const ALL: [Self; 12] = [
        Self::PreNorm,
        Self::ScaledPreNorm,
        Self::PostNorm,
        Self::DeepNorm,
        Self::Sandwich,
        Self::PeriNorm,
        Self::OutputNorm,
        Self::SubNorm,
        Self::Normformer,
        Self::Parallel,
        Self::ParallelShared,
        Self::None,
    ];

    /// Name, formula and source.
    pub fn about(self) -> About {
        match self {
            Self::PreNorm => ("pre_norm", "x + f(n(x)); final norm", "arXiv:2002.04745"),
            Self::ScaledPreNorm => {
                ("scaled_pre_norm", "x + f(n(x) / sqrt(l)), l the block's number; final norm", "arXiv:2502.05795")
            }
            Self::PostNorm => ("post_norm", "n(x + f(x))", "arXiv:1706.03762"),
            Self::DeepNorm => {
                ("deep_norm", "n((2L)^(1/4) x + f(x)); value, output and MLP weights x (8L)^(-1/4)", "arXiv:2203.00555")
            }
            Self::Sandwich => ("sandwich", "x + m(f(n(x))); final norm", "arXiv:2105.13290"),
            Self::PeriNorm => ("peri_norm", "x + m(f(n(x))); embedding norm, final norm", "arXiv:2502.02732"),
            Self::OutputNorm => ("output_norm", "x + n(f(x)); final norm", "arXiv:2501.00656"),
            Self::SubNorm => (
                "sub_norm",
                "x + f(n(x)), a norm inside f before its last weight; value, output and MLP weights x sqrt(ln 2L); final norm",
                "arXiv:2210.06423",
            ),
            Self::Normformer => (
                "normformer",
                "x + m(attention(n(x))), x + mlp(n(x)) with a norm after the activation; final norm",
                "arXiv:2110.09456",
            ),
            Self::Parallel => ("parallel", "x + f(n(x)) + g(m(x)), attention f, MLP g; final norm", "arXiv:2204.06745"),
            Self::ParallelShared => {
                ("parallel_shared", "x + f(n(x)) + g(n(x)), attention f, MLP g; final norm", "arXiv:2204.02311")
            }
            Self::None => ("none", "x + f(x)", "arXiv:1512.03385"),
        }
    }

    /// The equation, as the papers print it: x is the stream, f the branch with its scale, n and m its
    /// norms in the order of [`Placement::norms`], c the [`Placement::constant`].
    pub(crate) fn join(
        self,
        branch: Branch,
        c: f64,
        x: Stream,
        f: impl FnOnce(Stream) -> Stream,
        n: impl Fn(Stream) -> Stream,
        m: impl Fn(Stream) -> Stream,
    ) -> Stream {
        match self {
            Self::PreNorm | Self::SubNorm => x.clone() + f(n(x)),
            Self::ScaledPreNorm => x.clone() + f(n(x) * c),
            Self::PostNorm => n(x.clone() + f(x)),
            Self::DeepNorm => n(x.clone() * c + f(x)),
            Self::Sandwich | Self::PeriNorm => x.clone() + m(f(n(x))),
            Self::OutputNorm => x.clone() + n(f(x)),
            Self::Normformer => match branch {
                Branch::Attention => x.clone() + m(f(n(x))),
                Branch::Mlp => x.clone() + f(n(x)),
            },
            // One branch alone; the equation of both is in `join_parallel`.
            Self::Parallel => x.clone() + f(n(x)),
            Self::ParallelShared => match branch {
                Branch::Attention => x.clone() + f(n(x)),
                Branch::Mlp => x.clone() + f(x),
            },
            Self::None => x.clone() + f(x),
        }
    }

    /// The equation of two branches side by side: f with its norm n, g with its norm m.
    pub(crate) fn join_parallel(
        self,
        x: Stream,
        f: impl FnOnce(Stream) -> Stream,
        g: impl FnOnce(Stream) -> Stream,
        n: impl Fn(Stream) -> Stream,
        m: impl Fn(Stream) -> Stream,
    ) -> Stream {
        match self {
            Self::ParallelShared => {
                let h = n(x.clone());
                x + f(h.clone()) + g(h)
            }
            _ => x.clone() + f(n(x.clone())) + g(m(x)),
        }
    }

    /// The norms around a branch, in the order of the equation's letters.
    pub fn norms(self, branch: Branch) -> &'static [Position] {
        match self {
            Self::PreNorm | Self::ScaledPreNorm | Self::SubNorm | Self::Parallel => &[Position::BeforeBranch],
            Self::ParallelShared => match branch {
                Branch::Attention => &[Position::BeforeBranch],
                Branch::Mlp => &[],
            },
            Self::Normformer => match branch {
                Branch::Attention => &[Position::BeforeBranch, Position::AfterBranch],
                Branch::Mlp => &[Position::BeforeBranch],
            },
            Self::PostNorm | Self::DeepNorm => &[Position::OnStream],
            Self::Sandwich | Self::PeriNorm => &[Position::BeforeBranch, Position::AfterBranch],
            Self::OutputNorm => &[Position::AfterBranch],
            Self::None => &[],
        }
    }

    /// Whether attention and MLP read the stream side by side.
    pub fn is_parallel(self) -> bool {
        match self {
            Self::Parallel | Self::ParallelShared => true,
            Self::PreNorm | Self::ScaledPreNorm | Self::PostNorm | Self::DeepNorm | Self::Sandwich => false,
            Self::PeriNorm | Self::OutputNorm | Self::SubNorm | Self::Normformer | Self::None => false,
        }
    }

    /// Whether there is a norm inside the branch, before the weight that writes the stream.
    pub fn inner_norm(self, branch: Branch) -> bool {
        match self {
            Self::SubNorm => true,
            Self::Normformer => branch == Branch::Mlp,
            Self::PreNorm | Self::ScaledPreNorm | Self::PostNorm | Self::DeepNorm | Self::Sandwich => false,
            Self::PeriNorm | Self::OutputNorm | Self::Parallel | Self::ParallelShared | Self::None => false,
        }
    }

    /// The constant of the equation in block `layer` (from 0) of `layers`: DeepNorm's alpha =
    /// (2L)^(1/4), LayerNorm Scaling's 1/sqrt(layer + 1), 1 elsewhere.
    pub fn constant(self, layer: usize, layers: usize) -> f64 {
        match self {
            Self::DeepNorm => (2.0 * layers as f64).powf(0.25),
            Self::ScaledPreNorm => (layer as f64 + 1.0).powf(-0.5),
            Self::PreNorm | Self::PostNorm | Self::Sandwich | Self::PeriNorm | Self::OutputNorm | Self::None => 1.0,
            Self::SubNorm | Self::Normformer | Self::Parallel | Self::ParallelShared => 1.0,
        }
    }

    /// Gain of the value, output and MLP weights at init: DeepNorm's beta = (8L)^(-1/4), Sub-LN's
    /// sqrt(ln 2L), 1 elsewhere. It is a factor of the drawn standard deviation.
    pub fn branch_gain(self, layers: usize) -> f64 {
        match self {
            Self::DeepNorm => (8.0 * layers as f64).powf(-0.25),
            Self::PreNorm | Self::ScaledPreNorm | Self::PostNorm | Self::Sandwich => 1.0,
            Self::SubNorm => (2.0 * layers as f64).ln().sqrt(),
            Self::PeriNorm | Self::OutputNorm | Self::Normformer | Self::None => 1.0,
            Self::Parallel | Self::ParallelShared => 1.0,
        }
    }

    /// Whether the stack needs a norm before the head: where no norm closes the stream.
    pub fn final_norm(self) -> bool {
        match self {
            Self::PreNorm | Self::ScaledPreNorm | Self::Sandwich | Self::PeriNorm | Self::OutputNorm => true,
            Self::SubNorm | Self::Normformer | Self::Parallel | Self::ParallelShared => true,
            Self::PostNorm | Self::DeepNorm | Self::None => false,
        }
    }

    /// Whether the placement asks for a norm of the embedding.
    pub fn embedding_norm(self) -> bool {
        match self {
            Self::PeriNorm => true,
            Self::PreNorm | Self::ScaledPreNorm | Self::PostNorm | Self::DeepNorm => false,
            Self::Sandwich | Self::OutputNorm | Self::SubNorm | Self::Normformer | Self::None => false,
            Self::Parallel | Self::ParallelShared => false,
        }
    }

    /// Whether the equation already sets the size of a branch by depth, so that a second rule that
    /// does the same (a 1/sqrt(2L) in scale or init) counts depth twice.
    pub fn counts_depth(self) -> bool {
        match self {
            Self::DeepNorm | Self::ScaledPreNorm | Self::SubNorm => true,
            Self::PreNorm | Self::PostNorm | Self::Sandwich => false,
            Self::PeriNorm | Self::OutputNorm | Self::Normformer | Self::None => false,
            Self::Parallel | Self::ParallelShared => false,
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
    fn sub_norm_has_the_papers_decoder_only_gain() {
        for (layers, gain) in [(1, 0.832555), (6, 1.576359), (24, 1.967537), (48, 2.136434)] {
            assert!((Placement::SubNorm.branch_gain(layers) - gain).abs() < 1e-6);
        }
    }

    #[test]
    fn deep_norm_has_the_papers_decoder_only_constants() {
        for (layers, alpha, beta) in
            [(1, 1.189207, 0.594604), (6, 1.861210, 0.379918), (24, 2.632148, 0.268642), (1000, 6.687403, 0.105737)]
        {
            assert!((Placement::DeepNorm.constant(0, layers) - alpha).abs() < 1e-6);
            assert!((Placement::DeepNorm.branch_gain(layers) - beta).abs() < 1e-6);
        }
    }
}
