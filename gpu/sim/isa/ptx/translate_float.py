"""Floating-point instructions into records, and those that have integer forms, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa.ptx import parts, sem_float, translate_int
from gpu.sim.isa.ptx.context import KINDS, Context, Handler
from gpu.sim.isa.values import Value

Build = Callable[..., Value]
_ROUNDINGS: Final = ("rn", "rz", "rm", "rp")
_FLOATS: Final = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
_INTEGER_HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(("add", "sub"), translate_int.add),
    **dict.fromkeys(("mul", "mad"), translate_int.multiply),
    "div": translate_int.divide,
    **dict.fromkeys(("min", "max"), translate_int.extreme),
    **dict.fromkeys(("abs", "neg"), translate_int.absolute),
}


def _either(handler: Handler) -> Handler:
    """A handler for floats, that of integers where the type is one of those."""

    def choose(context: Context) -> None:
        if any(part in _FLOATS for part in context.instruction.parts):
            handler(context)
        else:
            _INTEGER_HANDLERS[context.instruction.name](context)

    return choose


def elementwise(
    context: Context, name: str, build: Build, kind: str, count: int, flags: set[str]
) -> None:
    """An instruction on floats of one PTX type, with what its flags add around `build`.

    `build` is for the single type; pairs take it for each half.
    """
    single = kind.removesuffix("x2")
    tags = ".".join(sorted(flags & {"ftz", "sat", "relu", "NaN", "oob"}))

    def finished(*values: Value) -> Value:
        if "ftz" in flags and single in ("f32", "f16"):
            values = tuple(parts.flush(value) for value in values)
        return finish(build(*values), single, flags)

    full = f"{name}.{single}{'.' + tags if tags else ''}"
    if kind != single:
        halves = "i16" if single == "bf16" else "f16"
        paired = parts.on_halves(finished, halves)
        translate_int.simple(context, f"{full}.x2", paired, "i32", count)
    else:
        translate_int.simple(context, full, finished, KINDS[kind], count)


def finish(x: Value, kind: str, flags: set[str]) -> Value:
    """Flushes, clamps and makes NaN what hardware gives."""
    if kind == "bf16":
        if not flags & {"relu", "sat"}:
            return x
        wide = parts.widen(x)
        return parts.narrow(finish(wide, "", flags))
    if "ftz" in flags and kind in ("f32", "f16"):
        x = parts.flush(x)
    if "sat" in flags:
        return parts.saturate(x)
    if "relu" in flags:
        x = x.is_nan().select(x, x.fcmp("ogt", 0.0).select(x, 0.0))
    return parts.canonical(x)


def _arithmetic(context: Context) -> None:
    """ADD, SUB, MUL, FMA and MAD."""
    name = context.instruction.name
    kind, flags = context.one_type(*_ROUNDINGS, "ftz", "sat", "relu", among=_FLOATS)
    operation = "fma" if name == "mad" else name
    rounding = _direction(context, flags)
    if rounding != "rn" and kind not in ("f32", "f64"):
        raise context.error(f".{rounding} is for .f32 and .f64")
    build = sem_float.arithmetic(operation, kind.removesuffix("x2"))
    with context.rounding(rounding):
        elementwise(context, operation, build, kind, 3 if operation == "fma" else 2, flags)


def _direction(context: Context, flags: set[str]) -> str:
    found = flags & set(_ROUNDINGS)
    if len(found) > 1:
        raise context.error("two directions of rounding")
    return next(iter(found), "rn")


def _divide(context: Context) -> None:
    """DIV: `full` and `approx` are within 2 units in the last place."""
    kind, flags = context.one_type(*_ROUNDINGS, "ftz", "approx", "full", among=("f32", "f64"))
    quick = "approx" in flags
    build = sem_float.quick_division if quick else sem_float.arithmetic("div", kind)
    with context.rounding(_direction(context, flags)):
        elementwise(context, "div.approx" if quick else "div", build, kind, 2, flags)


def _function(context: Context) -> None:
    """RCP, SQRT, RSQRT, SIN, COS, EX2, LG2 and TANH."""
    name = context.instruction.name
    kind, flags = context.one_type(*_ROUNDINGS, "ftz", "approx", among=_FLOATS)
    single = kind.removesuffix("x2")
    build = sem_float.UNARY[name]
    if kind == "f64" and "approx" in flags:
        coarse = {"rcp": sem_float.coarse_reciprocal, "rsqrt": sem_float.coarse_root}
        if name not in coarse:
            raise context.error(f"{name}.approx.f64 is not known")
        name, build, flags = f"{name}.coarse", coarse[name], flags - {"ftz"}
    elif single == "f16":
        plain = build
        build = lambda x: plain(x.to("f32")).to("f16")  # noqa: E731
    elif single == "bf16":
        wide = build
        build = lambda x: parts.narrow(wide(parts.widen(x)))  # noqa: E731
    with context.rounding(_direction(context, flags)):
        elementwise(context, name, build, kind, 1, flags)


def _extreme(context: Context) -> None:
    """MIN and MAX, of two or three."""
    name = context.instruction.name
    kind, flags = context.one_type("ftz", "NaN", "xorsign", "abs", among=_FLOATS)
    if "xorsign" in flags:
        raise context.error(f"{name}.xorsign has no semantics here")
    largest, nan = name == "max", "NaN" in flags
    three = len(context.instruction.operands) == 4

    def two(x: Value, y: Value) -> Value:
        if kind.startswith("bf16"):
            found = sem_float.smaller(parts.widen(x), parts.widen(y), nan, largest)
            return parts.narrow(found)
        return sem_float.smaller(x, y, nan, largest)

    def build(*values: Value) -> Value:
        first = two(values[0], values[1])
        return two(first, values[2]) if three else first

    full = f"{name}3" if three else name
    elementwise(context, full, build, kind, 3 if three else 2, flags)


def _sign(context: Context) -> None:
    """ABS and NEG."""
    name = context.instruction.name
    kind, flags = context.one_type("ftz", among=_FLOATS)
    single = kind.removesuffix("x2")

    def build(x: Value) -> Value:
        sign = -(1 << (15 if single in ("bf16", "f16") else 31 if single == "f32" else 63))
        pattern = x.bits()
        return (pattern ^ sign if name == "neg" else pattern & ~sign).bits(x.kind)

    if "ftz" not in flags and single != "f32":  # of NaN too the sign alone changes
        kinds = "i32" if kind != single else KINDS[kind]
        half = "i16" if single == "bf16" else "f16"
        whole = parts.on_halves(build, half) if kind != single else build
        translate_int.simple(context, f"{name}.{kind}", whole, kinds, 1)
    else:
        elementwise(context, name, build, kind, 1, flags)


def _copy_sign(context: Context) -> None:
    """COPYSIGN: the second number with the sign of the first."""
    kind, _ = context.one_type(among=("f32", "f64"))

    def build(x: Value, y: Value) -> Value:
        sign = -(1 << (31 if kind == "f32" else 63))
        return ((x.bits() & sign) | (y.bits() & ~sign)).bits(kind)

    translate_int.simple(context, "copysign", build, kind, 2)


def _test(context: Context) -> None:
    """TESTP."""
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind, flags = context.one_type(*tests, among=("f32", "f64"))
    if len(flags) != 1:
        raise context.error("one property is needed")
    which = next(iter(flags))
    build = lambda x: sem_float.test_property(x, which)  # noqa: E731
    context.on_operands(f"testp.{which}", build, f"p: {kind}")


HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(("add", "sub", "mul", "mad"), _either(_arithmetic)),
    "fma": _arithmetic,
    "div": _either(_divide),
    **dict.fromkeys(("min", "max"), _either(_extreme)),
    **dict.fromkeys(("abs", "neg"), _either(_sign)),
    **dict.fromkeys(sem_float.UNARY, _function),
    "copysign": _copy_sign,
    "testp": _test,
}
"""Instructions of floats, some of which integers have as well."""
