"""Orthogonal polynomials, by the recurrence from one degree to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, InvalidType, InvalidValue
from gpu.tensor.base import TensorBase
from gpu.tensor.precision import float_function
from gpu.tensor.reduction import Reduction
from gpu.tensor.tracing import refuse_counting

T = TypeVar("T", bound=Reduction)
Choose: TypeAlias = Callable[[int, T, T], T]
Polynomial: TypeAlias = Callable[[Any, Any], Any]

# Degrees that one kernel computes, and the largest one: a kernel's code grows with the degrees.
_AT_ONCE: Final = 32
_MOST: Final = 4096


class _Family(NamedTuple):
    """Polynomials with p(0) = 1.

    Attributes:
        first: the factor of x and the constant of p(1).
        step: for each degree k, numbers (a, b, c): p(k + 1) = (a * x + b) * p(k) - c * p(k - 1).
    """

    first: tuple[float, float]
    step: Callable[[int], tuple[float, float, float]]


def _value(family: _Family, x: T, degrees: Sequence[int], choose: Choose[T]) -> T:
    """The polynomial whose degree each element asks for; 0 where `degrees` has not that.

    `choose` gives its second argument where the degree is the first one, else the third.
    """
    result = x._filled(0)
    factor, constant = family.first
    before, current = x._filled(1), x.mul(factor).add(constant)
    for k in range(max(degrees, default=-1) + 1):
        if k in degrees:
            result = choose(k, before, result)
        if k and k % _AT_ONCE == 0:
            before, current, result = (each.contiguous() for each in (before, current, result))
        a, b, c = family.step(k + 1)
        following = x.mul(a).add(b) if b else x.mul(a)
        before, current = current, following.mul(current).sub(before.mul(c))
    return result


def _of_number(family: _Family, x: T, n: float) -> T:
    degree = _checked(int(n))

    @float_function
    def polynomial(wide: T) -> T:
        return _value(family, wide, [degree], lambda _, value, rest: value)

    return polynomial(x)


def _of_tensor(family: _Family, x: T, n: T) -> T:
    if n.dtype.is_complex:
        raise DTypeError(f"the degree of a polynomial must be real, got {n.dtype.name}")
    dtype = x._operands(n)[0].dtype
    refuse_counting("finding the largest degree of a polynomial", "a number for n")
    # As integers apart from x: not every degree is a number of a narrow float.
    degree = n.detach().cast(dtypes.int64)
    largest = int(degree.max().item()) if degree.numel() else -1
    degrees = range(_checked(largest) + 1)

    def choose(k: int, value: T, rest: T) -> T:
        return degree.eq(k).where(value, rest)

    @float_function
    def polynomial(wide: T) -> T:
        # The last choice brings the result to the shape of both, whatever the degrees.
        return degree.ge(0).where(_value(family, wide, degrees, choose), 0)

    return polynomial(x.cast(dtype))


def _checked(degree: int) -> int:
    if degree > _MOST:
        raise InvalidValue(f"polynomials have degrees up to {_MOST} here, got {degree}")
    return degree


def _polynomial(name: str, family: _Family, what: str, *, shifted: bool = False) -> Polynomial:
    """The public function of a family."""

    def polynomial(input: Any, n: Any) -> Any:
        if not isinstance(input, TensorBase):
            if not isinstance(n, TensorBase):
                raise InvalidType(f"{name} takes a tensor, got {input!r} and {n!r}")
            input = n._lift(input)  # type: ignore[attr-defined]
        x = input.mul(2).sub(1) if shifted else input
        if isinstance(n, int | float):
            return _of_number(family, x, n)
        return _of_tensor(family, x, input._lift(n))

    polynomial.__name__ = polynomial.__qualname__ = name
    polynomial.__doc__ = f"""{what} of degree `n`, a number or a tensor; 0 where that is negative.

    The degrees of a tensor are computed at once, to find the largest one. Raises InvalidValue for
    one above {_MOST}.
    """
    return polynomial


def _chebyshev(k: int) -> tuple[float, float, float]:
    return 2, 0, 1


_T: Final = _Family((1, 0), _chebyshev)
_U: Final = _Family((2, 0), _chebyshev)
_V: Final = _Family((2, -1), _chebyshev)
_W: Final = _Family((2, 1), _chebyshev)
_H: Final = _Family((2, 0), lambda k: (2, 0, 2 * k))
_HE: Final = _Family((1, 0), lambda k: (1, 0, k))
_L: Final = _Family((-1, 1), lambda k: (-1 / (k + 1), (2 * k + 1) / (k + 1), k / (k + 1)))
_P: Final = _Family((1, 0), lambda k: ((2 * k + 1) / (k + 1), 0, k / (k + 1)))

chebyshev_polynomial_t = _polynomial(
    "chebyshev_polynomial_t", _T, "Chebyshev's polynomial of the first kind"
)
shifted_chebyshev_polynomial_t = _polynomial(
    "shifted_chebyshev_polynomial_t",
    _T,
    "Chebyshev's polynomial of the first kind at 2 * input - 1,",
    shifted=True,
)
chebyshev_polynomial_u = _polynomial(
    "chebyshev_polynomial_u", _U, "Chebyshev's polynomial of the second kind"
)
shifted_chebyshev_polynomial_u = _polynomial(
    "shifted_chebyshev_polynomial_u",
    _U,
    "Chebyshev's polynomial of the second kind at 2 * input - 1,",
    shifted=True,
)
chebyshev_polynomial_v = _polynomial(
    "chebyshev_polynomial_v", _V, "Chebyshev's polynomial of the third kind"
)
shifted_chebyshev_polynomial_v = _polynomial(
    "shifted_chebyshev_polynomial_v",
    _V,
    "Chebyshev's polynomial of the third kind at 2 * input - 1,",
    shifted=True,
)
chebyshev_polynomial_w = _polynomial(
    "chebyshev_polynomial_w", _W, "Chebyshev's polynomial of the fourth kind"
)
shifted_chebyshev_polynomial_w = _polynomial(
    "shifted_chebyshev_polynomial_w",
    _W,
    "Chebyshev's polynomial of the fourth kind at 2 * input - 1,",
    shifted=True,
)
hermite_polynomial_h = _polynomial("hermite_polynomial_h", _H, "The physicists' Hermite polynomial")
hermite_polynomial_he = _polynomial(
    "hermite_polynomial_he", _HE, "The probabilists' Hermite polynomial"
)
laguerre_polynomial_l = _polynomial("laguerre_polynomial_l", _L, "Laguerre's polynomial")
legendre_polynomial_p = _polynomial("legendre_polynomial_p", _P, "Legendre's polynomial")
