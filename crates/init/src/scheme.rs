use crate::distribution::{Distribution, Form, truncated_std};
use crate::gain::{Gain, leaky_gain};
use crate::matrix::{self, ZeroConstant};
use crate::{Role, Spec, bias, sample};
use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, fraction, positive_factor, require, shorthand, within};

/// The initialization of the matrices of a Transformer. Biases start at 0, except with `torch_linear`.
///
/// Rules of fans do not apply to token and position embeddings, of which one row is read at a time: they have an explicit
/// standard deviation, `embedding_std`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Scheme {
    /// N(0, std^2), and `std / sqrt(2L)` for the weights that write the stream (GPT-2).
    Gpt2 {
        /// Standard deviation. Default 0.02.
        #[serde(default = "default_std")]
        std: f64,
    },
    /// N(0, std^2) (GPT, BERT).
    Normal {
        /// Standard deviation. Default 0.02.
        #[serde(default = "default_std")]
        std: f64,
    },
    /// U(-bound, bound), whose standard deviation is bound / sqrt(3).
    Uniform {
        /// Largest magnitude. Default 0.02 sqrt(3), a standard deviation of 0.02.
        #[serde(default = "default_bound")]
        bound: f64,
    },
    /// N(0, std^2) truncated at `cut` sigma. PyTorch's `trunc_normal_` has absolute bounds instead.
    TruncatedNormal {
        /// Standard deviation, before truncation unless `corrected`. Default 0.02.
        #[serde(default = "default_std")]
        std: f64,
        /// Bound in sigmas. Default 3 (OLMo, lingua).
        #[serde(default = "default_cut")]
        cut: f64,
        /// Whether `std` is the standard deviation after truncation. Default false.
        #[serde(default)]
        corrected: bool,
    },
    /// N(0, std^2) in a fraction of the inputs of each unit, 0 elsewhere (Martens 2010).
    Sparse {
        /// Fraction of the inputs that a unit reads; PyTorch's `sparsity` is the fraction of zeros, per input. Default 0.1.
        #[serde(default = "default_nonzero")]
        nonzero: f64,
        /// Standard deviation of the nonzero entries. Default 0.01, as in PyTorch; Martens has 15 inputs and 1.
        #[serde(default = "default_sparse_std")]
        std: f64,
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// Standard deviation `gain sqrt(2 / (fan_in + fan_out))` (Glorot and Bengio 2010, eq. 16).
    Xavier {
        /// Gain of the activation. Default 1.
        #[serde(default = "default_gain", deserialize_with = "shorthand::number_kind_or_table")]
        gain: Gain,
        /// Family of the distribution. Default `normal`.
        #[serde(default)]
        form: Form,
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// Standard deviation `gain / sqrt(fan)`, by default with the gain `sqrt(2 / (1 + slope^2))`, which keeps E[y^2] through
    /// layers of LeakyReLU (arXiv:1502.01852, eq. 10 and 15).
    Kaiming {
        /// Slope of LeakyReLU below 0. Default 0, ReLU.
        #[serde(default)]
        slope: f64,
        /// Gain of another activation, `second_moment` with `fan_in` or `backward` with `fan_out`; `slope` must then be left
        /// out. Default by `slope`.
        #[serde(default, deserialize_with = "shorthand::optional_number", skip_serializing_if = "Option::is_none")]
        gain: Option<Gain>,
        /// The fan to divide by. Default `fan_in`.
        #[serde(default)]
        fan: Fan,
        /// Family of the distribution. Default `normal`.
        #[serde(default)]
        form: Form,
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// Standard deviation `gain sqrt(1 / fan_in)`: keeps the variance through linear layers (LeCun et al. 1998, eq. 16), or
    /// through activations of this gain. It is the init of SELU (arXiv:1706.02515).
    Lecun {
        /// Gain of the activation. Default 1.
        #[serde(default = "default_gain", deserialize_with = "shorthand::number_kind_or_table")]
        gain: Gain,
        /// Family of the distribution. Default `normal`.
        #[serde(default)]
        form: Form,
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// U(+-1 / sqrt(fan_in)), standard deviation `1 / sqrt(3 fan_in)`, for weights and biases: PyTorch's default for `Linear`.
    /// Embeddings are N(0, 1), the default for `Embedding`.
    TorchLinear {
        /// Standard deviation of the embeddings. Default 1.
        #[serde(default = "one")]
        embedding_std: f64,
    },
    /// U(+-sqrt(6 / fan_in) / omega), for layers behind sin(omega z) (arXiv:2006.09661, section 3.2).
    Siren {
        /// Frequency of the sine. Default 30.
        #[serde(default = "default_omega")]
        omega: f64,
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// Uniformly distributed semi-orthogonal matrices times `gain` (arXiv:1312.6120).
    Orthogonal {
        /// Gain of the activation. Default 1.
        #[serde(default = "default_gain", deserialize_with = "shorthand::number_kind_or_table")]
        gain: Gain,
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// Partial identities (IRNN, arXiv:1504.00941).
    Identity {
        /// Standard deviation of the embeddings and the head, which are N(0, std^2). Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// ZerO (arXiv:2110.12661): partial identities, Hadamard matrices where a layer widens, 0 in the weights that write the
    /// stream. Only embeddings and head are random, to distinguish tokens.
    Zero {
        /// The constant c. Default `orthonormal`, as in the authors' code; the paper prints a constant sqrt(2) larger.
        #[serde(default)]
        constant: ZeroConstant,
        /// Standard deviation of the embeddings and the head. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// N(0, std^2), and `std / sqrt(2l)` for the weights that write the stream in block l = 1..L (OLMo, lingua).
    LlamaDepth {
        /// Standard deviation. Default 0.02.
        #[serde(default = "default_std")]
        std: f64,
    },
    /// Standard deviation `sqrt(2 / (5d))` for all weights, d the width of the stream (arXiv:1910.05895, section 3.2).
    Small {},
    /// `small`, and `numerator / (L sqrt(d))` for the weights that write the stream (GPT-NeoX, arXiv:2204.06745).
    Wang {
        /// The numerator. Default 2, as in GPT-NeoX; litgpt has 1.
        #[serde(default = "two")]
        numerator: f64,
    },
    /// `small`, divided by `sqrt(2L)` for the weights that write the stream, with an embedding of size near 1: the default of
    /// `embedding_scale` is `sqrt(d)` unless there is an `embedding_norm` (arXiv:2312.16903).
    SpikeNoMore {},
    /// He x `L^(-1/(2m-2))` inside the branches, L = 2 x blocks the number of branches, m = 2 the layers of a branch (value and
    /// output, up and down); the last weight of a branch and an untied head are 0 (arXiv:1901.09321, section 3). The scalars of
    /// Fixup are `scale = "fixup"`.
    Fixup {
        /// Standard deviation of the embeddings. Default 0.02.
        #[serde(default = "default_std")]
        embedding_std: f64,
    },
    /// T-Fixup (Huang et al., ICML 2020), for models without norms and warm-up: Xavier, with value, output and MLP weights x s
    /// and embeddings N(0, 1/d) x s. The paper has no decoder-only model: the constant of its decoder is for blocks of three
    /// branches, that of its encoder for two, as here.
    TFixup {
        /// The constants s. Default `encoder`.
        #[serde(default)]
        constants: TFixupConstants,
    },
    /// `query key^T ~ alpha_1 Z + beta_1 I` per head and `value output ~ alpha_2 Z - beta_2 I`, Z ~ N(0, 1/d), by singular
    /// value decomposition (arXiv:2305.09828); other matrices as `gpt2`.
    Mimetic {
        /// alpha_1. Default 0.7.
        #[serde(default = "default_query_key")]
        query_key_noise: f64,
        /// beta_1. Default 0.7.
        #[serde(default = "default_query_key")]
        query_key_diagonal: f64,
        /// alpha_2. Default 0.4.
        #[serde(default = "default_value_output")]
        value_output_noise: f64,
        /// beta_2. Default 0.4.
        #[serde(default = "default_value_output")]
        value_output_diagonal: f64,
        /// Standard deviation of the other matrices. Default 0.02.
        #[serde(default = "default_std")]
        std: f64,
    },
}

/// The fan that a variance is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fan {
    /// Keeps the size of the signal.
    #[default]
    FanIn,
    /// Keeps the size of the gradient.
    FanOut,
}

/// The constants of T-Fixup for N blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TFixupConstants {
    /// 0.67 N^(-1/4), and (9N)^(-1/4) for the embeddings.
    #[default]
    Encoder,
    /// (9N)^(-1/4).
    Decoder,
}

const fn default_std() -> f64 {
    0.02
}
fn default_bound() -> f64 {
    0.02 * 3f64.sqrt()
}
const fn default_cut() -> f64 {
    3.0
}
const fn default_nonzero() -> f64 {
    0.1
}
const fn default_sparse_std() -> f64 {
    0.01
}
const fn default_gain() -> Gain {
    Gain::Constant { value: 1.0 }
}
const fn one() -> f64 {
    1.0
}
const fn two() -> f64 {
    2.0
}
const fn default_omega() -> f64 {
    30.0
}
const fn default_query_key() -> f64 {
    0.7
}
const fn default_value_output() -> f64 {
    0.4
}

/// The distribution of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// Independent entries.
    Entries(Distribution),
    /// A semi-orthogonal matrix times a gain.
    Orthogonal(f64),
    /// A partial identity times a gain.
    Identity(f64),
    /// ZerO's matrix times a gain.
    Zero(ZeroConstant, f64),
    /// One of the two factors of `noise Z + diagonal I`, times a gain.
    Mimetic {
        /// alpha.
        noise: f64,
        /// Signed beta.
        diagonal: f64,
        /// 0 for query or value, 1 for key or output.
        factor: usize,
        /// Gain of this factor.
        gain: f64,
    },
}

impl Draw {
    /// The distribution of the matrix times `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Self::Entries(distribution) => Self::Entries(distribution.scaled(factor)),
            Self::Orthogonal(gain) => Self::Orthogonal(gain * factor),
            Self::Identity(gain) => Self::Identity(gain * factor),
            Self::Zero(constant, gain) => Self::Zero(constant, gain * factor),
            Self::Mimetic { noise, diagonal, factor: which, gain } => {
                Self::Mimetic { noise, diagonal, factor: which, gain: gain * factor }
            }
        }
    }

    /// Whether the size of the entries follows from the shape of the matrix instead of the fans of its spec.
    pub fn has_own_size(self) -> bool {
        !matches!(self, Self::Entries(_))
    }

    /// Draws a matrix `[fan_in, fan_out]`, row by row, from the stream of (`seed`, `path`). `heads` is the number of attention
    /// heads, for [`Draw::Mimetic`].
    ///
    /// ZerO and orthogonal matrices are drawn as `[fan_out, fan_in]` and transposed.
    pub fn matrix(self, seed: u64, path: &str, fan_in: usize, fan_out: usize, heads: usize) -> Vec<f32> {
        match self {
            Self::Entries(distribution) => distribution.draw(seed, path, fan_in, fan_out),
            Self::Orthogonal(gain) => {
                transposed(&matrix::orthogonal(seed, path, fan_out, fan_in, gain), fan_out, fan_in)
            }
            Self::Identity(gain) => matrix::identity(fan_in, fan_out, gain),
            Self::Zero(constant, gain) => {
                let mut values = transposed(&matrix::zero(fan_out, fan_in, constant), fan_out, fan_in);
                values.iter_mut().for_each(|v| *v = (f64::from(*v) * gain) as f32);
                values
            }
            Self::Mimetic { noise, diagonal, factor, gain } => {
                mimetic(seed, path, [fan_in, fan_out], heads, [noise, diagonal, gain], factor)
            }
        }
    }
}

/// One factor of a pair of attention weights. Both are drawn from the stream of the pair, whose path lacks the last two parts.
fn mimetic(
    seed: u64,
    path: &str,
    [fan_in, fan_out]: [usize; 2],
    heads: usize,
    [noise, diagonal, gain]: [f64; 3],
    factor: usize,
) -> Vec<f32> {
    let pair = path.rsplitn(3, '.').last().unwrap_or(path);
    let mut values = vec![0.0; fan_in * fan_out];
    let mut set = |row: usize, column: usize, value: f32| {
        values[row * fan_out + column] = (f64::from(value) * gain) as f32;
    };
    let gaussian = |name: &str, n: usize| sample::normal(seed, name, n * n, (n as f64).powf(-0.5));
    if diagonal >= 0.0 {
        // query key^T of each head, both [width, head_dim].
        let (width, head_dim) = (fan_in, fan_out / heads);
        for head in 0..heads {
            let z = gaussian(&format!("{pair}.query_key.{head}"), width);
            let factors = matrix::mimetic_factors(&z, width, head_dim.min(width), noise, diagonal);
            let rank = head_dim.min(width);
            for (i, value) in factors[factor].iter().enumerate() {
                set(i / rank, head * head_dim + i % rank, *value);
            }
        }
    } else {
        // value output of all heads together: value is [width, inner], output [inner, width].
        let (width, inner) = if factor == 0 { (fan_in, fan_out) } else { (fan_out, fan_in) };
        let rank = inner.min(width);
        let z = gaussian(&format!("{pair}.value_output"), width);
        let factors = matrix::mimetic_factors(&z, width, rank, noise, diagonal);
        for (i, value) in factors[factor].iter().enumerate() {
            match factor {
                0 => set(i / rank, i % rank, *value),
                _ => set(i % rank, i / rank, *value),
            }
        }
    }
    values
}

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|k| values[k % rows * columns + k / rows]).collect()
}

impl Variant for Scheme {
    fn about(&self) -> About {
        About::of(match self {
            Self::Gpt2 { .. } => {
                ("gpt2", "N(0, 0.02^2); writers of the stream 0.02 / sqrt(2L)", "GPT-2 (Radford et al. 2019)")
            }
            Self::Normal { .. } => ("normal", "N(0, std^2)", "GPT, BERT"),
            Self::Uniform { .. } => ("uniform", "U(-bound, bound)", "common practice"),
            Self::TruncatedNormal { .. } => {
                ("truncated_normal", "N(0, std^2), redrawn beyond cut sigma", "OLMo, lingua; JAX with corrected")
            }
            Self::Sparse { .. } => ("sparse", "N(0, std^2) in a part of the inputs of a unit", "Martens 2010"),
            Self::Xavier { .. } => {
                ("xavier", "std = gain sqrt(2 / (fan_in + fan_out))", "Glorot and Bengio 2010 eq. 16")
            }
            Self::Kaiming { .. } => {
                ("kaiming", "std = sqrt(2 / (1 + slope^2)) / sqrt(fan)", "arXiv:1502.01852 eq. 10, 15")
            }
            Self::Lecun { .. } => ("lecun", "std = gain sqrt(1 / fan_in)", "LeCun et al. 1998 eq. 16"),
            Self::TorchLinear { .. } => ("torch_linear", "U(+-1 / sqrt(fan_in)); embeddings N(0, 1)", "PyTorch"),
            Self::Siren { .. } => ("siren", "U(+-sqrt(6 / fan_in) / omega)", "arXiv:2006.09661 section 3.2"),
            Self::Orthogonal { .. } => ("orthogonal", "gain Q, Q uniform over orthogonal matrices", "arXiv:1312.6120"),
            Self::Identity { .. } => ("identity", "partial identities", "arXiv:1504.00941"),
            Self::Zero { .. } => {
                ("zero", "partial identities and Hadamard matrices; writers of the stream 0", "arXiv:2110.12661")
            }
            Self::LlamaDepth { .. } => {
                ("llama_depth", "N(0, std^2); writers of the stream std / sqrt(2l) in block l", "OLMo, lingua")
            }
            Self::Small {} => ("small", "std = sqrt(2 / (5d))", "arXiv:1910.05895 section 3.2"),
            Self::Wang { .. } => ("wang", "small; writers of the stream 2 / (L sqrt(d))", "GPT-NeoX, arXiv:2204.06745"),
            Self::SpikeNoMore {} => (
                "spike_no_more",
                "small; writers of the stream / sqrt(2L); embedding x sqrt(d) or normalized",
                "arXiv:2312.16903",
            ),
            Self::Fixup { .. } => (
                "fixup",
                "He x (2L)^(-1/2) in branches; writers of the stream and head 0",
                "arXiv:1901.09321 section 3",
            ),
            Self::TFixup { .. } => (
                "t_fixup",
                "Xavier; value, output, MLP x 0.67 L^(-1/4); embeddings N(0, 1/d) x (9L)^(-1/4)",
                "Huang et al. 2020 (ICML)",
            ),
            Self::Mimetic { .. } => (
                "mimetic",
                "query key^T ~ 0.7 Z + 0.7 I, value output ~ 0.4 Z - 0.4 I; the rest as gpt2",
                "arXiv:2305.09828",
            ),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        let std_of_embeddings = |std: f64| positive_factor("embedding_std", std);
        let gained = |gain: Gain| {
            gain.check()?;
            let problem = "must be of an activation in PyTorch's table; take second_moment, or a number";
            let value = gain.value().ok_or_else(|| Fault::new("gain", "torch", problem))?;
            positive_factor("gain", value)
        };
        match *self {
            Self::Gpt2 { std } | Self::Normal { std } | Self::LlamaDepth { std } => positive_factor("std", std),
            Self::Uniform { bound } => positive_factor("bound", bound),
            // With a smaller cut nearly every number is drawn again.
            Self::TruncatedNormal { std, cut, .. } => within("cut", cut, 0.1, 100.0).and(positive_factor("std", std)),
            Self::Sparse { nonzero, std, embedding_std } => {
                fraction("nonzero", nonzero)?;
                positive_factor("std", std).and(std_of_embeddings(embedding_std))
            }
            Self::Xavier { gain, embedding_std, .. }
            | Self::Lecun { gain, embedding_std, .. }
            | Self::Orthogonal { gain, embedding_std } => gained(gain).and(std_of_embeddings(embedding_std)),
            Self::Kaiming { slope, gain: Some(gain), embedding_std, .. } => {
                let problem = "must be left out where there is a gain, which is in its place";
                require(slope == 0.0, "slope", slope, problem)?;
                gained(gain).and(std_of_embeddings(embedding_std))
            }
            Self::Kaiming { slope, gain: None, embedding_std, .. } => {
                within("slope", slope, -1e6, 1e6).and(std_of_embeddings(embedding_std))
            }
            Self::Siren { omega, embedding_std } => {
                positive_factor("omega", omega).and(std_of_embeddings(embedding_std))
            }
            Self::TorchLinear { embedding_std }
            | Self::Identity { embedding_std }
            | Self::Zero { embedding_std, .. }
            | Self::Fixup { embedding_std } => std_of_embeddings(embedding_std),
            Self::Wang { numerator } => positive_factor("numerator", numerator),
            Self::Small {} | Self::SpikeNoMore {} | Self::TFixup { .. } => Ok(()),
            Self::Mimetic { query_key_noise, query_key_diagonal, value_output_noise, value_output_diagonal, std } => [
                ("query_key_noise", query_key_noise),
                ("query_key_diagonal", query_key_diagonal),
                ("value_output_noise", value_output_noise),
                ("value_output_diagonal", value_output_diagonal),
                ("std", std),
            ]
            .into_iter()
            .try_for_each(|(key, x)| positive_factor(key, x)),
        }
    }
}

impl Scheme {
    /// [`Scheme::Gpt2`] with its default.
    pub fn gpt2() -> Self {
        Self::Gpt2 { std: default_std() }
    }

    /// [`Scheme::Xavier`] with its defaults.
    pub fn xavier() -> Self {
        Self::Xavier { gain: default_gain(), form: Form::Normal, embedding_std: default_std() }
    }

    /// [`Scheme::Kaiming`] with its defaults.
    pub fn kaiming() -> Self {
        Self::Kaiming { slope: 0.0, gain: None, fan: Fan::FanIn, form: Form::Normal, embedding_std: default_std() }
    }

    /// [`Scheme::Lecun`] with its defaults.
    pub fn lecun() -> Self {
        Self::Lecun { gain: default_gain(), form: Form::Normal, embedding_std: default_std() }
    }

    /// Whether the size of branches depends on the number of blocks.
    pub fn counts_depth(self) -> bool {
        match self {
            Self::Gpt2 { .. } | Self::LlamaDepth { .. } | Self::Wang { .. } | Self::SpikeNoMore {} => true,
            Self::Fixup { .. } | Self::TFixup { .. } => true,
            Self::Normal { .. } | Self::Uniform { .. } | Self::TruncatedNormal { .. } | Self::Sparse { .. } => false,
            Self::Xavier { .. } | Self::Kaiming { .. } | Self::Lecun { .. } | Self::TorchLinear { .. } => false,
            Self::Siren { .. } | Self::Orthogonal { .. } | Self::Identity { .. } | Self::Zero { .. } => false,
            Self::Small {} | Self::Mimetic { .. } => false,
        }
    }

    /// Whether the weights that write the stream start at 0.
    pub fn zeroes_writers(self) -> bool {
        matches!(self, Self::Zero { .. } | Self::Fixup { .. })
    }

    /// Whether the scheme is for models without norms.
    pub fn is_norm_free(self) -> bool {
        matches!(self, Self::Fixup { .. } | Self::TFixup { .. })
    }

    /// Whether the token embedding is meant to be multiplied by sqrt(d).
    pub fn scales_embedding(self) -> bool {
        matches!(self, Self::SpikeNoMore {} | Self::TFixup { .. })
    }

    /// Standard deviation of token and position embeddings of this width, in a model with this number of blocks.
    fn embedding_std(self, width: f64, blocks: f64) -> f64 {
        match self {
            Self::Gpt2 { std } | Self::Normal { std } | Self::LlamaDepth { std } | Self::Mimetic { std, .. } => std,
            Self::Uniform { bound } => bound / 3f64.sqrt(),
            Self::TruncatedNormal { std, .. } => std,
            Self::Sparse { embedding_std, .. }
            | Self::Xavier { embedding_std, .. }
            | Self::Kaiming { embedding_std, .. }
            | Self::Lecun { embedding_std, .. }
            | Self::TorchLinear { embedding_std }
            | Self::Siren { embedding_std, .. }
            | Self::Orthogonal { embedding_std, .. }
            | Self::Identity { embedding_std }
            | Self::Zero { embedding_std, .. }
            | Self::Fixup { embedding_std } => embedding_std,
            Self::Small {} | Self::Wang { .. } | Self::SpikeNoMore {} => small(width),
            Self::TFixup { .. } => width.powf(-0.5) * (9.0 * blocks).powf(-0.25),
        }
    }

    /// The distribution of a matrix.
    ///
    /// Under a width-aware parametrization `spec` has to be the weight in the *base* model; otherwise a fan-in scheme and the
    /// parametrization would both divide by sqrt(width).
    pub fn draw(self, spec: &Spec) -> Draw {
        let Spec { role, fan_in, fan_out, width, .. } = *spec;
        let (blocks, writes) = (spec.blocks as f64, role.writes_stream());
        let normal = |std| Draw::Entries(Distribution::Normal { std });
        let number = |gain: Gain| gain.value().unwrap_or(1.0);
        if role == Role::Embedding {
            let std = self.embedding_std(width, blocks);
            return match self {
                Self::Uniform { bound } => Draw::Entries(Distribution::Uniform { bound }),
                Self::TruncatedNormal { std, cut, corrected } => truncated(std, cut, corrected),
                _ => normal(std),
            };
        }
        match self {
            Self::Gpt2 { std } if writes => normal(std / (2.0 * blocks).sqrt()),
            Self::Gpt2 { std } | Self::Normal { std } => normal(std),
            Self::Uniform { bound } => Draw::Entries(Distribution::Uniform { bound }),
            Self::TruncatedNormal { std, cut, corrected } => truncated(std, cut, corrected),
            Self::Sparse { nonzero, std, .. } => Draw::Entries(Distribution::Sparse { nonzero, std }),
            Self::Xavier { gain: g, form, .. } => Draw::Entries(form.of(number(g) * (2.0 / (fan_in + fan_out)).sqrt())),
            Self::Kaiming { slope, gain, fan, form, .. } => {
                let fan = match fan {
                    Fan::FanIn => fan_in,
                    Fan::FanOut => fan_out,
                };
                Draw::Entries(form.of(gain.map_or(leaky_gain(slope), number) / fan.sqrt()))
            }
            Self::Lecun { gain: g, form, .. } => Draw::Entries(form.of(number(g) * (1.0 / fan_in).sqrt())),
            Self::TorchLinear { .. } => Draw::Entries(Distribution::Uniform { bound: fan_in.powf(-0.5) }),
            Self::Siren { omega, .. } => Draw::Entries(Distribution::Uniform { bound: (6.0 / fan_in).sqrt() / omega }),
            Self::Orthogonal { gain: g, .. } => Draw::Orthogonal(number(g)),
            Self::Identity { embedding_std } | Self::Zero { embedding_std, .. } if role == Role::Head => {
                normal(embedding_std)
            }
            Self::Identity { .. } => Draw::Identity(1.0),
            Self::Zero { .. } | Self::Fixup { .. } if writes => Draw::Entries(Distribution::Constant(0.0)),
            Self::Zero { constant, .. } => Draw::Zero(constant, 1.0),
            Self::LlamaDepth { std } if writes => normal(std / (2.0 * (spec.block.unwrap_or(0) + 1) as f64).sqrt()),
            Self::LlamaDepth { std } => normal(std),
            Self::Wang { numerator } if writes => normal(numerator / (blocks * width.sqrt())),
            Self::SpikeNoMore {} if writes => normal(small(width) / (2.0 * blocks).sqrt()),
            Self::Small {} | Self::Wang { .. } | Self::SpikeNoMore {} => normal(small(width)),
            Self::Fixup { .. } if role == Role::Head => Draw::Entries(Distribution::Constant(0.0)),
            Self::Fixup { .. } if role.is_branch() => normal((2.0 / fan_in).sqrt() * fixup_scale(2.0 * blocks, 2)),
            Self::Fixup { .. } => normal((2.0 / (fan_in + fan_out)).sqrt()),
            Self::TFixup { constants } => {
                let scale = match constants {
                    TFixupConstants::Encoder => 0.67 * blocks.powf(-0.25),
                    TFixupConstants::Decoder => (9.0 * blocks).powf(-0.25),
                };
                normal((2.0 / (fan_in + fan_out)).sqrt() * if role.is_branch() { scale } else { 1.0 })
            }
            Self::Mimetic { query_key_noise, query_key_diagonal, value_output_noise, value_output_diagonal, std } => {
                let pair = |noise, diagonal, factor| Draw::Mimetic { noise, diagonal, factor, gain: 1.0 };
                match role {
                    Role::Query => pair(query_key_noise, query_key_diagonal, 0),
                    Role::Key => pair(query_key_noise, query_key_diagonal, 1),
                    Role::Value => pair(value_output_noise, -value_output_diagonal, 0),
                    Role::AttentionOutput => pair(value_output_noise, -value_output_diagonal, 1),
                    _ => Self::Gpt2 { std }.draw(spec),
                }
            }
        }
    }

    /// The distribution of the bias of a linear layer: 0, or PyTorch's with `torch_linear`.
    pub fn bias(self, spec: &Spec) -> Distribution {
        match self {
            Self::TorchLinear { .. } => Distribution::Uniform { bound: bias::torch_linear_bound(spec.fan_in) },
            _ => Distribution::Constant(0.0),
        }
    }

    /// Root mean square of the entries of a matrix; None if they are not independent.
    pub fn std(self, spec: &Spec) -> Option<f64> {
        match self.draw(spec) {
            Draw::Entries(distribution) => Some(distribution.rms(spec.fan_in)),
            Draw::Orthogonal(_) | Draw::Identity(_) | Draw::Zero(..) | Draw::Mimetic { .. } => None,
        }
    }
}

/// `L^(-1/(2m-2))` for L residual branches of m = `layers` layers (arXiv:1901.09321, section 3). Undefined for m = 1, where it
/// is 1 here: that layer starts at 0.
pub fn fixup_scale(branches: f64, layers: u32) -> f64 {
    match layers {
        0 | 1 => 1.0,
        _ => branches.powf(-1.0 / (2.0 * f64::from(layers) - 2.0)),
    }
}

/// `sqrt(2 / (5d))`.
fn small(width: f64) -> f64 {
    (0.4 / width).sqrt()
}

fn truncated(std: f64, cut: f64, corrected: bool) -> Draw {
    let sigma = if corrected { std / truncated_std(cut) } else { std };
    Draw::Entries(Distribution::TruncatedNormal { sigma, cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_listed_under_its_own_name() {
        unitgain_variant::assert_listed::<Scheme>();
    }

    #[test]
    fn standard_deviations_are_the_formulas() {
        let spec = |role| Spec { role, fan_in: 256.0, fan_out: 64.0, blocks: 6, block: Some(2), width: 256.0 };
        let close = |got: Option<f64>, want: f64| assert!((got.unwrap() - want).abs() < 1e-6, "{got:?} is not {want}");
        close(Scheme::gpt2().std(&spec(Role::Query)), 0.02);
        close(Scheme::gpt2().std(&spec(Role::MlpOut)), 0.005774);
        close(Scheme::xavier().std(&spec(Role::MlpOut)), 0.079057);
        close(Scheme::kaiming().std(&spec(Role::MlpOut)), 0.088388);
        close(Scheme::lecun().std(&spec(Role::Head)), 0.0625);
        close(Scheme::lecun().std(&spec(Role::Embedding)), 0.02);
        close(Scheme::LlamaDepth { std: 0.02 }.std(&spec(Role::MlpOut)), 0.02 / 6f64.sqrt());
        close(Scheme::Small {}.std(&spec(Role::Key)), 0.039528);
        close(Scheme::Wang { numerator: 2.0 }.std(&spec(Role::MlpOut)), 0.020833);
        close(Scheme::SpikeNoMore {}.std(&spec(Role::MlpOut)), 0.039528 / 12f64.sqrt());
        let encoder = Scheme::TFixup { constants: TFixupConstants::Encoder };
        close(encoder.std(&spec(Role::Value)), 0.079057 * 0.428092);
        close(encoder.std(&spec(Role::Query)), 0.079057);
        close(encoder.std(&spec(Role::Embedding)), 0.368894 / 16.0);
        close(Scheme::Fixup { embedding_std: 0.02 }.std(&spec(Role::MlpIn)), 0.088388 / 12f64.sqrt());
    }
}
