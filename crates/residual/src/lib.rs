//! Residual connections: how the stream, a branch, its norms and its scale are joined.
//!
//! A [`Placement`] is the position of the norms, one line per equation, as printed in the papers; a [`ScaleConfig`] is the
//! factor of a branch; a [`Residual`] is both, built. This crate knows neither init nor parametrizations: it shares numbers
//! with them ([`Placement::branch_gain`], [`Site::joint`]).

pub mod constants;
mod placement;
mod scale;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use unitgain_norms::{Norm, NormConfig, NormSite};

use placement::Parts;

pub use placement::{NormPosition, Placement};
pub use scale::ScaleConfig;

/// The place of a branch in the stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Index of the block, from 0.
    pub block: usize,
    /// Number of blocks; each holds two branches, attention and MLP.
    pub blocks: usize,
    /// Width of the stream.
    pub width: usize,
    /// Width of the stream of the base model, on which the constants of norms depend.
    pub base_width: usize,
    /// Factors of the parametrization.
    pub joint: Joint,
    /// Attention or MLP.
    pub branch: Branch,
}

/// The factors that a parametrization gives a residual connection: `after (x + gain f(x))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joint {
    /// Multiplier of the branch. 1 for standard and muP.
    pub gain: f64,
    /// Multiplier of the sum. 1 except for u-muP.
    pub after: f64,
    /// Whether the gradient of the branch is multiplied by `gain * after` at the input of the branch instead of its output,
    /// so that gradients inside the branch are as large as in the stream (u-muP, arXiv:2407.17465, appendix F).
    pub delayed: bool,
}

impl Joint {
    /// `x + gain f(x)`.
    pub const fn of(gain: f64) -> Self {
        Self { gain, after: 1.0, delayed: false }
    }
}

/// `x * factor`; no operation if the factor is 1.
pub fn times<const D: usize>(x: Tensor<D>, factor: f64) -> Tensor<D> {
    if factor == 1.0 { x } else { x * factor }
}

/// `x * forward`, with the gradient of `x * backward`.
pub fn two_way<const D: usize>(x: Tensor<D>, forward: f64, backward: f64) -> Tensor<D> {
    if forward == backward {
        return times(x, forward);
    }
    // The difference is exactly 0; a sum of terms that cancel would lose digits, above all in bf16.
    let tracked = x.clone() * backward;
    x.detach() * forward + (tracked.clone() - tracked.detach())
}

impl Site {
    /// The site of the norm at `position` of this branch.
    fn norm_site(self, position: NormPosition) -> NormSite {
        let before_attention = position == NormPosition::BeforeBranch && self.branch == Branch::Attention;
        NormSite { before_attention, ..NormSite::inside(self.width, self.base_width) }
    }
}

/// A branch of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branch {
    /// Attention.
    Attention,
    /// The MLP.
    Mlp,
}

/// The stream between two branches.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The activations that branches read and write, `[sequences * time, width]`.
    pub x: Tensor<2>,
    /// The second stream of ResiDual.
    pub dual: Option<Tensor<2>>,
    /// Number of sequences, whose rows follow each other.
    pub sequences: usize,
}

impl Stream {
    /// The stream before the first branch; with `dual`, the second stream starts as a copy.
    pub fn new(x: Tensor<2>, sequences: usize, dual: bool) -> Self {
        Self { dual: dual.then(|| x.clone()), x, sequences }
    }

    /// The input of the head: `n(x)`, or `x + n(d)` with a second stream d.
    pub fn close(self, n: &Norm) -> Tensor<2> {
        match self.dual {
            Some(d) => self.x + n.forward_rows(d, self.sequences),
            None => n.forward_rows(self.x, self.sequences),
        }
    }
}

/// One residual connection: the norms and the scale that join a branch to the stream.
#[derive(Module, Debug)]
pub struct Residual {
    norms: Vec<Norm>,
    /// Learned scale of the branch, of shape `[1]` or `[width]`.
    scale: Option<Param<Tensor<1>>>,
    /// Learned scalar added to the branch, of shape `[1]`.
    bias: Option<Param<Tensor<1>>>,
    /// Learned factor of the stream, of shape `[width]`.
    omega: Option<Param<Tensor<1>>>,
    /// Fixed scale of the branch, without the factor of the parametrization.
    multiplier: f64,
    #[module(skip)]
    joint: Joint,
    /// Divisor of the input of the branch.
    divisor: f64,
    /// The constant of the placement's equation.
    constant: f64,
    #[module(skip)]
    placement: Placement,
    #[module(skip)]
    branch: Branch,
}

impl Residual {
    /// Builds the norms and the scale of the branch at `site`.
    pub fn new(placement: Placement, norm: &NormConfig, scale: ScaleConfig, site: Site, device: &Device) -> Self {
        let placement = placement.at(site.block, site.blocks);
        let constant = |value: f64, size| Param::from_tensor(Tensor::full([size], value, device));
        Self {
            norms: placement
                .norms(site.branch)
                .iter()
                .map(|position| norm.build(site.norm_site(*position), device))
                .collect(),
            scale: scale.initial(site).map(|values| Param::from_data(values.as_slice(), device)),
            bias: scale.has_scalar_biases().then(|| constant(0.0, 1)),
            omega: placement.omega().map(|omega| constant(omega, site.width)),
            multiplier: scale.multiplier(site),
            joint: site.joint,
            divisor: scale.divisor(site),
            constant: placement.constant(site.block, site.blocks),
            placement,
            branch: site.branch,
        }
    }

    /// Joins `branch` to the stream.
    pub fn forward(&self, stream: Stream, branch: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Stream {
        self.forward_observed(stream, branch, &|_, y| y)
    }

    /// [`Residual::forward`], where `observe` maps the scaled output of the branch.
    pub fn forward_observed(
        &self,
        stream: Stream,
        branch: impl FnOnce(Tensor<2>) -> Tensor<2>,
        observe: &dyn Fn(Branch, Tensor<2>) -> Tensor<2>,
    ) -> Stream {
        let Stream { x, mut dual, sequences } = stream;
        let parts = Parts {
            f: |x| observe(self.branch, self.branch_output(x, branch)),
            n: |x| self.norms[0].forward_rows(self.branch_input(x), sequences),
            m: |x| self.norms[1].forward_rows(x, sequences),
            omega: |x| match &self.omega {
                Some(omega) => x * omega.val().unsqueeze(),
                None => x,
            },
            dual: |y| dual = dual.take().map(|d| d + y),
        };
        let x = self.placement.join(self.branch, self.constant, x, parts);
        Stream { x: times(x, self.joint.after), dual, sequences }
    }

    /// Joins two parallel branches, of this connection and of `other`, to the stream; `observe` as in
    /// [`Residual::forward_observed`].
    pub fn forward_parallel(
        &self,
        stream: Stream,
        branch: impl FnOnce(Tensor<2>) -> Tensor<2>,
        other: &Self,
        other_branch: impl FnOnce(Tensor<2>) -> Tensor<2>,
        observe: &dyn Fn(Branch, Tensor<2>) -> Tensor<2>,
    ) -> Stream {
        let f = |x| observe(self.branch, self.branch_output(x, branch));
        let g = |x| observe(other.branch, other.branch_output(x, other_branch));
        let n = |x| self.norms[0].forward_rows(x, stream.sequences);
        let m = |x| match other.norms.first() {
            Some(norm) => norm.forward_rows(x, stream.sequences),
            None => x,
        };
        let x = self.placement.join_parallel(stream.x, f, g, n, m);
        Stream { x: times(x, self.joint.after), ..stream }
    }

    /// The placement of this block.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The norms of the branch, in the order of the equation.
    pub fn norms(&self) -> &[Norm] {
        &self.norms
    }

    /// The learned parameters other than norms: scale and bias of the branch, factor of the stream.
    pub fn scales(&self) -> impl Iterator<Item = &Param<Tensor<1>>> {
        [&self.scale, &self.bias, &self.omega].into_iter().flatten()
    }

    /// Sets the gain of the norm after the branch to 0 (zero-gamma, arXiv:1706.02677); returns whether there is such a gain.
    pub fn zero_last_gain(&mut self) -> bool {
        let after = |position: &NormPosition| *position == NormPosition::AfterBranch;
        match self.placement.norms(self.branch).iter().position(after) {
            Some(index) => self.norms[index].zero_gain(),
            None => false,
        }
    }

    /// The input of a branch and its first norm, with the delayed factor of the gradient.
    fn branch_input(&self, x: Tensor<2>) -> Tensor<2> {
        let Joint { gain, after, delayed } = self.joint;
        if delayed { two_way(x, 1.0, gain * after) } else { x }
    }

    /// The scaled output of the branch.
    fn branch_output(&self, x: Tensor<2>, branch: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
        let Joint { gain, after, delayed } = self.joint;
        let x = if self.divisor == 1.0 { x } else { x / self.divisor };
        let y = match delayed {
            true => {
                let x = if self.norms.is_empty() { self.branch_input(x) } else { x };
                two_way(branch(x), gain * self.multiplier, self.multiplier / after)
            }
            false => times(branch(x), gain * self.multiplier),
        };
        let y = match &self.scale {
            Some(scale) => y * scale.val().unsqueeze(),
            None => y,
        };
        match &self.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    }
}
