"""htransformer.jax on a GPU: the numbers of the CPU in its precision. Skipped where JAX sees none,
or the library has no CUDA."""
import os

import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax")
import jax.numpy as jnp

import htransformer
import htransformer.jax
import oracle

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "gpu" or not any(
        device["name"].startswith("cuda") and device["available"]
        for device in htransformer.devices()), reason="no GPU, or a library without CUDA kernels")
attention = htransformer.jax.attention
OPTIONS = [{}, {"causal": True}, {"causal": True, "mode": "first", "layout": "bhld"},
           {"block": 6, "rotary_theta": 100.0, "dropout_p": 0.25, "seed": 2**40 + 5}]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_agrees_with_the_cpu(random, options, biased):
    """Outputs, log-sum-exp and all gradients, jitted: as near to float64 as the CPU's float32."""
    q, k, v, dz = random((2, 120, 4, 32), (2, 120, 2, 32), (2, 120, 2, 32), (2, 120, 4, 32))
    if options.get("layout") == "bhld":
        q, k, v, dz = (x.swapaxes(1, 2) for x in (q, k, v, dz))
    more = dict(options, key_mask=np.arange(240).reshape(2, 120) % 7 > 0)
    rest = [random((4 * options.get("block", 16) - 1, 4))] if biased else []
    dlse = random((2, 4, 120))

    def theirs(dtype):
        made = [np.ascontiguousarray(x, dtype) for x in (q, k, v, *rest)]
        found, backward = htransformer.attention_vjp(*made[:3], return_lse=True, **more,
                                                     bias=made[3] if rest else None)
        return (*found, *backward(dz.astype(dtype), dlse.astype(dtype)))

    def run(q, k, v, bias=None):
        return attention(q, k, v, bias=bias, return_lse=True, **more)

    def both(arrays, grads):
        found, vjp = jax.vjp(run, *arrays)
        return (*found, *vjp(grads))

    found = jax.jit(both)([jnp.asarray(x, jnp.float32) for x in (q, k, v, *rest)],
                          (jnp.asarray(dz, jnp.float32), jnp.asarray(dlse, jnp.float32)))
    oracle.check([np.asarray(x) for x in found], theirs(np.float64), theirs(np.float32))


def test_bfloat16_is_native(random):
    made = [jnp.asarray(x, jnp.bfloat16) for x in random(*[(1, 300, 2, 64)] * 3)]
    found, wide = attention(*made), attention(*[x.astype(jnp.float32) for x in made])
    assert found.dtype == jnp.bfloat16
    assert jnp.abs(found.astype(jnp.float32) - wide).max() < 0.02 * jnp.abs(wide).max()


def test_same_bits_under_vmap_and_again(random):
    q, k, v = (jnp.asarray(x, jnp.float32) for x in random(*[(3, 2, 100, 2, 32)] * 3))
    want = jnp.stack([attention(q[i], k[i], v[i], causal=True) for i in range(3)])
    found = jax.jit(jax.vmap(lambda *x: attention(*x, causal=True)))(q, k, v)
    assert jnp.array_equal(found, want)


def test_arrays_of_the_cpu_stay_there(random):
    cpu = jax.devices("cpu")[0]
    made = [jax.device_put(np.float32(x), cpu) for x in random(*[(1, 50, 2, 8)] * 3)]
    assert attention(*made).devices() == {cpu}
    with pytest.raises(Exception, match="traced for a GPU and runs on the CPU"):
        jax.jit(attention)(*made).block_until_ready()
    with jax.default_device(cpu):
        assert jax.jit(attention)(*made).devices() == {cpu}
