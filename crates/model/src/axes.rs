//! The axes of each branch, overrides applied.

use crate::config::ModelConfig;
use crate::shorthand;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use unitgain_mup::Shape;
use unitgain_norms::NormConfig;
use unitgain_residual::{Branch, Placement, Position, ScaleConfig};

/// Placement, norm or scale of some blocks.
///
/// ```toml
/// [[model.block]]
/// range = [0, 4]
/// placement = "post_norm"
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockConfig {
    /// First block, counted from 0, and the one after the last.
    pub range: [usize; 2],
    /// Default: that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Default: `placement` of this range if it is given, else that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub mlp_placement: Option<Placement>,
    /// Default: that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub norm: Option<NormConfig>,
    /// Default: that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleConfig>,
}

/// The axes of one branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BranchAxes {
    pub(crate) branch: Branch,
    pub(crate) placement: Placement,
    pub(crate) norm: NormConfig,
    pub(crate) scale: ScaleConfig,
}

impl BranchAxes {
    /// Whether attention normalizes its queries, keys and values.
    pub(crate) fn qkv_norm(self) -> bool {
        self.placement.qkv_norm() && self.branch == Branch::Attention
    }

    /// Whether there are norms around the branch or in it.
    pub(crate) fn has_norms(self) -> bool {
        let inside = self.qkv_norm() || self.placement.inner_norm(self.branch);
        !self.norm.is_none() && (inside || !self.placement.norms(self.branch).is_empty())
    }

    /// Whether a norm stands there.
    pub(crate) fn has_norm_at(self, position: Position) -> bool {
        !self.norm.is_none() && self.placement.norms(self.branch).contains(&position)
    }
}

impl ModelConfig {
    /// Width, head size and depth.
    pub fn shape(&self) -> Shape {
        Shape {
            width: self.d_model,
            head_dim: self.head_dim.unwrap_or(self.d_model / self.n_heads),
            layers: self.n_layers,
        }
    }

    /// The overrides of block `layer`.
    pub(crate) fn overrides(&self, layer: usize) -> Option<&BlockConfig> {
        self.block.iter().find(|b| (b.range[0]..b.range[1]).contains(&layer))
    }

    /// The axes of a branch of block `layer`, overrides applied.
    pub(crate) fn axes(&self, layer: usize, branch: Branch) -> BranchAxes {
        let own = self.overrides(layer);
        let both = own.and_then(|b| b.placement);
        let of_mlp = own.and_then(|b| b.mlp_placement).or(both).or(self.mlp_placement);
        let placement = match branch {
            Branch::Attention => both,
            Branch::Mlp => of_mlp,
        };
        BranchAxes {
            branch,
            placement: placement.unwrap_or(self.placement).at(layer, self.n_layers),
            norm: own.and_then(|b| b.norm).unwrap_or(self.norm),
            scale: own.and_then(|b| b.scale).unwrap_or(self.scale),
        }
    }

    /// The placement of a branch of block `layer`, as it is there: one that changes with depth is looked up.
    pub fn placement_of(&self, layer: usize, branch: Branch) -> Placement {
        self.axes(layer, branch).placement
    }

    /// The axes of every branch, from the first to the last.
    pub(crate) fn branches(&self) -> impl Iterator<Item = BranchAxes> {
        let of = |layer| [Branch::Attention, Branch::Mlp].map(|branch| self.axes(layer, branch));
        (0..self.n_layers).flat_map(of)
    }

    /// Every placement as it is written in the configuration, before it is looked up for a block, with the
    /// blocks it is written for.
    pub fn placements(&self) -> impl Iterator<Item = (Placement, Range<usize>)> {
        let all = [self.placement].into_iter().chain(self.mlp_placement).map(|p| (p, 0..self.n_layers));
        let of = |block: &BlockConfig| {
            let range = block.range[0]..block.range[1];
            block.placement.into_iter().chain(block.mlp_placement).map(move |p| (p, range.clone()))
        };
        all.chain(self.block.iter().flat_map(of))
    }

    /// What queries and keys are normalized by: `qk_norm`, or the norm of a block whose placement does so.
    pub(crate) fn effective_qk_norm(&self) -> NormConfig {
        let own = self.branches().find(|b| b.qkv_norm());
        own.map_or(self.qk_norm, |b| b.norm)
    }

    /// The norms of a resolved model, wherever they stand.
    pub fn norms(&self) -> impl Iterator<Item = NormConfig> {
        let around = self.branches().filter(|b| b.has_norms()).map(|b| b.norm);
        let last = (self.final_norm == Some(true)).then_some(self.norm);
        around.chain(self.embedding_norm).chain(last).chain([self.qk_norm]).filter(|norm| !norm.is_none())
    }
}
