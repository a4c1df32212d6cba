"""Floats of 8 bits: FP8 is E4M3 and BF8 is E5M2, on RDNA4 and CDNA4 the Open Compute Project's.

AMD, "RDNA4 Instruction Set Architecture", sections 16.8 and 16.12; OCP, "8-bit Floating Point
Specification". E4M3 has no infinity: what overflows is NaN, and with MODE.FP16_OVFL the largest.

CDNA3's are FNUZ: half as large for the same bits, without infinities and -0, whose bits are the one
NaN (LLVM, APFloat.h, Float8E4M3FNUZ and Float8E5M2FNUZ). What overflows is NaN in both, an infinity
always is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.frames import Build, Operation
from gpu.sim.isa.rdna import float_parts as parts
from gpu.sim.isa.rdna.define import vector
from gpu.sim.isa.values import Value

_FRACTION: Final = {"fp8": 3, "bf8": 2, "fp8_fnuz": 3, "bf8_fnuz": 2}
_BIAS: Final = {"fp8": 7, "bf8": 15, "fp8_fnuz": 8, "bf8_fnuz": 16}
_LARGEST: Final = {"fp8": 0x7E, "bf8": 0x7B, "fp8_fnuz": 0x7F, "bf8_fnuz": 0x7F}
_OVERFLOW: Final = {"fp8": 0x7F, "bf8": 0x7C, "fp8_fnuz": 0x80, "bf8_fnuz": 0x80}
_NAN: Final = 0x7F
_NEGATIVE_ZERO: Final = 0x80  # NaN, of FNUZ
_HIGH: Final = 0x60  # of the magnitude of BF8, whose highest exponents are none of a half
FORMATS: Final = ("fp8", "bf8")


def as_single(byte: Value, kind: str) -> Value:
    """The lowest byte of a dword as a single, which holds it exactly."""
    if kind.endswith("fnuz"):
        return _single_of_fnuz(byte & 0xFF, kind)
    sign = (byte & 0x80).shl(8)
    magnitude = byte & 0x7F
    half = (magnitude.shl(10 - _FRACTION[kind]) | sign).to("i16").bits("f16").to("f32")
    if kind == "bf8":
        return half
    nan = half.like(float("nan"))
    return magnitude.eq(_NAN).select(nan, half * 2.0 ** (15 - _BIAS[kind]))


def _single_of_fnuz(byte: Value, kind: str) -> Value:
    magnitude = byte & 0x7F
    lowered = magnitude.icmp("uge", _HIGH).select(magnitude.like(0x20), 0)
    raised = lowered.ne(0).select(byte.emitter.const("f32", 2.0 ** (0x20 >> _FRACTION[kind])), 1.0)
    pattern = (magnitude - lowered).shl(10 - _FRACTION[kind]) | (byte & 0x80).shl(8)
    single = pattern.to("i16").bits("f16").to("f32") * 2.0 ** (15 - _BIAS[kind]) * raised
    return byte.eq(_NEGATIVE_ZERO).select(single.like(float("nan")), single)


def _rounded(x: Value, kind: str, noise: Value | None = None) -> Value:
    """A single as a byte, to the nearest even, or up with a chance: `noise` is added below."""
    fraction = _FRACTION[kind]
    spare = 23 - fraction
    pattern = x.bits()
    magnitude = pattern & 0x7FFFFFFF
    exponent = magnitude.lshr(23)
    added = noise if noise is not None else magnitude.lshr(spare) & 1
    half = 0 if noise is not None else (1 << spare - 1) - 1
    normal = (magnitude + added + half).lshr(spare) - (127 - _BIAS[kind] << fraction)
    lost = (x.emitter.const("i32", 128 - _BIAS[kind]) - exponent).smax(0).umin(25 - spare + 1)
    whole = (magnitude & 0x7FFFFF) | exponent.ne(0).select(x.emitter.const("i32", 1 << 23), 0)
    if noise is not None:
        small = (whole.lshr(lost) + noise).lshr(spare)
    else:
        shift = lost + spare
        odd = whole.lshr(shift) & 1
        small = (whole + odd + (whole.like(1).shl(shift - 1) - 1)).lshr(shift)
    byte = exponent.icmp("ule", 127 - _BIAS[kind]).select(small, normal)
    clamped = frames.mode_bit(x.emitter, layout.MODE_FP16_OVFL)
    over = clamped.select(byte.like(_LARGEST[kind]), _OVERFLOW[kind])
    if kind.endswith("fnuz"):
        signed = byte | pattern.lshr(31).shl(7)
        signed = byte.eq(0).select(0, signed)
        largest = clamped.select(over | pattern.lshr(31).shl(7), over)
        signed = byte.icmp("ugt", _LARGEST[kind]).select(largest, signed)
        return magnitude.icmp("uge", 0x7F800000).select(_NEGATIVE_ZERO, signed)
    over = magnitude.eq(0x7F800000).select(_OVERFLOW[kind], over)  # true infinities stay
    byte = (byte.icmp("ugt", _LARGEST[kind]) | magnitude.eq(0x7F800000)).select(over, byte)
    byte = x.is_nan().select(_NAN, byte)
    return byte | pattern.lshr(31).shl(7)


def _pair_of_singles(kind: str) -> Build:
    def build(x: Value) -> Value:
        low, high = (as_single(x.to("i32").lshr(8 * n), kind).bits() for n in (0, 1))
        return frames.join64(low, high)

    return build


def _pair_of_bytes(kind: str) -> Build:
    return lambda x, y: (_rounded(x, kind) | _rounded(y, kind).shl(8)).to("i16")


def _into_byte(kind: str, place: int) -> Build:
    """V_CVT_SR: `seed`'s highest bits are what is added; one byte of `old` is replaced."""

    def build(x: Value, seed: Value, old: Value) -> Value:
        byte = _rounded(x, kind, seed.lshr(32 - 23 + _FRACTION[kind]))
        kept = ~(0xFF << 8 * place)
        return (old & kept) | byte.shl(8 * place)

    return build


def _out_of_byte(kind: str, place: int) -> Build:
    return lambda x: as_single(x.lshr(8 * place), kind)


def _dot(left: str, right: str) -> Callable[..., Value]:
    def build(x: Value, y: Value, total: Value) -> Value:
        for place in range(4):
            first, second = as_single(x.lshr(8 * place), left), as_single(y.lshr(8 * place), right)
            total = parts.fma(first, second, total)
        return total

    return build


def _operations() -> Iterator[dict[str, Operation]]:
    for kind in _FRACTION:
        short, _, behind = kind.partition("_")
        behind = behind and f"_{behind}"
        for n in range(4):
            yield vector("f32: i32", **{f"v_cvt_f32_{kind}_{n}": _out_of_byte(kind, n)})
            into = {f"v_cvt_sr_{short}_f32{behind}_{n}": _into_byte(kind, n)}
            yield vector("i32: f32 i32 i32", **into)
        yield vector("i64: i16", **{f"v_cvt_pk_f32_{kind}": _pair_of_singles(kind)})
        yield vector("i16: f32 f32", **{f"v_cvt_pk_{short}_f32{behind}": _pair_of_bytes(kind)})
    for kind in FORMATS:
        for other in FORMATS:
            yield vector("f32: i32 i32 f32", **{f"v_dot4_f32_{kind}_{other}": _dot(kind, other)})


TABLE: Final = {name: each for table in _operations() for name, each in table.items()}
"""Operations by name; the last number says which byte of a register is read or written."""
