use serde::{Deserialize, Serialize};

/// The multipliers of u-muP, all 1 by default, which determine the scales of its operations (arXiv:2407.17465, appendix B and
/// F).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnitScaling {
    /// alpha_ffn-act: factor of the input of the MLP's activation.
    pub activation: f64,
    /// alpha_attn-softmax: the factor of `q.k` is this over head_dim.
    pub attention: f64,
    /// alpha_res: size of the sum of all branches, relative to the embedding.
    pub residual: f64,
    /// alpha_res-attn-ratio: size of the sum of attention branches, relative to the sum of MLP branches.
    pub residual_attention_ratio: f64,
    /// alpha_loss-softmax: factor of the logits.
    pub loss: f64,
}

impl Default for UnitScaling {
    fn default() -> Self {
        Self::ONE
    }
}

impl UnitScaling {
    pub(crate) const ONE: Self =
        Self { activation: 1.0, attention: 1.0, residual: 1.0, residual_attention_ratio: 1.0, loss: 1.0 };

    /// Every multiplier with its key.
    pub(crate) fn each(self) -> [(&'static str, f64); 5] {
        let Self { activation, attention, residual, residual_attention_ratio, loss } = self;
        [
            ("activation", activation),
            ("attention", attention),
            ("residual", residual),
            ("residual_attention_ratio", residual_attention_ratio),
            ("loss", loss),
        ]
    }

    /// tau of branch `index` (from 0; attention if even) in a model of `blocks` blocks: the stream becomes
    /// `(x + tau f) / sqrt(1 + tau^2)`.
    pub fn tau(self, index: usize, blocks: usize) -> f64 {
        u_mup_tau(index, blocks, self.residual, self.residual_attention_ratio)
    }

    /// Size of the output of causal attention over `time` tokens, between `sqrt(ln(time) / time)` for uniform weights and 1 for
    /// one-hot weights, by the size of the logits (appendix B, as fitted in the authors' package).
    pub fn attention_size(self, head_dim: usize, time: usize) -> f64 {
        // ln(time) / time decreases only from e on.
        let time = (time as f64).max(std::f64::consts::E);
        let sharp = 1.0 / (1.0 + 4.0 * head_dim as f64 / (self.attention * self.attention));
        (time.ln() / time).powf(0.5 * (1.0 - sharp))
    }
}

/// tau of u-muP for branch `index` (from 0; attention if even) in a model of `blocks` blocks (arXiv:2407.17465, appendix F): the
/// stream becomes `x / sqrt(1 + tau^2) + f(x) tau / sqrt(1 + tau^2)`. `alpha` is the size of the sum of all branches of one
/// kind, relative to the embedding, `ratio` that of attention relative to MLP.
pub fn u_mup_tau(index: usize, blocks: usize, alpha: f64, ratio: f64) -> f64 {
    let mlp = alpha * (2.0 / (1.0 + ratio * ratio)).sqrt();
    let attention = ratio * mlp;
    let own = if index.is_multiple_of(2) { attention } else { mlp };
    let (attentions, mlps) = (index.div_ceil(2) as f64, (index / 2) as f64);
    own / (blocks as f64 + attentions * attention * attention + mlps * mlp * mlp).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn tau_is_that_of_the_authors_code() {
        let cases: [(f64, f64, [f64; 8]); 2] = [
            (1.0, 1.0, [0.5, 0.447214, 0.408248, 0.377964, 0.353553, 0.333333, 0.316228, 0.301511]),
            (0.5, 0.25, [0.085749, 0.341743, 0.080845, 0.322329, 0.076696, 0.305888, 0.073127, 0.29173]),
        ];
        for (alpha, ratio, want) in cases {
            for (i, want) in want.into_iter().enumerate() {
                assert!(close(u_mup_tau(i, 4, alpha, ratio), want), "{alpha} {ratio} {i}");
            }
        }
        assert!(close(u_mup_tau(0, 2, 1.0, 1.0), 0.5f64.sqrt()));
        // With alpha = 1 attention and MLP have each written as much as the embedding.
        let blocks = 6;
        let (mut stream, mut written) = (1.0f64, 0.0f64);
        for i in 0..2 * blocks {
            let tau = u_mup_tau(i, blocks, 1.0, 1.0);
            let keep = 1.0 / (1.0 + tau * tau);
            (stream, written) = (stream * keep, written * keep + tau * tau * keep);
        }
        assert!((2.0 * stream - written).abs() < 1e-9);
    }

    #[test]
    fn attention_is_between_uniform_and_one_hot() {
        let of = |attention: f64, head_dim, time| {
            UnitScaling { attention, ..UnitScaling::ONE }.attention_size(head_dim, time)
        };
        assert!(close(of(1e-6, 16, 64), (64f64.ln() / 64.0).sqrt()));
        assert!(close(of(1e6, 16, 64), 1.0));
        assert!(of(1.0, 16, 1) < 1.0 && of(1.0, 16, 1) > 0.5);
    }
}
