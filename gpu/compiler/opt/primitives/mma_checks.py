"""What `Tensorize` wants of the sum of products that it replaces."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, expr
from gpu.core.dtype import DType
from gpu.core.errors import IllegalOpt


def require_sums(update: K.Update, own: Sequence[Var], space: str, dtype: DType, what: str) -> None:
    """Raises IllegalOpt unless products of `dtype` are added to elements that `own` count."""
    plain = update.mask is ALWAYS and not update.lets
    if update.monoid != "add" or update.buf.space != space or not plain:
        raise IllegalOpt(f"{what}: {update.buf.name} is no tile of sums")
    if update.indices != tuple(map(expr, own)):
        raise IllegalOpt(f"{what}: {update.buf.name} is no tile of sums")
    if update.value.kind != "alu" or update.value.attr != ("mul",):
        raise IllegalOpt(f"{what}: what is added is no product")
    if update.value.dtype is not dtype:
        found = update.value.dtype.name
        raise IllegalOpt(f"{what}: products of {found}; they must be of {dtype.name}")


def require_lanes(index: Expr, wanted: dict[Var, int], others: set[Var], what: str) -> None:
    """An index grows evenly along the loops of an instruction, and with no others of them."""
    rest = index - sum((expr(var) * step for var, step in wanted.items()), expr(0))
    if rest.vars & (wanted.keys() | others):
        raise IllegalOpt(f"{what}: elements at {index} do not lie as the instruction has them")
