"""Integers of 64 bits in those of 32, for devices that have no wider ones.

A `Wide` is a value of an int64 or uint64 as two words, with bounds that are known of it while
emitting. What fits an int32, as nearly all index arithmetic does, is its low word alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst
from gpu.compiler.ir.optable import fold_cast
from gpu.compiler.lower.emit import Emitter
from gpu.compiler.lower.legalize import Legalizer
from gpu.core.dtype import DType, dtypes

_WORD: Final = 32
_SIGN: Final = 31
_MASK: Final = (1 << _WORD) - 1
_HALF: Final = 0xFFFF

Bounds = tuple[int, int]


class Wide(NamedTuple):
    """An integer of 64 bits.

    Attributes:
        dtype: int64 or uint64.
        low: the lower word, a uint32.
        upper: the upper word, a uint32; None where the value fits an int32, whose sign it is.
        lo: least value, inclusive.
        hi: greatest value, inclusive.
    """

    dtype: DType
    low: Inst
    upper: Inst | None
    lo: int
    hi: int

    @property
    def is_small(self) -> bool:
        """Whether the value fits an int32."""
        return self.upper is None

    @property
    def known(self) -> int | None:
        """The value, where there is only one."""
        return self.lo if self.lo == self.hi else None


def fits_int32(bounds: Bounds) -> bool:
    """Whether all values within the bounds are int32."""
    return int(dtypes.int32.min) <= bounds[0] and bounds[1] <= int(dtypes.int32.max)


def within(bounds: Bounds, dtype: DType) -> Bounds:
    """The bounds, or those of the dtype where a value may have wrapped."""
    lo, hi = int(dtype.min), int(dtype.max)
    return bounds if lo <= bounds[0] and bounds[1] <= hi else (lo, hi)


class Words:
    """Arithmetic on `Wide`s, emitted as instructions on 32 bits.

    Attributes:
        emitter: takes the instructions.
        b: derives what the device lacks of those.
    """

    def __init__(self, emitter: Emitter, builder: Legalizer[Inst]):
        self.emitter, self.b = emitter, builder

    def word(self, value: int) -> Inst:
        """A constant uint32."""
        return self.emitter.const(dtypes.uint32, value & _MASK)

    def retype(self, x: Inst, dtype: DType) -> Inst:
        """The bits of `x` as `dtype`; a reinterpretation of a reinterpretation is one."""
        while x.op == "bitcast":
            x = x.args[0]
        if x.op == "const" and x.dtype is not dtype:
            return self.emitter.const(dtype, fold_cast(x.attr[0], x.dtype, dtype, bits=True))
        return self.emitter.bitcast(x, dtype)

    def signed(self, word: Inst) -> Inst:
        """A word as an int32."""
        return self.retype(word, dtypes.int32)

    def make(self, dtype: DType, low: Inst, upper: Inst | None, bounds: Bounds) -> Wide:
        """A value; its upper word is dropped where the bounds tell it."""
        bounds = within(bounds, dtype)
        return Wide(dtype, low, None if fits_int32(bounds) else upper, *bounds)

    def const(self, dtype: DType, value: int) -> Wide:
        """A constant."""
        return self.make(dtype, self.word(value), self.word(value >> _WORD), (value, value))

    def unknown(self, dtype: DType, low: Inst, upper: Inst) -> Wide:
        """Two words of which nothing is known."""
        return Wide(dtype, low, upper, int(dtype.min), int(dtype.max))

    def high(self, x: Wide) -> Inst:
        """The upper word."""
        return self.sign(x.low) if x.upper is None else x.upper

    def sign(self, word: Inst) -> Inst:
        """A word with the sign bit of `word` everywhere."""
        spread = self.b.op("shr", self.signed(word), self.emitter.const(dtypes.int32, _SIGN))
        return self.retype(spread, dtypes.uint32)

    def retyped(self, x: Wide, dtype: DType) -> Wide:
        """The same bits as the other dtype of 64 bits."""
        if dtype.min <= x.lo and x.hi <= dtype.max:
            return x._replace(dtype=dtype)
        return self.unknown(dtype, x.low, self.high(x))

    # Operations.

    def op(self, name: str, args: list[Wide]) -> Wide:
        """A scalar operation whose result is as wide as its operands; not a division."""
        return _OPS[name](self, *args)

    def add(self, a: Wide, b: Wide) -> Wide:
        """a + b."""
        low = self.b.op("add", a.low, b.low)
        bounds = within((a.lo + b.lo, a.hi + b.hi), a.dtype)
        if fits_int32(bounds):
            return Wide(a.dtype, low, None, *bounds)
        carry = self.b.cast(self.b.op("lt", low, a.low), dtypes.uint32)
        upper = self.b.op("add", self.b.op("add", self.high(a), self.high(b)), carry)
        return Wide(a.dtype, low, upper, *bounds)

    def sub(self, a: Wide, b: Wide) -> Wide:
        """a - b."""
        low = self.b.op("sub", a.low, b.low)
        bounds = within((a.lo - b.hi, a.hi - b.lo), a.dtype)
        if fits_int32(bounds):
            return Wide(a.dtype, low, None, *bounds)
        borrow = self.b.cast(self.b.op("lt", a.low, b.low), dtypes.uint32)
        upper = self.b.op("sub", self.b.op("sub", self.high(a), self.high(b)), borrow)
        return Wide(a.dtype, low, upper, *bounds)

    def neg(self, a: Wide) -> Wide:
        """-a."""
        return self.sub(self.const(a.dtype, 0), a)

    def mul(self, a: Wide, b: Wide) -> Wide:
        """a * b."""
        low = self.b.op("mul", a.low, b.low)
        products = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        bounds = within((min(products), max(products)), a.dtype)
        if fits_int32(bounds):
            return Wide(a.dtype, low, None, *bounds)
        upper = self._upper_of_product(a.low, b.low)
        for x, y in ((a.low, self.high(b)), (self.high(a), b.low)):
            upper = self.b.op("add", upper, self.b.op("mul", x, y))
        return Wide(a.dtype, low, upper, *bounds)

    def _upper_of_product(self, a: Inst, b: Inst) -> Inst:
        """The upper word of the product of two words, by halves of 16 bits."""
        half = self.word(_WORD // 2)
        (a0, a1), (b0, b1) = (
            (self.b.op("and", x, self.word(_HALF)), self.b.op("shr", x, half)) for x in (a, b)
        )
        lowest, mixed = self.b.op("mul", a0, b0), self.b.op("mul", a1, b0)
        middle = self.b.op("add", mixed, self.b.op("shr", lowest, half))
        other = self.b.op(
            "add", self.b.op("mul", a0, b1), self.b.op("and", middle, self.word(_HALF))
        )
        upper = self.b.op("add", self.b.op("mul", a1, b1), self.b.op("shr", middle, half))
        return self.b.op("add", upper, self.b.op("shr", other, half))

    def bitwise(self, name: str, *args: Wide) -> Wide:
        """`and`, `or`, `xor` or `not`."""
        low = self.b.op(name, *(x.low for x in args))
        dtype = args[0].dtype
        if all(x.is_small for x in args) and (dtype.is_signed or name != "not"):
            return self.make(dtype, low, None, _bits_bounds(name, args))
        upper = self.b.op(name, *(self.high(x) for x in args))
        if name == "and" and any(x.lo >= 0 for x in args):
            return self.make(dtype, low, upper, (0, min(x.hi for x in args if x.lo >= 0)))
        return self.unknown(dtype, low, upper)

    def where(self, condition: Inst, a: Wide, b: Wide) -> Wide:
        """`a` where the condition holds, else `b`."""
        low = self.b.op("where", condition, a.low, b.low)
        bounds = (min(a.lo, b.lo), max(a.hi, b.hi))
        if fits_int32(bounds):
            return Wide(a.dtype, low, None, *bounds)
        return Wide(
            a.dtype, low, self.b.op("where", condition, self.high(a), self.high(b)), *bounds
        )

    def shl(self, a: Wide, b: Wide) -> Wide:
        """a << b; counts outside [0, 64) give 0."""
        if b.known is not None and 0 <= b.known < 2 * _WORD:
            bounds = within((a.lo << b.known, a.hi << b.known), a.dtype)
        else:
            bounds = (int(a.dtype.min), int(a.dtype.max))
        count = self._count(b)
        low = self.b.op("shl", a.low, count)
        if fits_int32(bounds):
            return Wide(a.dtype, low, None, *bounds)
        # Counts that lie outside of [0, 32), negative ones being huge, shift everything out.
        from_low = self.b.op("shr", a.low, self.b.op("sub", self.word(_WORD), count))
        far = self.b.op("shl", a.low, self.b.op("sub", count, self.word(_WORD)))
        near = self.b.op("or", self.b.op("shl", self.high(a), count), from_low)
        return Wide(a.dtype, low, self.b.op("or", near, far), *bounds)

    def shr(self, a: Wide, b: Wide) -> Wide:
        """a >> b; counts outside [0, 64) give 0, or the sign."""
        if a.is_small and b.known is not None:
            distance = b.known if 0 <= b.known < _WORD else _SIGN
            count = self.emitter.const(dtypes.int32, distance)
            low = self.retype(self.b.op("shr", self.signed(a.low), count), dtypes.uint32)
            return Wide(a.dtype, low, None, a.lo >> distance, a.hi >> distance)
        count, high = self._count(b), self.high(a)
        past = self.b.op("sub", count, self.word(_WORD))
        near = self.b.op("shl", high, self.b.op("sub", self.word(_WORD), count))
        low = self.b.op("or", self.b.op("shr", a.low, count), near)
        upper, far = (self._shift_upper(a.dtype, high, n) for n in (count, past))
        is_far = self.b.op("le", self.word(_WORD), count)
        low = self.b.op("where", is_far, far, low)
        return self.make(a.dtype, low, upper, _shifted_bounds(a, b.known))

    def _shift_upper(self, dtype: DType, high: Inst, count: Inst) -> Inst:
        if not dtype.is_signed:
            return self.b.op("shr", high, count)
        shifted = self.b.op("shr", self.signed(high), self.signed(count))
        return self.retype(shifted, dtypes.uint32)

    def _count(self, b: Wide) -> Inst:
        """A shift count as one word, 64 for all that are not in [0, 64)."""
        if b.known is not None:
            return self.word(b.known if 0 <= b.known < 2 * _WORD else 2 * _WORD)
        inside = self.b.op("lt", b.low, self.word(2 * _WORD))
        inside = self.b.op("and", inside, self.b.op("eq", self.high(b), self.word(0)))
        return self.b.op("where", inside, b.low, self.word(2 * _WORD))

    def extreme(self, name: str, a: Wide, b: Wide) -> Wide:
        """`max` or `min`."""
        pick = max if name == "max" else min
        bounds = (pick(a.lo, b.lo), pick(a.hi, b.hi))
        if a.is_small and b.is_small:
            word = self.b.op(name, self.signed(a.low), self.signed(b.low))
            return Wide(a.dtype, self.retype(word, dtypes.uint32), None, *bounds)
        first = self.compare("lt", b, a) if name == "max" else self.compare("lt", a, b)
        chosen = self.where(first, a, b)
        return self.make(a.dtype, chosen.low, chosen.upper, bounds)

    def abs(self, a: Wide) -> Wide:
        """The magnitude; the least value has none and stays."""
        if a.lo >= 0:
            return a
        return self.where(self.compare("lt", a, self.const(a.dtype, 0)), self.neg(a), a)

    # Comparisons.

    def compare(self, name: str, a: Wide, b: Wide) -> Inst:
        """`lt`, `le`, `eq` or `ne` as a bool."""
        if a.is_small and b.is_small:
            return self.b.op(name, self.signed(a.low), self.signed(b.low))
        match name:
            case "eq":
                same = self.b.op("eq", a.low, b.low)
                return self.b.op("and", same, self.b.op("eq", self.high(a), self.high(b)))
            case "ne":
                return self.b.op("not", self.compare("eq", a, b))
            case "le":
                return self.b.op("not", self.compare("lt", b, a))
        tops = (self.high(a), self.high(b))
        same = self.b.op("eq", *tops)
        if a.dtype.is_signed:
            tops = (self.signed(tops[0]), self.signed(tops[1]))
        below = self.b.op("and", same, self.b.op("lt", a.low, b.low))
        return self.b.op("or", self.b.op("lt", *tops), below)


def _bits_bounds(name: str, args: tuple[Wide, ...]) -> Bounds:
    """Bounds of a bitwise operation on int32s."""
    if name == "not":
        return (~args[0].hi, ~args[0].lo)
    positive = [x.hi for x in args if x.lo >= 0]
    if name == "and" and positive:
        return (0, min(positive))
    if len(positive) == len(args):
        return (0, (1 << max(positive).bit_length()) - 1)
    return (int(dtypes.int32.min), int(dtypes.int32.max))


def _shifted_bounds(a: Wide, count: int | None) -> Bounds:
    if count is not None:
        distance = count if 0 <= count < 2 * _WORD else 2 * _WORD
        return (a.lo >> distance, a.hi >> distance)
    return (min(a.lo, 0), max(a.hi, 0))


_OPS: Final[dict[str, Callable[..., Wide]]] = {
    "add": Words.add, "sub": Words.sub, "mul": Words.mul, "neg": Words.neg, "abs": Words.abs,
    "shl": Words.shl, "shr": Words.shr,
    **{
        name: lambda words, *args, _name=name: words.bitwise(_name, *args)
        for name in ("and", "or", "xor", "not")
    },
    **{
        name: lambda words, a, b, _name=name: words.extreme(_name, a, b) for name in ("max", "min")
    },
}  # fmt: skip
