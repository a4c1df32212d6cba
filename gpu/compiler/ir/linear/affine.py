"""Indices taken apart into a constant and multiples of values, modulo 2**32.

What stays 64 bits wide in a program for a device without such integers fits 32.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst
from gpu.core.dtype import dtypes

_WORDS: Final = frozenset({dtypes.int32, dtypes.uint32, dtypes.int64})
_MODULUS: Final = 1 << 32


class Sum(NamedTuple):
    """A constant and multiples of values.

    Attributes:
        terms: values, none of them a sum, with what they are multiplied by.
        constant: what is added.
    """

    terms: tuple[tuple[Inst, int], ...]
    constant: int

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        """This and `factor` times another one."""
        terms = dict(self.terms)
        for value, count in other.terms:
            terms[value] = _signed(terms.get(value, 0) + count * factor)
        return Sum(
            tuple((value, count) for value, count in terms.items() if count),
            _signed(self.constant + other.constant * factor),
        )

    def modulo(self, divisor: int) -> int | None:
        """What is left of it divided by a power of two, where that is the same for all values."""
        known = all(count % divisor == 0 for _, count in self.terms)
        return self.constant % divisor if known else None


def _signed(value: int) -> int:
    return (value + _MODULUS // 2) % _MODULUS - _MODULUS // 2


def taken_apart(index: Inst, known: dict[Inst, Sum]) -> Sum:
    """An index as a sum; `known` keeps what was taken apart before."""
    found = known.get(index)
    if found is None:
        found = known[index] = _taken_apart(index, known)
    return found


def _taken_apart(inst: Inst, known: dict[Inst, Sum]) -> Sum:
    if inst.op == "const":
        return Sum((), _signed(int(inst.attr[0])))
    if inst.op in ("cast", "bitcast") and inst.args[0].dtype in _WORDS:
        return taken_apart(inst.args[0], known)
    if inst.op == "alu" and inst.attr[0] in ("add", "sub", "mul") and inst.dtype in _WORDS:
        a, b = (taken_apart(arg, known) for arg in inst.args)
        if inst.attr[0] != "mul":
            return a.plus(b, 1 if inst.attr[0] == "add" else -1)
        for one, other in ((a, b), (b, a)):
            if not other.terms:
                return Sum((), 0).plus(one, other.constant)
    return Sum(((inst, 1),), 0)
