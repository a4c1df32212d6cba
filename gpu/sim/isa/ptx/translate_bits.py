"""Instructions on bits into records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.isa.ptx import sem_int
from gpu.sim.isa.ptx.context import KINDS, Context, Handler
from gpu.sim.isa.ptx.syntax import Number, Symbol
from gpu.sim.isa.ptx.translate_int import INTEGERS, simple
from gpu.sim.isa.values import Value


def _counting(context: Context) -> None:
    """POPC, CLZ and BREV."""
    name = context.instruction.name
    kind, _ = context.one_type(among=("b32", "b64"))
    if name == "brev":
        simple(context, name, lambda x: x.unary("bitreverse"), KINDS[kind], 1)
        return
    build: Callable[[Value], Value] = sem_int.leading_zeros
    if name == "popc":
        build = lambda x: x.unary("ctpop")  # noqa: E731
    context.on_operands(name, lambda x: build(x).to("i32"), f"i32: {KINDS[kind]}")


def _find(context: Context) -> None:
    """BFIND."""
    kind, flags = context.one_type("shiftamt", among=("s32", "u32", "s64", "u64"))
    shift = "shiftamt" in flags
    build = partial(sem_int.find_bit, signed=kind[0] == "s", shift=shift)
    name = f"bfind.{kind[0]}{'.shift' if shift else ''}"
    context.on_operands(name, build, f"i32: {KINDS[kind]}")


def _extract(context: Context) -> None:
    """BFE."""
    kind, _ = context.one_type(among=("s32", "u32", "s64", "u64"))
    wide = KINDS[kind]
    build = partial(sem_int.bit_field, signed=kind[0] == "s")
    context.on_operands(f"bfe.{kind[0]}", build, f"{wide}: {wide} i32 i32")


def _insert(context: Context) -> None:
    """BFI."""
    kind, _ = context.one_type(among=("b32", "b64"))
    wide = KINDS[kind]
    context.on_operands("bfi", sem_int.insert_field, f"{wide}: {wide} {wide} i32 i32")


def _logic(context: Context) -> None:
    """AND, OR, XOR, NOT and CNOT, of predicates too."""
    name = context.instruction.name
    kind, _ = context.one_type(among=("pred", "b16", "b32", "b64"))
    table: dict[str, Callable[..., Value]] = {
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "not": lambda x: ~x,
        "cnot": lambda x: x.eq(0).select(x.like(1), 0),
    }
    simple(context, name, table[name], KINDS[kind], 1 if name in ("not", "cnot") else 2)


def _shift(context: Context) -> None:
    """SHL and SHR."""
    name = context.instruction.name
    kinds = ("b16", "b32", "b64") if name == "shl" else (*INTEGERS, "b16", "b32", "b64")
    kind, _ = context.one_type(among=kinds)
    full = name if name == "shl" else f"shr.{'s' if kind[0] == 's' else 'u'}"
    context.on_operands(full, sem_int.SHIFTS[full], f"{KINDS[kind]}: {KINDS[kind]} i32")


def _funnel(context: Context) -> None:
    """SHF."""
    _, flags = context.one_type("l", "r", "wrap", "clamp", among=("b32",))
    left, wrap = "l" in flags, "wrap" in flags
    name = f"shf.{'l' if left else 'r'}.{'wrap' if wrap else 'clamp'}"
    simple(context, name, sem_int.funnel(left, wrap), "i32", 3)


def _literal(context: Context, index: int) -> int:
    """An operand that must be a number."""
    operand = context.instruction.operands[index]
    if isinstance(operand, Symbol) and operand.name == "WARP_SZ":
        return 32
    if not isinstance(operand, Number) or operand.form != "int":
        raise context.error(f"operand {index + 1} must be a number")
    return operand.bits


def _logic3(context: Context) -> None:
    """LOP3."""
    context.one_type(among=("b32",))
    operands = context.arity(5)
    table = _literal(context, 4) & 255
    sources = [context.source(operand, "i32") for operand in operands[1:4]]
    target = context.target(operands[0], "i32")
    context.compute(f"lop3.{table}", sem_int.logic3(table), sources, ["i32"] * 3, [target])


def _permute(context: Context) -> None:
    """PRMT."""
    modes = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    _, flags = context.one_type(*modes, among=("b32",))
    if flags:
        mode = next(iter(flags))
        simple(context, f"prmt.{mode}", sem_int.permute_mode(mode), "i32", 3)
    else:
        simple(context, "prmt", sem_int.permute, "i32", 3)


def _dot(context: Context) -> None:
    """DP4A and DP2A."""
    types, flags = context.parts("lo", "hi")
    if len(types) != 2 or not set(types) <= {"s32", "u32"}:
        raise context.error("two types of .s32 and .u32 are needed")
    signs = (types[0] == "s32", types[1] == "s32")
    name = f"{context.instruction.name}.{types[0]}.{types[1]}"
    if context.instruction.name == "dp4a":
        simple(context, name, partial(sem_int.dot, signs=signs), "i32", 3)
    else:
        high = "hi" in flags
        build = partial(sem_int.dot2, signs=signs, high=high)
        simple(context, f"{name}.{'hi' if high else 'lo'}", build, "i32", 3)


def _mask(context: Context) -> None:
    """BMSK and SZEXT."""
    name = context.instruction.name
    kind, flags = context.one_type("clamp", "wrap", among=("b32", "s32", "u32"))
    wrap = "wrap" in flags
    mode = "wrap" if wrap else "clamp"
    if name == "bmsk":
        simple(context, f"{name}.{mode}", partial(sem_int.bit_mask, wrap=wrap), "i32", 2)
    else:
        build = partial(sem_int.extend_from, signed=kind == "s32", wrap=wrap)
        simple(context, f"{name}.{mode}.{kind[0]}", build, "i32", 2)


def _find_nth(context: Context) -> None:
    """FNS."""
    context.one_type(among=("b32",))
    simple(context, "fns", sem_int.find_nth, "i32", 3)


HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(("popc", "clz", "brev"), _counting),
    "bfind": _find,
    "bfe": _extract,
    "bfi": _insert,
    **dict.fromkeys(("and", "or", "xor", "not", "cnot"), _logic),
    **dict.fromkeys(("shl", "shr"), _shift),
    "shf": _funnel,
    "lop3": _logic3,
    "prmt": _permute,
    **dict.fromkeys(("dp4a", "dp2a"), _dot),
    **dict.fromkeys(("bmsk", "szext"), _mask),
    "fns": _find_nth,
}
"""Instructions that see integers as bits."""
