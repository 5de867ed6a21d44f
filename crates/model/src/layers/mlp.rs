use super::scalar_biases::ScalarBiases;
use crate::config::Activation;
use crate::linear::Linear;
use crate::ops::{activate, gated};
use crate::plan::{BranchPlan, MlpPlan};
use crate::probe::Probe;
use crate::weights::{Builder, Start};
use burn::module::Module;
use burn::tensor::Tensor;
use unitgain_init::Role;
use unitgain_norms::Norm;
use unitgain_residual::times;

/// `W_down phi(W_up x)`, or `W_down (phi(W_gate x) * W_up x)` if gated.
#[derive(Module, Debug)]
pub struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    /// Norm before the down projection.
    inner_norm: Norm,
    /// Scalar biases before the up projection, the activation and the down projection.
    biases: ScalarBiases,
    #[module(skip)]
    activation: Activation,
    /// Factors of the input and the output of the activation (1 except for u-muP).
    #[module(skip)]
    factors: [f64; 2],
}

impl Mlp {
    /// Builds the MLP of a plan.
    pub fn new(plan: &MlpPlan, builder: &mut Builder<'_>) -> Self {
        let BranchPlan { site, gain, writer_gain, weight_norm, .. } = plan.branch;
        let (d, d_ff) = (site.width, plan.d_ff);
        let inner_norm = plan.branch.inner_norm();
        let start = Start { bias: plan.bias, gain, norm: weight_norm, ..Start::default() };
        let reads = Start { activation_gain: if inner_norm.is_none() { plan.activation.gain() } else { 1.0 }, ..start };
        Self {
            gate: plan.activation.is_gated().then(|| builder.linear("gate", Role::MlpIn, [d, d_ff], start)),
            up: builder.linear("up", Role::MlpIn, [d, d_ff], start),
            down: builder.linear("down", Role::MlpOut, [d_ff, d], Start { gain: writer_gain, ..reads }),
            inner_norm: builder.norm(&inner_norm, d_ff, Role::Norm),
            biases: ScalarBiases::new(&plan.branch, 3, builder),
            activation: plan.activation,
            factors: plan.factors,
        }
    }

    /// The output for the input `x`, both `[sequences * time, width]`.
    ///
    /// # Panics
    /// If `x` has another width.
    pub fn forward(&self, x: Tensor<2>, sequences: usize, probe: &dyn Probe) -> Tensor<2> {
        let x = self.biases.add(0, x);
        let [before, after] = self.factors;
        let read = |y| times(self.biases.add(1, y), before);
        let hidden = match &self.gate {
            Some(gate) => {
                let gate = read(gate.forward(x.clone(), probe));
                gated(gate, self.up.forward(x, probe), self.activation)
            }
            None if self.biases.is_empty() && before == 1.0 => self.up.forward_with(x, Some(self.activation), probe),
            None => activate(read(self.up.forward(x, probe)), self.activation),
        };
        let hidden = times(hidden, after);
        let hidden = self.inner_norm.forward_rows(hidden, sequences);
        self.down.forward(self.biases.add(2, hidden), probe)
    }
}
