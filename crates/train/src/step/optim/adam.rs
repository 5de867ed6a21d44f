use super::rule::{Gradient, Moved, Rates, Rule, Weight, decayed, with_decay};
#[cfg(feature = "flex")]
use crate::step::fused;
use burn::tensor::Tensor;
use unitgain_model::Update;

pub(super) fn lr() -> f64 {
    1e-3
}
pub(super) fn betas() -> [f64; 2] {
    [0.9, 0.95]
}
pub(super) fn eps() -> f64 {
    1e-8
}

/// `w -= lr m^ / (sqrt(v^) + eps)`, where m^ and v^ are the bias-corrected averages of the gradient and of its square
/// (arXiv:1412.6980, algorithm 1).
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// Decay rates of the two averages.
    pub betas: [f64; 2],
    /// Whether the decay is `w -= lr decay w` (arXiv:1711.05101, algorithm 2); otherwise it is added to the gradient.
    pub is_decoupled: bool,
}

impl Rule for Adam {
    fn states(&self) -> &'static [&'static str] {
        &["first", "second"]
    }

    fn update(&self) -> Update {
        Update::Normalized
    }

    fn step(&self, weight: Weight<'_>, gradient: Gradient) -> Moved {
        let Rates { lr, eps, .. } = weight.rates;
        let time = i32::try_from(weight.time).unwrap_or(i32::MAX);
        #[cfg(feature = "flex")]
        if gradient.is_fused() {
            let decay = weight.rates.decay;
            let (decay, l2) = if self.is_decoupled { (decay, 0.0) } else { (0.0, decay) };
            let adam = fused::Adam { betas: self.betas, lr, decay, l2, eps, time };
            let (g, factor) = gradient.parts();
            let (values, states) = fused::adam(adam, weight.values, g, factor, weight.states);
            return Moved { values, states };
        }
        let g = gradient.scaled();
        let (w, g) = match self.is_decoupled {
            true => (decayed(weight.values, weight.rates), g),
            false => {
                let g = with_decay(g, &weight.values, weight.rates);
                (weight.values, g)
            }
        };
        let [b1, b2] = self.betas;
        let mut states = weight.states.into_iter();
        let mut average = |b: f64, new: Tensor<1>| match states.next() {
            Some(old) => old * b + new * (1.0 - b),
            None => new * (1.0 - b),
        };
        let (first, second) = (average(b1, g.clone()), average(b2, g.square()));
        let (c1, c2) = (1.0 - b1.powi(time), 1.0 - b2.powi(time));
        let denominator = (second.clone() / c2).sqrt() + eps;
        let values = w - first.clone() / denominator * (lr / c1);
        Moved { values, states: vec![first, second] }
    }
}
