use burn::tensor::{Int, Tensor, activation};

/// Mean cross-entropy in nats, of shape `[1]`.
///
/// `logits` are `[batch, time, vocabulary]`, `targets` `[batch, time]`. With `weights`, also
/// `[batch, time]`, the mean is weighted: a position of weight 0 is not asked for.
pub fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>, weights: Option<Tensor<2>>) -> Tensor<1> {
    let [batch, time, vocabulary] = logits.dims();
    let rows = batch * time;
    let log_p = activation::log_softmax(logits.reshape([rows, vocabulary]), 1);
    let loss = log_p.gather(1, targets.reshape([rows, 1])).neg();
    match weights {
        Some(weights) => {
            let weights = weights.reshape([rows, 1]);
            (loss * weights.clone()).sum() / weights.sum()
        }
        None => loss.mean(),
    }
}
