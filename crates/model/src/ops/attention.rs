#[cfg(feature = "flex")]
use super::fused;
use super::precision::{cast, like};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Device, Tensor, activation, module};

/// Causal attention `softmax(cap(scale q k^T)) v` with `cap(z) = softcap tanh(z / softcap)`, or no cap for `softcap` 0, over
/// the last `window` keys up to the query's own (arXiv:2004.05150), or all of them for None. `q` and the result are
/// `[sequences, time, heads, head_dim]`; `k` and `v` `[sequences, time, kv_heads, head_dim]`, with at least as many times, the
/// last of which are those of the queries; `kv_heads` divides `heads`.
pub fn attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scale: f64,
    softcap: f64,
    window: Option<usize>,
) -> Tensor<4> {
    let ([_, queries, heads, _], keys) = (q.dims(), k.dims()[1]);
    let window = window.filter(|window| *window < keys);
    #[cfg(feature = "flex")]
    if let Some(y) = fused::attention(&q, &k, &v, scale, softcap, window) {
        return y;
    }
    let options =
        AttentionModuleOptions { scale: Some(scale), softcap: (softcap > 0.0).then_some(softcap), is_causal: true };
    let [q, k, v] = [q, k, v].map(|x| x.swap_dims(1, 2));
    let (k, v) = (per_query(k, heads), per_query(v, heads));
    if q.dtype() == DType::F32 && window.is_none() {
        return module::attention(q, k, v, None, None, options).swap_dims(1, 2);
    }
    // In low precision burn's attention computes the softmax in that precision; here it is computed in f32.
    let logits = cast(q.clone().matmul(k.transpose()), DType::F32) * scale;
    let logits = match options.softcap {
        Some(cap) => (logits / cap).tanh() * cap,
        None => logits,
    };
    let unseen = unseen(queries, keys, window, &q.device());
    let weights = activation::softmax(logits.mask_fill(unseen.unsqueeze(), f32::NEG_INFINITY), 3);
    like(weights, &q).matmul(v).swap_dims(1, 2)
}

/// The keys that a query does not see, `[queries, keys]`: later ones, and those before the last `window` up to its own. The
/// last keys are those of the queries.
pub fn unseen(queries: usize, keys: usize, window: Option<usize>, device: &Device) -> Tensor<2, Bool> {
    let offset = (keys - queries) as i64;
    let later = Tensor::<2, Bool>::tril_mask([queries, keys], offset, device);
    match window.filter(|window| *window < keys) {
        Some(window) => {
            let recent = Tensor::<2, Bool>::tril_mask([queries, keys], offset - window as i64, device);
            later.bool_or(recent.bool_not())
        }
        None => later,
    }
}

/// `[sequences, kv_heads, time, head_dim]` with each head repeated for the query heads of its group.
fn per_query(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [sequences, kv_heads, time, head_dim] = x.dims();
    if heads == kv_heads {
        return x;
    }
    let group = heads / kv_heads;
    x.unsqueeze_dim::<5>(2)
        .expand([sequences, kv_heads, group, time, head_dim])
        .reshape([sequences, heads, time, head_dim])
}
