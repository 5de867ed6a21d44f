//! First values of biases.

/// `ln p_c` of each class c, with `p_c = (count_c + 1) / (sum + classes)`: a head of weight 0 then starts at the
/// loss of the class frequencies. The added 1 keeps a class that was not seen finite.
pub fn log_prior(counts: &[u64]) -> Vec<f32> {
    let total = (counts.iter().sum::<u64>() + counts.len() as u64) as f64;
    counts.iter().map(|count| ((*count + 1) as f64 / total).ln() as f32).collect()
}

/// `-ln((1 - p) / p)`: a sigmoid of it is p, the prior of the rare class (arXiv:1708.02002, section 3.3).
pub fn focal_prior(p: f64) -> f64 {
    -((1.0 - p) / p).ln()
}

/// A small positive start, so that no ReLU is off at first (0.01 in practice); LSTM forget gates start at 1 or 2,
/// and where there are two bias vectors it is their sum that counts.
pub const SMALL_POSITIVE: f64 = 0.01;

/// `1 / sqrt(fan_in)`: PyTorch draws the bias of a linear layer from U(-bound, bound).
pub fn torch_linear_bound(fan_in: f64) -> f64 {
    fan_in.powf(-0.5)
}
