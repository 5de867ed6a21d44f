//! Initial values of biases.

/// `ln p_c` of each class c, with `p_c = (count_c + 1) / (sum + classes)`: a head with weight 0 then starts at the entropy of
/// the class frequencies. The added 1 keeps unseen classes finite.
pub fn log_prior(counts: &[u64]) -> Vec<f32> {
    let total = (counts.iter().sum::<u64>() + counts.len() as u64) as f64;
    counts.iter().map(|count| ((*count + 1) as f64 / total).ln() as f32).collect()
}

/// `-ln((1 - p) / p)`, whose sigmoid is p, the prior of the rare class (arXiv:1708.02002, section 3.3).
pub fn focal_prior(p: f64) -> f64 {
    -((1.0 - p) / p).ln()
}

/// A small positive bias, with which ReLUs start active. LSTM forget gates start at 1 or 2, in the sum of both bias vectors
/// if there are two.
pub const SMALL_POSITIVE: f64 = 0.01;

/// `1 / sqrt(fan_in)`, the bound of PyTorch's uniform bias of a linear layer.
pub fn torch_linear_bound(fan_in: f64) -> f64 {
    fan_in.powf(-0.5)
}
