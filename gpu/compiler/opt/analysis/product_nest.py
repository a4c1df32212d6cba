"""Sums of products of two factors, whatever these are, and which of the products count."""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Mask, Var, at_least
from gpu.compiler.ir.kernel.tree import Substitution, is_inside, loads_of
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.analysis.reduction_nest import Nest, reduction_nest
from gpu.core.errors import IllegalOpt


class ProductNest(NamedTuple):
    """A kernel that adds up products.

    Attributes:
        around: independent loops whose lengths are known at launch, outermost first.
        nest: the reduction that they hold.
        factors: what is multiplied.
        mask: which products are added; those of the others may be anything, infinite too.
    """

    around: tuple[Var, ...]
    nest: Nest
    factors: tuple[K.Value, K.Value]
    mask: Mask


def product_nest(body: K.Block) -> ProductNest:
    """The kernel as a sum of products. Raises IllegalOpt where it is something else."""
    around: list[Var] = []
    while len(body.body) == 1 and isinstance(loop := body.body[0], K.Loop):
        if loop.var.stop is None or loop.kind != "serial" or not is_independent(loop):
            break
        around.append(loop.var)
        body = loop.body
    nest = reduction_nest(body)
    if nest is None or any(v.stop is not None for v in (*nest.independent, *nest.reduction)):
        raise IllegalOpt("no reduction inside independent loops, of known lengths")
    value, mask = nest.update.value, ALWAYS
    while value.kind == "alu" and value.attr == ("where",) and _is_zero(value.args[2]):
        condition = _mask_of(value.args[0])
        if condition is None:
            break
        value, mask = value.args[1], mask & condition
    if nest.update.monoid != "add" or value.kind != "alu" or value.attr != ("mul",):
        raise IllegalOpt("no product of matrices is added up")
    first, second = (_without(factor, mask) for factor in value.args)
    return ProductNest(tuple(around), nest, (first, second), mask)


def _is_zero(value: K.Value) -> bool:
    return value.kind == "const" and value.attr[0] == 0


def _mask_of(condition: K.Value) -> Mask | None:
    """A condition as a mask, if it compares index arithmetic with zero."""
    if condition.kind != "alu":
        return None
    left, right = condition.args[0], condition.args[-1]
    if condition.attr == ("and",):
        one, other = _mask_of(left), _mask_of(right)
        return one & other if one is not None and other is not None else None
    if condition.attr == ("le",) and _is_zero(left) and right.kind == "index":
        return at_least(right.attr[0], 0)
    return None


def _without(factor: K.Value, mask: Mask) -> K.Value:
    """A factor whose loads do not ask what `mask` does, where they stay inside their buffers."""
    loads: dict[K.Value, K.Value] = {}
    for load in loads_of(factor):
        buf, indices, own = load.attr
        if not is_inside(buf, indices):
            continue
        kept = ALWAYS
        for constraint in own.constraints:
            if constraint not in mask.constraints:
                kept = kept & at_least(constraint, 0)
        loads[load] = K.load(buf, indices, kept)
    return Substitution({}, values=loads).value(factor) if loads else factor
