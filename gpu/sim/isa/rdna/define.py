"""How semantics tables are written: a signature, and an expression for each mnemonic."""

from __future__ import annotations

from gpu.sim.isa.frames import Build, Operation
from gpu.sim.isa.values import Value, bits_of


def vector(signature: str, **builders: Build) -> dict[str, Operation]:
    """Operations on rows that share a signature ``results: sources``."""
    return _define(signature, builders, False)


def scalar(signature: str, **builders: Build) -> dict[str, Operation]:
    """Operations on scalar registers; see `vector`. ``scc`` is the condition bit."""
    return _define(signature, builders, True)


def _define(signature: str, builders: dict[str, Build], is_scalar: bool) -> dict[str, Operation]:
    results, _, sources = signature.partition(":")
    kinds = tuple(results.split()), tuple(sources.split())
    return {name: Operation(name, *kinds, build, is_scalar) for name, build in builders.items()}


def high_product(x: Value, y: Value, signed: bool) -> Value:
    """The upper half of the product of 32-bit integers."""
    wide = [v.sext("i64") if signed else v.to("i64") for v in (x, y)]
    return (wide[0] * wide[1]).lshr(32).to("i32")


def field_mask(width: Value, kind: str) -> Value:
    """As many low ones as `width` says, up to all of them."""
    one = width.emitter.const(kind, 1)
    bits = bits_of(kind)
    full = width.icmp("uge", bits)
    return full.select(-1, one.shl(width) - 1)


def extract(value: Value, offset: Value, width: Value, signed: bool) -> Value:
    """A bit field; `offset` and `width` are of the type of `value`. Width 0 gives 0."""
    if not signed:
        return value.lshr(offset) & field_mask(width, value.kind)
    bits = bits_of(value.kind)
    shifted = value.ashr(offset)
    spare = width.like(bits) - width.umin(bits)
    extended = shifted.shl(spare).ashr(spare)
    return width.eq(0).select(0, extended)


def clz(value: Value) -> Value:
    """Leading zeros; the width for 0."""
    return value.emitter.call_with_flag("ctlz", value, False)


def ctz(value: Value) -> Value:
    """Trailing zeros; the width for 0."""
    return value.emitter.call_with_flag("cttz", value, False)


def median(x: Value, y: Value, z: Value, signed: bool) -> Value:
    """The middle one of three integers."""
    if signed:
        return x.smin(y).smax(x.smax(y).smin(z))
    return x.umin(y).umax(x.umax(y).umin(z))
