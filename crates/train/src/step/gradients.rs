use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

/// The gradient of each weight, flattened, in the order of the [`ParamTable`](unitgain_model::ParamTable), detached
/// from the graph.
#[derive(Clone, Debug)]
pub struct Gradients {
    each: Vec<Option<Tensor<1>>>,
    /// Factor on all gradients, of shape `[1]`, not yet applied.
    factor: Option<Tensor<1>>,
}

impl Gradients {
    /// Runs the backward pass from `loss`, of shape `[1]`.
    pub fn backward<M: Module>(loss: &Tensor<1>, model: &M) -> Self {
        Self::taken(&mut loss.backward(), model)
    }

    /// Removes the gradients of a model's weights from `graph`; gradients of other tensors stay there.
    pub fn taken<M: Module>(graph: &mut burn::tensor::Gradients, model: &M) -> Self {
        struct Collect<'a> {
            graph: &'a mut burn::tensor::Gradients,
            flat: Vec<Option<Tensor<1>>>,
        }
        impl ModuleVisitor for Collect<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = param.val().grad_remove(self.graph);
                self.flat.push(gradient.map(|g| {
                    let n = g.shape().num_elements();
                    g.reshape([n])
                }));
            }
        }
        let mut collect = Collect { graph, flat: Vec::new() };
        model.visit(&mut collect);
        Self { each: collect.flat, factor: None }
    }

    /// Sum of two sets of gradients.
    ///
    /// # Panics
    /// If a factor of one of them is not yet applied.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        assert!(self.factor.is_none() && other.factor.is_none(), "gradients are added before they are clipped");
        #[cfg(feature = "flex")]
        if crate::step::fused::are_on_host(self.each.iter().chain(&other.each).flatten()) {
            return Self { each: crate::step::fused::sums(self.each, other.each), factor: None };
        }
        let sum = |pair| match pair {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        Self { each: self.each.into_iter().zip(other.each).map(sum).collect(), factor: None }
    }

    /// On another device.
    pub(super) fn on(self, device: &Device) -> Self {
        let moved = |g: Option<Tensor<1>>| g.map(|g| g.to_device(device));
        Self { each: self.each.into_iter().map(moved).collect(), factor: self.factor.map(|f| f.to_device(device)) }
    }

    /// Sum of squares of each gradient, of shape `[parameters]`, on the device, without a factor that is
    /// not yet applied; 0 for a weight without one.
    pub fn squares(&self, device: &Device) -> Tensor<1> {
        #[cfg(feature = "flex")]
        if let Some(squares) = crate::step::fused::squares(&self.each, device) {
            return squares;
        }
        let square = |g: &Option<Tensor<1>>| match g {
            Some(g) => g.clone().square().sum(),
            None => Tensor::zeros([1], device),
        };
        Tensor::cat(self.each.iter().map(square).collect(), 0)
    }

    /// Takes the gradient of weight `index`.
    pub(crate) fn take(&mut self, index: usize) -> Option<Tensor<1>> {
        self.each[index].take()
    }

    /// The factor that is not yet applied to the taken gradients.
    pub(crate) fn factor(&self) -> Option<Tensor<1>> {
        self.factor.clone()
    }

    /// Multiplies all by a factor of shape `[1]`, applied when the weights are updated.
    #[must_use]
    pub fn times(self, factor: Tensor<1>) -> Self {
        let factor = match self.factor {
            Some(earlier) => earlier * factor,
            None => factor,
        };
        Self { factor: Some(factor), ..self }
    }

    /// Applies `f` to the index and the gradient of each weight, without a factor that is not yet applied.
    #[must_use]
    pub fn map(self, f: impl Fn(usize, Tensor<1>) -> Tensor<1>) -> Self {
        let each = self.each.into_iter().enumerate().map(|(i, g)| g.map(|g| f(i, g))).collect();
        Self { each, ..self }
    }

    /// The gradients, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = Option<&Tensor<1>>> {
        self.each.iter().map(Option::as_ref)
    }
}
