use crate::is_fused;
use crate::threads::piece;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::Layout;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, Shape};
use burn::tensor::{Bytes, DType, Tensor};
use rayon::prelude::*;
use std::fmt::Debug;
use std::mem::MaybeUninit;

pub use burn::backend::flex::FlexTensor;

use crate::Matrix;

/// An f32 tensor of the CPU backend.
#[derive(Clone, Debug)]
pub enum Native {
    /// A tensor on a plain device.
    Plain(FlexTensor),
    /// A tensor on an autodiff device.
    Graph(FloatTensor<Autodiff<Flex>>),
}

impl Native {
    /// The tensor `x`; None if fused operations are off, or for another backend or type.
    pub fn of<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        if !is_fused() || x.dtype() != DType::F32 {
            return None;
        }
        if let Ok(x) = x.clone().try_into_primitive::<Autodiff<Flex>>() {
            return Some(Self::Graph(x));
        }
        x.clone().try_into_primitive::<Flex>().ok().map(Self::Plain)
    }

    /// The tensor with contiguous elements, detached from the graph.
    pub fn values(self) -> FlexTensor {
        contiguous(match self {
            Self::Plain(x) => x,
            Self::Graph(x) => x.into_primitive(),
        })
    }
}

/// An operation on `N` tensors with a backward pass of its own.
pub trait Fused<const N: usize>: Clone + Send + Debug + 'static {
    /// What the forward pass keeps for the backward pass.
    type State: Clone + Send + Debug + 'static;

    /// The result, and the state if `keep`. The inputs may have any layout.
    fn forward(&self, inputs: [FlexTensor; N], keep: bool) -> (FlexTensor, Option<Self::State>);

    /// The gradients of the `wanted` inputs from the gradient of the result, which is contiguous.
    fn backward(&self, state: Self::State, gradient: FlexTensor, wanted: [bool; N]) -> [Option<FlexTensor>; N];
}

#[derive(Debug)]
struct Step<F>(F);

impl<F: Fused<N>, const N: usize> Backward<Flex, N> for Step<F> {
    type State = F::State;

    fn backward(self, ops: Ops<F::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = contiguous(gradients.consume::<Flex>(&ops.node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let own = self.0.backward(ops.state, gradient, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(own) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<Flex>(parent.id, gradient);
            }
        }
    }
}

/// Runs a fused operation as one node of the graph.
///
/// # Panics
/// If some inputs are on an autodiff device and others are not, as with burn's own operations.
pub fn run<const N: usize, const D: usize, F: Fused<N>>(operation: F, inputs: [Native; N]) -> Tensor<D> {
    if inputs.iter().all(|input| matches!(input, Native::Plain(_))) {
        let inputs = inputs.map(|input| match input {
            Native::Plain(x) => x,
            Native::Graph(_) => unreachable!("all are plain"),
        });
        return Tensor::from_primitive::<Flex>(operation.forward(inputs, false).0);
    }
    let inputs = inputs.map(|input| match input {
        Native::Graph(x) => x,
        Native::Plain(_) => panic!("a tensor outside of the graph meets one of an autodiff device"),
    });
    let nodes = inputs.each_ref().map(|x| x.node());
    let inputs = inputs.map(|x| x.into_primitive());
    let y = match Step(operation.clone()).prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => match operation.forward(inputs, true) {
            (y, Some(state)) => prepared.finish(state, y),
            (_, None) => unreachable!("the state was asked for"),
        },
        OpsKind::UnTracked(prepared) => prepared.finish(operation.forward(inputs, false).0),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(y)
}

/// The tensor with contiguous elements; copied only if it is not contiguous.
pub fn contiguous(x: FlexTensor) -> FlexTensor {
    if x.is_contiguous() { x } else { x.to_contiguous() }
}

/// The elements of a contiguous f32 tensor.
///
/// # Panics
/// If the tensor is not contiguous or not f32.
pub fn slice(x: &FlexTensor) -> &[f32] {
    match x.as_slice::<f32>() {
        Some(values) => values,
        None => panic!("the tensor is not contiguous f32"),
    }
}

/// The shape of a tensor.
pub fn shape(x: &FlexTensor) -> Vec<usize> {
    let shape = x.layout().shape();
    (0..shape.num_dims()).map(|axis| shape[axis]).collect()
}

/// A tensor of these elements, without a copy.
pub fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(Shape::from(shape.to_vec())), DType::F32)
}

/// `n` zeros, written by all threads: on one thread this takes as long as a norm.
pub fn zeros(n: usize) -> Vec<f32> {
    let size = piece(n, 64, 1);
    if size >= n {
        return vec![0.0; n];
    }
    let mut zeros = Vec::with_capacity(n);
    zeros.spare_capacity_mut()[..n].par_chunks_mut(size).for_each(|part| {
        part.fill(MaybeUninit::new(0.0));
    });
    // SAFETY: the capacity is at least n, and the chunks, which were just written, cover the first n elements.
    #[allow(unsafe_code)]
    unsafe {
        zeros.set_len(n);
    }
    zeros
}

/// A view of a matrix of any layout; None if a stride is negative.
pub fn matrix(x: &FlexTensor) -> Option<Matrix<'_>> {
    let strides = x.layout().strides();
    let [rows, columns] = *strides else { return None };
    let (rows, columns) = (usize::try_from(rows).ok()?, usize::try_from(columns).ok()?);
    Some(Matrix::new(&x.storage::<f32>()[x.layout().start_offset()..], rows, columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_write_all_zeros() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for n in [0, 1, 33_001] {
            let zeros = pool.install(|| zeros(n));
            assert!(zeros.len() == n && zeros.iter().all(|x| *x == 0.0));
        }
        assert!(pool.install(|| piece(33_001, 64, 1)) < 33_001, "several threads");
    }
}
