use crate::ops::like;
use crate::plan::BranchPlan;
use crate::weights::Builder;
use burn::module::{Module, Param};
use burn::tensor::Tensor;

/// The scalar biases of Fixup, each added to the input of a layer or an activation of a branch; none with other scales.
#[derive(Module, Debug)]
pub(crate) struct ScalarBiases {
    values: Vec<Param<Tensor<1>>>,
}

impl ScalarBiases {
    /// `count` biases if the scale of the branch has scalar biases, else none.
    pub(crate) fn new(branch: &BranchPlan, count: usize, builder: &mut Builder<'_>) -> Self {
        let count = if branch.scale.has_scalar_biases() { count } else { 0 };
        Self { values: (0..count).map(|_| builder.scalar(0.0, branch.scale.lr_factor())).collect() }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// `x` plus the bias of this index, if any.
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
