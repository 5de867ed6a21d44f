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
    /// What the head reads.
    FinalNorm,
    /// What it writes, `[sequences * time, vocabulary]`, f32 and before the soft-cap.
    Logits,
}

/// Sees a forward pass from inside. Each method gives back what the pass goes on with: the tensor itself, or
/// another in its place, which is how a layer is calibrated in the one pass that measures it, and how the gradient of an
/// activation is read (add a zero that wants a gradient).
pub trait Probe {
    /// The stream, `[sequences * time, width]`, or the logits, `[sequences * time, vocabulary]`.
    fn stream(&self, _point: Point, x: Tensor<2>) -> Tensor<2> {
        x
    }

    /// What a branch of this block writes, with its scale, `[sequences * time, width]`.
    fn branch(&self, _block: usize, _branch: Branch, y: Tensor<2>) -> Tensor<2> {
        y
    }

    /// Whether [`Probe::linear`] wants to be called; a linear layer is then not one operation with its activation.
    fn sees_layers(&self) -> bool {
        false
    }

    /// The output of the linear layer with this weight, bias included and before its activation. Layers come in the
    /// order in which they run; a tied head is none.
    fn linear(&self, _weight: ParamId, y: Tensor<2>) -> Tensor<2> {
        y
    }

    /// Queries and keys of a block, `[sequences, time, heads, head_dim]`, as they are multiplied, and the factor of
    /// their product.
    fn attention(&self, _block: usize, _q: &Tensor<4>, _k: &Tensor<4>, _scale: f64) {}
}

/// Sees nothing.
impl Probe for () {}

/// Tells a function of the stream, as [`Transformer::forward_observed`](crate::Transformer::forward_observed) does.
pub struct Observe<'a>(RefCell<&'a mut OfStream<'a>>);

/// What is told of the stream.
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
