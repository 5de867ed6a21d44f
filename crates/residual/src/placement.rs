use crate::Branch;
use crate::constants::{DeepNorm, sub_norm_gain};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, positive_factor, within};

/// `[rows, width]`.
type Rows = Tensor<2>;

/// The symbols of the equations in [`Placement::join`].
pub(crate) struct Parts<F, N, M, O, D> {
    pub(crate) f: F,
    pub(crate) n: N,
    pub(crate) m: M,
    pub(crate) omega: O,
    pub(crate) dual: D,
}

/// The position of the norms of a branch. `x` is the stream, `f` the branch with its scale, `n` and `m` are its norms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Placement {
    /// `x + f(n(x))` (arXiv:2002.04745). The stream is never normalized: its rms grows with depth, and a final norm is needed.
    PreNorm {},
    /// `x + f(c n(x))` with c = 1/sqrt(l) in block l = 1..L: LayerNorm Scaling (arXiv:2502.05795, eq. 6). It limits the growth
    /// of the stream with depth; the final norm is not scaled.
    ScaledPreNorm {},
    /// `n(x + f(x))` (arXiv:1706.03762). A deep model needs warm-up.
    PostNorm {},
    /// `n(alpha x + f(x))` with alpha = (2L)^(1/4), and value, output and MLP weights drawn with gain beta = (8L)^(-1/4)
    /// (arXiv:2203.00555, decoder-only constants; L counts blocks).
    DeepNorm {},
    /// `x + m(f(n(x)))` (arXiv:2105.13290, arXiv:2408.00118).
    Sandwich {},
    /// `x + m(f(n(x)))` with a norm of the embedding: Peri-LN (arXiv:2502.02732).
    PeriNorm {},
    /// `x + n(f(x))`, the reordered norm of OLMo 2 (arXiv:2501.00656). The branch reads the raw stream.
    OutputNorm {},
    /// `x + f(n(x))` with a second norm inside the branch, before its last weight, and value, output and MLP weights drawn
    /// with gain sqrt(ln 2L): Sub-LN of Magneto (arXiv:2210.06423, decoder-only constant; L counts blocks).
    SubNorm {},
    /// `x + m(f(n(x)))` for attention, `x + f(n(x))` for an MLP with a norm after its activation: NormFormer
    /// (arXiv:2110.09456), with a learned scale of each head's output (`head_scale`).
    Normformer {},
    /// `x + f(n(x)) + g(m(x))`, attention f and MLP g in parallel, each with its norm (GPT-NeoX, arXiv:2204.06745). Both
    /// branches of a block need this placement.
    Parallel {},
    /// `x + f(n(x)) + g(n(x))`, attention f and MLP g in parallel after one norm (GPT-J, PaLM, arXiv:2204.02311). Both
    /// branches of a block need this placement.
    ParallelShared {},
    /// post_norm in the first `fraction` of the blocks, pre_norm in the rest: Mix-LN (arXiv:2412.13795).
    MixNorm {
        /// Fraction of the blocks, rounded down to whole blocks. Default 0.25.
        #[serde(default = "default_fraction")]
        fraction: f64,
    },
    /// `x + f(x)` for attention, with queries, keys and values normalized per head; `h + f(h)` with h = n(x) for the MLP:
    /// HybridNorm (arXiv:2503.04598).
    HybridNorm {},
    /// hybrid_norm, except that the first block is `x + f(n(x))` for both branches, with queries, keys and values normalized
    /// too: HybridNorm* (arXiv:2503.04598).
    HybridNormStar {},
    /// `n(x + f(x))` beside a second stream `d + f(x)` without norms; the head reads x plus the final norm of d: ResiDual
    /// (arXiv:2304.14802). All branches of the model need this placement.
    ResDual {},
    /// `n(omega * x + f(x))`, omega learned per channel: Admin (arXiv:2004.08249, eq. 3), which initializes omega from the
    /// variances of a trial forward pass.
    Admin {
        /// Initial omega. Default 1, as in the first branch and as in post_norm.
        #[serde(default = "default_omega")]
        omega: f64,
    },
    /// `x + f(x)`: norm-free; a scale or an init has to bound the stream.
    None {},
}

const fn default_fraction() -> f64 {
    0.25
}

const fn default_omega() -> f64 {
    1.0
}

/// The position of a norm in a residual connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPosition {
    /// On the input of the branch.
    BeforeBranch,
    /// On the output of the branch.
    AfterBranch,
    /// On the stream, after the addition.
    OnStream,
}

impl Variant for Placement {
    fn about(&self) -> About {
        About::of(match self {
            Self::PreNorm {} => ("pre_norm", "x + f(n(x)); final norm", "arXiv:2002.04745"),
            Self::ScaledPreNorm {} => {
                ("scaled_pre_norm", "x + f(n(x) / sqrt(l)), l the block's number; final norm", "arXiv:2502.05795")
            }
            Self::PostNorm {} => ("post_norm", "n(x + f(x))", "arXiv:1706.03762"),
            Self::DeepNorm {} => {
                ("deep_norm", "n((2L)^(1/4) x + f(x)); value, output and MLP weights x (8L)^(-1/4)", "arXiv:2203.00555")
            }
            Self::Sandwich {} => ("sandwich", "x + m(f(n(x))); final norm", "arXiv:2105.13290"),
            Self::PeriNorm {} => ("peri_norm", "x + m(f(n(x))); embedding norm, final norm", "arXiv:2502.02732"),
            Self::OutputNorm {} => ("output_norm", "x + n(f(x)); final norm", "arXiv:2501.00656"),
            Self::SubNorm {} => (
                "sub_norm",
                "x + f(n(x)), a norm inside f before its last weight; value, output and MLP weights x sqrt(ln 2L); final norm",
                "arXiv:2210.06423",
            ),
            Self::Normformer {} => (
                "normformer",
                "x + m(attention(n(x))), x + mlp(n(x)) with a norm after the activation; final norm",
                "arXiv:2110.09456",
            ),
            Self::Parallel {} => {
                ("parallel", "x + f(n(x)) + g(m(x)), attention f, MLP g; final norm", "arXiv:2204.06745")
            }
            Self::ParallelShared {} => {
                ("parallel_shared", "x + f(n(x)) + g(n(x)), attention f, MLP g; final norm", "arXiv:2204.02311")
            }
            Self::MixNorm { .. } => (
                "mix_norm",
                "post_norm in the first quarter of the blocks, then pre_norm; final norm",
                "arXiv:2412.13795",
            ),
            Self::HybridNorm {} => (
                "hybrid_norm",
                "x + attention(x) with normalized q, k, v; h + mlp(h), h = n(x); final norm",
                "arXiv:2503.04598",
            ),
            Self::HybridNormStar {} => (
                "hybrid_norm_star",
                "hybrid_norm, the first block pre_norm with normalized q, k, v; final norm",
                "arXiv:2503.04598",
            ),
            Self::ResDual {} => {
                ("res_dual", "n(x + f(x)) and d + f(x); at the end x + final norm of d", "arXiv:2304.14802")
            }
            Self::Admin { .. } => ("admin", "n(omega * x + f(x)), omega learned per channel", "arXiv:2004.08249 eq. 3"),
            Self::None {} => ("none", "x + f(x)", "arXiv:1512.03385"),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        match *self {
            Self::MixNorm { fraction } => within("fraction", fraction, 0.0, 1.0),
            Self::Admin { omega } => positive_factor("omega", omega),
            _ => Ok(()),
        }
    }
}

impl Placement {
    /// The placement in force in block `block` (from 0) of `blocks`: `mix_norm` and `hybrid_norm_star` depend on the block.
    pub fn at(self, block: usize, blocks: usize) -> Self {
        match self {
            Self::MixNorm { fraction } if block < (fraction * blocks as f64 + 1e-9) as usize => Self::PostNorm {},
            Self::MixNorm { .. } => Self::PreNorm {},
            Self::HybridNormStar {} if block > 0 => Self::HybridNorm {},
            placement => placement,
        }
    }

    /// The equation, as printed in the papers: x is the stream, f the branch with its scale, n and m are its norms in the order
    /// of [`Placement::norms`], c is the [`Placement::constant`], omega Admin's factor, and `dual` adds to the second stream.
    pub(crate) fn join<F, N, M, O, D>(self, branch: Branch, c: f64, x: Rows, parts: Parts<F, N, M, O, D>) -> Rows
    where
        F: FnOnce(Rows) -> Rows,
        N: Fn(Rows) -> Rows,
        M: Fn(Rows) -> Rows,
        O: Fn(Rows) -> Rows,
        D: FnOnce(Rows),
    {
        let Parts { f, n, m, omega, dual } = parts;
        match self {
            Self::PreNorm {} | Self::SubNorm {} | Self::MixNorm { .. } => x.clone() + f(n(x)),
            Self::ScaledPreNorm {} => x.clone() + f(n(x) * c),
            Self::PostNorm {} => n(x.clone() + f(x)),
            Self::DeepNorm {} => n(x.clone() * c + f(x)),
            Self::Admin { .. } => n(omega(x.clone()) + f(x)),
            Self::Sandwich {} | Self::PeriNorm {} => x.clone() + m(f(n(x))),
            Self::OutputNorm {} => x.clone() + n(f(x)),
            Self::Normformer {} => match branch {
                Branch::Attention => x.clone() + m(f(n(x))),
                Branch::Mlp => x.clone() + f(n(x)),
            },
            Self::HybridNorm {} => match branch {
                Branch::Attention => x.clone() + f(x),
                Branch::Mlp => {
                    let h = n(x);
                    h.clone() + f(h)
                }
            },
            Self::HybridNormStar {} => x.clone() + f(n(x)),
            Self::ResDual {} => {
                let y = f(x.clone());
                dual(y.clone());
                n(x + y)
            }
            // For a single branch; `join_parallel` has the equation of both.
            Self::Parallel {} => x.clone() + f(n(x)),
            Self::ParallelShared {} => match branch {
                Branch::Attention => x.clone() + f(n(x)),
                Branch::Mlp => x.clone() + f(x),
            },
            Self::None {} => x.clone() + f(x),
        }
    }

    /// The equation of two parallel branches: f with its norm n, g with its norm m.
    pub(crate) fn join_parallel(
        self,
        x: Rows,
        f: impl FnOnce(Rows) -> Rows,
        g: impl FnOnce(Rows) -> Rows,
        n: impl Fn(Rows) -> Rows,
        m: impl Fn(Rows) -> Rows,
    ) -> Rows {
        match self {
            Self::ParallelShared {} => {
                let h = n(x.clone());
                x + f(h.clone()) + g(h)
            }
            _ => x.clone() + f(n(x.clone())) + g(m(x)),
        }
    }

    /// What the placement requires of the model around it.
    fn needs(self) -> Needs {
        use NormPosition::{AfterBranch, BeforeBranch, OnStream};
        let before = |needs| Needs { norms: [&[BeforeBranch]; 2], final_norm: true, ..needs };
        let around = |needs| Needs { norms: [&[BeforeBranch, AfterBranch]; 2], final_norm: true, ..needs };
        let on_stream = Needs { norms: [&[OnStream]; 2], ..Needs::NOTHING };
        let plain = Needs::NOTHING;
        match self {
            Self::PreNorm {} | Self::MixNorm { .. } => before(plain),
            Self::ScaledPreNorm {} => Needs { counts_depth: true, ..before(plain) },
            Self::SubNorm {} => Needs { inner_norm: [true; 2], counts_depth: true, ..before(plain) },
            Self::PostNorm {} | Self::Admin { .. } => on_stream,
            Self::DeepNorm {} => Needs { counts_depth: true, ..on_stream },
            Self::ResDual {} => Needs { dual: true, final_norm: true, ..on_stream },
            Self::Sandwich {} => around(plain),
            Self::PeriNorm {} => Needs { embedding_norm: true, ..around(plain) },
            Self::OutputNorm {} => Needs { norms: [&[AfterBranch]; 2], final_norm: true, ..plain },
            Self::Normformer {} => Needs {
                norms: [&[BeforeBranch, AfterBranch], &[BeforeBranch]],
                inner_norm: [false, true],
                head_scale: true,
                ..before(plain)
            },
            Self::Parallel {} => Needs { parallel: true, ..before(plain) },
            Self::ParallelShared {} => Needs { norms: [&[BeforeBranch], &[]], parallel: true, ..before(plain) },
            Self::HybridNorm {} => Needs { norms: [&[], &[BeforeBranch]], qkv_norm: true, ..before(plain) },
            Self::HybridNormStar {} => Needs { qkv_norm: true, ..before(plain) },
            Self::None {} => plain,
        }
    }

    /// The norms around a branch, in the order of the equation's letters.
    pub fn norms(self, branch: Branch) -> &'static [NormPosition] {
        self.needs().norms[branch as usize]
    }

    /// Whether there is a norm inside the branch, before the weight that writes the stream.
    pub fn inner_norm(self, branch: Branch) -> bool {
        self.needs().inner_norm[branch as usize]
    }

    /// Whether attention normalizes its queries, keys and values, per head.
    pub fn qkv_norm(self) -> bool {
        self.needs().qkv_norm
    }

    /// Whether each head's output has a learned scale.
    pub fn head_scale(self) -> bool {
        self.needs().head_scale
    }

    /// Whether attention and MLP read the stream in parallel.
    pub fn is_parallel(self) -> bool {
        self.needs().parallel
    }

    /// Whether the model has a second stream.
    pub fn is_dual(self) -> bool {
        self.needs().dual
    }

    /// Whether the model needs a norm before the head, because the last block leaves the stream unnormalized.
    pub fn final_norm(self) -> bool {
        self.needs().final_norm
    }

    /// Whether the embedding is normalized.
    pub fn embedding_norm(self) -> bool {
        self.needs().embedding_norm
    }

    /// Whether the equation scales branches by depth, so that another such rule (a 1/sqrt(2L) in scale or init) would count
    /// depth twice.
    pub fn counts_depth(self) -> bool {
        self.needs().counts_depth
    }

    /// The constant of the equation in block `block` (from 0) of `blocks`: DeepNorm's alpha = (2L)^(1/4), LayerNorm Scaling's
    /// 1/sqrt(block + 1), otherwise 1.
    pub fn constant(self, block: usize, blocks: usize) -> f64 {
        match self {
            Self::DeepNorm {} => DeepNorm::DecoderOnly { blocks }.decoder().map_or(1.0, |(alpha, _)| alpha),
            Self::ScaledPreNorm {} => (block as f64 + 1.0).powf(-0.5),
            _ => 1.0,
        }
    }

    /// Initial value of the learned factor of the stream, if any.
    pub(crate) fn omega(self) -> Option<f64> {
        match self {
            Self::Admin { omega } => Some(omega),
            _ => None,
        }
    }

    /// Gain of the value, output and MLP weights at init, a factor of their standard deviation: DeepNorm's beta =
    /// (8L)^(-1/4), Sub-LN's sqrt(ln 2L), otherwise 1.
    pub fn branch_gain(self, blocks: usize) -> f64 {
        match self {
            Self::DeepNorm {} => DeepNorm::DecoderOnly { blocks }.decoder().map_or(1.0, |(_, beta)| beta),
            Self::SubNorm {} => sub_norm_gain(blocks),
            _ => 1.0,
        }
    }
}

/// What a placement requires of the model around it; pairs are (attention, MLP).
#[derive(Clone, Copy)]
struct Needs {
    norms: [&'static [NormPosition]; 2],
    inner_norm: [bool; 2],
    qkv_norm: bool,
    head_scale: bool,
    parallel: bool,
    dual: bool,
    final_norm: bool,
    embedding_norm: bool,
    counts_depth: bool,
}

impl Needs {
    const NOTHING: Self = Self {
        norms: [&[]; 2],
        inner_norm: [false; 2],
        qkv_norm: false,
        head_scale: false,
        parallel: false,
        dual: false,
        final_norm: false,
        embedding_norm: false,
        counts_depth: false,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_is_listed_under_its_own_name() {
        unitgain_variant::assert_listed::<Placement>();
    }

    #[test]
    fn a_placement_of_depth_is_another_in_each_block() {
        let mix = Placement::MixNorm { fraction: 0.25 };
        let posts = |blocks| (0..blocks).filter(|l| mix.at(*l, blocks) == Placement::PostNorm {}).count();
        assert_eq!([3, 4, 7, 8, 12, 24].map(posts), [0, 1, 1, 2, 3, 6]);
        assert_eq!(mix.at(0, 4), Placement::PostNorm {});
        assert_eq!(mix.at(1, 4), Placement::PreNorm {});
        assert_eq!(Placement::MixNorm { fraction: 1.0 / 3.0 }.at(0, 3), Placement::PostNorm {});
        let star = Placement::HybridNormStar {};
        assert_eq!([0, 1, 2].map(|l| star.at(l, 3)), [star, Placement::HybridNorm {}, Placement::HybridNorm {}]);
    }
}
