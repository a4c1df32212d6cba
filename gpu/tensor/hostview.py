"""Reading values where they lie: a view of computed memory as a numpy array over that memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from gpu.compiler.ir.dims import any_symbols, bound, has_symbols, upper_shape
from gpu.compiler.ir.graph import Node, bound_node
from gpu.compiler.ir.graph.fold import constant_of
from gpu.runtime.execute import is_computed, storage
from gpu.runtime.status import is_checked

Array = npt.NDArray[Any]


def host_view(node: Node) -> Array | None:
    """The value of `node`, where movements alone lie between it and memory that the host can read.

    Or between it and what is computed from constants alone.

    The array is read-only and keeps the memory alive; a reshape that no strides express copies.
    None where something has to be computed first, or where the memory is a device's own.
    """
    chain: list[Node] = []
    while node.kind != "const" and not is_computed(node):
        if node.kind not in _MOVES or is_checked(node):
            constant = constant_of(node, is_computed)
            if constant is None:
                return None
            node = constant
            break
        chain.append(node)
        node = node.src[0]
    array = _start(node)
    if array is None:
        return None
    for movement in reversed(chain):
        array = _MOVES[movement.kind](array, bound_node(movement) if any_symbols() else movement)
    return array


def _start(node: Node) -> Array | None:
    if node.kind == "const":
        return np.broadcast_to(np.asarray(node.attr[0], node.dtype.np), bound(node.shape))
    if not node.size:
        return np.empty(node.shape, node.dtype.np)
    memory = storage(node).host_view()
    if memory is None or not has_symbols(node.shape):
        return None if memory is None else memory.reshape(node.shape)
    return memory.reshape(upper_shape(node.shape))[tuple(slice(n) for n in bound(node.shape))]


def _same(array: Array, node: Node) -> Array:
    return array


def _reshape(array: Array, node: Node) -> Array:
    return array.reshape(node.shape)


def _expand(array: Array, node: Node) -> Array:
    return np.broadcast_to(array, node.shape)


def _permute(array: Array, node: Node) -> Array:
    return array.transpose(node.attr[0])


def _slice(array: Array, node: Node) -> Array:
    items = tuple(
        # numpy reads an end of -1 as the last element; None is the one in front of the first.
        slice(start, end if (end := start + size * step) >= 0 else None, step)
        if size
        else slice(0, 0)
        for (start, step), size in zip(node.attr, node.shape, strict=True)
    )
    return array[items]


def _skew(array: Array, node: Node) -> Array:
    axis, tap, stride, dilation = node.attr
    strides = list(array.strides)
    strides[tap] += strides[axis] * dilation
    strides[axis] *= stride
    return as_strided(array, node.shape, strides, writeable=False)


# What each movement does to an array over memory; all but some reshapes change strides only.
_MOVES: Final[dict[str, Callable[[Array, Node], Array]]] = {
    "reshape": _reshape,
    "expand": _expand,
    "permute": _permute,
    "slice": _slice,
    "skew": _skew,
    "contiguous": _same,
    "detach": _same,
    "barrier": _same,
    "custom_grad": _same,
}
