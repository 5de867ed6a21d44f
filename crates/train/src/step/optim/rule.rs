use burn::tensor::Tensor;
use std::fmt::Debug;
use unitgain_model::{Spec, Update};

/// The update rule of one weight.
pub trait Rule: Debug + Send + Sync {
    /// Names of the state tensors, each of the weight's size. A checkpoint stores them under these names.
    fn states(&self) -> &'static [&'static str];

    /// How the update depends on the size of the gradient, which determines the factors of a parametrization.
    fn update(&self) -> Update;

    /// The weight and its state after one step.
    fn step(&self, weight: Weight<'_>, gradient: Gradient) -> Moved;
}

/// A weight before its update.
#[derive(Debug)]
pub struct Weight<'a> {
    /// Values, flattened and outside any graph.
    pub values: Tensor<1>,
    /// Shape; linear weights are `[fan_in, fan_out]`.
    pub shape: &'a [usize],
    /// Role and fans.
    pub spec: &'a Spec,
    /// Number of this step, from 1.
    pub time: usize,
    /// Learning rate, decay and eps at this step.
    pub rates: Rates,
    /// State, in the order of [`Rule::states`]; empty at the first step.
    pub states: Vec<Tensor<1>>,
}

/// A weight after its update.
#[derive(Debug)]
pub struct Moved {
    /// Values, flattened.
    pub values: Tensor<1>,
    /// State, in the order of [`Rule::states`].
    pub states: Vec<Tensor<1>>,
}

/// Settings of one weight at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// The scheduled learning rate times the weight's factor.
    pub lr: f64,
    /// Weight decay.
    pub decay: f64,
    /// Adam's eps.
    pub eps: f64,
}

/// A flattened gradient with a pending factor (from the clip).
#[derive(Debug)]
pub struct Gradient {
    values: Tensor<1>,
    factor: Option<Tensor<1>>,
    #[cfg_attr(not(feature = "flex"), expect(dead_code, reason = "only fused updates take the factor as a number"))]
    on_host: f32,
}

impl Gradient {
    /// `on_host` is the value of `factor`, if it is on the host.
    pub(super) fn new(values: Tensor<1>, factor: Option<Tensor<1>>, on_host: f32) -> Self {
        Self { values, factor, on_host }
    }

    /// The gradient with the factor applied.
    pub fn scaled(self) -> Tensor<1> {
        match self.factor {
            Some(factor) => self.values * factor,
            None => self.values,
        }
    }

    /// Whether the fused update supports it.
    #[cfg(feature = "flex")]
    pub(super) fn is_fused(&self) -> bool {
        crate::step::fused::takes(&self.values)
    }

    /// The gradient, and the factor as a number.
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

/// `w - lr decay w`.
pub fn decayed(w: Tensor<1>, rates: Rates) -> Tensor<1> {
    let rate = rates.lr * rates.decay;
    if rate == 0.0 { w } else { w * (1.0 - rate) }
}

/// `g + decay w`.
pub fn with_decay(g: Tensor<1>, w: &Tensor<1>, rates: Rates) -> Tensor<1> {
    if rates.decay == 0.0 { g } else { g + w.clone() * rates.decay }
}
