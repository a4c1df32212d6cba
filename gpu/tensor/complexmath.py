"""Elementary functions of complex numbers, made of those of their parts.

Branch cuts, signed zeros, infinities and NaN are as in C (ISO/IEC 9899:2011, annex G), which numpy
follows too. The inverse functions are W. Kahan's ("Branch cuts for complex elementary functions",
1987). Errors are a few units in the last place of the
magnitude, not of each part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError
from gpu.core.floatlimits import limits_of

if TYPE_CHECKING:
    from gpu.tensor.tensor import Tensor

_LN_2: Final = math.log(2)


def apply(name: str, z: Any) -> Any:
    """What the function called `name` makes of a complex tensor.

    Raises DTypeError where there is none for complex numbers.
    """
    function = FUNCTIONS.get(name)
    if function is None:
        raise DTypeError(f"{name} is not defined for {z.dtype.name}; take .real, .imag or .abs()")
    return function(z)


def number(re: Tensor, im: Tensor) -> Tensor:
    """Complex numbers of their parts, two tensors of one shape and dtype."""
    return re._wrap(G.complex_number(re._node, im._node))


def parts(z: Tensor) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part."""
    node = z._node
    return z._wrap(G.real(node)), z._wrap(G.imag(node))


def _turned(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """-i f(i z), as which C has functions of angles of hyperbolic ones f."""

    def run(z: Tensor) -> Tensor:
        x, y = parts(z)
        a, b = parts(function(number(y.neg(), x)))
        return number(b, a.neg())

    return run


def _most_exponent(x: Tensor) -> float:
    """A number whose exponential is finite, and not far from the largest."""
    return 700.0 if x.dtype is dtypes.float64 else 80.0


def _abs(z: Tensor) -> Tensor:
    x, y = parts(z)
    return x.hypot(y)


def _exp(z: Tensor) -> Tensor:
    x, y = parts(z)
    # In two factors: what overflows alone may be small enough beside a cosine.
    most = _most_exponent(x)
    large = x.gt(most)
    grown, rest = large.where(x.sub(most), x).exp(), large.where(math.exp(most), 1).cast(x.dtype)
    endless = x.isinf().bitwise_and(y.isfinite().logical_not())
    vanished, real = endless.bitwise_and(y.eq(0).bitwise_or(x.lt(0))), y.eq(0)
    zero = x.lt(0).where(0, math.inf).cast(x.dtype)
    re = endless.where(zero, y.cos().mul(grown).mul(rest))
    im = y.sin().mul(grown).mul(rest)
    return number(re, vanished.where(_zero_like(y), real.where(y, im)))


def _zero_like(x: Tensor) -> Tensor:
    """Zeros with the signs of x."""
    return x._filled(0).copysign(x)


def _log(z: Tensor) -> Tensor:
    x, y = parts(z)
    return number(_log_of_size(x, y), y.atan2(x))


def _log_of_size(x: Tensor, y: Tensor) -> Tensor:
    """log(hypot(x, y)), also where that is close to 0 or the length overflows."""
    a, b = x.abs(), y.abs()
    high, low = a.maximum(b), a.minimum(b)
    none, endless = high.eq(0), x.isinf().bitwise_or(y.isinf())
    safe = none.bitwise_or(endless).where(1, high)
    near = safe.gt(0.5).bitwise_and(safe.lt(2))
    close = near.where(safe, 1)
    excess = close.sub(1).mul(close.add(1)).add(near.where(low, 0).square())
    ratio = low.div(safe)
    far = safe.log().add(endless.where(0, ratio).square().log1p().mul(0.5))
    length = near.where(excess.log1p().mul(0.5), far)
    return endless.where(math.inf, none.where(-math.inf, length))


def _log1p(z: Tensor) -> Tensor:
    x, y = parts(z)
    above = x.add(1)
    small = x.abs().maximum(y.abs()).lt(0.5)
    near = small.where(x, 0)
    excess = near.mul(near.add(2)).add(small.where(y, 0).square())
    return number(small.where(excess.log1p().mul(0.5), _log_of_size(above, y)), y.atan2(above))


def _expm1(z: Tensor) -> Tensor:
    x, y = parts(z)
    small = x.abs().lt(1)
    near = small.where(x, 0)
    # The Array API standard has +0 at both zeros: -0 + 0 is that.
    re = near.expm1().mul(y.cos()).sub(y.mul(0.5).sin().square().mul(2)).add(0)
    grown_re, grown_im = parts(_exp(z))
    return number(small.where(re, grown_re.sub(1)), grown_im)


def _sqrt(z: Tensor) -> Tensor:
    x, y = parts(z)
    limits = limits_of(x.dtype)
    top = x.abs().maximum(y.abs())
    # Powers of 4, of which the root is exact.
    bits = limits.fraction_bits + limits.fraction_bits % 2 + 2
    large, small = top.gt(limits.max / 8), top.lt(limits.smallest_normal * 4)
    scale = large.where(0.25, small.where(2.0**bits, 1.0)).cast(x.dtype)
    back = large.where(2.0, small.where(2.0 ** (-bits // 2), 1.0)).cast(x.dtype)
    none = top.eq(0)
    a, b = none.where(1, x.mul(scale)), y.mul(scale)
    length = a.abs().add(a.hypot(b)).mul(0.5).sqrt()
    other = b.div(length.mul(2))
    right = a.ge(0)
    re, im = right.where(length, other.abs()), right.where(other, length.copysign(b))
    re, im = none.where(0, re.mul(back)), none.where(y, im.mul(back))
    # Beside an infinity the other part hardly counts.
    endless, beside = y.isinf(), x.isinf().bitwise_and(y.isinf().logical_not())
    forward, missing = x.gt(0), y.isnan()
    re = beside.where(forward.where(math.inf, missing.where(math.nan, 0)), re)
    ahead = missing.where(math.nan, _zero_like(y))
    im = beside.where(forward.where(ahead, x.abs().copysign(y)), im)
    return number(endless.where(math.inf, re), endless.where(y, im))


def _grown(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sinh and cosh of x as products with a common factor, which comes last."""
    most = _most_exponent(x)
    large = x.abs().gt(most)
    inside = large.where(0, x)
    rest = large.where(x.abs().sub(most), 0).exp().mul(0.5)
    sine = large.where(rest.copysign(x), x.eq(0).where(x, inside.sinh()))
    return sine, large.where(rest, inside.cosh()), large.where(math.exp(most), 1).cast(x.dtype)


def _sinh(z: Tensor) -> Tensor:
    x, y = parts(z)
    sine, cosine, factor = _grown(x)
    endless = x.isinf().bitwise_and(y.isfinite().logical_not())
    pure = x.eq(0).bitwise_and(y.isfinite().logical_not())
    re = endless.where(math.inf, pure.where(x, sine.mul(y.cos()).mul(factor)))
    return number(re, y.eq(0).where(y, cosine.mul(y.sin()).mul(factor)))


def _cosh(z: Tensor) -> Tensor:
    x, y = parts(z)
    sine, cosine, factor = _grown(x)
    endless = x.isinf().bitwise_and(y.isfinite().logical_not())
    re = endless.where(math.inf, cosine.mul(y.cos()).mul(factor))
    # A zero, whatever is beside it, has the sign of both.
    sign = x.isnan().where(0, x).clamp(-1, 1).mul(y.isnan().where(0, y).clamp(-1, 1))
    none = x.eq(0).bitwise_or(y.eq(0))
    return number(re, none.where(sign, sine.mul(y.sin()).mul(factor)))


def _tanh(z: Tensor) -> Tensor:
    x, y = parts(z)
    large = x.abs().gt(19.0 if x.dtype is dtypes.float64 else 10.0)
    tangent = y.tan()
    slope = tangent.square().add(1)
    sine = large.where(0, x).sinh()
    root = sine.square().add(1).sqrt()
    below = slope.mul(sine.square()).add(1)
    steep = tangent.isinf()
    re = steep.where(root.div(sine), slope.mul(root).mul(sine).div(below))
    im = tangent.div(below)
    shrunk = x.abs().mul(-2).exp().mul(4)
    beyond = y.isfinite().where(y.sin().mul(y.cos()).mul(shrunk), _zero_like(y))
    real, none = y.eq(0), x.eq(0)
    missing = y.isnan().bitwise_or(y.isinf()).bitwise_and(x.isinf().logical_not())
    far_im = missing.where(math.nan, beyond)
    re = large.where(x.clamp(-1, 1), none.where(x, re))
    far_re = missing.bitwise_and(none.logical_not()).where(math.nan, re)
    return number(far_re, real.where(y, large.where(far_im, im)))


def _arc(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of the inverse sine of |x| + i|y|, neither of which is negative."""
    u, v = x._steep(x), y._steep(y)
    a, b = parts(_sqrt(number(u.add(1), v)))
    c, d = parts(_sqrt(number(u.sub(1, reverse=True), v.neg())))
    endless = u.isinf().bitwise_or(v.isinf())
    along = endless.where(v, a.mul(c).sub(b.mul(d)))
    angle = u.eq(0).where(u, u.atan2(along))
    return angle, endless.where(math.inf, c.mul(b).sub(d.mul(a)).asinh())


def _like(size: Tensor, x: Tensor) -> Tensor:
    """A size with the sign of x, that of a zero too."""
    return x._signbit().where(size.neg(), size)


def _asin(z: Tensor) -> Tensor:
    x, y = parts(z)
    re, im = _arc(x, y)
    return number(_like(re, x), _like(im, y))


def _asinh(z: Tensor) -> Tensor:
    x, y = parts(z)
    im, re = _arc(y, x)
    return number(_like(re, x), _like(im, y))


def _acos_parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The angle of the inverse cosine, and the size of its imaginary part."""
    v = y._steep(y)
    a, _ = parts(_sqrt(number(x.sub(1, reverse=True), v.neg())))
    c, _ = parts(_sqrt(number(x.add(1), v)))
    endless = x.isinf().bitwise_or(y.isinf())
    angle = endless.where(v.atan2(x), a.atan2(c).mul(2))
    upright = x.eq(0).bitwise_and(y.isnan())
    return upright.where(math.pi / 2, angle), _arc(x, y)[1]


def _acos(z: Tensor) -> Tensor:
    x, y = parts(z)
    re, im = _acos_parts(x, y)
    return number(re, _like(im, y).neg())


def _acosh(z: Tensor) -> Tensor:
    x, y = parts(z)
    im, re = _acos_parts(x, y)
    return number(re, _like(im, y))


def _atanh(z: Tensor) -> Tensor:
    x, y = parts(z)
    u, v = x._steep(x), y._steep(y)
    beside = u.sub(1, reverse=True)
    near = beside.square().add(v.square())
    endless = u.isinf().bitwise_or(v.isinf())
    re = endless.bitwise_or(u.eq(0)).where(0, u.mul(4).div(near).log1p().mul(0.25))
    half = beside.mul(u.add(1)).sub(v.square()).mul(0.5)
    angle = endless.where(v.isnan().where(v, math.pi / 2), v.atan2(half).mul(0.5))
    return number(_like(re, x), _like(angle, y))


def _sign(z: Tensor) -> Tensor:
    size = _abs(z)
    none = size.eq(0)
    x, y = parts(z)
    length = none.where(1, size)
    return number(none.where(0, x.div(length)), none.where(0, y.div(length)))


def _angle(z: Tensor) -> Tensor:
    x, y = parts(z)
    return y.atan2(x)


def _scaled(function: Callable[[Tensor], Tensor], factor: float) -> Callable[[Tensor], Tensor]:
    """A function whose parts are multiplied by a real number."""

    def run(z: Tensor) -> Tensor:
        x, y = parts(function(z))
        return number(x.mul(factor), y.mul(factor))

    return run


def _exp2(z: Tensor) -> Tensor:
    x, y = parts(z)
    return _exp(number(x.mul(_LN_2), y.mul(_LN_2)))


def _cos(z: Tensor) -> Tensor:
    x, y = parts(z)
    return _cosh(number(y.neg(), x))


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """base ** exponent, both complex and of one shape: 1 for the exponent 0, of 0 else 0 or NaN."""
    c, d = parts(exponent)
    none = base.eq(0)
    log = _log(none.where(1, base))
    plain = _exp(log.mul(exponent))
    forward = c.gt(0).bitwise_and(d.eq(0))
    of_zero = forward.where(0, complex(math.nan, math.nan)).cast(base.dtype)
    result = exponent.eq(1).where(base, none.where(of_zero, plain))
    return exponent.eq(0).where(1, result)


FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "abs": _abs,
    "angle": _angle,
    "sign": _sign,
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log2": _scaled(_log, 1 / _LN_2),
    "log10": _scaled(_log, 1 / math.log(10)),
    "log1p": _log1p,
    "sqrt": _sqrt,
    "sin": _turned(_sinh),
    "cos": _cos,
    "tan": _turned(_tanh),
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "asin": _asin,
    "acos": _acos,
    "atan": _turned(_atanh),
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
}
