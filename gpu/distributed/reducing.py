"""Adding up, or otherwise joining, what ranks sent: always in the order of ranks.

numpy does it for numbers that it computes with at the speed of memory. For narrow floats, which it
has not or is slow with, kernels of this package do, compiled for the CPU: they add in float32 and
round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import DTypeError, InvalidValue
from gpu.distributed.exchange import Bytes
from gpu.runtime.buffer import Buffer
from gpu.runtime.execute import prepare
from gpu.runtime.program import Program
from gpu.runtime.recipe import Launch

_DEVICE: Final = "CPU"
_BLOCK: Final = 1 << 14  # elements that a kernel takes at once: they stay in a core's cache


class _Way(NamedTuple):
    """How one operation joins two values: numpy's function, and that of the graph.

    Attributes:
        kinds: of dtypes that it is for; "bool", "int", "uint", "float" or "complex".
    """

    numpy: Callable[..., Any]
    graph: str
    kinds: tuple[str, ...]


_WHOLE: Final = ("bool", "int", "uint")
_REAL: Final = (*_WHOLE, "float")
WAYS: Final = {
    "sum": _Way(np.add, "add", (*_REAL, "complex")),
    "avg": _Way(np.add, "add", ("float", "complex")),
    "product": _Way(np.multiply, "mul", _REAL),
    "min": _Way(np.minimum, "min", _REAL),
    "max": _Way(np.maximum, "max", _REAL),
    "band": _Way(np.bitwise_and, "and", _WHOLE),
    "bor": _Way(np.bitwise_or, "or", _WHOLE),
    "bxor": _Way(np.bitwise_xor, "xor", _WHOLE),
}


def check_operation(op: object, dtype: DType) -> str:
    """Raises InvalidValue for what is no operation, DTypeError where it is none for the dtype."""
    if not isinstance(op, str) or op not in WAYS:
        raise InvalidValue(f"op={op!r}: expected one of {', '.join(WAYS)}")
    if dtype.kind not in WAYS[op].kinds:
        raise DTypeError(f"op={op!r} is for {', '.join(WAYS[op].kinds)}; got {dtype.name}")
    return op


def reduction(op: str, dtype: DType) -> Callable[[Sequence[Bytes], Bytes], None]:
    """What joins arrays of bytes, one of each rank, into another; it may run in any thread.

    Of bools a sum is whether one is True, and a product whether all are.
    """
    if dtype.is_float and dtype.itemsize < 4:
        return _Narrow(op, dtype)
    join = WAYS[op].numpy

    def reduce(parts: Sequence[Bytes], out: Bytes) -> None:
        values = [part.view(dtype.np) for part in parts]
        result = out.view(dtype.np)
        join(values[0], values[1], out=result)
        for value in values[2:]:
            join(result, value, out=result)
        if op == "avg":
            np.divide(result, len(parts), out=result)

    return reduce


class _Kernel(NamedTuple):
    """A compiled kernel, and which of its arguments each parameter is."""

    program: Program
    order: tuple[int, ...]

    def __call__(self, *buffers: Buffer) -> None:
        self.program(*[buffers[i].memory for i in self.order])


class _Narrow:
    """Floats of less than four bytes: joined as float32, block by block."""

    def __init__(self, op: str, dtype: DType):
        self._dtype, self._is_mean = dtype, op == "avg"
        self._kernels = _kernels(WAYS[op].graph, dtype)

    def __call__(self, parts: Sequence[Bytes], out: Bytes) -> None:
        wide, both = (Buffer(_DEVICE, _BLOCK, dtypes.float32) for _ in range(2))
        narrow = Buffer(_DEVICE, _BLOCK, self._dtype)
        window, means = _window(narrow), _window(wide).view(np.float32)
        window[:] = 0  # behind the last elements are none
        widen, join, shrink = self._kernels
        for at in range(0, out.size, window.size):
            count = min(window.size, out.size - at)
            window[:count] = parts[0][at : at + count]
            widen(narrow, wide)
            for part in parts[1:]:
                window[:count] = part[at : at + count]
                join(wide, narrow, both)
                wide, both = both, wide
            if self._is_mean:
                means = _window(wide).view(np.float32)
                np.divide(means, len(parts), out=means)
            shrink(wide, narrow)
            out[at : at + count] = window[:count]


@cache
def _kernels(operation: str, dtype: DType) -> tuple[_Kernel, _Kernel, _Kernel]:
    """What makes float32 of the dtype, what joins one of each, and what rounds float32 to it."""
    wide, narrow = _leaf(dtypes.float32), _leaf(dtype)
    widened = G.cast(narrow, dtypes.float32)
    return (
        _kernel(widened, narrow),
        _kernel(G.alu(operation, wide, widened), wide, narrow),
        _kernel(G.cast(wide, dtype), wide),
    )


def _leaf(dtype: DType) -> Node:
    return G.buffer(Buffer(_DEVICE, _BLOCK, dtype), (_BLOCK,), dtype, _DEVICE)


def _kernel(result: Node, *operands: Node) -> _Kernel:
    """The one kernel that computes a node, to be called with its operands and the result."""
    prepared = prepare([result])
    (launch,) = (*prepared.schedule.filling.steps, *prepared.schedule.changing.steps)
    assert isinstance(launch, Launch), "an operation on one element after the other is a kernel"
    place = [operands.index(leaf) for leaf in prepared.leaves]
    order = tuple(place[slot] if slot < len(place) else len(operands) for slot in launch.slots)
    return _Kernel(launch.program, order)


def _window(buffer: Buffer) -> Bytes:
    """The memory of a buffer of the CPU, to be written; valid as long as the buffer."""
    from gpu.distributed.arriving import window

    found = window(buffer)
    assert found is not None, "the CPU's memory is the host's"
    return found
