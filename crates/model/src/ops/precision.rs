use burn::tensor::{DType, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

/// The precision of the branches and the head. Weights, gradients, optimizer states, stream, norms, softmax and loss are
/// always f32, so that the effect of residual scaling on the stream is not rounded away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32 throughout.
    #[default]
    F32,
    /// Matrix products, activations and the operations between them in bf16, as with PyTorch's autocast.
    Bf16,
}

impl Precision {
    /// The element type of a branch.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }

    /// Casts the input of a branch.
    pub fn enter<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        cast(x, self.dtype())
    }

    /// Casts the output of a branch.
    pub fn leave<const D: usize>(self, y: Tensor<D>) -> Tensor<D> {
        cast(y, DType::F32)
    }
}

/// `w` in the element type of `x`.
pub(crate) fn like<const D: usize, const E: usize>(w: Tensor<D>, x: &Tensor<E>) -> Tensor<D> {
    cast(w, x.dtype())
}

/// `x` in the type `dtype`; no operation if it has that type.
pub(crate) fn cast<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x } else { x.cast(FloatDType::from(dtype)) }
}
