use burn::tensor::{DType, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

/// What the branches and the head compute in. Weights, their gradients and moments, the stream, the norms, the
/// softmax and the loss are f32 in any case, so that what residual scaling does to the stream is not rounded away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32 throughout.
    #[default]
    F32,
    /// Matrix products, activations and what lies between them in bf16, as PyTorch's autocast has it.
    Bf16,
}

impl Precision {
    /// The type of a branch.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }

    /// What a branch reads.
    pub(crate) fn enter<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        cast(x, self.dtype())
    }

    /// What it writes.
    pub(crate) fn leave<const D: usize>(self, y: Tensor<D>) -> Tensor<D> {
        cast(y, DType::F32)
    }
}

/// A weight or table in the type of the tensor that it meets.
pub(crate) fn like<const D: usize, const E: usize>(w: Tensor<D>, x: &Tensor<E>) -> Tensor<D> {
    cast(w, x.dtype())
}

/// `x` in another type; no operation where it has it.
pub(crate) fn cast<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x } else { x.cast(FloatDType::from(dtype)) }
}
