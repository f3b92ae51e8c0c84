"""The door for NumPy arrays: float32 and float64, on the CPU."""
import numpy as np

from . import _call, _plan
from ._attention import prepare
from ._library import InvalidError

_DTYPES = {np.dtype(np.float32): "float32", np.dtype(np.float64): "float64"}


class NumpyDoor:
    """What _call.py asks of an array library."""

    name = "a NumPy array"

    @staticmethod
    def owns(x):
        """A masked array says with it what the attention would not see."""
        return isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray)

    @staticmethod
    def pointer(x):
        return x.__array_interface__["data"][0]

    @staticmethod
    def strides(x):
        return tuple(step // x.itemsize for step in x.strides)

    @staticmethod
    def dtype(x):
        return _DTYPES.get(x.dtype)

    @staticmethod
    def check(name, x):
        if x.dtype not in _DTYPES:
            raise InvalidError("%s must be float32 or float64, got %s" % (name, x.dtype))
        if not x.flags.aligned or any(step % x.itemsize for step in x.strides):
            raise InvalidError("%s must be aligned to its elements, got strides of %s bytes"
                               % (name, x.strides))

    @classmethod
    def same(cls, name, x, q, dtype=None):
        """x lives where q does and has its dtype, or the one given."""
        cls.check(name, x)
        want = dtype or _DTYPES[q.dtype]
        if _DTYPES[x.dtype] != want:
            raise InvalidError("%s must be %s with q of %s, got %s" %
                               (name, want, q.dtype, x.dtype))

    @staticmethod
    def looks(a):
        """All that checks and strides depend on."""
        return tuple((x.shape, x.strides, x.dtype, x.flags.aligned) if x is not None else None
                     for x in a[:6])

    @staticmethod
    def tracing():
        return False

    @staticmethod
    def context(x):
        return _plan.cpu_context()

    where = context

    @staticmethod
    def mask(name, x, q):
        if x.dtype not in (np.dtype(bool), np.dtype(np.uint8)):
            raise InvalidError("%s must be bool or uint8, got %s" % (name, x.dtype))
        return np.ascontiguousarray(x)

    @staticmethod
    def empty(like, shape, strides):
        room = np.empty(int(np.prod(shape)), like.dtype)
        return np.ndarray(shape, like.dtype, room, 0, [step * like.itemsize for step in strides])

    @staticmethod
    def empty_real(like, shape):
        return np.empty(shape, like.dtype)

    @staticmethod
    def zeros_like(x):
        return np.zeros_like(x)

    @staticmethod
    def workspace(like, size):
        """Bytes on a boundary of 64."""
        room = np.empty(size + 64, np.uint8)
        at = -room.__array_interface__["data"][0] % 64
        return room[at:at + size]

    @staticmethod
    def scratch(like, size):
        return None  # the context's own, grown when needed

    @classmethod
    def gradient(cls, name, x, shape, like):
        """A gradient that comes in; one the library cannot read is copied."""
        x = np.asarray(x)
        if x.shape != shape:
            raise InvalidError("%s must have shape %s, got %s" % (name, shape, x.shape))
        cls.same(name, x, like)
        return np.ascontiguousarray(x)

    @staticmethod
    def seed():
        return int(np.random.randint(0, 2**63, dtype=np.int64))

    @staticmethod
    def attention(a, o, seed, offset, return_lse):
        a, call = prepare(NumpyDoor, a, o, seed, offset)
        out, lse, _ = _call.forward(NumpyDoor, a, call, return_lse, False)
        return (out, lse) if return_lse else out

    @staticmethod
    def attention_vjp(a, call, return_lse):
        """The outputs and a function that turns their gradients into those of the inputs."""
        out, lse, saved = _call.forward(NumpyDoor, a, call, return_lse, True)

        def backward(dout, dlse=None):
            dout = NumpyDoor.gradient("dout", dout, out.shape, out)
            if dlse is not None:
                dlse = NumpyDoor.gradient("dlse", dlse, call.recipe.lse_size, out)
            grads = _call.empty_grads(NumpyDoor, a, call, a.bias is not None)
            _call.backward(NumpyDoor, a, call, out, saved, dout, dlse, grads)
            return tuple(grads) if a.bias is not None else tuple(grads[:3])

        return ((out, lse) if return_lse else out), backward
