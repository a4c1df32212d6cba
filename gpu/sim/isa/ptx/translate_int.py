"""Integer instructions into records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.isa.ptx import parts, sem_int
from gpu.sim.isa.ptx.context import KINDS, Context, Handler
from gpu.sim.isa.ptx.syntax import TYPES
from gpu.sim.isa.values import Value

INTEGERS: Final = tuple(f"{letter}{bits}" for letter in "su" for bits in (16, 32, 64))
PAIRS: Final = ("s16x2", "u16x2")
_CARRY: Final = "%carry"


def simple(context: Context, name: str, build: Callable[..., Value], kind: str, count: int) -> None:
    """An instruction whose sources and result are of one kind."""
    context.on_operands(name, build, f"{kind}:{f' {kind}' * count}")


def _carry(context: Context) -> int:
    """The row of the carry flag."""
    found = context.scope.registers.get(_CARRY)
    if found is None:
        found = context.scope.registers[_CARRY] = (context.rows.take(), 1)
    return found[0]


def add(context: Context) -> None:
    """ADD and SUB of integers, with carry or without."""
    name = context.instruction.name
    kind, flags = context.one_type("sat", "cc", among=(*INTEGERS, *PAIRS))
    subtract = name == "sub"
    build: Callable[..., Value] = (lambda x, y: x - y) if subtract else (lambda x, y: x + y)
    if "cc" in flags:
        _with_carry(context, kind, subtract, False)
        return
    if "sat" in flags:
        if kind != "s32":
            raise context.error(".sat is for .s32")
        build = partial(sem_int.saturated_sum, subtract=subtract)
    if kind in PAIRS:
        build = parts.on_halves(build, "i16")
        name = f"{name}.x2"
    simple(context, f"{name}.sat" if "sat" in flags else name, build, KINDS[kind], 2)


def add_carry(context: Context) -> None:
    """ADDC and SUBC."""
    kind, flags = context.one_type("cc", among=("s32", "u32", "s64", "u64"))
    _with_carry(context, kind, context.instruction.name == "subc", True, "cc" in flags)


def _with_carry(
    context: Context, kind: str, subtract: bool, takes: bool, gives: bool = True
) -> None:
    def build(x: Value, y: Value, flag: Value | None = None) -> tuple[Value, Value]:
        total = x - y if subtract else x + y
        over = x.icmp("ult", y) if subtract else total.icmp("ult", x)
        if flag is None:
            return total, over
        step = flag.select(total.like(1), 0)
        last = total - step if subtract else total + step
        more = total.icmp("ult", step) if subtract else last.icmp("ult", step)
        return last, over | more

    operands = context.arity(3)
    wide = KINDS[kind]
    sources = [context.source(operand, wide) for operand in operands[1:]]
    kinds = [wide, wide]
    flag = _carry(context)
    results = [context.target(operands[0], wide), flag if gives else context.temp()]
    if takes:
        sources.append(flag)
        kinds.append("p")
    name = f"{'sub' if subtract else 'add'}.carry"
    context.compute(name, build, sources, kinds, results)


def multiply(context: Context) -> None:
    """MUL and MAD of integers."""
    instruction = context.instruction
    kind, flags = context.one_type("lo", "hi", "wide", "sat", "cc", among=INTEGERS)
    if len(flags & {"lo", "hi", "wide"}) != 1:
        raise context.error("one of .lo, .hi and .wide is needed")
    signed = kind[0] == "s"
    part = next(iter(flags & {"lo", "hi", "wide"}))
    adds = instruction.name in ("mad", "madc")
    operands = context.arity(4 if adds else 3)
    narrow = KINDS[kind]
    wide = f"i{2 * TYPES[kind]}" if part == "wide" else narrow
    if part == "wide" and TYPES[kind] == 64:
        raise context.error(".wide is for 16 and 32 bits")
    products: dict[str, Callable[..., Value]] = {
        "lo": lambda x, y: x * y,
        "hi": partial(sem_int.product_high, signed=signed),
        "wide": partial(sem_int.product_wide, signed=signed),
    }
    product = products[part]
    sources = [context.source(operand, narrow) for operand in operands[1:3]]
    suffix = "" if part == "lo" else ".s" if signed else ".u"
    name = f"mul.{part}{suffix}"
    result = context.target(operands[0], wide)
    if not adds:
        context.compute(name, product, sources, [narrow] * 2, [result])
    elif instruction.name == "madc" or "cc" in flags:
        _multiply_carry(context, (name, product), sources, narrow)
    else:
        sources.append(context.source(operands[3], wide))
        if "sat" in flags:
            build: Callable[..., Value] = lambda x, y, z: sem_int.saturated_sum(  # noqa: E731
                product(x, y), z, False
            )
            name = f"{name}.sat"
        else:
            build = lambda x, y, z: product(x, y) + z  # noqa: E731
        context.compute(f"{name}.add", build, sources, [narrow, narrow, wide], [result])


def _multiply_carry(
    context: Context, how: tuple[str, Callable[..., Value]], sources: list[int], kind: str
) -> None:
    """MAD.CC and MADC: the product, then an addition with carry."""
    operands = context.instruction.operands
    temp = context.temp(2)
    context.compute(how[0], how[1], sources, [kind] * 2, [temp])
    addend = context.source(operands[3], kind)
    flag = _carry(context)
    takes = context.instruction.name == "madc"
    gives = "cc" in context.instruction.parts

    def build(x: Value, y: Value, before: Value | None = None) -> tuple[Value, Value]:
        total = x + y
        over = total.icmp("ult", x)
        if before is None:
            return total, over
        last = total + before.select(total.like(1), 0)
        return last, over | last.icmp("ult", total)

    results = [context.target(operands[0], kind), flag if gives else context.temp()]
    inputs, kinds = [temp, addend], [kind, kind]
    if takes:
        inputs.append(flag)
        kinds.append("p")
    context.compute("mad.carry", build, inputs, kinds, results)


def multiply24(context: Context) -> None:
    """MUL24 and MAD24."""
    kind, flags = context.one_type("lo", "hi", among=("s32", "u32"))
    signed, high = kind[0] == "s", "hi" in flags
    name = f"mul24.{'hi' if high else 'lo'}.{kind[0]}"
    product = partial(sem_int.product24, signed=signed, high=high)
    if context.instruction.name == "mul24":
        simple(context, name, product, "i32", 2)
    else:
        simple(context, f"{name}.add", lambda x, y, z: product(x, y) + z, "i32", 3)


def divide(context: Context) -> None:
    """DIV and REM of integers."""
    kind, _ = context.one_type(among=INTEGERS)
    remainder = context.instruction.name == "rem"
    build = partial(sem_int.quotient, signed=kind[0] == "s", remainder=remainder)
    simple(context, f"{context.instruction.name}.{kind[0]}", build, KINDS[kind], 2)


def extreme(context: Context) -> None:
    """MIN and MAX of integers."""
    name = context.instruction.name
    kind, flags = context.one_type("relu", among=(*INTEGERS, *PAIRS))
    signed, largest = kind[0] == "s", name == "max"
    relu = "relu" in flags

    def build(x: Value, y: Value) -> Value:
        if signed:
            found = x.smax(y) if largest else x.smin(y)
            return found.smax(0) if relu else found
        return x.umax(y) if largest else x.umin(y)

    full = f"{name}.{kind[0]}{'.relu' if relu else ''}"
    if kind in PAIRS:
        simple(context, f"{full}.x2", parts.on_halves(build, "i16"), "i32", 2)
    else:
        simple(context, full, build, KINDS[kind], 2)


def absolute(context: Context) -> None:
    """ABS and NEG of integers."""
    kind, _ = context.one_type(among=("s16", "s32", "s64"))
    if context.instruction.name == "neg":
        simple(context, "neg", lambda x: -x, KINDS[kind], 1)
    else:
        simple(context, "abs", lambda x: x.icmp("slt", 0).select(-x, x), KINDS[kind], 1)


def sum_of_differences(context: Context) -> None:
    """SAD."""
    kind, _ = context.one_type(among=INTEGERS)
    build = partial(sem_int.sad, signed=kind[0] == "s")
    simple(context, f"sad.{kind[0]}", build, KINDS[kind], 3)


HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(("addc", "subc"), add_carry),
    **dict.fromkeys(("mul24", "mad24"), multiply24),
    "madc": multiply,
    "rem": divide,
    "sad": sum_of_differences,
}
"""Instructions that are for integers only."""
