"""The transformation `Residues`: a sum of which few terms are there, without those that are not.

The gradient of what steps over its input, `s` places at a time, adds up at place `i` the taps `r`
for which `i - r` is a multiple of `s`; masks ask that of each. Places that leave the same remainder
have the same taps: with those alone, no mask and no division is left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Mod, Var
from gpu.compiler.ir.kernel.tree import Substitution, around_vars
from gpu.compiler.opt.analysis.reduction_nest import Nest, reduction_nest
from gpu.core.errors import IllegalOpt


class Residue(NamedTuple):
    """What masks ask of a reduction: that `place` is a multiple of `factor`.

    Attributes:
        row: the independent loop in it.
        step: the loop of the reduction in it, or None.
        place: a sum of multiples of both.
        factor: more than 1.
    """

    row: Var
    step: Var | None
    place: Expr
    factor: int

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """For each remainder of `row`: it, the first step that is done, and how far apart they are.

        All of a loop is one step where there is no `step`; where none is done, they are 0 apart.
        """
        along = self.place.coeff(self.step) if self.step else 0
        common = math.gcd(along, self.factor)
        apart = self.factor // common
        for rest in range(min(self.factor, self.row.extent)):
            at = self.place.const + self.place.coeff(self.row) * rest
            if at % common:
                yield rest, 0, 0
            else:
                first = -(at // common) * pow(along // common, -1, apart) % apart
                yield rest, first, 0 if self.step and first >= self.step.extent else apart


def residues_of(nest: Nest) -> list[Residue]:
    """What masks ask of the steps of a sum, that add nothing where it is not so.

    No loop is in two of them.
    """
    if nest.update.monoid != "add":
        return []
    found: list[Residue] = []
    taken: set[Var] = set()
    for load in _needed(nest.update.value):
        for constraint in load.attr[2].constraints:
            residue = _residue(constraint, nest)
            if residue is not None and not taken & residue.place.vars:
                found.append(residue)
                taken |= residue.place.vars
    return found


def _needed(value: K.Value) -> Iterator[K.Value]:
    """Loads without which a value is zero."""
    op = value.attr[0] if value.kind == "alu" else value.kind
    if op == "load":
        yield value
    elif op in ("cast", "neg", "mul"):
        for part in value.args:
            yield from _needed(part)
    elif op == "div" and value.args[1].kind == "const" and value.args[1].attr[0]:
        yield from _needed(value.args[0])
    elif op == "where" and value.args[2].kind == "const" and not value.args[2].attr[0]:
        yield from _needed(value.args[1])


def _residue(constraint: Expr, nest: Nest) -> Residue | None:
    """What a constraint asks, if that is a multiple of a number, of known loops."""
    if len(constraint.terms) != 1 or constraint.const != 0:
        return None
    (atom, coefficient) = constraint.terms[0]
    if not isinstance(atom, Mod) or coefficient >= 0 or not atom.num.is_affine:
        return None
    rows = [var for var in nest.independent if var in atom.num.vars]
    steps = [var for var in nest.reduction if var in atom.num.vars]
    known = all(var.stop is None for var in (*rows, *steps))
    if not known or len(rows) != 1 or len(steps) > 1 or len(atom.num.terms) > 2:
        return None
    return Residue(rows[0], steps[0] if steps else None, atom.num, atom.den)


def residues(body: K.Block, rows: Sequence[str]) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Residues`. Raises IllegalOpt."""
    nest = reduction_nest(body)
    if nest is None:
        raise IllegalOpt("the kernel is no reduction inside independent loops")
    found = {residue.row.name: residue for residue in residues_of(nest)}
    if not rows or not set(rows) <= found.keys():
        raise IllegalOpt(f"masks ask for multiples of {sorted(found)} alone")
    chosen = [found[name] for name in dict.fromkeys(rows)]
    nests = enumerate(itertools.product(*(residue.parts() for residue in chosen)))
    return K.Block(tuple(_part(nest, chosen, parts, f"_{number}") for number, parts in nests))


def _part(
    nest: Nest, chosen: Sequence[Residue], parts: Sequence[tuple[int, int, int]], suffix: str
) -> K.Stmt:
    """The nest for some remainders of its loops."""
    places: dict[Var, tuple[int, int]] = dict.fromkeys((*nest.independent, *nest.reduction), (0, 1))
    for residue, (rest, first, apart) in zip(chosen, parts, strict=True):
        places[residue.row] = rest, residue.factor
        if residue.step:
            places[residue.step] = first, apart or 1
    made = {var: _every(var, *place, suffix) for var, place in places.items()}
    env: Mapping[Var, Expr] = {
        var: made[var] * apart + first for var, (first, apart) in places.items()
    }
    bufs = {b: K.Buf(b.name + suffix, b.dtype, b.shape, b.space) for b in nest.accumulators}
    moved = Substitution(env, bufs)
    steps: list[K.Stmt] = []
    if all(apart for _, _, apart in parts):
        long = (made[var] for var in nest.reduction if made[var].extent > 1)
        steps = [around_vars(long, moved.stmt(nest.update))]
    stmts = (
        *map(K.Alloc, bufs.values()),
        *map(moved.stmt, nest.before),
        *steps,
        *map(moved.stmt, nest.after),
    )
    return around_vars((made[var] for var in nest.independent), K.Block(stmts))


def _every(var: Var, first: int, apart: int, suffix: str) -> Var:
    """The loop of every `apart`-th iteration of that of `var`, from `first` on."""
    if apart == 1:
        return Var(var.name + suffix, 0, var.hi, var.stop)
    return Var(var.name + suffix, 0, (var.hi - first) // apart)
