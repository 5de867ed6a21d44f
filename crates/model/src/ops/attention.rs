#[cfg(feature = "flex")]
use super::fused;
use super::precision::{cast, like};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Tensor, activation, module};

/// Causal attention `softmax(cap(scale q k^T)) v` with `cap(z) = softcap tanh(z / softcap)`, or no cap for `softcap` 0. `q` and
/// the result are `[sequences, time, heads, head_dim]`; `k` and `v` `[sequences, time, kv_heads, head_dim]`, with at least as
/// many times, the last of which are those of the queries; `kv_heads` divides `heads`.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64, softcap: f64) -> Tensor<4> {
    #[cfg(feature = "flex")]
    if let Some(y) = fused::attention(&q, &k, &v, scale, softcap) {
        return y;
    }
    let options =
        AttentionModuleOptions { scale: Some(scale), softcap: (softcap > 0.0).then_some(softcap), is_causal: true };
    let heads = q.dims()[2];
    let [q, k, v] = [q, k, v].map(|x| x.swap_dims(1, 2));
    let (k, v) = (per_query(k, heads), per_query(v, heads));
    if q.dtype() == DType::F32 {
        return module::attention(q, k, v, None, None, options).swap_dims(1, 2);
    }
    // In low precision burn's attention computes the softmax in that precision; here it is computed in f32.
    let ([.., queries, _], [.., keys, _]) = (q.dims(), k.dims());
    let logits = cast(q.clone().matmul(k.transpose()), DType::F32) * scale;
    let logits = match options.softcap {
        Some(cap) => (logits / cap).tanh() * cap,
        None => logits,
    };
    let later = Tensor::<2, Bool>::tril_mask([queries, keys], (keys - queries) as i64, &q.device());
    let weights = activation::softmax(logits.mask_fill(later.unsqueeze(), f32::NEG_INFINITY), 3);
    like(weights, &q).matmul(v).swap_dims(1, 2)
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
