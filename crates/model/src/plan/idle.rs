//! Keys that have no effect because of the value of another key.

use super::{BranchPlan, Plan};
use crate::config::{AttentionScale, ModelConfig, Position};
use unitgain_init::Scheme;
use unitgain_residual::{Branch, NormPosition};

/// A key without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Path of the key below `model`, such as `norm` or `block.0.norm`.
    pub key: String,
    /// Reason why the key has no effect.
    pub reason: String,
}

impl ModelConfig {
    /// The keys without effect on the model; `plan` is the plan of this configuration.
    pub fn idle(&self, plan: &Plan) -> Vec<Idle> {
        let mut found = Vec::new();
        let mut add = |key: &str, is_idle: bool, reason: &str| {
            if is_idle {
                found.push(Idle { key: key.into(), reason: reason.into() });
            }
        };
        let block = |branch: &BranchPlan| self.of_block(branch.site.block);
        let all = |test: &dyn Fn(&BranchPlan) -> bool| plan.branches().all(test);

        let has_own = |branch: &BranchPlan| block(branch).is_some_and(|b| b.norm.is_some());
        let reason = match plan.branches().any(BranchPlan::asks_for_norm) {
            true => "every block that has a norm has its own from [[model.block]], and there is no final norm",
            false => "no placement asks for a norm there, and there is no final norm",
        };
        add("norm", !plan.final_norm && all(&|branch| has_own(branch) || !branch.asks_for_norm()), reason);
        let covered = "every block has its own from [[model.block]]";
        let is_mlp = |branch: &BranchPlan| branch.site.branch == Branch::Mlp;
        let is_own = |branch: &BranchPlan| {
            block(branch).is_some_and(|b| b.placement.is_some() || is_mlp(branch) && b.mlp_placement.is_some())
        };
        let has_other = self.mlp_placement.is_some();
        add("placement", all(&|branch| is_own(branch) || is_mlp(branch) && has_other), covered);
        add("mlp_placement", has_other && all(&|branch| !is_mlp(branch) || is_own(branch)), covered);
        add("scale", all(&|branch| block(branch).is_some_and(|b| b.scale.is_some())), covered);
        for (i, own) in self.block.iter().enumerate() {
            let within = |branch: &&BranchPlan| (own.range[0]..own.range[1]).contains(&branch.site.block);
            let asks = plan.branches().filter(within).any(BranchPlan::asks_for_norm);
            let key = format!("block.{i}.norm");
            add(&key, own.norm.is_some() && !asks, "no placement asks for a norm in these blocks");
        }

        let one_turns = |position: Position| position.turning(plan.shape.head_dim) == 2;
        let reason = "a head has one pair that turns, by one frequency, which is 1";
        add("position.theta", one_turns(plan.position), reason);
        for (i, own) in self.block.iter().enumerate() {
            add(&format!("block.{i}.position.theta"), own.position.is_some_and(one_turns), reason);
        }
        let windows = plan.blocks.iter().map(|block| self.of_block(block.attention.branch.site.block));
        let is_own = windows.clone().all(|own| own.is_some_and(|own| own.window.is_some()));
        add("window", self.window > 0 && is_own, covered);
        add("window", !is_own && self.window >= plan.context, "no sequence is longer");
        for (i, own) in self.block.iter().enumerate() {
            let is_long = own.window.is_some_and(|window| window >= plan.context);
            add(&format!("block.{i}.window"), is_long && self.window == 0, "no sequence is longer");
        }
        let is_counted = matches!(self.attention_scale, None | Some(AttentionScale::HeadDim {}))
            || matches!(self.attention_scale, Some(AttentionScale::Learned { init: None, .. }));
        add("parametrization.base_head_dim", !is_counted, "attention_scale does not count the size of a head");
        let is_zero = plan.init.zeroes_writers();
        let no_gain = all(&|b| !b.has_norm_at(NormPosition::AfterBranch) && !b.has_norm_at(NormPosition::OnStream));
        add("zero_writers", plan.zero_writers && is_zero && no_gain, "init draws those weights as 0");
        let is_zero = matches!(plan.init, Scheme::Fixup { .. });
        add("zero_readout", plan.zero_readout && is_zero, "init draws the head as 0");
        found
    }
}
