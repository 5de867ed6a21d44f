//! Keys that decide nothing, because of what another key is.

use crate::axes::BranchAxes;
use crate::config::ModelConfig;
use crate::position::Position;
use crate::qk_norm::AttentionScale;
use unitgain_init::Scheme;
use unitgain_residual::{Branch, Position as NormPosition};

/// A key whose value changes no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The key below `model`, as `norm` or `block.0.norm`.
    pub key: String,
    /// Why.
    pub reason: String,
}

impl ModelConfig {
    /// The keys that change no number of the model that `resolved` is, this one [resolved](Self::resolved), whatever their
    /// values are.
    pub fn idle(&self, resolved: &Self) -> Vec<Idle> {
        let mut found = Vec::new();
        let mut add = |key: &str, is_idle: bool, reason: &str| {
            if is_idle {
                found.push(Idle { key: key.into(), reason: reason.into() });
            }
        };
        let branches: Vec<(usize, BranchAxes)> = (0..resolved.n_layers)
            .flat_map(|layer| [Branch::Attention, Branch::Mlp].map(|branch| (layer, resolved.axes(layer, branch))))
            .collect();
        let block = |layer: usize| resolved.overrides(layer);
        let all = |test: &dyn Fn(usize, BranchAxes) -> bool| branches.iter().all(|(layer, axes)| test(*layer, *axes));

        let has_own = |layer: usize| block(layer).is_some_and(|b| b.norm.is_some());
        let is_last = resolved.final_norm == Some(true);
        let reason = match branches.iter().any(|(_, axes)| asks_for_norm(*axes)) {
            true => "every block that has a norm has its own from [[model.block]], and there is no final norm",
            false => "no placement asks for a norm there, and there is no final norm",
        };
        add("norm", !is_last && all(&|layer, axes| has_own(layer) || !asks_for_norm(axes)), reason);
        let covered = "every block has its own from [[model.block]]";
        let own_of = |layer: usize, branch: Branch| match branch {
            Branch::Attention => block(layer).is_some_and(|b| b.placement.is_some()),
            Branch::Mlp => block(layer).is_some_and(|b| b.placement.is_some() || b.mlp_placement.is_some()),
        };
        let is_mlp = |branch: Branch| branch == Branch::Mlp;
        let has_other = |branch| is_mlp(branch) && resolved.mlp_placement.is_some();
        add("placement", all(&|layer, axes| own_of(layer, axes.branch) || has_other(axes.branch)), covered);
        let is_own = |layer, axes: BranchAxes| !is_mlp(axes.branch) || own_of(layer, axes.branch);
        add("mlp_placement", resolved.mlp_placement.is_some() && all(&is_own), covered);
        add("scale", all(&|layer, _| block(layer).is_some_and(|b| b.scale.is_some())), covered);
        for (i, block) in resolved.block.iter().enumerate() {
            let own = |(layer, _): &&(usize, BranchAxes)| (block.range[0]..block.range[1]).contains(layer);
            let asks = branches.iter().filter(own).any(|(_, axes)| asks_for_norm(*axes));
            add(
                &format!("block.{i}.norm"),
                block.norm.is_some() && !asks,
                "no placement asks for a norm in these blocks",
            );
        }

        let head_dim = resolved.shape().head_dim;
        let is_rope = matches!(resolved.position, Position::Rope { .. });
        add("position.theta", is_rope && head_dim == 2, "a head of 2 entries turns by one frequency, which is 1");
        let is_counted = matches!(self.attention_scale, None | Some(AttentionScale::HeadDim {}))
            || matches!(self.attention_scale, Some(AttentionScale::Learned { init: None, .. }));
        add("parametrization.base_head_dim", !is_counted, "attention_scale does not count the size of a head");
        let is_zero = resolved.init.is_some_and(|scheme| scheme.zeroes_writers());
        let no_gain =
            all(&|_, axes| !axes.has_norm_at(NormPosition::AfterBranch) && !axes.has_norm_at(NormPosition::OnStream));
        add("zero_writers", resolved.zero_writers && is_zero && no_gain, "init draws those weights as 0");
        let is_zero = matches!(resolved.init, Some(Scheme::Fixup { .. }));
        add("zero_readout", resolved.zero_readout && is_zero, "init draws the head as 0");
        found
    }
}

/// Whether there would be a norm around the branch or in it, whatever its kind.
fn asks_for_norm(axes: BranchAxes) -> bool {
    axes.qkv_norm() || axes.placement.inner_norm(axes.branch) || !axes.placement.norms(axes.branch).is_empty()
}
