"""Float operations that a WGSL compiler may rewrite into something that is not equal.

WGSL lets it reassociate, and take it that no value is infinite or NaN
(https://www.w3.org/TR/WGSL/ section 15.7, Floating Point Evaluation). So (1 + x) - 1 may become x,
x != x false, not (a < b) become b <= a, and 0 * x become 0: Mesa does all of these. The shapes that
derivations and the tensor API rely on are found here, and printed in a way that leaves nothing to
rewrite: through `opaque`, an exclusive-or with a zero that no compiler knows to be one, or as a
test of bits.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst
from gpu.core.dtype import dtypes

_SUMS: Final = frozenset({"add", "sub"})
_COMPARISONS: Final = frozenset({"lt", "le", "eq", "ne"})
# Operands that sums of many terms have, which are to stay fast and have nothing to lose.
_FAST: Final = frozenset({"carry", "mul", "fma"})


def is_nan_test(inst: Inst) -> bool:
    """Whether it compares a float with itself: ``x != x`` or ``x == x``."""
    same = inst.attr[0] in ("ne", "eq") and inst.args[0] is inst.args[1]
    return same and inst.args[0].dtype is dtypes.float32


def is_denied_order(inst: Inst) -> bool:
    """Whether it is ``not (a < b)`` or ``not (a <= b)`` of floats."""
    source = inst.args[0]
    return (
        inst.attr[0] == "not"
        and source.op == "alu"
        and source.attr[0] in ("lt", "le")
        and source.args[0].dtype is dtypes.float32
    )


def hidden(inst: Inst) -> tuple[bool, ...]:
    """Which operands of an operation must be opaque to the compiler."""
    nothing = tuple(False for _ in inst.args)
    if inst.op != "alu" or inst.args[-1].dtype is not dtypes.float32:
        return nothing
    (name,) = inst.attr
    if name in _COMPARISONS:
        return tuple(_is_sum(arg) for arg in inst.args)
    if name in _SUMS:
        # Adding 0 makes a 0 of -0.
        exact = tuple(_is_sum(arg) or _is_zero(arg) for arg in inst.args)
        # That an operand less itself is 0 does not hold for infinities and NaNs.
        return exact if any(exact) or not _may_cancel(inst) else (False, True)
    if name == "mul":
        a, b = inst.args
        return (_scales_on(a, b), _scales_on(b, a))
    if name == "div":  # 0 / 0 is no 0, whatever the compiler finds out of the dividend
        return (True, _is_zero(inst.args[1]))
    if name == "fma":
        a, b, added = inst.args
        # Products of one factor would become one, of a sum of the others.
        joins = _is_sum(added) and not {a, b}.isdisjoint(added.args)
        return (_may_be_zero(a), _may_be_zero(b), joins)
    return nothing


def _is_sum(inst: Inst) -> bool:
    """Whether it adds, which with another sum or comparison may be joined or taken apart."""
    while inst.op == "alu" and inst.attr[0] in ("neg", "abs"):
        inst = inst.args[0]
    return inst.op == "alu" and (inst.attr[0] in _SUMS or inst.attr[0] == "fma")


def _may_cancel(inst: Inst) -> bool:
    """Whether the operands of a sum could be one value, with a sign or without."""
    return not any(
        arg.op == "const" or (arg.attr[0] if arg.op == "alu" else arg.op) in _FAST
        for arg in inst.args
    )


def _scales_on(factor: Inst, other: Inst) -> bool:
    """Whether a factor may be a zero, or a product with a constant that meets another one."""
    if _may_be_zero(factor):
        return True
    return _is_product(factor) and other.op == "const" and any(a.op == "const" for a in factor.args)


def _may_be_zero(inst: Inst) -> bool:
    """Whether a compiler may find out that a factor is 0, and that the product is too.

    So it is with constants, with what is 0 outside of a mask or condition, and with integers. A
    choice among constants and products is no better: those meet the factor that it is multiplied
    by.
    """
    waiting = [inst]
    while waiting:
        inst = waiting.pop()
        masked = inst.op == "load" and len(inst.args) == 3
        whole = inst.op == "cast" and not inst.args[0].dtype.is_float
        if masked or whole or _is_zero(inst):
            return True
        if inst.op == "alu" and inst.attr[0] == "where":
            waiting += inst.args[1:]
            if any(arm.op == "const" or _is_product(arm) for arm in inst.args[1:]):
                return True
    return False


def _is_product(inst: Inst) -> bool:
    return inst.op == "alu" and inst.attr[0] == "mul"


def _is_zero(inst: Inst) -> bool:
    return inst.op == "const" and inst.attr[0] == 0
