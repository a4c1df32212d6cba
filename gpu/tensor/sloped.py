"""Functions whose derivative is given beside them, and not by how their value is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import Unsupported
from gpu.tensor import customgrad
from gpu.tensor.base import TensorBase

T = TypeVar("T", bound=TensorBase)
# Of the operands and of the function's value there. It is asked for when a gradient is, so that two
# functions may be each other's derivative.
Slope = Callable[..., Any]


def sloped(function: Callable[..., T], slopes: Sequence[Slope | None]) -> Callable[..., T]:
    """A function of float32 and float64 alone, with a rule for its gradient.

    Args:
        slopes: the derivatives by each operand, of the operands and the value; None where there is
            none, and who asks for it is told so.
    """
    name = function.__name__

    def rule(node: Node, grad: Node) -> customgrad.Gradients:
        from gpu.tensor.tensor import Tensor  # only now: tensors are made of such functions

        value, *operands = map(Tensor._wrap, (node, *node.src[1:]))
        found: list[Node | None] = [None]
        for operand, slope in zip(operands, slopes, strict=True):
            if slope is None or operand._node.kind == "const":
                found.append(grad)  # which goes no further
            else:
                found.append(G.alu("mul", grad, slope(*operands, value)._node))
        return found

    def refuse(node: Node, grad: Node) -> customgrad.Gradients:
        raise Unsupported(f"{name} has no derivative by its first argument: call detach() on that")

    customgrad.RULES[name] = rule
    customgrad.RULES[f"{name} underived"] = refuse

    @wraps(function)
    def run(*operands: T) -> T:
        value = function(*operands)._node
        if value.kind == "const":
            return operands[0]._wrap(value)
        sources = [
            G.custom_grad(f"{name} underived", x._node, (x._node,))
            if slope is None and x._node.kind != "const"
            else x._node
            for x, slope in zip(operands, slopes, strict=True)
        ]
        return operands[0]._wrap(G.custom_grad(name, value, sources))

    return run
