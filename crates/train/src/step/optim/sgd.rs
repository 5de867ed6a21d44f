use super::rule::{Gradient, Moved, Rule, Weight, with_decay};
use unitgain_model::Update;

pub(super) fn lr() -> f64 {
    0.1
}
pub(super) fn momentum() -> f64 {
    0.9
}

/// `b = momentum b + g; w -= lr b`, the decay added to g (Sutskever et al. 2013).
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Decay rate of b.
    pub momentum: f64,
    /// Whether the update is `g + momentum b` (Nesterov).
    pub nesterov: bool,
}

impl Rule for Sgd {
    fn states(&self) -> &'static [&'static str] {
        &["first"]
    }

    fn update(&self) -> Update {
        Update::Proportional
    }

    fn step(&self, mut weight: Weight<'_>, gradient: Gradient) -> Moved {
        let g = with_decay(gradient.scaled(), &weight.values, weight.rates);
        let b = match weight.states.pop() {
            Some(b) => b * self.momentum + g.clone(),
            None => g.clone(),
        };
        let direction = if self.nesterov { g + b.clone() * self.momentum } else { b.clone() };
        Moved { values: weight.values - direction * weight.rates.lr, states: vec![b] }
    }
}
