"""What 64-bit integers of a linear program can be: bounds and factors, as its text tells.

Counters, places in memory and masks are int64 in the IR, and nearly all of them are small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.core.dtype import dtypes

Range = tuple[int, int]
"""The smallest and the largest value, both possible as far as is known."""
_LOWEST: Final = int(dtypes.int64.min)
_HIGHEST: Final = int(dtypes.int64.max)


def constant_value(inst: Inst) -> int | None:
    """What every lane of an integer value is known to hold."""
    if inst.op == "splat":
        return constant_value(inst.args[0])
    return inst.attr[0] if inst.op == "const" else None


def int_ranges(program: Program) -> dict[Inst, Range]:
    """Bounds of each scalar int64 of a program for which any are known."""
    known: dict[Inst, Range] = {}
    for inst in program.body:
        if inst.dtype is not dtypes.int64 or inst.lanes != 1:
            continue
        found = _range(program, inst, known)
        if found is not None and found[0] >= _LOWEST and found[1] <= _HIGHEST:
            known[inst] = found
    return known


def _range(program: Program, inst: Inst, known: dict[Inst, Range]) -> Range | None:
    match inst.op:
        case "const":
            return inst.attr[0], inst.attr[0]
        case "val":
            val = program.vals[inst.attr[0]]
            return val.lo, val.hi
        case "loop":
            return _counter(inst)
        case "cast":
            source = inst.args[0].dtype
            if source is dtypes.bool:
                return 0, 1
            small = source.is_int and source.bits < 64
            return (int(source.min), int(source.max)) if small else known.get(inst.args[0])
        case "alu":
            args = inst.args[1:] if inst.attr[0] == "where" else inst.args
            rule = _RULES.get(inst.attr[0])
            ranges = [known[arg] for arg in args if arg in known]
            return rule(*ranges) if rule and len(ranges) == len(args) else None
    return None


def _counter(loop: Inst) -> Range:
    _, start, stop, step = loop.attr
    most = stop.most if isinstance(stop, Limit) else stop
    trips = -(-(most - start) // step)
    return start, start + max(trips - 1, 0) * step


def _corners(combine: Callable[[int, int], int], a: Range, b: Range) -> Range:
    values = [combine(x, y) for x in a for y in b]
    return min(values), max(values)


def _mul(a: Range, b: Range) -> Range:
    return _corners(lambda x, y: x * y, a, b)


def _divide(a: Range, b: Range) -> Range | None:
    """Rounded toward zero, by a known number above zero."""
    if b[0] != b[1] or b[0] < 1:
        return None
    low, high = (abs(x) // b[0] * (1 if x >= 0 else -1) for x in a)
    return low, high


def _remainder(a: Range, b: Range) -> Range | None:
    """With the sign of the dividend."""
    if b[0] != b[1] or b[0] < 1:
        return None
    most = b[0] - 1
    return (0 if a[0] >= 0 else max(a[0], -most)), (0 if a[1] <= 0 else min(a[1], most))


def _shift_right(a: Range, b: Range) -> Range | None:
    """By a known count, of a shift that 32 bits have too: there goes what fits them."""
    if b[0] != b[1] or not 0 <= b[0] < 32:
        return None
    return a[0] >> b[0], a[1] >> b[0]


def _shift_left(a: Range, b: Range) -> Range | None:
    if b[0] != b[1] or not 0 <= b[0] < 32:
        return None
    return a[0] << b[0], a[1] << b[0]


def _and(a: Range, b: Range) -> Range | None:
    """Bits of both: no more than that of the two which has no sign."""
    tops = [r[1] for r in (a, b) if r[0] >= 0]
    return (0, min(tops)) if tops else None


def _or(a: Range, b: Range) -> Range | None:
    if a[0] < 0 or b[0] < 0:
        return None
    return 0, (1 << max(a[1], b[1]).bit_length()) - 1


_RULES: Final[dict[str, Callable[..., Range | None]]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul,
    "neg": lambda a: (-a[1], -a[0]),
    "tdiv": _divide,
    "tmod": _remainder,
    "shr": _shift_right,
    "shl": _shift_left,
    "and": _and,
    "or": _or,
    "xor": _or,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
}


MOST_FACTOR: Final = 1 << 12


def int_factors(program: Program) -> dict[Inst, int]:
    """A power of two that divides each scalar int64, up to `MOST_FACTOR`; 1 where none is known."""
    known: dict[Inst, int] = {}
    for inst in program.body:
        if inst.dtype is dtypes.int64 and inst.lanes == 1:
            known[inst] = min(_factor(inst, known), MOST_FACTOR)
    return known


def _factor(inst: Inst, known: dict[Inst, int]) -> int:
    if inst.op == "const":
        return _lowest_bit(inst.attr[0])
    if inst.op == "loop":
        return min(_lowest_bit(inst.attr[1]), _lowest_bit(inst.attr[3]))
    if inst.op != "alu":
        return 1
    name = inst.attr[0]
    factors = [known.get(arg, 1) for arg in (inst.args[1:] if name == "where" else inst.args)]
    match name:
        case "add" | "sub" | "min" | "max" | "where" | "or" | "xor" | "neg" | "tmod":
            return min(factors)
        case "mul":
            return factors[0] * factors[1]
        case "and":
            return max(factors)
        case "shl" if inst.args[1].op == "const" and 0 <= inst.args[1].attr[0] < 12:
            return int(factors[0] << inst.args[1].attr[0])
    return 1


def _lowest_bit(value: int) -> int:
    return value & -value if value else MOST_FACTOR
