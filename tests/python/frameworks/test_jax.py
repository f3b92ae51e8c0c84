"""htransformer.jax against the dense oracle, and its declarations against JAX's own header."""
import ctypes
import os
import shutil
import subprocess

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")
import jax.numpy as jnp
import jax.test_util

import htransformer
import htransformer.jax
import oracle
from conftest import MODES

jax.config.update("jax_enable_x64", True)
attention = htransformer.jax.attention


def exact_of(arrays, **options):
    return oracle.attention(*[x.astype(np.longdouble) for x in arrays], **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("query, causal", MODES)
def test_modes(random, query, causal, dtype):
    made = [x.astype(dtype) for x in random(*[(2, 77, 2, 8)] * 3)]
    options = {"block": 4, "mode": query, "causal": causal}
    found = jax.jit(lambda *x: attention(*x, return_lse=True, **options))(*made)
    oracle.check([np.asarray(x) for x in found], exact_of(made, **options),
                 oracle.attention(*made, **options))


def test_everything_at_once(random):
    """The same bits as NumPy's arrays give, gradients too: groups, bias, masks, rotary, layout,
    opening, dropout."""
    q, k, v, dz = random((2, 6, 50, 8), (2, 3, 50, 8), (2, 3, 50, 8), (2, 6, 50, 8))
    bias, mask = random((15, 6)), np.arange(100).reshape(2, 50) % 7 > 0
    options = {"block": 4, "causal": True, "open": 2, "rotary_theta": 100.0, "layout": "bhld",
               "scale": 0.3, "dropout_p": 0.25, "seed": 2**40 + 5, "offset": 3,
               "key_mask": mask, "query_mask": mask}
    (want, want_lse), backward = htransformer.attention_vjp(q, k, v, bias=bias, return_lse=True,
                                                            **options)
    dlse = random((2, 6, 50))
    (z, lse), vjp = jax.vjp(lambda q, k, v, b: attention(q, k, v, bias=b, return_lse=True,
                                                         **options), q, k, v, bias)
    assert np.array_equal(z, want) and np.array_equal(lse, want_lse)
    for found, wanted in zip(vjp((dz, dlse)), backward(dz, dlse)):
        assert np.array_equal(found, wanted)


def test_gradients_by_differences(random):
    arrays = random(*[(1, 21, 2, 4)] * 3, (15, 2))
    jax.test_util.check_grads(lambda q, k, v, b: attention(q, k, v, bias=b, block=4, causal=True),
                              arrays, order=1, modes=["rev"])


def test_narrow(random):
    made = [jnp.asarray(x, jnp.bfloat16) for x in random(*[(1, 40, 2, 8)] * 3)]
    wide = attention(*[x.astype(jnp.float32) for x in made], block=4)
    found = attention(*made, block=4)
    assert found.dtype == jnp.bfloat16 and jnp.array_equal(found, wide.astype(jnp.bfloat16))


def test_dropout_follows_its_key(random):
    q, k, v = random(*[(1, 40, 2, 8)] * 3)
    run = jax.jit(lambda key: attention(q, k, v, block=4, dropout_p=0.5, seed=key))
    a, b = (run(jax.random.key(i)) for i in (1, 2))
    assert not jnp.array_equal(a, b) and jnp.array_equal(a, run(jax.random.key(1)))
    with pytest.raises(ValueError, match="dropout_p needs a seed"):
        attention(q, k, v, dropout_p=0.5)


@pytest.mark.parametrize("biased", [False, True])
def test_vmap(random, biased):
    """Of one sequence after the other, of many at once, and of gradients."""
    q, k, v = random(*[(3, 2, 30, 2, 8)] * 3)
    bias = random((15, 2)) if biased else None

    def run(q, k, v):
        return attention(q, k, v, block=4, bias=bias)

    want = jnp.stack([run(q[i], k[i], v[i]) for i in range(3)])
    assert jnp.array_equal(jax.vmap(run)(q, k, v), want)
    assert jnp.array_equal(jax.jit(jax.vmap(jax.vmap(run)))(q, k, v), want)
    # k and v of the first for all
    shared = jax.vmap(run, in_axes=(0, None, None))(q, k[0], v[0])
    assert jnp.array_equal(shared, jnp.stack([run(q[i], k[0], v[0]) for i in range(3)]))

    grad = jax.grad(lambda *x: jnp.sum(run(*x) ** 2), argnums=(0, 1, 2))
    wanted = [grad(q[i], k[i], v[i]) for i in range(3)]
    for found in (jax.vmap(grad)(q, k, v), jax.vmap(jax.vmap(grad))(q, k, v)):
        for at, x in enumerate(found):
            assert jnp.array_equal(x, jnp.stack([w[at] for w in wanted]))


def test_vmap_of_bias_seed_and_cotangent(random):
    q, k, v = random(*[(1, 30, 2, 8)] * 3)
    biases, dz = random((3, 15, 2), (3, 1, 30, 2, 8))

    def biased(b):
        return attention(q, k, v, block=4, bias=b)

    assert jnp.array_equal(jax.vmap(biased)(biases), jnp.stack([biased(b) for b in biases]))
    found = jax.vmap(jax.grad(lambda b: jnp.sum(biased(b) ** 2)))(biases)
    assert jnp.array_equal(found, jnp.stack([jax.grad(lambda b: jnp.sum(biased(b) ** 2))(b)
                                             for b in biases]))
    keys = jax.random.split(jax.random.key(0), 3)

    def dropped(key):
        return attention(q, k, v, block=4, dropout_p=0.5, seed=key)

    assert jnp.array_equal(jax.vmap(dropped)(keys), jnp.stack([dropped(key) for key in keys]))
    # the rows of a jacobian: forward once, backward for each
    _, vjp = jax.vjp(lambda q: attention(q, k, v, block=4), q)
    assert jnp.array_equal(jax.vmap(vjp)(dz)[0], jnp.stack([vjp(x)[0] for x in dz]))


@pytest.mark.parametrize("change, sentence", [
    ({"block": 7}, "block must be even, got 7"),
    ({"causal": True, "mode": "mean"}, "mean"),
    ({"mode": "near"}, "mode must be one of"),
    ({"k": np.zeros((1, 9, 2, 4), np.float32)}, "k must have the batch 1 and length 8 of q"),
    ({"k": np.zeros((1, 8, 2, 4))}, "k must be float32 with q of float32, got float64"),
    ({"q": np.zeros((1, 8, 2, 4), np.int32), "k": np.zeros((1, 8, 2, 4), np.int32),
      "v": np.zeros((1, 8, 2, 4), np.int32)}, "q must be float32, .* got int32"),
    ({x: np.zeros((0, 8, 2, 4), np.float32) for x in "qkv"}, "batch must be at least 1, got 0"),
    ({"bias": np.zeros((3, 2), np.float32)}, "bias must have shape"),
    ({"key_mask": np.ones((1, 8), np.float32)}, "key_mask must be bool or uint8"),
])
def test_errors_name_the_argument(change, sentence):
    given = dict({name: np.zeros((1, 8, 2, 4), np.float32) for name in "qkv"}, **change)
    with pytest.raises(ValueError, match=sentence):
        attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def test_traced_for_a_gpu(random, monkeypatch):
    """A program that was traced for another device is refused, not run on the wrong memory."""
    made = [x.astype(np.float32) for x in random(*[(1, 8, 2, 4)] * 3)]
    plan = htransformer.jax._plan_of(htransformer.jax._Spec((
        htransformer._call.options(), htransformer._call.Shape(1, 8, 8, 2, 2, 4, 4), "float32", 0,
        0, "cpu")))
    monkeypatch.setattr(htransformer.jax, "_plan_of", lambda spec: plan)
    monkeypatch.setattr(htransformer.jax, "_where", lambda arrays: "cuda")
    with pytest.raises(Exception, match="was traced for a GPU and runs on the CPU"):
        attention(*made).block_until_ready()


def test_jax_arrays_find_their_function():
    x = jnp.zeros((1, 8, 2, 4))
    with pytest.raises(TypeError, match="htransformer.jax.attention"):
        htransformer.attention(x, x, x)


# in the order of ht_jax_place()
PLACES = """
sizeof(XLA_FFI_Extension_Base); offsetof(XLA_FFI_Extension_Base, type);
sizeof(XLA_FFI_Api_Version); offsetof(XLA_FFI_Api_Version, minor_version);
sizeof(XLA_FFI_Metadata); offsetof(XLA_FFI_Metadata, api_version);
offsetof(XLA_FFI_Metadata, traits); offsetof(XLA_FFI_Metadata_Extension, metadata);
sizeof(XLA_FFI_Error_Create_Args); offsetof(XLA_FFI_Error_Create_Args, errc);
offsetof(XLA_FFI_Api, api_version); offsetof(XLA_FFI_Api, XLA_FFI_Error_Create);
offsetof(XLA_FFI_Api, XLA_FFI_Stream_Get); offsetof(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
sizeof(XLA_FFI_Stream_Get_Args); offsetof(XLA_FFI_Stream_Get_Args, stream);
sizeof(XLA_FFI_DeviceOrdinal_Get_Args);
offsetof(XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);
sizeof(XLA_FFI_Buffer); offsetof(XLA_FFI_Buffer, data); offsetof(XLA_FFI_Buffer, dims);
sizeof(XLA_FFI_Array); offsetof(XLA_FFI_Array, data);
sizeof(XLA_FFI_Args); offsetof(XLA_FFI_Args, args);
sizeof(XLA_FFI_Attrs); offsetof(XLA_FFI_Attrs, attrs);
offsetof(XLA_FFI_CallFrame, stage); offsetof(XLA_FFI_CallFrame, args);
offsetof(XLA_FFI_CallFrame, rets); offsetof(XLA_FFI_CallFrame, attrs);
"""


def test_declarations_mirror_jaxs_header(tmp_path):
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    words = [word.strip() for word in PLACES.split(";") if word.strip()]
    source = tmp_path / "places.cc"
    source.write_text("#include <cstddef>\n#include <cstdint>\n#include <cstdio>\n"
                      "#include <xla/ffi/api/c_api.h>\nint main() {\n"
                      + "".join('    std::printf("%%zu\\n", %s);\n' % word for word in words)
                      + '    std::printf("%d %d %d %d\\n", XLA_FFI_Extension_Metadata, '
                      "XLA_FFI_AttrType_ARRAY, XLA_FFI_DataType_S64, XLA_FFI_API_MAJOR);\n}\n")
    subprocess.run(["c++", "-w", "-Wno-invalid-offsetof", "-I", jax.ffi.include_dir(), source, "-o",
                    tmp_path / "places"], check=True)
    said = subprocess.run([tmp_path / "places"], capture_output=True, text=True).stdout.split()
    place = htransformer.jax._load().ht_jax_place
    place.restype = ctypes.c_int64
    assert [place(i) for i in range(len(words))] == [int(word) for word in said[:len(words)]]
    assert place(len(words)) == -1 and said[len(words):] == ["1", "1", "5", "0"]
