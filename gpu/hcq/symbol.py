"""Values that are not known when a command is encoded, and the type of GPU addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NewType

from gpu.core.errors import InvalidValue

GpuVA = NewType("GpuVA", int)
"""An address as the GPU sees it."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A 64-bit value with a name, put in by patches. Two of one name are two symbols."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Derived(Symbol):
    """A symbol computed from others once per replay, such as a grid size from a length."""

    sources: tuple[Symbol, ...]
    compute: Callable[..., int]


@dataclass(frozen=True, slots=True, eq=False)
class Offset(Symbol):
    """Another symbol plus a number; patches take it at no cost on replay."""

    base: Symbol
    addend: int


@cache
def offset(base: Symbol, addend: int) -> Symbol:
    """``base + addend``."""
    return Offset(f"{base.name} + {addend}", base, addend) if addend else base


Value = int | Symbol
"""What most fields of a command take: a number, or a symbol that a patch puts in later."""


def plus(value: Value, by: int) -> Value:
    """``value + by``."""
    return offset(value, by) if isinstance(value, Symbol) else value + by


# What the linker and the queues define themselves.
IMAGE: Final = Symbol("image")
"""The address of a submission's memory segments."""
TIMELINE_ADDRESS: Final = Symbol("timeline address")
"""The signal of the timeline of the queue that runs the submission."""
TIMELINE_VALUE: Final = Symbol("timeline value")
"""What the submission writes to that signal when it is done."""
AFTER_ADDRESS: Final = Symbol("after address")
"""The signal that the submission waits for first."""
AFTER_VALUE: Final = Symbol("after value")
"""The value of that signal that lets it start."""


@cache
def segment_address(index: int) -> Symbol:
    """The symbol of the address of segment ``index`` of the same `Encoded`."""
    return Symbol(f"segment {index}")


def resolve(symbol: Symbol, values: Mapping[Symbol, int]) -> int:
    """The value of a symbol; derived ones are computed. `InvalidValue` names an unknown one."""
    if symbol in values:
        return values[symbol]
    if isinstance(symbol, Offset):
        return resolve(symbol.base, values) + symbol.addend
    if isinstance(symbol, Derived):
        return symbol.compute(*(resolve(source, values) for source in symbol.sources))
    known = ", ".join(sorted(s.name for s in values)) or "none"
    raise InvalidValue(f"symbol {symbol.name!r} has no value; given are: {known}")
