"""The model and the step of against_pytorch.py in JAX, compiled as a whole by `jit`."""

import time

import jax
import jax.numpy as jnp
import numpy as np

BETAS, EPS, DECAY, LR = (0.9, 0.95), 1e-8, 0.1, 1e-3


def norm(x, weight, bias=None):
    if bias is None:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight
    x = x - jnp.mean(x, -1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight + bias


def rotate(x, cos, sin):
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


class Jax:
    def __init__(self, sizes, llama, vocabulary):
        layers, width, heads, context, batch, _ = sizes
        hidden = -(-8 * width // 3 // 8) * 8 if llama else 4 * width
        self.draw, self.shape, self.vocabulary = np.random.default_rng(1), (batch, context), vocabulary
        matrix = lambda rows, columns: self.draw.normal(0, 0.02, (rows, columns)).astype(np.float32)
        affine = lambda n: [np.ones(n, np.float32)] if llama else [np.ones(n, np.float32), np.zeros(n, np.float32)]

        def block():
            own = {"first": affine(width), "second": affine(width), "qkv": matrix(width, 3 * width)}
            own |= {"out": matrix(width, width), "up": matrix(width, hidden), "down": matrix(hidden, width)}
            if llama:
                own |= {"gate": matrix(width, hidden), "q": affine(width // heads), "k": affine(width // heads)}
            return own

        self.parameters = {"tokens": matrix(vocabulary, width), "blocks": [block() for _ in range(layers)]}
        self.parameters["last"] = affine(width)
        if not llama:
            self.parameters["positions"] = matrix(context, width)
        half = width // heads // 2
        angle = np.arange(context)[:, None] * 10000.0 ** (-np.arange(half) / half)
        cos, sin = (f(angle)[:, None, :].astype(np.float32) for f in (np.cos, np.sin))
        mask = np.tril(np.ones((context, context), bool))

        def attend(q, k, v):
            logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
            weights = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf))
            return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

        def loss(p, tokens, targets):
            x = p["tokens"][tokens]
            x = x if llama else x + p["positions"]
            for own in p["blocks"]:
                h = norm(x, *own["first"]) @ own["qkv"]
                q, k, v = jnp.moveaxis(h.reshape(batch, context, 3, heads, width // heads), 2, 0)
                if llama:
                    q, k = rotate(norm(q, *own["q"]), cos, sin), rotate(norm(k, *own["k"]), cos, sin)
                x = x + attend(q, k, v).reshape(batch, context, width) @ own["out"]
                h = norm(x, *own["second"])
                up = h @ own["up"]
                h = jax.nn.silu(h @ own["gate"]) * up if llama else jax.nn.gelu(up, approximate=False)
                x = x + h @ own["down"]
            logits = jax.nn.log_softmax(norm(x, *p["last"]) @ p["tokens"].T)
            return -jnp.mean(jnp.take_along_axis(logits, targets[..., None], -1))

        def step(p, first, second, time, tokens, targets):
            value, gradient = jax.value_and_grad(loss)(p, tokens, targets)
            size = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
            gradient = jax.tree.map(lambda g: g / jnp.maximum(size, 1.0), gradient)
            first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, first, gradient)
            second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, second, gradient)

            def update(w, m, v):
                m, v = m / (1 - BETAS[0] ** time), v / (1 - BETAS[1] ** time)
                return w - LR * (m / (jnp.sqrt(v) + EPS) + (DECAY * w if w.ndim > 1 else 0.0))

            return jax.tree.map(update, p, first, second), first, second, value, size

        self.step = jax.jit(step, donate_argnums=(0, 1, 2))
        self.moments = [jax.tree.map(np.zeros_like, self.parameters) for _ in range(2)]
        self.time = 0

    def steps(self, n):
        times = []
        for _ in range(n):
            started = time.perf_counter()
            tokens = self.draw.integers(self.vocabulary, size=self.shape, dtype=np.int32)
            self.time += 1
            self.parameters, *self.moments, loss, size = self.step(
                self.parameters, *self.moments, float(self.time), tokens, np.roll(tokens, -1, 1)
            )
            float(loss), float(size)
            times.append((time.perf_counter() - started) * 1e3)
        return times
