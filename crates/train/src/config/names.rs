//! Suggestions for unknown keys: names of other tools, keys of other tables, and quoted dotted keys.

use super::explain::shown;
use super::schema::Keys;

/// A name in another tool, our key, and a remark.
type Name = (&'static str, &'static str, &'static str);

/// Names of other tools.
const OTHERS: &[(&str, &[Name])] = &[
    (
        "nanoGPT",
        &[
            ("n_embd", "model.d_model", ""),
            ("n_layer", "model.n_layers", ""),
            ("n_head", "model.n_heads", ""),
            ("block_size", "model.context", ""),
            ("max_iters", "train.steps", ""),
            ("gradient_accumulation_steps", "train.accumulate", ""),
            ("grad_clip", "train.clip", ""),
            ("dtype", "train.precision", ""),
            ("compile", "train.fused", ", which is on by default"),
            ("device", "backend", ""),
            ("learning_rate", "optimizer.lr", ""),
            ("beta1", "optimizer.betas", " = [beta1, beta2]"),
            ("beta2", "optimizer.betas", " = [beta1, beta2]"),
            ("warmup_iters", "schedule.warmup", ""),
            ("decay_lr", "schedule.kind", ": constant does not decay"),
            ("lr_decay_iters", "schedule", ": it decays until train.steps, so leave this out"),
            ("min_lr", "schedule.min_ratio", ", which is min_lr / learning_rate"),
            ("eval_interval", "eval.every", ""),
            ("eval_iters", "eval.tokens", ", which does not depend on the batch"),
            ("eval_only", "eval", ": there is an evaluation after the last step"),
            ("log_interval", "log.every", ""),
            ("always_save_checkpoint", "checkpoint.every", ""),
            ("init_from", "init", ": a run goes on with `unitgain train --resume DIR`"),
            ("out_dir", "checkpoint", ": the folder of a run is `unitgain train --out DIR`"),
            ("dataset", "data", ": task = \"text\" and path"),
            ("wandb_log", "log", ": every run has metrics.jsonl"),
        ],
    ),
    (
        "Hugging Face's config.json",
        &[
            ("hidden_size", "model.d_model", ""),
            ("num_hidden_layers", "model.n_layers", ""),
            ("num_attention_heads", "model.n_heads", ""),
            ("num_key_value_heads", "model.n_kv_heads", ""),
            ("intermediate_size", "model.d_ff", ""),
            ("n_inner", "model.d_ff", ""),
            ("hidden_act", "model.activation", ""),
            ("activation_function", "model.activation", ""),
            ("rms_norm_eps", "model.norm", " = { kind = \"rms_norm\", eps = .. }"),
            ("layer_norm_eps", "model.norm", " = { kind = \"layer_norm\", eps = .. }"),
            ("layer_norm_epsilon", "model.norm", " = { kind = \"layer_norm\", eps = .. }"),
            ("max_position_embeddings", "model.context", ""),
            ("n_positions", "model.context", ""),
            ("n_ctx", "model.context", ""),
            ("tie_word_embeddings", "model.tie_embeddings", ""),
            ("rope_theta", "model.position", " = { kind = \"rope\", theta = .. }"),
            ("sliding_window", "model.window", ""),
            ("partial_rotary_factor", "model.position", " = { kind = \"rope\", fraction = .. }"),
            ("rotary_pct", "model.position", " = { kind = \"rope\", fraction = .. }"),
            ("rope_scaling", "model.position", " = { kind = \"rope\", scaling = { kind = \"llama3\", .. } }"),
            ("logits_scaling", "model.logit_scale", ", of which it is the inverse"),
            ("initializer_range", "model.init", " = { kind = \"normal\", std = .. }"),
            ("attention_dropout", "model.dropout", ", which is that of every branch"),
            ("attn_pdrop", "model.dropout", ", which is that of every branch"),
            ("resid_pdrop", "model.dropout", ", which is that of every branch"),
            ("embd_pdrop", "model.dropout", ", which is that of every branch"),
            ("hidden_dropout_prob", "model.dropout", ", which is that of every branch"),
            ("attn_logit_softcapping", "model.attention_softcap", ""),
            ("final_logit_softcapping", "model.logit_softcap", ""),
            ("torch_dtype", "train.precision", ""),
        ],
    ),
    (
        "Hugging Face's TrainingArguments",
        &[
            ("max_steps", "train.steps", ""),
            ("num_train_epochs", "train.steps", ": a run is counted in steps"),
            ("per_device_train_batch_size", "train.batch_size", ""),
            ("per_device_eval_batch_size", "eval.tokens", ": how much an evaluation reads"),
            ("max_grad_norm", "train.clip", ""),
            ("bf16", "train.precision", " = \"bf16\""),
            ("fp16", "train.precision", " = \"bf16\""),
            ("optim", "optimizer.kind", ""),
            ("adam_beta1", "optimizer.betas", " = [adam_beta1, adam_beta2]"),
            ("adam_beta2", "optimizer.betas", " = [adam_beta1, adam_beta2]"),
            ("adam_epsilon", "optimizer.eps", ""),
            ("lr_scheduler_type", "schedule.kind", ""),
            ("warmup_steps", "schedule.warmup", ""),
            ("warmup_ratio", "schedule.warmup", ", in steps"),
            ("logging_steps", "log.every", ""),
            ("eval_steps", "eval.every", ""),
            ("eval_strategy", "eval.every", ""),
            ("evaluation_strategy", "eval.every", ""),
            ("save_steps", "checkpoint.every", ""),
            ("save_total_limit", "checkpoint.keep", ""),
            ("output_dir", "checkpoint", ": the folder of a run is `unitgain train --out DIR`"),
        ],
    ),
    (
        "x-transformers",
        &[
            ("dim", "model.d_model", ""),
            ("depth", "model.n_layers", ""),
            ("heads", "model.n_heads", ""),
            ("kv_heads", "model.n_kv_heads", ""),
            ("attn_kv_heads", "model.n_kv_heads", ""),
            ("dim_head", "model.head_dim", ""),
            ("attn_dim_head", "model.head_dim", ""),
            ("max_seq_len", "model.context", ""),
            ("num_tokens", "model.vocab_size", ", which is that of the data unless it is set"),
            ("ff_mult", "model.d_ff", ", which is ff_mult d_model"),
            ("ff_glu", "model.activation", " = \"swi_glu\" or \"ge_glu\""),
            ("ff_swish", "model.activation", " = \"silu\" or \"swi_glu\""),
            ("use_rmsnorm", "model.norm", " = \"rms_norm\""),
            ("use_simple_rmsnorm", "model.norm", " = { kind = \"rms_norm\", gain = false }"),
            ("use_scalenorm", "model.norm", " = \"scale_norm\""),
            ("use_dynamic_tanh", "model.norm", " = \"dyt\""),
            ("pre_norm", "model.placement", " = \"pre_norm\" or \"post_norm\""),
            ("sandwich_norm", "model.placement", " = \"sandwich\""),
            ("resi_dual", "model.placement", " = \"res_dual\""),
            ("scale_residual", "model.scale", ""),
            ("use_layerscale", "model.scale", " = \"layer_scale\""),
            ("rotary_pos_emb", "model.position", " = \"rope\""),
            ("use_abs_pos_emb", "model.position", " = \"learned\" or \"none\""),
            ("post_emb_norm", "model.embedding_norm", ""),
            ("attn_qk_norm", "model.qk_norm", ""),
            ("attn_head_scale", "model.head_scale", ""),
            ("tie_embedding", "model.tie_embeddings", ""),
            ("emb_dropout", "model.dropout", ", which is that of every branch"),
            ("attn_dropout", "model.dropout", ", which is that of every branch"),
            ("ff_dropout", "model.dropout", ", which is that of every branch"),
        ],
    ),
    (
        "other tools",
        &[
            ("num_layers", "model.n_layers", ""),
            ("layers", "model.n_layers", ""),
            ("num_heads", "model.n_heads", ""),
            ("embed_dim", "model.d_model", ""),
            ("hidden_dim", "model.d_model", ""),
            ("width", "model.d_model", ""),
            ("ffn_dim", "model.d_ff", ""),
            ("mlp_ratio", "model.d_ff", ", which is mlp_ratio d_model"),
            ("seq_len", "model.context", ""),
            ("sequence_length", "model.context", ""),
            ("epochs", "train.steps", ": a run is counted in steps"),
            ("max_epochs", "train.steps", ": a run is counted in steps"),
            ("accumulate_grad_batches", "train.accumulate", ""),
            ("gradient_clip_val", "train.clip", ""),
            ("num_threads", "threads", ""),
        ],
    ),
];

/// Keys that only some kinds of a table have, and what the other kinds have instead.
const OTHER_KINDS: [(&str, &str); 1] = [(
    "model.parametrization.output_multiplier",
    "The standard parametrization has none, as every factor of it is 1; { kind = \"mup\", base_width = .. } with the model's own \
     d_model is the standard model, and has one. u-muP's multiplier of the logits is called loss, which also scales their \
     gradient to size 1; set loss",
)];

/// Maximum number of suggested keys of the same name.
const MOST: usize = 3;

/// What to write instead of the key `name` of a table, if known.
pub(super) fn suggestion(table: &[String], name: &str, keys: &Keys) -> Option<String> {
    let table: Vec<String> = table.iter().filter(|key| key.parse::<usize>().is_err()).cloned().collect();
    if name.contains('.') {
        let parts: Vec<String> = name.split('.').map(|part| part.trim().to_string()).collect();
        let meant = [[table, parts.clone()].concat(), parts].into_iter().find(|path| keys.contains(path))?;
        let (last, parents) = meant.split_last()?;
        return Some(format!(
            "A name in quotes is one key, with the dot in it; write `{} = ..` without quotes above the first table, or \
             `{last} = ..` below [{}]",
            shown(&meant),
            shown(parents)
        ));
    }
    let own = [table, vec![name.to_string()]].concat();
    if keys.contains(&own) {
        // It belongs to another kind of the same table.
        return OTHER_KINDS.iter().find(|(key, _)| *key == shown(&own)).map(|(_, said)| said.to_string());
    }
    let mut elsewhere: Vec<&Vec<String>> = keys.iter().filter(|key| key.last().is_some_and(|k| k == name)).collect();
    elsewhere.sort_by_key(|key| key.len());
    if let Some(least) = elsewhere.first().map(|key| key.len()) {
        let near = elsewhere.into_iter().filter(|key| key.len() == least).take(MOST);
        let all: Vec<String> = near.map(|key| format!("`{}`", shown(key))).collect();
        let at_top = if least == 1 { ", above the first table" } else { "" };
        return Some(format!("It belongs elsewhere: write {}{at_top}", all.join(" or ")));
    }
    OTHERS.iter().find_map(|(tool, names)| {
        let (_, key, said) = names.iter().find(|(other, ..)| *other == name)?;
        let is_known = keys.contains(&key.split('.').map(String::from).collect::<Vec<_>>());
        is_known.then(|| format!("`{name}` of {tool} is `{key}` here{said}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;
    use crate::config::schema;

    #[test]
    fn every_name_of_another_tool_leads_to_a_key() {
        let keys = &schema::of::<RunConfig>().keys;
        for (key, _) in OTHER_KINDS {
            assert!(keys.contains(&key.split('.').map(String::from).collect::<Vec<_>>()), "{key} is no key");
        }
        let mut seen = std::collections::BTreeSet::new();
        for (tool, names) in OTHERS {
            for (name, key, _) in *names {
                let path: Vec<String> = key.split('.').map(String::from).collect();
                assert!(keys.contains(&path), "{tool}: {name} leads to {key}, which is no key");
                assert!(!keys.iter().any(|key| key.last().is_some_and(|last| last == name)), "{name} is a key of ours");
                assert!(seen.insert(name), "{name} is there twice");
                let said = suggestion(&[], name, keys).unwrap();
                assert!(said.contains(tool) && said.contains(&format!("`{key}`")), "{name}: {said}");
            }
        }
    }
}
