use crate::ops::like;
use crate::plan::BranchPlan;
use crate::weights::Builder;
use burn::module::{Module, Param};
use burn::tensor::Tensor;

/// Fixup's learned scalars, each added to what a layer or an activation of a branch reads; none in other
/// branches.
#[derive(Module, Debug)]
pub(crate) struct ScalarBiases {
    values: Vec<Param<Tensor<1>>>,
}

impl ScalarBiases {
    /// `count` of them, where the scale of the branch has them.
    pub(crate) fn new(branch: &BranchPlan, count: usize, builder: &mut Builder<'_>) -> Self {
        let count = if branch.scale.has_scalar_biases() { count } else { 0 };
        Self { values: (0..count).map(|_| builder.scalar(0.0, branch.scale.lr_factor())).collect() }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// `x` with the bias of this index.
    pub(crate) fn add(&self, index: usize, x: Tensor<2>) -> Tensor<2> {
        match self.values.get(index) {
            Some(bias) => {
                let bias = like(bias.val(), &x);
                x + bias.unsqueeze()
            }
            None => x,
        }
    }
}
