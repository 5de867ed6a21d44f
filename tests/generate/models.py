#!/usr/bin/env python3
"""Random models of the reference library, for the golden cases of tests/golden/models.

    pip install torch==2.9.1 transformers==4.57.1 safetensors
    python3 tests/generate/models.py [NAME ..]

A case is a folder with config.json and model.safetensors as the library writes them, tensors.safetensors (token ids, logits,
hidden states) and case.json (loss, the gradient norm of every parameter, tolerances). All parameters are drawn anew, so that
gains and biases matter.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent / "golden/models"
SIZES = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
# Sizes that a kind calls otherwise or does not have.
ABSENT = {
    "opt": ["intermediate_size", "num_key_value_heads"],
    "openai-gpt": [size for size in SIZES if size.startswith(("hidden", "intermediate", "num_", "max_"))],
    "gpt_neox": ["num_key_value_heads"],
}
# Name of the case: model_type, and the fields that differ from SIZES.
CASES = {
    "llama3_tied": ("llama", {"rope_theta": 100.0, "rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "head_dim": 6}),
    "mistral": ("mistral", {"sliding_window": 3, "head_dim": 4}),
    "mistral_full": ("mistral", {"sliding_window": None, "head_dim": 6, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {"rope_theta": 1000.0}),
    "qwen2_window": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 6}),
    "qwen3_biases": ("qwen3", {"head_dim": 4, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma": ("gemma", {"head_dim": 6, "hidden_activation": "gelu_pytorch_tanh"}),
    "gemma3": ("gemma3_text", {
        "head_dim": 6,
        "query_pre_attn_scalar": 5,
        "sliding_window": 3,
        "rope_theta": 1000.0,
        "rope_local_base_freq": 100.0,
        "layer_types": ["sliding_attention", "full_attention"],
    }),
    "olmo": ("olmo", {"num_key_value_heads": 4}),
    "granite": ("granite", {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.0,
    }),
    "starcoder2": ("starcoder2", {"sliding_window": 5}),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "phi3": ("phi3", {"sliding_window": 6}),
    "opt_pre_norm": ("opt", {"ffn_dim": 40, "word_embed_proj_dim": 16, "do_layer_norm_before": True}),
    "phi": ("phi", {"tie_word_embeddings": False}),
    "openai_gpt": ("openai-gpt", {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "gpt_neox_sequential": ("gpt_neox", {"use_parallel_residual": False, "rotary_pct": 1.0, "tie_word_embeddings": True}),
    "cohere": ("cohere", {"logit_scale": 0.5}),
    "nemotron": ("nemotron", {"attention_bias": True, "mlp_bias": True, "head_dim": 4}),
    "glm4": ("glm4", {"attention_bias": True, "head_dim": 8}),
}


def make(name):
    kind, changes = CASES[name]
    seed = 700 + sorted(CASES).index(name)
    torch.manual_seed(seed)
    sizes = {key: size for key, size in SIZES.items() if key not in ABSENT.get(kind, [])}
    config = AutoConfig.for_model(kind, **(sizes | changes))
    config._attn_implementation = "eager"
    for field in ["attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "residual_dropout", "embedding_dropout", "dropout"]:
        if hasattr(config, field):
            setattr(config, field, 0.0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for path, p in model.named_parameters():
            gain = 1.0 if p.dim() == 1 and path.endswith("weight") and "gemma" not in kind else 0.0
            p.copy_(gain + torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.25))
    folder = ROOT / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids = torch.randint(3, config.vocab_size, (2, 10))
    output = model(ids, output_hidden_states=True)
    logits = output.logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    norms = {path: p.grad.norm().item() for path, p in model.named_parameters()}
    tensors = {"input_ids": ids, "logits": logits}
    tensors |= {f"hidden.{i}": h for i, h in enumerate(output.hidden_states)}
    tensors = {path: t.detach().contiguous() for path, t in tensors.items()}
    save_file(tensors, folder / "tensors.safetensors")
    weights = load_file(folder / "model.safetensors")
    case = {
        "case": f"models/{name}",
        "kind": "hf_model",
        "settings": {
            "model_type": kind,
            "class": type(model).__name__,
            "transformers": transformers.__version__,
            "B": 2,
            "T": 10,
            "seed": seed,
            "parameters": sum(w.numel() for w in weights.values()),
            "attention": "eager",
            "dtype": "float32",
            "tied_embeddings": bool(config.tie_word_embeddings),
        },
        "tensors": {path: {"shape": list(t.shape), "dtype": str(t.dtype).split(".")[1]} for path, t in tensors.items()},
        "expected": {
            "loss": loss.item(),
            "logits_std": logits.std().item(),
            "grad_norms": norms,
            "greedy_next": logits[:, -1].argmax(-1).tolist(),
        },
        "tolerance": {
            "logits": {"atol": 1e-4, "rtol": 1e-4},
            "loss": {"atol": 1e-5, "rtol": 1e-5},
            "grad_norms": {"atol": 1e-5 * max(norms.values()), "rtol": 1e-4},
        },
        "loss": "mean cross-entropy of token t+1 given tokens <= t, over B*(T-1) positions",
        "generated_by": "tests/generate/models.py",
        "torch": torch.__version__,
    }
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")
    print(name, f"loss {loss.item():.4f}", f"{sum(f.stat().st_size for f in folder.iterdir()) / 1e3:.0f} kB", flush=True)


for name in sys.argv[1:] or CASES:
    make(name)
