"""Sizes that torch makes symbolic, as variables of ours.

A variable is bounded by the next power of two from its value on, so that programs are compiled
for each doubling and no more, and memory is at most twice what is needed along an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import sympy
import torch

from gpu.tensor.variable import Var

Variable: TypeAlias = sympy.Symbol  # torch's
_LEAST: Final = 16


class Bound(NamedTuple):
    """A variable of torch's in one call.

    Attributes:
        value: what it is now.
        most: what a program for this call takes at most; None for one that takes the value alone.
    """

    value: int
    most: int | None

    @property
    def key(self) -> Any:
        """What programs for one bound have in common."""
        return self if self.most is None else self.most


def expression(size: int | torch.SymInt) -> Any:
    """A size as an int or as torch's expression of its variables."""
    return size if isinstance(size, int) else size.node.expr


def variables_in(shapes: Iterable[Sequence[Any]]) -> set[Variable]:
    """The variables of sizes."""
    return {
        symbol
        for shape in shapes
        for size in shape
        if isinstance(size, sympy.Basic)
        for symbol in size.free_symbols
    }


def bounds(values: dict[Variable, int], fixed: bool) -> dict[Variable, Bound]:
    """What a program is for that is to take these values, or, where `fixed`, no others."""
    return {
        symbol: Bound(value, None if fixed else max(_LEAST, 1 << (value - 1).bit_length()))
        for symbol, value in values.items()
    }


def bind(symbol: Variable, bound: Bound) -> Any:
    """The variable, or where it is fixed its value, as a size of ours."""
    if bound.most is None:
        return bound.value
    return Var(str(symbol), 1, bound.most).bind(bound.value)


def evaluate(size: Any, known: dict[Variable, Any]) -> Any:
    """A size, with numbers or variables of ours in place of torch's variables."""
    if isinstance(size, int):
        return size
    if size.is_Integer:
        return int(size)
    if size in known:
        return known[size]
    names, function = _function(size)
    return function(*(known[name] for name in names))


@lru_cache
def _function(size: Any) -> tuple[list[Variable], Callable[..., Any]]:
    """The variables of an expression, and what computes it of them."""
    names = sorted(size.free_symbols, key=str)
    return names, sympy.lambdify(names, size, modules=[_FUNCTIONS])


# Torch's own functions in expressions of sizes (torch/utils/_sympy/functions.py).
_FUNCTIONS: Final[dict[str, Any]] = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "PythonMod": lambda a, b: a % b,
    "Mod": lambda a, b: a % b,
    "Max": max,
    "Min": min,
}
