use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

/// The gradient of every parameter, flattened, in the order of the [`ParamTable`](unitgain_model::ParamTable).
/// They are plain tensors: no graph hangs on them.
#[derive(Clone, Debug)]
pub struct Gradients(Vec<Option<Tensor<1>>>);

impl Gradients {
    /// Runs the backward pass from `loss`, of shape `[1]`, and takes the gradients out of the graph.
    pub fn backward<M: Module>(loss: &Tensor<1>, model: &M) -> Self {
        struct Collect {
            graph: burn::tensor::Gradients,
            flat: Vec<Option<Tensor<1>>>,
        }
        impl ModuleVisitor for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = param.val().grad_remove(&mut self.graph);
                self.flat.push(gradient.map(|g| {
                    let n = g.shape().num_elements();
                    g.reshape([n])
                }));
            }
        }
        let mut collect = Collect { graph: loss.backward(), flat: Vec::new() };
        model.visit(&mut collect);
        Self(collect.flat)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |pair| match pair {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        Self(self.0.into_iter().zip(other.0).map(sum).collect())
    }

    /// Sum of squares of each gradient, of shape `[parameters]`; 0 where there is none. It stays on
    /// the device.
    pub fn squares(&self, device: &Device) -> Tensor<1> {
        let square = |g: &Option<Tensor<1>>| match g {
            Some(g) => g.clone().square().sum(),
            None => Tensor::zeros([1], device),
        };
        Tensor::cat(self.0.iter().map(square).collect(), 0)
    }

    /// The gradient of parameter `index`, once.
    pub(crate) fn take(&mut self, index: usize) -> Option<Tensor<1>> {
        self.0[index].take()
    }

    /// `f` of every gradient and its index.
    pub(crate) fn map(self, f: impl Fn(usize, Tensor<1>) -> Tensor<1>) -> Self {
        Self(self.0.into_iter().enumerate().map(|(i, g)| g.map(|g| f(i, g))).collect())
    }

    /// The gradients in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = Option<&Tensor<1>>> {
        self.0.iter().map(Option::as_ref)
    }
}
