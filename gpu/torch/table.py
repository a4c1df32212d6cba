"""The table from ATen overloads to what computes them by methods of tensors.

A row is a function that takes what the overload takes, with our tensors and dtypes for torch's, and
gives what it gives. What torch says of the result's dtype is done by whoever calls it, so that rows
need not know torch's promotion: see `Row`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar

import torch

Overload = torch._ops.OpOverload
Function = TypeVar("Function", bound=Callable[..., Any])


class Row(NamedTuple):
    """What computes an overload.

    Attributes:
        function: takes the overload's arguments, without device, layout and memory format.
        operands: what tensors are cast to before: "common", the dtype that torch promotes all
            operands to; "result", that of the result; None where they stay as they are.
        takes_result: whether `function` has a keyword `result`, what torch says of its result.
    """

    function: Callable[..., Any]
    operands: Literal["common", "result"] | None
    takes_result: bool


ROWS: Final[dict[Any, Row]] = {}


def row(
    *names: str,
    operands: Literal["common", "result"] | None = None,
    takes_result: bool = False,
) -> Callable[[Function], Function]:
    """Notes a function as the row of overloads of `torch.ops.aten`, as in "add.Tensor"."""

    def note(function: Function) -> Function:
        for name in names:
            ROWS[overload(name)] = Row(function, operands, takes_result)
        return function

    return note


def overload(name: str) -> Any:
    """The overload of a name; without a dot the one that torch calls default."""
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")
