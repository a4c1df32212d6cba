"""Writes scalar operations in terms of those a device has.

A `Legalizer` is a `Builder` around another one. What the device has goes to the inner builder as it
is; everything else is derived, and the operations of a derivation go through the `Legalizer` again,
so that nothing foreign ever reaches the inner builder. Values mean what
`gpu/compiler/ir/evaluate.py` says, bit for bit except for the payloads of NaNs and for `exp`,
`exp2`, `expm1`, `log2` and `sin`, whose accuracy `gpu/compiler/lower/transcendental.py` states.

Casts between bool, integers, float32 and float64, and all bitcasts, are taken to be native. So is
what native operations give at their edges here: `gpu/compiler/lower/edges.py` sees to that last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from gpu.compiler.ir.builder import Builder
from gpu.compiler.ir.optable import DOTS, fold_cast, result_dtype
from gpu.compiler.lower import narrow_floats
from gpu.compiler.lower.float_remainder import fmod
from gpu.compiler.lower.transcendental import exp, exp2, expm1, log2, sin
from gpu.compiler.targets import Native
from gpu.core.dtype import DType, PyScalar, dtypes
from gpu.core.errors import Unsupported

V = TypeVar("V")


class Legalizer(Builder[V]):
    """Builds on `inner`, using only what `native` says it has.

    Raises Unsupported for an operation that is neither native nor derivable.
    """

    def __init__(self, inner: Builder[V], native: Native):
        self.inner, self.native = inner, native
        self._indirect = native.storage_only | native.compute_as_float32
        self._derivations = DERIVATIONS | (WHERE_FLUSHED if native.flushes else {})

    def dtype(self, x: V) -> DType:
        """The element type of `x`."""
        return self.inner.dtype(x)

    def bitcast(self, x: V, dtype: DType) -> V:
        """The bits of `x` read as `dtype`."""
        return self.inner.bitcast(x, dtype)

    def const(self, dtype: DType, value: PyScalar) -> V:
        """A constant; one of a narrow float without arithmetic is made from its bits."""
        if dtype not in self._indirect:
            return self.inner.const(dtype, value)
        bits = narrow_floats.FORMATS[dtype].bits
        pattern = fold_cast(value, dtype, bits, bits=True)
        return self.inner.bitcast(self.inner.const(bits, pattern), dtype)

    def repeat(
        self, count: V, most: int, initial: tuple[V, ...], step: Callable[..., tuple[V, ...]]
    ) -> tuple[V, ...]:
        """A loop, where the inner builder has them."""
        return self.inner.repeat(count, most, initial, step)

    def op(self, name: str, *args: V) -> V:
        """The operation called `name`, native or derived."""
        dtype = self.inner.dtype(args[-1])
        if dtype in self._indirect:
            return self._narrow_op(name, dtype, args)
        if dtype in self.native.compute_as_int32:
            return self._int32_op(name, dtype, args)
        if name in self.native.ops:
            return self.inner.op(name, *args)
        if name not in DERIVATIONS:
            raise Unsupported(
                f"{name} on {dtype.name}: the device has no such operation and there is no way to "
                f"derive it; give its renderer one and name it in Native.ops"
            )
        result_dtype(name, tuple(self.inner.dtype(a) for a in args))
        return self._derive(name, args)

    def _derive(self, name: str, args: tuple[V, ...]) -> V:
        derived: V = self._derivations[name](self, *args)
        return derived

    def _narrow_op(self, name: str, dtype: DType, args: tuple[V, ...]) -> V:
        result = result_dtype(name, tuple(self.inner.dtype(a) for a in args))
        if name in ("neg", "abs"):
            return self._derive(name, args)
        if name == "where":
            bits = narrow_floats.FORMATS[dtype].bits
            chosen = self.op("where", args[0], *(self.bitcast(a, bits) for a in args[1:]))
            return self.bitcast(chosen, dtype)
        wide = self.op(name, *(self.cast(a, dtypes.float32) for a in args))
        return wide if result is dtypes.bool else self.cast(wide, result)

    def _int32_op(self, name: str, dtype: DType, args: tuple[V, ...]) -> V:
        """On operands of 8 or 16 bits, of which the result keeps as many: as if it had wrapped."""
        word = _word(dtype)
        wide = [self.cast(a, word) if self.dtype(a) is dtype else a for a in args]
        result = self.op(name, *wide)
        return result if self.dtype(result) is dtypes.bool else self.cast(result, dtype)

    def _through_int32(self, x: V, source: DType, dtype: DType) -> V:
        """A conversion from or to an integer of 8 or 16 bits."""
        if source in self.native.compute_as_int32:
            return self.cast(self.inner.cast(x, _word(source)), dtype)
        if not source.is_float:
            return self.inner.cast(self.cast(x, _word(dtype)), dtype)
        # An integer of 32 bits holds all that a narrow one does, but saturates further out.
        limits = (self.like(x, float(limit)) for limit in (dtype.min, dtype.max))
        inside = self.op("min", self.op("max", x, next(limits)), next(limits))
        return self.inner.cast(self.cast(inside, _word(dtype)), dtype)

    def cast(self, x: V, dtype: DType) -> V:
        """`x` converted by value, through float32 from and to narrow floats without arithmetic."""
        source = self.inner.dtype(x)
        if source is dtype:
            return x
        if source in self._indirect:
            return self.cast(self._widen(x, source), dtype)
        if dtype not in self._indirect:
            if self._needs_int32(source, dtype):
                return self._through_int32(x, source, dtype)
            return self.inner.cast(x, dtype)
        if source is dtypes.float64 and dtype is dtypes.float16:
            single = round_to_odd(self, x)
        else:
            single = self.cast(x, dtypes.float32)
        if dtype in self.native.storage_only:
            return narrow_floats.from_float32(self, single, dtype)
        return self.inner.cast(single, dtype)

    def _needs_int32(self, source: DType, dtype: DType) -> bool:
        """Whether a conversion is none between an integer of 8 or 16 bits and one of 32."""
        narrow_ints = self.native.compute_as_int32
        words = (dtypes.int32, dtypes.uint32)
        return (source in narrow_ints and dtype not in words) or (
            dtype in narrow_ints and source not in words
        )

    def _widen(self, x: V, source: DType) -> V:
        if source in self.native.storage_only:
            return narrow_floats.to_float32(self, x)
        return self.inner.cast(x, dtypes.float32)


def _word(dtype: DType) -> DType:
    """The integer of 32 bits that an integer of 8 or 16 bits is computed as."""
    return dtypes.int32 if dtype.is_signed else dtypes.uint32


def round_to_odd(b: Builder[V], x: V) -> V:
    """Float64 `x` in float32, inexact results truncated and given an odd mantissa.

    Rounding that to nearest in a format at least two bits shorter is the same as rounding `x` once
    (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Transactions on
    Computers 57(4), 2008).
    """
    nearest = b.cast(x, dtypes.float32)
    back = b.cast(nearest, dtypes.float64)
    bits = b.bitcast(nearest, dtypes.uint32)
    one = b.like(bits, 1)
    grew = b.lt(b.op("abs", x), b.op("abs", back))
    odd = b.op("or", b.where(grew, b.sub(bits, one), bits), one)
    return b.bitcast(b.where(b.eq(back, x), bits, odd), dtypes.float32)


_BITS_OF_WIDTH: Final = {
    8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64,
}  # fmt: skip
_MANTISSA_BITS: Final = {dtypes.float32: 23, dtypes.float64: 52}


def _on_bits(b: Builder[V], name: str, x: V, mask: Callable[[int], int]) -> V:
    """Float `x` with `name` applied to its bits and to the mask made from its sign bit."""
    dtype = b.dtype(x)
    bits = b.bitcast(x, _BITS_OF_WIDTH[dtype.bits])
    sign_bit = 1 << (dtype.bits - 1)
    return b.bitcast(b.op(name, bits, b.like(bits, mask(sign_bit))), dtype)


def _neg(b: Builder[V], x: V) -> V:
    if b.dtype(x).is_float:
        return _on_bits(b, "xor", x, lambda sign_bit: sign_bit)
    return b.add(b.op("not", x), b.like(x, 1))


def _abs(b: Builder[V], x: V) -> V:
    dtype = b.dtype(x)
    if dtype.is_float:
        return _on_bits(b, "and", x, lambda sign_bit: sign_bit - 1)
    return b.where(b.lt(x, b.like(x, 0)), b.neg(x), x) if dtype.is_signed else x


def _sub(b: Builder[V], x: V, y: V) -> V:
    return b.add(x, b.neg(y))


def _le(b: Builder[V], x: V, y: V) -> V:
    # Not the complement of y < x: with a NaN both are false.
    return b.op("or", b.lt(x, y), b.eq(x, y))


def _ne(b: Builder[V], x: V, y: V) -> V:
    return b.op("not", b.eq(x, y))


def _with_sign_of(b: Builder[V], magnitude: V, x: V) -> V:
    """`magnitude`, which has no sign, with that of `x`."""
    dtype = b.dtype(x)
    bits = _BITS_OF_WIDTH[dtype.bits]
    sign = b.op("and", b.bitcast(x, bits), b.const(bits, 1 << (dtype.bits - 1)))
    return b.bitcast(b.op("or", b.bitcast(magnitude, bits), sign), dtype)


def _rounded_magnitude(b: Builder[V], magnitude: V) -> tuple[V, V]:
    """`magnitude` rounded to nearest even where it may have a fraction, and where that is.

    Floats from 2**(bits of mantissa) on have no fraction; adding that number to smaller ones leaves
    no room for theirs.
    """
    no_fraction = b.like(magnitude, 2.0 ** _MANTISSA_BITS[b.dtype(magnitude)])
    rounded = b.sub(b.add(magnitude, no_fraction), no_fraction)
    return rounded, b.lt(magnitude, no_fraction)


def _rint(b: Builder[V], x: V) -> V:
    rounded, fractional = _rounded_magnitude(b, b.op("abs", x))
    return b.where(fractional, _with_sign_of(b, rounded, x), x)


def _trunc(b: Builder[V], x: V) -> V:
    magnitude = b.op("abs", x)
    rounded, fractional = _rounded_magnitude(b, magnitude)
    lower = b.where(b.lt(magnitude, rounded), b.sub(rounded, b.like(x, 1.0)), rounded)
    return b.where(fractional, _with_sign_of(b, lower, x), x)


def _floor(b: Builder[V], x: V) -> V:
    rounded = b.op("rint", x)
    return b.where(b.lt(x, rounded), b.sub(rounded, b.like(x, 1.0)), rounded)


def _fma(b: Builder[V], x: V, y: V, z: V) -> V:
    return b.add(b.mul(x, y), z)


def _dot(name: str) -> Callable[..., Any]:
    """A product of neighbours, one after the other."""
    row = DOTS[name]

    def derive(b: Builder[V], x: V, y: V, total: V) -> V:
        for number in range(row.together):
            pairs = zip((x, y), row.elements, strict=True)
            factors = (b.cast(_element(b, word, d, number), row.sums) for word, d in pairs)
            total = b.add(total, b.mul(*factors))
        return total

    return derive


def _element(b: Builder[V], word: V, dtype: DType, number: int) -> V:
    """An element of a word."""
    low = b.op("shr", word, b.like(word, dtype.bits * number)) if number else word
    return b.bitcast(b.cast(low, _BITS_OF_WIDTH[dtype.bits]), dtype)


# A derivation takes the builder to build on and the operands. None may need itself, however deep.
DERIVATIONS: Final[dict[str, Callable[..., Any]]] = {
    "neg": _neg, "abs": _abs, "sub": _sub, "le": _le, "ne": _ne, "fma": _fma,
    "rint": _rint, "trunc": _trunc, "floor": _floor, "fmod": fmod,
    "exp": exp, "exp2": exp2, "expm1": expm1, "log2": log2, "sin": sin,
    **{name: _dot(name) for name in DOTS},
}  # fmt: skip
# In their place on devices that take subnormal numbers for zero.
WHERE_FLUSHED: Final[dict[str, Callable[..., Any]]] = {"fmod": partial(fmod, flushes=True)}
