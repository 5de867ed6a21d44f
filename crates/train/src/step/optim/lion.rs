use super::rule::{Gradient, Moved, Rule, Weight, decayed};
use unitgain_model::Update;

pub(super) fn lr() -> f64 {
    1e-4
}
pub(super) fn betas() -> [f64; 2] {
    [0.9, 0.99]
}

/// `w -= lr decay w; w -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g` (arXiv:2302.06675, algorithm 2).
#[derive(Clone, Copy, Debug)]
pub struct Lion {
    /// b1 for the average in the step, and b2 for the stored one.
    pub betas: [f64; 2],
}

impl Rule for Lion {
    fn states(&self) -> &'static [&'static str] {
        &["first"]
    }

    fn update(&self) -> Update {
        Update::Normalized
    }

    fn step(&self, mut weight: Weight<'_>, gradient: Gradient) -> Moved {
        let [b1, b2] = self.betas;
        let g = gradient.scaled();
        let m = weight.states.pop().unwrap_or_else(|| g.zeros_like());
        let direction = (m.clone() * b1 + g.clone() * (1.0 - b1)).sign();
        let values = decayed(weight.values, weight.rates) - direction * weight.rates.lr;
        Moved { values, states: vec![m * b2 + g * (1.0 - b2)] }
    }
}
