"""What a kernel computes, in a word: how logs and profiles name it.

The label is made of the graph alone, so that kernels of one form have one, and it is no part of
their code: two kernels of one text are one object, whatever they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gpu.compiler.fusion.plan import Plan
from gpu.compiler.ir.dims import upper_shape
from gpu.compiler.ir.graph import MOVEMENT, Node, Shape, toposort, unmoved
from gpu.compiler.ir.graph.userkernel import UserKernel

_REDUCTIONS: Final = {"add": "sum", "mul": "prod", "and": "all", "or": "any"}
_RUNNING: Final = {"add": "cumsum", "mul": "cumprod", "max": "cummax", "min": "cummin"}
# Operations that are named one by one; of more it is told how many there are.
_MOST_NAMED: Final = 3
# What a kernel without arithmetic is called after, the first of these that it has.
_MOVES: Final = ("write", "gather", "pad", "permute", "slice", "expand", "cast", "bitcast")


def kernel_label(number: int, plan: Plan) -> str:
    """The label of the kernel `number` of a plan, such as ``sum_f32_1024x512``.

    It is what is computed, the element type of the first output and sizes: of a reduction those of
    what is reduced, of a product of matrices those of the output and then those summed over, else
    those of the output.
    """
    roots, inside = plan.kernels[number], kernel_nodes(number, plan)
    what, shape = _computed(roots[0], inside)
    sizes = "x".join(str(size) for size in upper_shape(shape) if size != 1)
    return f"{what}_{roots[0].dtype.code}_{sizes or 1}"


def kernel_nodes(number: int, plan: Plan) -> list[Node]:
    """The nodes that the kernel `number` of a plan computes, sources first."""
    roots = plan.kernels[number]
    store = plan.stores.get(roots[0])
    begun = store.operands if store else roots

    def is_outside(node: Node) -> bool:
        return node not in roots and plan.is_read(node)

    inside = [n for n in toposort(begun, is_outside) if not is_outside(n)]
    return [*inside, store.write] if store else inside


def _computed(root: Node, inside: Sequence[Node]) -> tuple[str, Shape]:
    """What is computed, and the sizes that tell how much of it."""
    operations = dict.fromkeys(node.attr[0] for node in inside if node.kind == "alu")
    reductions = [node for node in inside if node.kind == "reduce"]
    products = [node for node in reductions if _is_product(node)]
    loops = {node.kind: node for node in inside if node.kind in ("scan", "scatter", "random")}
    if root.kind in ("copy", "cumcount", "reorder"):
        return root.kind, root.shape
    if root.kind == "kernel":
        kernel: UserKernel = root.attr[0]
        return kernel.name, kernel.outputs[0].shape
    if root.kind == "host":
        return f"host_{root.attr[0].name}", root.src[0].shape
    if root.kind == "loop":
        return "loop", (root.attr[1],)
    if "scatter" in loops:
        return f"scatter_{loops['scatter'].attr[1]}", loops["scatter"].src[1].shape
    if "scan" in loops:
        return _RUNNING.get(loops["scan"].attr[0], "scan"), loops["scan"].shape
    if products:
        first = products[0]
        summed = tuple(first.src[0].shape[axis] for axis in first.attr[1])
        windows = any(node.kind in ("skew", "unskew") for node in inside)
        is_attention = len(products) > 1 and len(reductions) > len(products)
        name = "attention" if is_attention else "conv" if windows else "matmul"
        return name, (*first.shape, *summed)
    if reductions:
        return _reduced(reductions, operations), reductions[0].src[0].shape
    if "random" in loops:
        return "random", root.shape
    return _elementwise(inside, list(operations)), root.shape


def _is_product(node: Node) -> bool:
    """Whether a sum is one of products of two values, each repeated along an axis of the other."""
    value = unmoved(node.src[0])
    while value.kind == "cast":
        value = unmoved(value.src[0])
    if node.attr[0] != "add" or value.kind != "alu" or value.attr != ("mul",):
        return False
    return all(_is_repeated(source) for source in value.src)


def _is_repeated(node: Node) -> bool:
    while node.kind in (*MOVEMENT, "cast"):
        if node.kind in ("expand", "skew"):
            return True
        node = node.src[0]
    return False


def _reduced(reductions: Sequence[Node], operations: Iterable[str]) -> str:
    monoids = [node.attr[0] for node in reductions]
    if {"max", "add"} <= set(monoids) and not {"exp", "exp2"}.isdisjoint(operations):
        return "log_softmax" if "log2" in operations else "softmax"
    if monoids.count("add") > 1 and "sqrt" in operations:
        return "normalize"
    return "_".join(dict.fromkeys(_REDUCTIONS.get(name, name) for name in monoids))


def _elementwise(inside: Sequence[Node], operations: Sequence[str]) -> str:
    if len(operations) > _MOST_NAMED:
        return f"elementwise{len(operations)}"
    if operations:
        return "_".join(operations)
    kinds = {node.kind for node in inside}
    return next((kind for kind in _MOVES if kind in kinds), "fill")
