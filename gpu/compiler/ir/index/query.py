"""What a schedule asks of an expression: which loop to split, what it is under a mask; and of a
variable, how often a loop over it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu.compiler.ir.index.bounds import extremes
from gpu.compiler.ir.index.expression import Div, Expr, Mod, Var, expr
from gpu.compiler.ir.index.mask import Mask


def split_hint(value: Expr) -> tuple[Var, int] | None:
    """A variable and a factor whose split removes at least one division or modulus from `value`.

    Replacing the variable by `factor * outer + inner`, with `inner` in [0, factor) and `outer` in
    [0, extent // factor), leaves fewer of them. Only variables that start at 0 and factors that
    divide the extent are offered; None where no such split is known.
    """
    atoms = _quotients(value)
    tried: set[tuple[Var, int]] = set()
    for atom in atoms:
        for candidate in _candidates(atom):
            if candidate in tried:
                continue
            tried.add(candidate)
            if len(_quotients(value.subst({candidate[0]: _split(*candidate)}))) < len(atoms):
                return candidate
    return None


def simplify_under(value: Expr, mask: Mask) -> Expr:
    """`value` simplified where `mask` holds; elsewhere the result may differ from it.

    Only constraints on a single variable are used. `value` comes back as it is where the mask
    contradicts itself.
    """
    lows: dict[Var, int] = {}
    highs: dict[Var, int] = {}
    for constraint in mask.constraints:
        if len(constraint.terms) != 1:
            continue
        (atom, coefficient), const = constraint.terms[0], constraint.const
        if isinstance(atom, Var) and coefficient > 0:
            lows[atom] = -(const // coefficient)
        elif isinstance(atom, Var):
            highs[atom] = const // -coefficient
    narrowed: dict[Var, Expr] = {}
    restored: dict[Var, Expr] = {}
    for var in lows | highs:
        low, high = lows.get(var, var.lo), highs.get(var, var.hi)
        if low > high:
            return value
        twin = Var(var.name, low, high)
        narrowed[var] = expr(twin)
        restored[twin] = expr(var)
    return value.subst(narrowed).subst(restored)


def divides(factor: int, var: Var) -> bool:
    """Whether a loop over `var`, from 0, is sure to have a multiple of `factor` iterations."""
    if var.stop is None:
        return var.extent % factor == 0
    return var.stop % factor is expr(0)


def loop_var(name: str, size: Expr | int) -> Var:
    """A variable for a loop of `size` iterations, from 0.

    Its extent is the most there are for any values that come with a launch, though never less
    than 1: what the bounds of a size allow may be more, and a part of it may turn out to be 0.
    """
    size = expr(size)
    most = max(extremes(size, size.vars)[1], 1)
    return Var(name, 0, most - 1, None if size is expr(most) else size)


def iterations(var: Var) -> Expr:
    """How many iterations a loop over `var`, from 0, has."""
    return expr(var.hi + 1) if var.stop is None else var.stop


def _quotients(value: Expr) -> dict[Div | Mod, None]:
    """The distinct divisions and moduli at any depth, outer ones first, as an ordered set."""
    found: dict[Div | Mod, None] = {}
    for atom, _ in value.terms:
        if not isinstance(atom, Var):
            found[atom] = None
            found.update(_quotients(atom.num))
    return found


def _candidates(atom: Div | Mod) -> Iterator[tuple[Var, int]]:
    for var, coefficient in atom.num.terms:
        if not isinstance(var, Var) or var.bound is not None or var.lo != 0:
            continue
        if atom.den % coefficient == 0:
            factor = atom.den // abs(coefficient)
            if 1 < factor < var.extent and divides(factor, var):
                yield var, factor


def _split(var: Var, factor: int) -> Expr:
    outer = Var(f"{var.name}.outer", 0, var.extent // factor - 1)
    inner = Var(f"{var.name}.inner", 0, factor - 1)
    return outer * factor + inner
