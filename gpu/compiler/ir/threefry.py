"""Threefry-2x32 with 20 rounds, a counter-based generator of random bits.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011: rotations of table 2, the parity constant of Skein's key schedule cut to 32 bits. It needs
additions, shifts and exclusive ors of 32 bits only, so every device gives the same bits.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np

from gpu.compiler.ir import evaluate, optable
from gpu.compiler.ir.builder import Builder
from gpu.compiler.ir.evaluate import Array
from gpu.core.dtype import DType, PyScalar, dtypes

V = TypeVar("V")

_ROTATIONS: Final = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY: Final = 0x1BD11BDA
_ROUNDS: Final = 20


def threefry(b: Builder[V], key: tuple[V, V], counter: tuple[V, V]) -> tuple[V, V]:
    """The two words of random bits for a counter under a key; all are uint32."""
    parity = b.op("xor", b.op("xor", key[0], key[1]), b.like(key[0], _PARITY))
    keys = (*key, parity)
    x, y = b.add(counter[0], keys[0]), b.add(counter[1], keys[1])
    for round_ in range(_ROUNDS):
        x = b.add(x, y)
        y = b.op("xor", _rotate(b, y, _ROTATIONS[round_ % 8]), x)
        if round_ % 4 == 3:
            injection = round_ // 4 + 1
            x = b.add(x, keys[injection % 3])
            y = b.add(b.add(y, keys[(injection + 1) % 3]), b.like(y, injection))
    return x, y


def _rotate(b: Builder[V], x: V, by: int) -> V:
    left = b.op("shl", x, b.like(x, by))
    return b.op("or", left, b.op("shr", x, b.like(x, 32 - by)))


def element_bits(b: Builder[V], state: tuple[V, V, V, V], position: V) -> V:
    """The bits of the element at a position (int64) of a tensor of random bits.

    `state` is two words of key and the 64-bit counter of element 0, low word first.
    """
    low = b.cast(position, dtypes.uint32)
    high = b.cast(b.op("shr", position, b.like(position, 32)), dtypes.uint32)
    total = b.add(state[2], low)
    carry = b.cast(b.lt(total, low), dtypes.uint32)
    counter = (total, b.add(b.add(state[3], high), carry))
    return threefry(b, (state[0], state[1]), counter)[0]


class ArrayBuilder(Builder[Array]):
    """Scalar operations carried out on numpy arrays as they are built."""

    def op(self, name: str, *args: Array) -> Array:
        """The operation's value."""
        operands = tuple(dtypes.from_numpy(a.dtype) for a in args)
        return optable.apply(name, optable.result_dtype(name, operands), args)

    def const(self, dtype: DType, value: PyScalar) -> Array:
        """A 0-d array."""
        return optable.scalar(dtype)(value)

    def cast(self, x: Array, dtype: DType) -> Array:
        """The array converted."""
        with np.errstate(all="ignore"):
            return evaluate.cast(x, self.dtype(x), dtype)

    def bitcast(self, x: Array, dtype: DType) -> Array:
        """The array's bits."""
        return evaluate.bitcast(x, dtype)

    def dtype(self, x: Array) -> DType:
        """The array's element type."""
        return dtypes.from_numpy(x.dtype)


def tensor_bits(state: Array, shape: tuple[int, ...]) -> Array:
    """A whole tensor of random bits in numpy; `state` is uint32[4]."""
    position = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    words: Any = tuple(state[i] for i in range(4))
    return element_bits(ArrayBuilder(), words, position)
