"""Comparisons of the vector ALU: section 16.9 of AMD's "RDNA3 Instruction Set Architecture".

``v_cmp`` writes a lane mask; ``v_cmpx`` is the same with EXEC as its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpu.sim.isa.frames import Build, Operation
from gpu.sim.isa.values import Value, bits_of

_FLOAT: Final = {
    "lt": "olt",
    "eq": "oeq",
    "le": "ole",
    "gt": "ogt",
    "lg": "one",
    "ge": "oge",
    "o": "ord",
    "u": "uno",
    "nge": "ult",
    "nlg": "ueq",
    "ngt": "ule",
    "nle": "ugt",
    "neq": "une",
    "nlt": "uge",
    "f": "false",
    "t": "true",
}
_INTEGER: Final = ("lt", "eq", "le", "gt", "ne", "ge")
_MANTISSA: Final = {"f16": 10, "f32": 23, "f64": 52}


def fraction_bits(kind: str) -> int:
    """Bits of the fraction of a float type."""
    return _MANTISSA[kind]


def exponent_mask(kind: str) -> int:
    """The exponent field's bits, all ones, at its place."""
    return (1 << (bits_of(kind) - 1)) - (1 << _MANTISSA[kind])


def _float(predicate: str) -> Build:
    return lambda x, y: x.fcmp(predicate, y)


def _integer(name: str, sign: str) -> Build:
    predicate = name if name in ("eq", "ne") else sign + name
    return lambda x, y: x.icmp(predicate, y)


def _constant(answer: bool) -> Build:
    return lambda x, y: x.emitter.const("i1", answer)


def classify(x: Value, wanted: Value) -> Value:
    """V_CMP_CLASS: whether bit n of `wanted` is set for the class n of `x`.

    Classes: signalling and quiet NaN, then -inf, -normal, -denormal, -0, +0, ... +inf.
    """
    mantissa = _MANTISSA[x.kind]
    pattern = x.bits()
    magnitude = pattern & ((1 << (bits_of(x.kind) - 1)) - 1)
    infinity = exponent_mask(x.kind)
    negative = pattern.icmp("slt", 0)
    quiet = (pattern & (1 << (mantissa - 1))).ne(0)
    number = wanted.like(0)
    number = magnitude.ne(0).select(1, number)
    number = magnitude.icmp("uge", 1 << mantissa).select(2, number)
    number = magnitude.eq(infinity).select(3, number)
    number = negative.select(wanted.like(5) - number, wanted.like(6) + number)
    nan = quiet.select(wanted.like(1), wanted.like(0))
    number = magnitude.icmp("ugt", infinity).select(nan, number)
    return (wanted.lshr(number) & 1).ne(0)


def _definitions() -> Iterator[tuple[str, str, tuple[str, str], Callable[..., Value]]]:
    for kind in ("f16", "f32", "f64"):
        for name, predicate in _FLOAT.items():
            build = _constant(name == "t") if name in "ft" else _float(predicate)
            yield name, kind, (kind, kind), build  # type: ignore[misc]
        yield "class", kind, (kind, "i16" if kind == "f16" else "i32"), classify
    for bits in ("16", "32", "64"):
        for sign in "iu":
            kinds = (f"i{bits}", f"i{bits}")
            for name in _INTEGER:
                prefix = "s" if sign == "i" else "u"
                yield name, f"{sign}{bits}", kinds, _integer(name, prefix)  # type: ignore[misc]
            for name in "ft":
                yield name, f"{sign}{bits}", kinds, _constant(name == "t")  # type: ignore[misc]


TABLE: Final[dict[str, Operation]] = {
    f"v_{verb}_{name}_{kind}": Operation(f"v_cmp_{name}_{kind}", ("m",), sources, build)
    for name, kind, sources, build in _definitions()
    for verb in ("cmp", "cmpx")
}
