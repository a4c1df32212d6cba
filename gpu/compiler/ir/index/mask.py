"""Masks: conjunctions of index constraints `e >= 0`, simplified as they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from typing import overload

import numpy as np
from numpy.typing import NDArray

from gpu.compiler.ir.index import expression as nodes
from gpu.compiler.ir.index.text import Reader, parse_error
from gpu.core.weak import WeakTable


class Mask:
    """An immutable conjunction of constraints `e >= 0`; equal masks are the same object.

    `constraints` is sorted; empty means always true. Build one with :func:`at_least` and its kin
    and `&`.
    """

    __slots__ = ("__weakref__", "constraints")

    def __init__(self, constraints: tuple[nodes.Expr, ...]) -> None:
        self.constraints = constraints

    @property
    def vars(self) -> frozenset[nodes.Var]:
        """Every variable in the constraints."""
        return frozenset().union(*[constraint.vars for constraint in self.constraints])

    def __and__(self, other: Mask) -> Mask:
        if self is other or other is ALWAYS:
            return self
        if self is ALWAYS:
            return other
        return _conjunction((*self.constraints, *other.constraints))

    def subst(self, env: Mapping[nodes.Var, nodes.Operand]) -> Mask:
        """Replace variables, all at once, and simplify again; see :meth:`Expr.subst`."""
        if self.vars.isdisjoint(env):
            return self
        return _conjunction([constraint.subst(env) for constraint in self.constraints])

    @overload
    def evaluate(self, env: Mapping[nodes.Var, int]) -> bool: ...
    @overload
    def evaluate(
        self, env: Mapping[nodes.Var, int | nodes.IntArray]
    ) -> bool | NDArray[np.bool_]: ...
    def evaluate(
        self, env: Mapping[nodes.Var, int] | Mapping[nodes.Var, int | nodes.IntArray]
    ) -> bool | NDArray[np.bool_]:
        """Whether all constraints hold, elementwise. Raises InvalidValue for a missing variable."""
        holds: bool | NDArray[np.bool_] = True
        for constraint in self.constraints:
            holds = holds & (constraint.evaluate(env) >= 0)
        return holds

    def __str__(self) -> str:
        if self is NEVER:
            return "never"
        return " & ".join(f"{constraint} >= 0" for constraint in self.constraints) or "always"

    def __repr__(self) -> str:
        return f"Mask({self})"


_masks: WeakTable[tuple[nodes.Expr, ...], Mask] = WeakTable()


def _interned(constraints: tuple[nodes.Expr, ...]) -> Mask:
    return _masks.get(constraints) or _masks.file(constraints, Mask(constraints))


ALWAYS = _interned(())
NEVER = _interned((nodes.constant(-1),))


def at_least(value: nodes.Operand, bound: nodes.Operand) -> Mask:
    """`value >= bound`; ALWAYS or NEVER where bounds decide it."""
    return _conjunction([nodes.expr(value) - nodes.expr(bound)])


def at_most(value: nodes.Operand, bound: nodes.Operand) -> Mask:
    """`value <= bound`; ALWAYS or NEVER where bounds decide it."""
    return _conjunction([nodes.expr(bound) - nodes.expr(value)])


def between(value: nodes.Operand, lo: nodes.Operand, hi: nodes.Operand) -> Mask:
    """`lo <= value <= hi`, both ends included."""
    return at_least(value, lo) & at_most(value, hi)


def parse_mask(text: str, names: Mapping[str, nodes.Var]) -> Mask:
    """Read what `str(mask)` writes. Raises ParseError with the column, counted from 1."""
    if text.strip() in ("always", "never"):
        return ALWAYS if text.strip() == "always" else NEVER
    constraints = []
    start = 0
    for part in text.split("&"):
        end = start + len(part)
        relation = text.find(">=", start, end)
        if relation < 0:
            raise parse_error(text, end + 1, "expected '>=' in each constraint")
        left = Reader(text, names, start, relation).whole()
        constraints.append(left - Reader(text, names, relation + 2, end).whole())
        start = end + 1
    return _conjunction(constraints)


def _conjunction(constraints: Iterable[nodes.Expr]) -> Mask:
    """All of `constraints` being >= 0: of those with equal terms the tightest stays."""
    tightest: dict[nodes.Expr, int] = {}
    for constraint in constraints:
        reduced = _reduced(constraint)
        if reduced.lo >= 0:
            continue
        if reduced.hi < 0:
            return NEVER
        slope = reduced - reduced.const
        tightest[slope] = min(reduced.const, tightest.get(slope, reduced.const))
    for slope, const in tightest.items():
        # slope >= -const and -slope >= -opposite leave nothing when the interval is empty.
        opposite = tightest.get(-slope)
        if opposite is not None and const + opposite < 0:
            return NEVER
    kept = [slope + const for slope, const in tightest.items()]
    return _interned(tuple(sorted(kept, key=lambda constraint: constraint.sort_key)))


def _reduced(constraint: nodes.Expr) -> nodes.Expr:
    """The same solutions without common factors, and with outer divisions multiplied out."""
    factor = gcd(*[coefficient for _, coefficient in constraint.terms])
    if factor > 1:
        return _reduced(constraint // factor)
    for atom, coefficient in constraint.terms:
        if isinstance(atom, nodes.Div) and abs(coefficient) == 1:
            # x//k + w >= 0 is x + k*w >= 0, and w - x//k >= 0 is k*w + k - 1 - x >= 0, w being
            # whole.
            others = (constraint - nodes.linear(0, {atom: coefficient})) * atom.den
            inner = atom.num if coefficient == 1 else atom.den - 1 - atom.num
            return _reduced(others + inner)
    return constraint
