#[cfg(feature = "flex")]
use super::fused;
use burn::tensor::{Int, Tensor, activation};

/// Mean cross-entropy in nats, of shape `[1]`.
///
/// `logits` are `[sequences, time, vocabulary]`, `targets` `[sequences, time]`. With `weights`, `[sequences, time]`, the mean
/// is weighted.
pub fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>, weights: Option<Tensor<2>>) -> Tensor<1> {
    let [sequences, time, vocabulary] = logits.dims();
    let rows = sequences * time;
    let (logits, targets) = (logits.reshape([rows, vocabulary]), targets.reshape([rows]));
    let weights = weights.map(|weights| weights.reshape([rows]));
    #[cfg(feature = "flex")]
    if let Some(loss) = fused::cross_entropy(&logits, &targets, weights.as_ref()) {
        return loss;
    }
    let log_p = activation::log_softmax(logits, 1);
    let loss = log_p.gather(1, targets.reshape([rows, 1])).neg();
    match weights {
        Some(weights) => {
            let weights = weights.reshape([rows, 1]);
            (loss * weights.clone()).sum() / weights.sum()
        }
        None => loss.mean(),
    }
}
