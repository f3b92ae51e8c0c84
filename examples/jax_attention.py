"""JAX: one layer of causal attention learns to repeat the vector of the row before.

    python3 examples/jax_attention.py [steps]
"""
import sys

import jax
import jax.numpy as jnp

import htransformer.jax

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
BATCH, LENGTH, HEADS, DIM = 4, 256, 2, 16


def layer(weights, x):
    q, k, v = (jnp.einsum("blc,chd->blhd", x, w) for w in weights["qkv"])
    bias = weights["bias"]  # learned relative positions, (4 * block - 1, heads)
    z = htransformer.jax.attention(q, k, v, bias=bias, block=16, causal=True)
    return jnp.einsum("blhd,hdc->blc", z, weights["out"])


def loss_of(weights, x):
    return jnp.mean((layer(weights, x)[:, 1:] - x[:, :-1]) ** 2)


@jax.jit
def step(weights, key):
    x = jax.random.normal(key, (BATCH, LENGTH, HEADS * DIM))
    loss, gradient = jax.value_and_grad(loss_of)(weights, x)
    return loss, jax.tree.map(lambda w, g: w - 0.5 * g, weights, gradient)


keys = jax.random.split(jax.random.key(0), STEPS + 2)
qkv = 0.2 * jax.random.normal(keys[0], (3, HEADS * DIM, HEADS, DIM))
out = 0.2 * jax.random.normal(keys[1], (HEADS, DIM, HEADS * DIM))
weights = {"qkv": qkv, "out": out, "bias": jnp.zeros((63, HEADS))}
for i, key in enumerate(keys[2:], 1):
    loss, weights = step(weights, key)
    if i % 20 == 0 or i == STEPS:
        print("step %d, loss %.3f" % (i, loss))
