#!/usr/bin/env python3
"""The same training steps in unitgain and in PyTorch, taking turns.

Both train a decoder-only Transformer in f32 with the same sizes: fused causal attention, exact GELU or SwiGLU, a
tied head, AdamW (fused), and the norm of all gradients clipped to 1. Each reads its loss and its gradient norm on
every step; unitgain logs all of its own (per-layer gradient norms, the stream's rms) besides. The number of threads
is the same.

    cargo build --release
    python3 benches/against_pytorch.py [--rounds 5] [--only NAME] [--compile] [--jax] [--before BINARY] [--json FILE]

Needs PyTorch (`pip install torch`), and JAX for --jax (`pip install jax`), which compiles the whole
step. The medians of all steps of all rounds are compared, with the spread of the ratio over rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
# layers, width, heads, context, batch, steps a round
SIZES = {
    "tiny": (2, 64, 4, 32, 8, 60),
    "small": (4, 128, 4, 64, 16, 20),
    "deep": (24, 64, 4, 64, 8, 15),
    "medium": (6, 384, 6, 256, 8, 4),
    "llama": (6, 384, 6, 256, 8, 4),
    "gpu": (12, 768, 12, 1024, 8, 5),
}
# Sizes that only a GPU finishes in time.
LARGE = {"gpu"}
VOCABULARY = 65


class RmsNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Block(nn.Module):
    def __init__(self, width, heads, llama, hidden):
        super().__init__()
        self.heads, self.llama = heads, llama
        norm = RmsNorm if llama else nn.LayerNorm
        self.first, self.second = norm(width), norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        if llama:
            self.gate = nn.Linear(width, hidden, bias=False)
            self.q_norm, self.k_norm = RmsNorm(width // heads), RmsNorm(width // heads)

    def forward(self, x, rotation):
        b, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, d // self.heads).unbind(2)
        if self.llama:
            q, k = rotate(self.q_norm(q), rotation), rotate(self.k_norm(k), rotation)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.second(x)
        h = F.silu(self.gate(h)) * self.up(h) if self.llama else F.gelu(self.up(h))
        return x + self.down(h)


def rotate(x, rotation):
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Model(nn.Module):
    def __init__(self, layers, width, heads, context, llama, hidden):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = None if llama else nn.Parameter(torch.randn(context, width) * 0.02)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads, llama, hidden) for _ in range(layers))
        self.last = (RmsNorm if llama else nn.LayerNorm)(width)
        half = width // heads // 2
        angle = torch.arange(context)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos()[:, None, :])
        self.register_buffer("sin", angle.sin()[:, None, :])

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = F.linear(self.last(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Before:
    """An older build of unitgain."""

    def __init__(self, name, binary, backend):
        self.name, self.binary, self.backend = name, binary, backend

    def steps(self, n):
        return [unitgain(self.name, n, self.backend, self.binary)[0]["ms"]]


class Torch:
    def __init__(self, name, compiled, device):
        layers, width, heads, context, batch, _ = SIZES[name]
        llama = name == "llama"
        hidden = -(-8 * width // 3 // 8) * 8 if llama else 4 * width
        torch.manual_seed(1)
        model = Model(layers, width, heads, context, llama, hidden).to(device)
        self.device = device
        self.model = torch.compile(model) if compiled else model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.shape = (batch, context)

    def steps(self, n):
        times = []
        for _ in range(n):
            started = time.perf_counter()
            tokens = torch.randint(VOCABULARY, self.shape).to(self.device)
            loss = self.model(tokens, tokens.roll(-1, 1))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            loss.item(), norm.item()
            times.append((time.perf_counter() - started) * 1e3)
        return times


BINARY = ROOT / "target/release/unitgain"


def unitgain(name, steps, backend, binary=BINARY):
    layers, width, heads, context, batch, _ = SIZES[name]
    settings = {
        "model.n_layers": layers,
        "model.d_model": width,
        "model.n_heads": heads,
        "model.context": context,
        "train.batch_size": batch,
    }
    if name == "llama":
        settings |= {"model.norm": "rms_norm", "model.qk_norm": "rms_norm", "model.activation": "swi_glu"}
        settings |= {"model.position": "rope"}
    command = [str(binary), "bench", str(ROOT / "benches/speed.toml"), "--json"]
    command += ["--rounds", "1", "--steps", str(steps), "--warmup", "3", "--backend", backend]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return report["configurations"][0], report["threads"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(SIZES))
    parser.add_argument("--compile", action="store_true", help="also PyTorch compiled")
    parser.add_argument("--jax", action="store_true", help="also JAX")
    parser.add_argument("--backend", default="flex", help="of unitgain")
    parser.add_argument("--device", default="cpu", help="of PyTorch")
    parser.add_argument("--before", type=Path, help="also an older build of unitgain")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    _, threads = unitgain("tiny", 1, arguments.backend)
    torch.set_num_threads(threads)
    print(f"{threads} threads, PyTorch {torch.__version__}; medians in ms a step, ratios with their range over rounds")
    kinds = ["eager", "compiled"] if arguments.compile else ["eager"]
    results = {}
    for name in [arguments.only] if arguments.only else [name for name in SIZES if name not in LARGE]:
        steps = SIZES[name][-1]
        peers = {kind: Torch(name, kind == "compiled", arguments.device) for kind in kinds}
        if arguments.jax:
            from in_jax import Jax

            peers["jax"] = Jax(SIZES[name], name == "llama", VOCABULARY)
        if arguments.before:
            peers["before"] = Before(name, arguments.before, arguments.backend)
        for peer in peers.values():
            peer.steps(3)
        rounds = []
        for _ in range(arguments.rounds):
            ours, _ = unitgain(name, steps, arguments.backend)
            rounds.append({"unitgain": ours["ms"]} | {k: statistics.median(p.steps(steps)) for k, p in peers.items()})
        result = {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}
        line = f"{name:8} unitgain {result['unitgain']:8.2f}"
        for kind in peers:
            ratios = [r[kind] / r["unitgain"] for r in rounds]
            result[f"ratio_{kind}"] = [statistics.median(ratios), min(ratios), max(ratios)]
            line += f"   {kind} {result[kind]:8.2f}  ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(line, flush=True)
        results[name] = result
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
