"""Bounds of index expressions by trying all values of the few variables that come with a launch.

Bounds by intervals, which every expression has, know nothing of how its parts depend on each other:
a loop stays below a value that is in the expression too, a quotient is at most its numerator.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np

from gpu.compiler.ir.index import expression as nodes

# Combinations of values that are tried.
MOST: Final = 1 << 16


def extremes(
    value: nodes.Expr, vals: Collection[nodes.Var], around: Iterable[nodes.Var] = ()
) -> tuple[int, int]:
    """Bounds of `value`, closer than its own where it depends on values of the launch.

    Args:
        value: an expression over `vals` and variables of loops from 0.
        vals: variables that have one value in a launch.
        around: variables of loops of which each runs an iteration where `value` is computed.
    """
    loops = {var for var in (*value.vars, *around) if var.stop is not None}
    if value.is_affine and not loops:
        return value.lo, value.hi
    used = {var for loop in loops if loop.stop is not None for var in loop.stop.vars}
    known = [var for var in vals if var in used or var in value.vars]
    if not known or math.prod(var.extent for var in known) > MOST:
        return _by_stops(value)
    grid = np.indices([var.extent for var in known]).reshape(len(known), -1)
    env = {var: grid[i] + var.lo for i, var in enumerate(known)}
    reached = np.ones(grid.shape[1], np.bool_)
    for loop in loops:
        assert loop.stop is not None
        reached &= loop.stop.evaluate(env) > 0
    if not reached.any():
        return 0, -1
    low = high = np.full(grid.shape[1], value.const)
    for atom, coefficient in value.terms:
        least, most = _range(atom, env)
        ends = least * coefficient, most * coefficient
        low, high = low + np.minimum(*ends), high + np.maximum(*ends)
    return int(low[reached].min()), int(high[reached].max())


def _range(
    atom: nodes.Atom, env: dict[nodes.Var, nodes.IntArray]
) -> tuple[nodes.IntArray, nodes.IntArray]:
    """The least and the largest an atom can be, for each of the values tried."""
    if isinstance(atom, nodes.Var):
        if atom in env:
            return env[atom], env[atom]
        last = atom.hi if atom.stop is None else atom.stop.evaluate(env) - 1
        return np.asarray(atom.lo), np.asarray(last)
    if atom.num.vars <= env.keys():
        exact = np.asarray(nodes.evaluate_atom(atom, env))
        return exact, exact
    return np.asarray(atom.lo), np.asarray(atom.hi)


def _by_stops(value: nodes.Expr) -> tuple[int, int]:
    """Bounds that know what loops stay below, by putting in the last iteration."""
    low = high = value
    for atom, coefficient in value.terms:
        if isinstance(atom, nodes.Var) and atom.stop is not None:
            last = {atom: atom.stop - 1}
            low, high = (low.subst(last), high) if coefficient < 0 else (low, high.subst(last))
    return max(value.lo, low.lo), min(value.hi, high.hi)
