"""The value of each kind of node, given the values of what it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.compiler.fusion.views import Access, source_index, written_region
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.dims import upper
from gpu.compiler.ir.graph import MOVEMENT, Node
from gpu.compiler.ir.index import ALWAYS, Mask, expr
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.kernel.picks import mask_value, pick_value
from gpu.compiler.ir.threefry import element_bits
from gpu.core.dtype import DType, dtypes


def _padded(node: Node, access: Access, args: list[K.Value]) -> K.Value:
    return _zero_outside(args[0], source_index(node, access[0])[1])


def _zero_outside(value: K.Value, mask: Mask) -> K.Value:
    if mask is ALWAYS or value.kind == "load":
        return value  # a load's own mask reads zeros already
    return K.alu("where", mask_value(mask), value, K.const(value.dtype, _zero(value.dtype)))


def _gathered(node: Node, access: Access, args: list[K.Value]) -> K.Value:
    value, index = args
    if value.kind == "load":
        return value
    size = node.src[0].shape[node.attr[0]]
    inside = K.alu("lt", pick_value(index, upper(size)), K.index(expr(size)))
    return K.alu("where", inside, value, K.const(value.dtype, _zero(value.dtype)))


def _written(node: Node, access: Access, args: list[K.Value]) -> K.Value:
    old, new = args
    _, mask = written_region(node, access[0])
    return new if mask is ALWAYS else K.alu("where", mask_value(mask), new, old)


def _random(node: Node, access: Access, args: list[K.Value]) -> K.Value:
    position = K.index(flatten(access[0], node.shape))
    return element_bits(K.ValueBuilder(), (args[0], args[1], args[2], args[3]), position)


def _zero(dtype: DType) -> bool | int | float:
    return False if dtype is dtypes.bool else 0.0 if dtype.is_float else 0


def _first(node: Node, access: Access, args: list[K.Value]) -> K.Value:
    return args[0]


# For each kind that is computed from other nodes: (node, where, values of its sources) -> value.
COMPUTE: Final[dict[str, Callable[[Node, Access, list[K.Value]], K.Value]]] = {
    "alu": lambda node, access, args: K.alu(node.attr[0], *args),
    "cast": lambda node, access, args: K.cast(args[0], node.dtype.element),
    "bitcast": lambda node, access, args: K.bitcast(args[0], node.dtype),
    "pad": _padded,
    "unskew": _padded,
    "gather": _gathered,
    "write": _written,
    "random": _random,
    **dict.fromkeys((*(MOVEMENT - {"pad", "unskew"}), "contiguous", "detach", "barrier"), _first),
}
