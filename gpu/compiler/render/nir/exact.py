"""Division and square root, correctly rounded, of what every GPU has: NIR's own are approximations.

Both work where nothing overflows or is subnormal: on numbers that are neither large nor small, and
else on significands scaled to [1, 4), with exponents and rounding in integer arithmetic. A hardware
estimate of the reciprocal is refined until the result is within a unit in the last place, and an
exact remainder by fused multiply-add then tells which neighbour is right (Markstein, "Computation
of elementary functions on the IBM RISC System/6000 processor", 1990).

Without fused multiply-add, and where arithmetic may lose subnormals, float32 is always scaled, and
remainders are integers modulo 2**32: exact, since they are smaller as long as an estimate is right
to 19 bits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.render.nir.emit import Emitter, Value


class _Format(NamedTuple):
    """A float format: bits, those of the fraction, and the exponent of 1.0."""

    bits: int
    fraction: int
    bias: int

    @property
    def top(self) -> int:
        """The exponent field of infinities and NaNs."""
        return 2 * self.bias + 1


_FORMATS: Final = {32: _Format(32, 23, 127), 64: _Format(64, 52, 1023)}


_MODERATE: Final = 62  # largest exponent of numbers whose quotients and remainders are normal


class _Exact:
    """Emits for one format; integers have its bits but for exponents and counts, which have 32."""

    def __init__(self, emitter: Emitter, bits: int):
        self.e, self.format = emitter, _FORMATS[bits]

    def whole(self, value: int) -> Value:
        return self.e.integer(self.format.bits, value)

    def short(self, value: int) -> Value:
        return self.e.integer(32, value)

    def real(self, value: float) -> Value:
        return self.e.number(self.format.bits, value)

    def up(self, value: Value, condition: Value) -> Value:
        """The next larger float of a positive one where a condition holds."""
        return self.e.alu("iadd", value, self.as_int(condition))

    def down(self, value: Value, condition: Value) -> Value:
        """The next smaller float of a positive one where a condition holds."""
        return self.e.alu("isub", value, self.as_int(condition))

    def as_int(self, condition: Value) -> Value:
        return self.e.value(f"b2i{self.format.bits}", self.format.bits, condition)

    def is_moderate(self, x: Value) -> Value:
        """Whether a positive number is from 2**-62 up to 2**63."""
        e, f = self.e, self.format
        field = e.resize(e.shift("ushr", x, self.short(f.fraction)), 32)
        above = e.alu("isub", field, self.short(f.bias - _MODERATE))
        return e.alu("ult", above, self.short(2 * _MODERATE + 1))

    def split(self, x: Value) -> tuple[Value, Value]:
        """Significand in [1, 2) as a float, and exponent, of a positive number."""
        e, f = self.e, self.format
        field = e.resize(e.shift("ushr", x, self.short(f.fraction)), 32)
        field = e.alu("iand", field, self.short(f.top))
        fraction = e.alu("iand", x, self.whole((1 << f.fraction) - 1))
        is_subnormal = e.alu("ieq", field, self.short(0))
        # A subnormal's highest one becomes the hidden bit.
        first = self.highest(fraction)
        count = e.alu("isub", self.short(f.fraction), first)
        count = e.select(is_subnormal, count, self.short(0))
        moved = e.alu("iand", e.shift("ishl", fraction, count), self.whole((1 << f.fraction) - 1))
        exponent = e.alu("isub", e.select(is_subnormal, self.short(1), field), count)
        return e.alu("ior", moved, self.whole(f.bias << f.fraction)), exponent

    def highest(self, x: Value) -> Value:
        """The place of the highest one of an integer, -1 where it has none."""
        e = self.e
        low = e.alu("ufind_msb", e.resize(x, 32))
        if x.bits == 32:
            return low
        upper = e.resize(e.shift("ushr", x, self.short(32)), 32)
        high = e.alu("iadd", e.alu("ufind_msb", upper), self.short(32))
        return e.select(e.alu("ieq", upper, self.short(0)), low, high)

    def estimate(self, op: str, x: Value) -> Value:
        """frcp or frsq of the hardware, of a number that 32 bits hold; 22 bits of it are right."""
        if self.format.bits == 32:
            return self.e.alu(op, x)
        short = self.e.value("f2f32", 32, x)
        return self.e.value("f2f64", 64, self.e.alu(op, short))

    def significand(self, x: Value) -> Value:
        """A float32 in [1, 4) as an integer, 1 being 2**23."""
        scaled = self.e.alu("fmul", x, self.real(2.0**self.format.fraction))
        return self.e.value("f2u32", 32, scaled)

    def rounded_down(self, factor: Value, x: Value) -> Value:
        """The product of a float and an integer as an integer."""
        product = self.e.alu("fmul", self.e.value("i2f32", 32, x), factor)
        return self.e.value("f2i32", 32, self.e.alu("ffloor", product))

    def residual(self, a: Value, x: Value, y: Value) -> Value:
        """a - x * y, rounded once."""
        return self.e.alu("ffma", self.e.alu("fneg", x), y, a)

    def select(self, cases: list[tuple[Value, Value]], otherwise: Value) -> Value:
        """The value of the first case whose condition holds."""
        for condition, value in reversed(cases):
            otherwise = self.e.select(condition, value, otherwise)
        return otherwise


def divide(emitter: Emitter, a: Value, b: Value) -> Value:
    """a / b of floats of 32 or 64 bits, rounded to the nearest."""
    x = _Exact(emitter, a.bits)
    e, f = emitter, x.format
    sign = e.alu("iand", e.alu("ixor", a, b), x.whole(1 << f.bits - 1))
    a, b = (e.alu("iand", v, x.whole((1 << f.bits - 1) - 1)) for v in (a, b))
    if not e.fuses:
        return e.alu("ior", _divide_any(x, a, b), sign)
    size = e.register(x.whole(0))
    e.effect("if", e.alu("iand", x.is_moderate(a), x.is_moderate(b)))
    e.effect("store_reg", size, _divide_moderate(x, a, b))
    e.effect("else")
    e.effect("store_reg", size, _divide_any(x, a, b))
    e.effect("endif")
    return e.alu("ior", e.read(size), sign)


def _divide_moderate(x: _Exact, a: Value, b: Value) -> Value:
    """a / b of positive numbers for which nothing on the way overflows or is subnormal."""
    e, fraction = x.e, x.format.fraction
    q = _approximate(x, a, b)
    rest = x.residual(a, b, q)
    # Half a unit in the last place of q, times b: both factors of it are exact.
    power = e.alu("iand", q, x.whole(x.format.top << fraction))
    half = e.alu("fmul", e.alu("fmul", power, x.real(2.0 ** (-fraction - 1))), b)
    q = x.up(q, e.alu("flt", half, rest))
    return x.down(q, e.alu("flt", rest, e.alu("fneg", half)))


def _divide_any(x: _Exact, a: Value, b: Value) -> Value:
    """a / b of any two floats without their signs."""
    e, f = x.e, x.format
    infinite, nan = f.top << f.fraction, (f.top << f.fraction) + (1 << f.fraction - 1)
    a_is_zero, b_is_zero = (e.alu("ieq", v, x.whole(0)) for v in (a, b))
    a_is_infinite, b_is_infinite = (e.alu("ieq", v, x.whole(infinite)) for v in (a, b))
    a_is_nan, b_is_nan = (e.alu("ult", x.whole(infinite), v) for v in (a, b))
    undefined = e.alu(
        "ior", e.alu("iand", a_is_zero, b_is_zero), e.alu("iand", a_is_infinite, b_is_infinite)
    )
    return x.select(
        [
            (e.alu("ior", undefined, e.alu("ior", a_is_nan, b_is_nan)), x.whole(nan)),
            (e.alu("ior", a_is_infinite, b_is_zero), x.whole(infinite)),
            (e.alu("ior", a_is_zero, b_is_infinite), x.whole(0)),
        ],
        _divide_finite(x, a, b),
    )


def _divide_finite(x: _Exact, a: Value, b: Value) -> Value:
    """a / b of positive numbers, subnormal ones included."""
    e, f = x.e, x.format
    (high, high_exponent), (low, low_exponent) = x.split(a), x.split(b)
    # The dividend is doubled where needed, so that the quotient is in [1, 2).
    less = e.alu("ult", high, low)
    high = e.alu("iadd", high, e.select(less, x.whole(1 << f.fraction), x.whole(0)))
    exponent = e.alu("isub", high_exponent, low_exponent)
    exponent = e.alu("isub", exponent, e.value("b2i32", 32, less))
    quotient, tail = _quotient(x, high, low)
    fraction = e.alu("iand", quotient, x.whole((1 << f.fraction) - 1))
    full = e.alu("ior", fraction, x.whole(1 << f.fraction))
    wide = e.alu("ior", e.shift("ishl", full, x.short(2)), tail)
    return _assemble(x, wide, e.alu("iadd", exponent, x.short(f.bias)))


def _approximate(x: _Exact, a: Value, b: Value) -> Value:
    """a / b of moderate positive numbers, at most half a unit and a little more off."""
    e, one = x.e, x.real(1.0)
    inverse = x.estimate("frcp", b)
    for _ in range(1 if a.bits == 32 else 2):
        inverse = e.alu("ffma", inverse, x.residual(one, b, inverse), inverse)
    q = e.alu("fmul", a, inverse)
    return e.alu("ffma", x.residual(a, b, q), inverse, q)


def _quotient(x: _Exact, a: Value, b: Value) -> tuple[Value, Value]:
    """a / b in [1, 2) rounded down, and the two bits behind: a half, and whether there is more."""
    e = x.e
    if not e.fuses:
        return _quotient_by_integers(x, a, b)
    # The bits of positive floats are in the order of their values.
    q = e.alu("umax", _approximate(x, a, b), x.real(1.0))
    ulp = e.alu("fmul", b, x.real(2.0**-x.format.fraction))
    q = x.down(q, e.alu("flt", x.residual(a, b, q), x.real(0.0)))
    q = x.up(q, e.alu("fge", x.residual(a, b, q), ulp))
    twice = e.alu("fmul", x.residual(a, b, q), x.real(2.0))
    half = x.as_int(e.alu("fge", twice, ulp))
    more = x.as_int(e.alu("iand", e.alu("fneu", twice, x.real(0.0)), e.alu("fneu", twice, ulp)))
    return q, e.alu("ior", e.shift("ishl", half, x.short(1)), more)


def _quotient_by_integers(x: _Exact, a: Value, b: Value) -> tuple[Value, Value]:
    """The same of float32, `a` below 4 and `b` below 2."""
    e, inverse, half_bit = x.e, x.estimate("frcp", b), x.format.fraction + 1
    a_whole, b_whole = x.significand(a), x.significand(b)
    q = e.value("f2u32", 32, e.alu("fmul", e.alu("fmul", a, inverse), x.real(2.0**half_bit)))
    shifted = e.shift("ishl", a_whole, x.short(half_bit))
    rest = e.alu("isub", shifted, e.alu("imul", q, b_whole))
    off = x.rounded_down(e.alu("fmul", inverse, x.real(2.0**-x.format.fraction)), rest)
    q = e.alu("iadd", q, off)
    rest = e.alu("isub", rest, e.alu("imul", off, b_whole))
    below = x.as_int(e.alu("ilt", rest, x.whole(0)))
    above = x.as_int(e.alu("ige", rest, b_whole))
    moved = e.alu("isub", above, below)
    q = e.alu("iadd", q, moved)
    rest = e.alu("isub", rest, e.alu("imul", moved, b_whole))
    more = x.as_int(e.alu("ine", rest, x.whole(0)))
    half = e.shift("ishl", e.alu("iand", q, x.whole(1)), x.short(1))
    return e.shift("ushr", q, x.short(1)), e.alu("ior", half, more)


def _assemble(x: _Exact, wide: Value, exponent: Value) -> Value:
    """The positive float of a significand with two more bits behind and an exponent field.

    Fields below 1 are subnormal, those too large infinite.
    """
    e, f = x.e, x.format
    below = e.alu("isub", x.short(1), exponent)
    below = e.alu("imax", below, x.short(0))
    count = e.alu("imin", e.alu("iadd", below, x.short(2)), x.short(f.fraction + 4))
    kept = e.shift("ushr", wide, count)
    rest = e.alu("isub", wide, e.shift("ishl", kept, count))
    half = e.shift("ishl", x.whole(1), e.alu("isub", count, x.short(1)))
    is_odd = e.alu("ine", e.alu("iand", kept, x.whole(1)), x.whole(0))
    is_tie = e.alu("ieq", rest, half)
    rounds_up = e.alu("ior", e.alu("ult", half, rest), e.alu("iand", is_tie, is_odd))
    rounded = e.alu("iadd", kept, x.as_int(rounds_up))
    # The hidden bit adds one to the field; a carry out of the fraction another one.
    field = e.alu("isub", e.alu("imax", exponent, x.short(1)), x.short(1))
    field = e.resize(field, f.bits)
    finite = e.alu("iadd", rounded, e.shift("ishl", field, x.short(f.fraction)))
    overflows = e.alu("ige", exponent, x.short(f.top))
    return e.select(overflows, x.whole(f.top << f.fraction), finite)


def square_root(emitter: Emitter, a: Value) -> Value:
    """The square root of a float of 32 or 64 bits, rounded to the nearest."""
    x = _Exact(emitter, a.bits)
    e, f = emitter, x.format
    scaled, exponent = x.split(a)
    exponent = e.alu("isub", exponent, x.short(f.bias))
    is_odd = e.alu("ine", e.alu("iand", exponent, x.short(1)), x.short(0))
    scaled = e.alu("iadd", scaled, e.select(is_odd, x.whole(1 << f.fraction), x.whole(0)))
    root = _root(x, scaled)
    # Half the even exponent goes on top of that of the root, which is in [1, 2).
    halved = e.resize(e.shift("ishr", exponent, x.short(1)), f.bits, signed=True)
    finite = e.alu("iadd", root, e.shift("ishl", halved, x.short(f.fraction)))
    infinite = x.whole(f.top << f.fraction)
    nan = x.whole((f.top << f.fraction) + (1 << f.fraction - 1))
    size = e.alu("iand", a, x.whole((1 << f.bits - 1) - 1))
    is_zero = e.alu("ieq", size, x.whole(0))
    is_negative = e.alu("ilt", a, x.whole(0))
    is_infinite = e.alu("ieq", a, infinite)
    is_nan = e.alu("ult", infinite, size)
    return x.select(
        [(e.alu("ior", is_zero, is_infinite), a), (e.alu("ior", is_negative, is_nan), nan)], finite
    )


def _root(x: _Exact, a: Value) -> Value:
    """The square root of a number in [1, 4)."""
    e = x.e
    if not e.fuses:
        return _root_by_integers(x, a)
    inverse = x.estimate("frsq", a)
    half = e.alu("fmul", a, x.real(0.5))
    for _ in range(1 if a.bits == 32 else 2):
        error = x.residual(x.real(0.5), e.alu("fmul", half, inverse), inverse)
        inverse = e.alu("ffma", inverse, error, inverse)
    s = e.alu("fmul", a, inverse)
    s = e.alu("ffma", e.alu("fmul", x.residual(a, s, s), x.real(0.5)), inverse, s)
    s = x.down(s, e.alu("flt", x.residual(a, s, s), x.real(0.0)))
    # Rounded down it is right or one too small by now; past the half it is one too small again.
    for _ in range(2):
        ulp = e.alu("fmul", s, x.real(2.0**-x.format.fraction))
        s = x.up(s, e.alu("flt", ulp, x.residual(a, s, s)))
    return s


def _root_by_integers(x: _Exact, a: Value) -> Value:
    """The same of a float32."""
    e, inverse, fraction = x.e, x.estimate("frsq", a), x.format.fraction
    s = x.significand(e.alu("fmul", a, inverse))
    shifted = e.shift("ishl", x.significand(a), x.short(fraction))
    rest = e.alu("isub", shifted, e.alu("imul", s, s))
    off = x.rounded_down(e.alu("fmul", inverse, x.real(2.0 ** (-fraction - 1))), rest)
    rest, s = _moved(x, rest, s, off)
    rest, s = _moved(x, rest, s, e.alu("ineg", x.as_int(e.alu("ilt", rest, x.whole(0)))))
    twice = e.shift("ishl", s, x.short(1))
    rest, s = _moved(x, rest, s, x.as_int(e.alu("ilt", twice, rest)))
    # Past the half: (s + 1/2)**2 is s**2 + s + 1/4.
    s = x.up(s, e.alu("ilt", s, rest))
    return e.alu("iadd", s, x.whole((x.format.bias - 1) << fraction))


def _moved(x: _Exact, rest: Value, root: Value, by: Value) -> tuple[Value, Value]:
    """What is left of a number beside the square of its root, and the root, once that is moved."""
    e = x.e
    change = e.alu("iadd", e.shift("ishl", root, x.short(1)), by)
    return e.alu("isub", rest, e.alu("imul", by, change)), e.alu("iadd", root, by)
