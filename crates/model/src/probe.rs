use burn::module::ParamId;
use burn::tensor::Tensor;
use std::cell::RefCell;
use unitgain_residual::Branch;

/// A point of the forward pass that [`Transformer::forward_observed`](crate::Transformer::forward_observed) reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The stream before the first block.
    Embedding,
    /// The stream after this block.
    Block(usize),
    /// The input of the head.
    FinalNorm,
    /// The output of the head times `logit_scale`, `[sequences * time, vocabulary]`, f32 and before the softcap.
    Logits,
}

/// An observer of a forward pass. The pass continues with the tensor that a method returns: the given one, or another in its
/// place, as to calibrate a layer in the pass that measures it, or to read the gradient of an activation by adding a zero that
/// requires a gradient.
pub trait Probe {
    /// The stream, `[sequences * time, width]`, or the logits, `[sequences * time, vocabulary]`.
    fn stream(&self, _point: Point, x: Tensor<2>) -> Tensor<2> {
        x
    }

    /// The scaled output of a branch, `[sequences * time, width]`.
    fn branch(&self, _block: usize, _branch: Branch, y: Tensor<2>) -> Tensor<2> {
        y
    }

    /// Whether to call [`Probe::linear`]; linear layers are then not fused with their activations.
    fn sees_layers(&self) -> bool {
        false
    }

    /// The output of the linear layer with this weight, with bias and before the activation. Layers come in the order of
    /// execution, without a tied head.
    fn linear(&self, _weight: ParamId, y: Tensor<2>) -> Tensor<2> {
        y
    }

    /// Queries and keys of a block, `[sequences, time, heads, head_dim]`, right before their product, the fixed factor of the
    /// product, and the number of keys that a query sees, None for all up to its own.
    fn attention(&self, _block: usize, _q: &Tensor<4>, _k: &Tensor<4>, _scale: f64, _window: Option<usize>) {}
}

/// Observes nothing.
impl Probe for () {}

/// Calls a function with the stream, as [`Transformer::forward_observed`](crate::Transformer::forward_observed) does.
pub struct Observe<'a>(RefCell<&'a mut OfStream<'a>>);

/// A function of the stream at a point.
type OfStream<'a> = dyn FnMut(Point, &Tensor<2>) + 'a;

impl<'a> Observe<'a> {
    /// Calls `observe` at every [`Point`].
    pub fn new(observe: &'a mut OfStream<'a>) -> Self {
        Self(RefCell::new(observe))
    }
}

impl Probe for Observe<'_> {
    fn stream(&self, point: Point, x: Tensor<2>) -> Tensor<2> {
        (self.0.borrow_mut())(point, &x);
        x
    }
}
