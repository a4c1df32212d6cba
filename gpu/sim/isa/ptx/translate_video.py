"""SIMD video instructions into records: "PTX ISA", section 9.7.19, on two or four parts of a word.

Each takes its parts from both sources together: those of `a` are numbered first, then those of `b`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa.ptx.context import Context, Handler
from gpu.sim.isa.ptx.syntax import Operand, Part
from gpu.sim.isa.values import Value

_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")


def _average(x: Value, y: Value) -> Value:
    """Rounded away from zero."""
    total = x + y
    return total.icmp("sge", 0).select(total + 1, total).ashr(1)


_OPERATIONS: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vavrg": _average,
    "vabsdiff": lambda x, y: x.smax(y) - x.smin(y),
    "vmin": lambda x, y: x.smin(y),
    "vmax": lambda x, y: x.smax(y),
}


def _selected(context: Context, operand: Operand, count: int, first: int) -> tuple[Operand, str]:
    """A source and its selector: numbers of parts, the lowest one last."""
    if not isinstance(operand, Part):
        return operand, "".join(str(first + number) for number in reversed(range(count)))
    letter, numbers = operand.parts[0], operand.parts[1:]
    if letter != ("h" if count == 2 else "b") or len(numbers) != count:
        raise context.error(f".{operand.parts} does not select {count} parts")
    if any(int(number) >= 2 * count for number in numbers):
        raise context.error(f".{operand.parts}: there are {2 * count} parts")
    return operand.base, numbers


def _mask(context: Context, operand: Operand, count: int) -> tuple[Operand, set[int]]:
    """The result and which of its parts are meant."""
    if not isinstance(operand, Part):
        return operand, set(range(count))
    numbers = [int(number) for number in operand.parts[1:]]
    falling = numbers == sorted(set(numbers), reverse=True)
    if operand.parts[0] != ("h" if count == 2 else "b") or not falling or numbers[0] >= count:
        raise context.error(f".{operand.parts} is no mask of {count} parts")
    return operand.base, set(numbers)


def _video(context: Context) -> None:
    """VADD2, VSUB4, VABSDIFF4, VSET2 and their like."""
    name, count = context.instruction.name[:-1], int(context.instruction.name[-1])
    compares = name == "vset"
    types, flags = context.parts("add", *(_COMPARISONS if compares else ("sat",)))
    if len(types) != (2 if compares else 3) or any(kind not in ("s32", "u32") for kind in types):
        raise context.error("types are .s32 and .u32, of the result and of both sources")
    result, left, right = ["u32", *types] if compares else types
    test = next(iter(flags & set(_COMPARISONS)), "")
    if len(flags & set(_COMPARISONS)) != compares or {"add", "sat"} <= flags:
        raise context.error("these modifiers do not go together")
    bits = 32 // count
    target, a, b, c = context.arity(4)
    target, mask = _mask(context, target, count)
    a, first = _selected(context, a, count, 0)
    b, second = _selected(context, b, count, count)

    def part(x: Value, y: Value, number: int, kind: str) -> Value:
        word = (x if number < count else y).shl(32 - bits * (number % count + 1))
        return word.ashr(32 - bits) if kind == "s32" else word.lshr(32 - bits)

    def one(x: Value, y: Value, place: int) -> Value:
        p = part(x, y, int(first[-1 - place]), left)
        q = part(x, y, int(second[-1 - place]), right)
        if compares:
            order = test if test in ("eq", "ne") else f"s{test}"
            return p.icmp(order, q).select(p.like(1), 0)
        found = _OPERATIONS[name](p, q)
        if "sat" not in flags:
            return found
        if result == "s32":
            return found.smax(-1 << bits - 1).smin((1 << bits - 1) - 1)
        return found.smax(0).smin((1 << bits) - 1)

    def build(x: Value, y: Value, z: Value) -> Value:
        low = (1 << bits) - 1
        total = (
            z
            if "add" in flags
            else z & sum(low << bits * place for place in range(count) if place not in mask)
        )
        for place in sorted(mask):
            found = one(x, y, place)
            total = total + (found if "add" in flags else (found & low).shl(bits * place))
        return total

    masked = "".join(map(str, sorted(mask)))
    full = f"{name}{count}.{'.'.join(context.instruction.parts)}.{masked}.{first}.{second}"
    sources = [context.source(operand, "i32") for operand in (a, b, c)]
    context.compute(full, build, sources, ["i32"] * 3, [context.target(target, "i32")])


HANDLERS: Final[dict[str, Handler]] = {
    f"{name}{count}": _video for name in (*_OPERATIONS, "vset") for count in (2, 4)
}
"""Video instructions on parts of words."""
