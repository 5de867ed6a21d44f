//! Residual connections: how the stream, a branch, its norms and its scale are joined.
//!
//! [`Placement`] says where the norms sit, with one line per equation, as the papers print it;
//! [`ScaleConfig`] says how strongly a branch writes; a [`Residual`] is both, built. This crate knows neither
//! init nor parametrizations: what they have to agree on crosses as numbers
//! ([`Placement::branch_gain`], [`Site::gain`]).

mod placement;
mod scale;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use unitgain_norms::{Norm, NormConfig, NormSite};

pub use placement::{Placement, Position};
pub use scale::ScaleConfig;

/// Name, formula and source of one variant, as `unitgain configs` prints them.
pub type About = (&'static str, &'static str, &'static str);

/// Where a branch sits in the stack.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Index of the block, from 0.
    pub layer: usize,
    /// Number of blocks; each holds two branches, attention and MLP.
    pub layers: usize,
    /// Width of the stream.
    pub width: usize,
    /// Multiplier of the branch that the parametrization asks for (1 for standard and muP).
    pub gain: f64,
    /// Which branch of the block.
    pub branch: Branch,
}

impl Site {
    /// What a norm at `position` of this branch is for.
    fn norm(self, position: Position) -> NormSite {
        let before_attention = position == Position::BeforeBranch && self.branch == Branch::Attention;
        NormSite { width: self.width, before_attention }
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

/// One residual connection: the norms and the scale that join a branch to the stream.
#[derive(Module, Debug)]
pub struct Residual {
    norms: Vec<Norm>,
    /// Learned scale of the branch, of shape `[1]` or `[width]`.
    scale: Option<Param<Tensor<1>>>,
    /// Fixed scale of the branch.
    multiplier: f64,
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
        Self {
            norms: placement
                .norms(site.branch)
                .iter()
                .map(|position| norm.build(site.norm(*position), device))
                .collect(),
            scale: scale.initial(site).map(|values| Param::from_data(values.as_slice(), device)),
            multiplier: scale.multiplier(site) * site.gain,
            constant: placement.constant(site.layer, site.layers),
            placement,
            branch: site.branch,
        }
    }

    /// Joins `branch` to the stream `x`, both of shape `[rows, width]`.
    pub fn forward(&self, x: Tensor<2>, branch: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
        let f = |x| self.scaled(branch(x));
        let n = |x| self.norms[0].forward(x);
        let m = |x| self.norms[1].forward(x);
        self.placement.join(self.branch, self.constant, x, f, n, m)
    }

    /// Joins two branches that read the stream side by side: this one's, and that of `other`.
    pub fn forward_parallel(
        &self,
        x: Tensor<2>,
        branch: impl FnOnce(Tensor<2>) -> Tensor<2>,
        other: &Self,
        other_branch: impl FnOnce(Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let f = |x| self.scaled(branch(x));
        let g = |x| other.scaled(other_branch(x));
        let n = |x| self.norms[0].forward(x);
        let m = |x| match other.norms.first() {
            Some(norm) => norm.forward(x),
            None => x,
        };
        self.placement.join_parallel(x, f, g, n, m)
    }

    /// Where the norms sit.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The norms of the branch, in the order of the equation.
    pub fn norms(&self) -> &[Norm] {
        &self.norms
    }

    fn scaled(&self, y: Tensor<2>) -> Tensor<2> {
        let y = if self.multiplier == 1.0 { y } else { y * self.multiplier };
        match &self.scale {
            Some(scale) => y * scale.val().unsqueeze(),
            None => y,
        }
    }
}
