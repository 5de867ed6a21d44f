use burn::tensor::Tensor;
use std::fmt::Debug;
use unitgain_model::{Spec, Update};

/// How one weight is moved by its gradient.
pub trait Rule: Debug + Send + Sync {
    /// Names of the tensors that it remembers of a weight, each as large as the weight. A checkpoint keeps them under these.
    fn states(&self) -> &'static [&'static str];

    /// How a step depends on the size of the gradient: what a parametrization has to know.
    fn update(&self) -> Update;

    /// The weight and what is remembered of it after one step.
    fn step(&self, weight: Weight<'_>, gradient: Gradient) -> Moved;
}

/// A weight that is moved.
#[derive(Debug)]
pub struct Weight<'a> {
    /// Its values, flat and outside of any graph.
    pub values: Tensor<1>,
    /// Its shape; linear weights are `[fan_in, fan_out]`.
    pub shape: &'a [usize],
    /// What it is for, and its fans.
    pub spec: &'a Spec,
    /// Number of this step, from 1.
    pub time: usize,
    /// Its settings at this step.
    pub rates: Rates,
    /// What is remembered of it, in the order of [`Rule::states`]; empty at its first step.
    pub states: Vec<Tensor<1>>,
}

/// A weight after a step.
#[derive(Debug)]
pub struct Moved {
    /// Its values, flat.
    pub values: Tensor<1>,
    /// What is remembered of it, in the order of [`Rule::states`].
    pub states: Vec<Tensor<1>>,
}

/// The settings of one weight at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// The scheduled learning rate, times the factor of the weight.
    pub lr: f64,
    /// Weight decay.
    pub decay: f64,
    /// Adam's eps.
    pub eps: f64,
}

/// A flat gradient, and the factor that it is still to be multiplied by (the clip's).
#[derive(Debug)]
pub struct Gradient {
    values: Tensor<1>,
    factor: Option<Tensor<1>>,
    on_host: f32,
}

impl Gradient {
    /// `on_host` is the factor, where it is on the host.
    pub(super) fn new(values: Tensor<1>, factor: Option<Tensor<1>>, on_host: f32) -> Self {
        Self { values, factor, on_host }
    }

    /// The gradient times its factor.
    pub fn scaled(self) -> Tensor<1> {
        match self.factor {
            Some(factor) => self.values * factor,
            None => self.values,
        }
    }

    /// Whether a fused operation can take it.
    #[cfg(feature = "flex")]
    pub(super) fn is_fused(&self) -> bool {
        crate::step::fused::takes(&self.values)
    }

    /// The gradient and its factor, apart.
    #[cfg(feature = "flex")]
    pub(super) fn parts(self) -> (Tensor<1>, f32) {
        (self.values, self.on_host)
    }
}

impl From<Tensor<1>> for Gradient {
    fn from(values: Tensor<1>) -> Self {
        Self::new(values, None, 1.0)
    }
}

impl Weight<'_> {
    /// `w - lr decay w`.
    pub(super) fn decayed(&self) -> Tensor<1> {
        let rate = self.rates.lr * self.rates.decay;
        let w = self.values.clone();
        if rate == 0.0 { w } else { w * (1.0 - rate) }
    }

    /// `g + decay w`.
    pub(super) fn with_decay(&self, g: Tensor<1>) -> Tensor<1> {
        if self.rates.decay == 0.0 { g } else { g + self.values.clone() * self.rates.decay }
    }
}
