"""Comparisons, selections, moves and conversions into records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa.ptx import parts, sem_convert, sem_float
from gpu.sim.isa.ptx.context import KINDS, Context, Handler
from gpu.sim.isa.ptx.sem_convert import FLOATS, Conversion
from gpu.sim.isa.ptx.syntax import TYPES, Both, Operand, Pack, Register, Symbol
from gpu.sim.isa.values import Value, bits_of

_INTEGER_TESTS: Final = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs")
_UNSIGNED: Final = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_NOT_COMPARED: Final = ("s16x2", "u16x2", "tf32", "e4m3x2", "e5m2x2")
_CONNECTIVES: Final = ("and", "or", "xor")
_CLOCKS: Final = {
    "%clock": 0,
    "%clock_hi": 32,
    "%globaltimer_lo": 0,
    "%globaltimer_hi": 32,
    "%clock64": 0,
    "%globaltimer": 0,
}


def _comparison(test: str, kind: str, ftz: bool) -> Callable[[Value, Value], Value]:
    """A comparison of two values of a PTX type."""
    if kind in FLOATS:
        predicate = sem_float.COMPARISONS[test]

        def compare(x: Value, y: Value) -> Value:
            if kind == "bf16":
                x, y = parts.widen(x), parts.widen(y)
            if ftz:
                x, y = parts.flush(x), parts.flush(y)
            return x.fcmp(predicate, y)

        return compare
    if test in _UNSIGNED:
        name = _UNSIGNED[test]
    elif test in ("eq", "ne"):
        name = test
    else:
        name = f"{'s' if kind[0] == 's' else 'u'}{test}"
    return lambda x, y: x.icmp(name, y)


def _test_of(context: Context) -> tuple[str, str, set[str], list[str]]:
    """(test, its type, flags, types before it) of SETP and SET."""
    tests = {*_INTEGER_TESTS, *sem_float.COMPARISONS}
    found = [part for part in context.instruction.parts if part in tests]
    if len(found) != 1:
        raise context.error("one comparison is needed")
    types, flags = context.parts(*tests, *_CONNECTIVES, "ftz")
    if not types:
        raise context.error("a type is needed")
    kind = types[-1]
    allowed = sem_float.COMPARISONS if kind.removesuffix("x2") in FLOATS else _INTEGER_TESTS
    known = kind in KINDS and KINDS[kind] not in ("p", "i8") and kind not in _NOT_COMPARED
    if not known or found[0] not in allowed:
        raise context.error(f".{found[0]} does not compare .{kind}")
    return found[0], kind, flags, types[:-1]


def _set_predicate(context: Context) -> None:
    """SETP: a comparison, combined with a predicate or not."""
    test, kind, flags, _ = _test_of(context)
    connective = next((c for c in _CONNECTIVES if c in flags), "")
    target = context.arity(4 if connective else 3)[0]
    targets: list[Operand] = [target.first, target.second] if isinstance(target, Both) else [target]
    name = f"setp.{test}.{kind}{'.ftz' if 'ftz' in flags else ''}"
    if kind.endswith("x2"):
        _set_pair(context, (test, kind, name), targets, connective)
        return
    compare = _comparison(test, kind, "ftz" in flags)
    sources, kinds = _compared(context, KINDS[kind], connective)
    results = [context.target(each, "p") for each in targets]
    two = len(results) == 2

    def build(x: Value, y: Value, with_: Value | None = None) -> Value | tuple[Value, ...]:
        holds = compare(x, y)
        first = _combined(connective, holds, with_)
        return (first, _combined(connective, ~holds, with_)) if two else first

    full = f"{name}{'.' + connective if connective else ''}{'.two' if two else ''}"
    context.compute(full, build, sources, kinds, results)


def _compared(context: Context, kind: str, connective: str) -> tuple[list[int], list[str]]:
    """(rows, kinds) of what SETP and SET compare, and of what they combine the result with."""
    operands = context.arity(4 if connective else 3)
    sources, kinds = [context.source(operand, kind) for operand in operands[1:3]], [kind] * 2
    if connective:
        return [*sources, context.predicate(operands[3])], [*kinds, "p"]
    return sources, kinds


def _combined(connective: str, holds: Value, other: Value | None) -> Value:
    if other is None:
        return holds
    return {"and": holds & other, "or": holds | other, "xor": holds ^ other}[connective]


def _set_pair(
    context: Context, how: tuple[str, str, str], targets: list[Operand], connective: str
) -> None:
    """SETP of pairs: a predicate for each half."""
    test, kind, name = how
    if len(targets) != 2:
        raise context.error("two predicates are needed, p|q")
    single = kind.removesuffix("x2")
    compare = _comparison(test, single, name.endswith(".ftz"))
    half = "i16" if single == "bf16" else "f16"
    sources, kinds = _compared(context, KINDS[kind], connective)

    def build(x: Value, y: Value, with_: Value | None = None) -> tuple[Value, ...]:
        pairs = zip(parts.halves(x, half), parts.halves(y, half), strict=True)
        return tuple(_combined(connective, compare(*pair), with_) for pair in pairs)

    results = [context.target(each, "p") for each in targets]
    full = f"{name}{'.' + connective if connective else ''}"
    context.compute(full, build, sources, kinds, results)


def _set(context: Context) -> None:
    """SET: a comparison as a number: all ones, or 1.0."""
    test, kind, flags, before = _test_of(context)
    connective = next((c for c in _CONNECTIVES if c in flags), "")
    if len(before) != 1:
        raise context.error("two types are needed")
    result = before[0]
    pair = kind.endswith("x2")
    single = kind.removesuffix("x2")
    compare = _comparison(test, single, "ftz" in flags)
    sources, kinds = _compared(context, KINDS[kind], connective)
    one = {"f16": 0x3C00, "bf16": 0x3F80}.get(result.removesuffix("x2"), -1)
    wide = KINDS[result]

    def number(holds: Value) -> Value:
        if wide == "f32":
            return holds.select(holds.emitter.const("f32", 1.0), 0.0)
        plain = f"i{16 if pair else bits_of(wide)}"
        return holds.select(holds.emitter.const(plain, one), 0).bits(
            "f16" if wide == "f16" and not pair else plain
        )

    def build(x: Value, y: Value, with_: Value | None = None) -> Value:
        if not pair:
            return number(_combined(connective, compare(x, y), with_))
        half = "i16" if single == "bf16" else "f16"
        pairs = zip(parts.halves(x, half), parts.halves(y, half), strict=True)
        low, high = (number(_combined(connective, compare(*each), with_)) for each in pairs)
        return parts.both(low, high)

    ftz = ".ftz" if "ftz" in flags else ""
    name = f"set.{test}.{result}.{kind}{ftz}{'.' + connective if connective else ''}"
    target = context.target(context.instruction.operands[0], wide)
    context.compute(name, build, sources, kinds, [target])


def _select(context: Context) -> None:
    """SELP."""
    kind, _ = context.one_type()
    wide = KINDS[kind]
    operands = context.arity(4)
    sources = [context.source(operand, wide) for operand in operands[1:3]]
    sources.append(context.predicate(operands[3]))
    target = context.target(operands[0], wide)
    plain = f"i{bits_of(wide)}"  # moved as bits
    context.compute("selp", lambda x, y, p: p.select(x, y), sources, [plain, plain, "p"], [target])


def _select_by_sign(context: Context) -> None:
    """SLCT: the first where the third is not negative."""
    types, flags = context.parts("ftz")
    if len(types) != 2 or types[1] not in ("s32", "f32"):
        raise context.error("two types are needed, the second .s32 or .f32")
    wide = KINDS[types[0]]
    flushed = "ftz" in flags

    def build(x: Value, y: Value, z: Value) -> Value:
        if not z.is_float:
            return z.icmp("sge", 0).select(x, y)
        number = parts.flush(z) if flushed else z
        return number.fcmp("oge", 0.0).select(x, y)

    name = f"slct{'.ftz' if flushed else ''}"
    context.on_operands(name, build, f"{wide}: {wide} {wide} {KINDS[types[1]]}")


def move(context: Context, target: Operand, source: Operand, kind: str) -> None:
    """A value as it is."""
    wide = "p" if kind == "p" else f"i{bits_of(kind)}"
    if wide == "p":
        row = context.predicate(source)
    elif isinstance(source, Register | Symbol) or bits_of(kind) < 32:
        row = context.source(source, wide if bits_of(kind) >= 32 else kind)
    else:
        row = context.source(source, kind)
    context.compute("mov", lambda x: x, [row], [wide], [context.target(target, wide)])


def _move(context: Context) -> None:
    """MOV, which also packs and unpacks vectors."""
    kind, _ = context.one_type()
    target, source = context.arity(2)
    if isinstance(source, Register) and source.name in _CLOCKS:
        _read_clock(context, target, source.name)
    elif isinstance(source, Pack) and isinstance(target, Pack):
        raise context.error("a vector cannot become a vector")
    elif isinstance(source, Pack):
        _pack(context, target, source, TYPES[kind])
    elif isinstance(target, Pack):
        _unpack(context, target, source, TYPES[kind])
    else:
        move(context, target, source, KINDS[kind])


def _read_clock(context: Context, target: Operand, name: str) -> None:
    wide = context.width(target)
    if wide not in (32, 64):
        raise context.error(f"{name} has 32 or 64 bits")
    low = context.temp()
    context.emit("clock", d=low, aux=_CLOCKS[name])
    kind = f"i{wide}"
    context.compute(
        f"clock.{wide}", lambda x: x.to(kind), [low], ["i32"], [context.target(target, kind)]
    )


def _pieces(context: Context, pack: Pack, bits: int) -> tuple[int, str]:
    """(bits of each item, kind) of a vector that stands for a scalar."""
    count = len(pack.items)
    if count not in (2, 4) or bits // count not in (8, 16, 32):
        raise context.error(f"{count} items in {bits} bits")
    each = bits // count
    return each, "i16" if each < 32 else "i32"


def _pack(context: Context, target: Operand, source: Pack, bits: int) -> None:
    each, kind = _pieces(context, source, bits)
    wide = f"i{max(bits, 16)}"

    def build(*values: Value) -> Value:
        total = values[0].to(wide) & ((1 << each) - 1)
        for number, value in enumerate(values[1:], 1):
            total = total | (value.to(wide) & ((1 << each) - 1)).shl(each * number)
        return total

    sources = [context.source(item, kind) for item in source.items]
    name = f"pack.{bits}.{each}"
    kinds = [kind] * len(sources)
    context.compute(name, build, sources, kinds, [context.target(target, wide)])


def _unpack(context: Context, target: Pack, source: Operand, bits: int) -> None:
    each, kind = _pieces(context, target, bits)
    row = context.source(source, f"i{bits}")
    results = [context.target(item, kind) for item in target.items]
    # The source may be one of the targets: all is read before anything is written.
    for start in range(0, len(results), 2):

        def build(x: Value, start: int = start) -> tuple[Value, Value]:
            low, high = (x.lshr(each * (start + number)) for number in range(2))
            mask = (1 << each) - 1
            return low.to(kind) & mask, high.to(kind) & mask

        name = f"unpack.{bits}.{each}.{start}"
        context.compute(name, build, [row], [f"i{bits}"], results[start : start + 2])


def _convert(context: Context) -> None:
    """CVT."""
    instruction = context.instruction
    roundings = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
    types, flags = context.parts(*roundings, "ftz", "sat", "relu", "satfinite")
    rounding = next((name for name in roundings if name in flags), "")
    if len(types) != 2 or len(flags & set(roundings)) > 1:
        raise context.error("two types and one direction of rounding are needed")
    target, source = types
    tags = frozenset(flags - set(roundings))
    if target.endswith("x2") or source.endswith("x2"):
        _convert_pair(context, target, source, rounding, tags)
        return
    context.arity(2)
    with context.rounding(rounding if target != "bf16" else ""):
        if target == "tf32":
            build = sem_convert.to_tf32(rounding or "rn", "relu" in tags)
            name = f"{instruction.name}.{'.'.join(sorted(instruction.parts))}"
            context.on_operands(name, build, "f32: f32")
        else:
            _convert_one(context, Conversion(target, source, rounding, tags))


def _convert_one(context: Context, how: Conversion) -> None:
    operands = context.instruction.operands
    wide = f"i{max(16, TYPES[how.source])}"
    have = context.width(operands[1])
    row = context.source(operands[1], KINDS[how.source], loose=True)
    if have > bits_of(wide):
        wide = f"i{have}"
    have = context.width(operands[0])
    bits = 8 if have == TYPES[how.target] == 8 else max(16, TYPES[how.target], have)
    result_kind = f"i{bits}"
    result = context.target(operands[0], result_kind)

    def build(x: Value) -> Value:
        value = how.build(x).bits()
        if bits_of(value.kind) >= bits:
            return value
        return value.sext(result_kind) if how.target[0] == "s" else value.to(result_kind)

    tags = ".".join(sorted(how.flags))
    name = f"cvt.{how.target}.{how.source}.{how.rounding}.{tags}.{bits}"
    context.compute(name, build, [row], [wide], [result])


def _convert_pair(
    context: Context, target: str, source: str, rounding: str, flags: frozenset[str]
) -> None:
    relu = "relu" in flags
    name = f"cvt.{target}.{source}.{rounding}.{'.'.join(sorted(flags))}"
    if target in ("f16x2", "bf16x2") and source == "f32":
        build = sem_convert.pack_two(target[:-2], rounding or "rn", flags)
        signature = "i32: f32 f32"
    elif target in ("e4m3x2", "e5m2x2") and source == "f32":
        build, signature = sem_convert.pack_eight(target[:-2], relu), "i16: f32 f32"
    elif target in ("e4m3x2", "e5m2x2") and source == "f16x2":
        build, signature = sem_convert.pack_eight_from_halves(target[:-2], relu), "i16: i32"
    elif target == "f16x2" and source in ("e4m3x2", "e5m2x2"):
        build, signature = sem_convert.unpack_eight(source[:-2], relu), "i32: i16"
    else:
        raise context.error(f"no conversion of .{source} to .{target} is known here")
    with context.rounding(rounding if target == "f16x2" else ""):
        context.on_operands(name, build, signature)


HANDLERS: Final[dict[str, Handler]] = {
    "setp": _set_predicate,
    "set": _set,
    "selp": _select,
    "slct": _select_by_sign,
    "mov": _move,
    "cvt": _convert,
}
"""Instructions that compare, choose, move and convert."""
