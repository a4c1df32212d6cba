"""Linear programs without the instructions that nothing uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu.compiler.ir.linear import Inst, Limit

PURE: Final = frozenset(
    {"const", "param", "val", "alu", "cast", "bitcast", "splat", "ramp", "extract", "pack", "fold",
     "shuffle"}
)  # fmt: skip
"""Operations without effects, wherever they stand."""


def used(body: tuple[Inst, ...]) -> tuple[Inst, ...]:
    """The body without what makes values that nothing uses any more."""
    needed: set[Inst] = set()
    kept = [inst for inst in reversed(body) if _is_used(inst, needed)]
    return tuple(reversed(kept))


def _is_used(inst: Inst, needed: set[Inst]) -> bool:
    if inst.op in PURE and inst not in needed:
        return False
    needed.update(_needs(inst))
    return True


def _needs(inst: Inst) -> Iterator[Inst]:
    yield from inst.args
    if inst.op == "loop" and isinstance(inst.attr[2], Limit):
        yield inst.attr[2].value
