"""Functions whose derivative is given beside them, and not by how their value is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidType, Unsupported
from gpu.tensor import customgrad
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.gradients import check_tensor
from gpu.tensor.precision import float_function, float_operation

T = TypeVar("T", bound=Elementwise)
P = ParamSpec("P")
Slope = Callable[..., Elementwise]
_OfOne = Callable[[T], T]


def with_slope(slope: Slope | None) -> Callable[[_OfOne[T]], _OfOne[T]]:
    """Decorates a function of float32 and float64, which then takes every dtype.

    Args:
        slope: the derivative, of the argument and the function's value there. It is asked for when
            a gradient is, so that two functions may be each other's derivative. None where torch
            has none: who asks for it is told so.
    """

    def decorate(function: _OfOne[T]) -> _OfOne[T]:
        return of_tensor(float_function(_sloped(function, [slope])))

    return decorate


def with_slopes(*slopes: Slope | None) -> Callable[[Callable[[T, T], T]], Callable[..., Any]]:
    """The same for a function of two numbers, of which one may be a Python number.

    Args:
        slopes: the derivatives by each, of the arguments and the value; None as above.
    """

    def decorate(function: Callable[[T, T], T]) -> Callable[..., Any]:
        return of_two(_sloped(function, slopes))

    return decorate


def of_tensor(function: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
    """A function that refuses a first argument that is no tensor by its name."""

    @wraps(function)
    def run(input: T, *args: P.args, **kwargs: P.kwargs) -> T:
        check_tensor(input, f"the input of {function.__name__}")
        return function(input, *args, **kwargs)

    return cast("Callable[Concatenate[T, P], T]", run)


def of_two(function: Callable[[T, T], T]) -> Callable[[T | Operand, T | Operand], T]:
    """A function of two tensors that takes a number in the place of either, and every dtype."""
    promoted = float_operation(function)

    @wraps(function)
    def run(input: Any, other: Any) -> Any:
        if not isinstance(input, TensorBase):
            if not isinstance(other, TensorBase):
                raise InvalidType(f"{function.__name__} takes a tensor, got {input!r}, {other!r}")
            input = other._lift(input)  # type: ignore[attr-defined]
        return promoted(input, other)

    return run


def _sloped(function: Callable[..., T], slopes: Sequence[Slope | None]) -> Callable[..., T]:
    """A function of float32 and float64 alone, with a rule for its gradient."""
    name = function.__name__

    def rule(node: Node, grad: Node) -> customgrad.Gradients:
        value, *operands = map(Elementwise._wrap, (node, *node.src[1:]))
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
