"""Powers and exponentials of matrices."""

from __future__ import annotations

from typing import Final

from gpu.core.arguments import integer
from gpu.core.dtype import dtypes
from gpu.tensor.linalg.matrices import check_matrices, eye_like, with_rule
from gpu.tensor.linalg.systems import inv, solve_ex
from gpu.tensor.scan import scan
from gpu.tensor.tensor import Tensor

# N. J. Higham, "The scaling and squaring method for the matrix exponential revisited", 2005: the
# coefficients of the approximant of degree 13, and the largest norm for which it is that exact.
_PADE: Final = (
    *(64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0),
    *(129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0),
    *(40840800.0, 960960.0, 16380.0, 182.0, 1.0),
)
_MOST: Final = 5.371920351148152


def matrix_power(A: Tensor, n: int) -> Tensor:
    """Matrices (..., m, m) to the power of an integer; a negative one is of the inverse.

    Raises as `inv`.
    """
    a, count = check_matrices(A, "matrix_power", square=True), integer(n, "n")
    if count < 0:
        return matrix_power(inv(a), -count)
    result: Tensor | None = None
    while count:
        if count % 2:
            result = a if result is None else result @ a
        count //= 2
        a = a @ a if count else a
    return eye_like(a, a.shape[-1]).contiguous() if result is None else result


def matrix_exp(A: Tensor) -> Tensor:
    """e to the power of matrices (..., n, n).

    By a rational approximation of A / 2**s, squared s times. Where the norm of a matrix is so large
    that its rounding alone decides all digits of the result (2**24 for float32, 2**53 for float64),
    that is NaN. Raises InvalidType, ShapeError, DTypeError for what are no square matrices of
    floats.
    """
    a = check_matrices(A, "matrix_exp", square=True)
    if not a.numel():
        return a._same()
    own = a.detach()
    bits = 53 if a.dtype in (dtypes.float64, dtypes.complex128) else 24
    norm = own.abs().sum(-2).max(-1).reshape(*a.shape[:-2], 1, 1)
    times = (norm / _MOST).log2().ceil().clip(0, bits)
    small = own * (-times).exp2().cast(a.dtype)
    whole = _squared(_approximated(small), times, bits)
    huge = norm.le(_MOST * 2.0**bits).logical_not()
    return with_rule("matrix_exp", huge.where(float("nan"), whole), (a,))


def _approximated(a: Tensor) -> Tensor:
    b, one = _PADE, eye_like(a, a.shape[-1])
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a2 @ a4
    odd = a6 @ (a6 * b[13] + a4 * b[11] + a2 * b[9]) + a6 * b[7] + a4 * b[5] + a2 * b[3]
    odd = a @ (odd + one * b[1])
    even = a6 @ (a6 * b[12] + a4 * b[10] + a2 * b[8]) + a6 * b[6] + a4 * b[4] + a2 * b[2]
    even = even + one * b[0]
    return solve_ex(even - odd, even + odd).result


def _squared(a: Tensor, times: Tensor, most: int) -> Tensor:
    """Matrices squared so many times each: all in a loop of `most` steps."""
    is_complex = a.dtype.is_complex

    def step(x: Tensor, number: Tensor) -> tuple[Tensor, None]:
        own = x.view_as_complex() if is_complex else x
        done = number.lt(times).where(own @ own, own)
        return done.view_as_real() if is_complex else done, None

    numbers = Tensor.arange(most, dtype=times.dtype, device=times.device)
    result: Tensor
    result, _ = scan(step, a.view_as_real() if is_complex else a, numbers)
    return result.view_as_complex() if is_complex else result
