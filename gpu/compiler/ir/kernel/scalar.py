"""Numbers in a kernel that a user's function describes: Python's operators make kernel values.

Operands are brought to one dtype as tensors are (`gpu/core/dtype.py:promote`), and Python numbers
take that of the other operand. What is computed of loop counters stays index arithmetic as far as
that goes (sums, products with integers, floor divisions and remainders by them), so that the
compiler knows where in memory a kernel goes; other integers are indices as well, found as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Mask, Var, at_least, expr
from gpu.core.dtype import DType, PyScalar, dtypes, promote, to_dtype
from gpu.core.errors import DTypeError, InvalidType
from gpu.core.scalars import check_fits, promote_scalar
from gpu.core.unpicklable import Unpicklable

_NUMBERS: Final = (bool, int, float, np.number, np.bool_)
_VALUES: Final = K.ValueBuilder()


class Read(NamedTuple):
    """A load of memory that the kernel also writes.

    Attributes:
        buf: the memory.
        writes: how often it had been written when this was read.
        depth: how many blocks were open then.
    """

    buf: K.Buf
    writes: int
    depth: int


class Scalar(Unpicklable):
    """A number that a kernel computes: see the module's text.

    Attributes:
        value: as the kernel IR has it.
        lets: variables in it whose values are data, with these.
        reads: what it loads of memory that may change.
        expr: the same as index arithmetic; None where it is none.
        mask: the same as a condition on indices; None where it is none.
    """

    __slots__ = ("expr", "lets", "mask", "reads", "value")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # numpy's numbers leave operators to this class

    def __init__(
        self,
        value: K.Value,
        lets: dict[Var, K.Value] | None = None,
        reads: frozenset[Read] = frozenset(),
        expr: Expr | None = None,
        mask: Mask | None = None,
    ):
        self.value, self.lets, self.reads = value, lets or {}, reads
        self.expr, self.mask = expr, mask

    @property
    def dtype(self) -> DType:
        """Its dtype; that of loop counters is int64."""
        return self.value.dtype

    def __repr__(self) -> str:
        return f"<a {self.dtype.name} of a kernel>"

    def __bool__(self) -> NoReturn:
        raise InvalidType(
            "what a kernel computes is known when it runs: choose values with"
            " condition.where(a, b), and do what depends on it inside `with k.when(condition):`"
        )

    def __iter__(self) -> NoReturn:
        raise InvalidType("a number of a kernel has no elements; loop with `with k.loop(n) as i:`")

    # Arithmetic.

    def __add__(self, other: Any) -> Scalar:
        return _sum(self, other, "add", lambda a, b: a + b)

    def __radd__(self, other: Any) -> Scalar:
        return _sum(other, self, "add", lambda a, b: a + b)

    def __sub__(self, other: Any) -> Scalar:
        return _sum(self, other, "sub", lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Scalar:
        return _sum(other, self, "sub", lambda a, b: a - b)

    def __mul__(self, other: Any) -> Scalar:
        return _product(self, other)

    def __rmul__(self, other: Any) -> Scalar:
        return _product(self, other)

    def __truediv__(self, other: Any) -> Scalar:
        return _quotient(self, other)

    def __rtruediv__(self, other: Any) -> Scalar:
        return _quotient(other, self)

    def __floordiv__(self, other: Any) -> Scalar:
        if self.expr is not None and _is_divisor(other):
            return of_index(self.expr // int(other))
        return _combined(_floor_division, self, other)

    def __rfloordiv__(self, other: Any) -> Scalar:
        return _combined(_floor_division, other, self)

    def __mod__(self, other: Any) -> Scalar:
        if self.expr is not None and _is_divisor(other):
            return of_index(self.expr % int(other))
        return _combined(_remainder, self, other)

    def __rmod__(self, other: Any) -> Scalar:
        return _combined(_remainder, other, self)

    def __neg__(self) -> Scalar:
        return of_index(-self.expr) if self.expr is not None else self._unary("neg")

    def __pos__(self) -> Scalar:
        return self

    def __abs__(self) -> Scalar:
        return self._unary("abs")

    # Bits and truth.

    def __and__(self, other: Any) -> Scalar:
        result = _operation("and", self, other)
        if isinstance(other, Scalar) and self.mask is not None and other.mask is not None:
            result.mask = self.mask & other.mask
        return result

    def __rand__(self, other: Any) -> Scalar:
        return _operation("and", other, self)

    def __or__(self, other: Any) -> Scalar:
        return _operation("or", self, other)

    def __ror__(self, other: Any) -> Scalar:
        return _operation("or", other, self)

    def __xor__(self, other: Any) -> Scalar:
        return _operation("xor", self, other)

    def __rxor__(self, other: Any) -> Scalar:
        return _operation("xor", other, self)

    def __lshift__(self, other: Any) -> Scalar:
        return _operation("shl", self, other)

    def __rshift__(self, other: Any) -> Scalar:
        return _operation("shr", self, other)

    def __invert__(self) -> Scalar:
        return self._unary("not")

    # Comparisons.

    def __lt__(self, other: Any) -> Scalar:
        return _comparison("lt", self, other, lambda a, b: at_least(b, a + 1))

    def __le__(self, other: Any) -> Scalar:
        return _comparison("le", self, other, lambda a, b: at_least(b, a))

    def __gt__(self, other: Any) -> Scalar:
        return _comparison("lt", other, self, lambda a, b: at_least(b, a + 1))

    def __ge__(self, other: Any) -> Scalar:
        return _comparison("le", other, self, lambda a, b: at_least(b, a))

    def __eq__(self, other: Any) -> Scalar:  # type: ignore[override]
        return _comparison("eq", self, other, lambda a, b: at_least(a, b) & at_least(b, a))

    def __ne__(self, other: Any) -> Scalar:  # type: ignore[override]
        return _operation("ne", self, other)

    # Functions.

    def exp(self) -> Scalar:
        """e to the power of it."""
        return self._float()._unary("exp")

    def exp2(self) -> Scalar:
        """2 to the power of it."""
        return self._float()._unary("exp2")

    def log(self) -> Scalar:
        """The natural logarithm."""
        return self.log2() * math.log(2)

    def log2(self) -> Scalar:
        """The logarithm to base 2."""
        return self._float()._unary("log2")

    def sin(self) -> Scalar:
        """The sine."""
        return self._float()._unary("sin")

    def cos(self) -> Scalar:
        """The cosine."""
        return (math.pi / 2 - self._float()).sin()

    def sqrt(self) -> Scalar:
        """The square root."""
        return self._float()._unary("sqrt")

    def floor(self) -> Scalar:
        """The largest whole number that is not above it."""
        return self._unary("floor") if self.dtype.is_float else self

    def trunc(self) -> Scalar:
        """It without what is behind the point."""
        return self._unary("trunc") if self.dtype.is_float else self

    def round(self) -> Scalar:
        """The nearest whole number, of two the even one."""
        return self._unary("rint") if self.dtype.is_float else self

    def abs(self) -> Scalar:
        """Its size."""
        return abs(self)

    def maximum(self, other: Any) -> Scalar:
        """The larger of two; NaN where one is."""
        return _operation("max", self, other)

    def minimum(self, other: Any) -> Scalar:
        """The smaller of two; NaN where one is."""
        return _operation("min", self, other)

    def where(self, x: Any, y: Any) -> Scalar:
        """`x` where this, a bool, is true, else `y`. Both are computed."""
        if self.dtype is not dtypes.bool:
            raise DTypeError(f"where() is of a bool, as comparisons give it; got {self!r}")
        x, y = _paired(x, y)
        return _made(K.alu("where", self.value, x.value, y.value), self, x, y)

    def cast(self, dtype: DType | str | type[Any]) -> Scalar:
        """Converted by value."""
        return converted(self, to_dtype(dtype))

    def bitcast(self, dtype: DType | str | type[Any]) -> Scalar:
        """The same bits as another dtype of the same width."""
        wanted = to_dtype(dtype)
        if wanted.bits != self.dtype.bits:
            raise DTypeError(
                f"bitcast() keeps the width: {self.dtype.name} has {self.dtype.bits} bits,"
                f" {wanted.name} {wanted.bits}"
            )
        return _made(K.bitcast(self.value, wanted), self)

    def _unary(self, op: str) -> Scalar:
        return _made(K.alu(op, self.value), self)

    def _float(self) -> Scalar:
        return self if self.dtype.is_float else self.cast(dtypes.default_float)


def of_index(value: Expr | Var) -> Scalar:
    """Index arithmetic as a number."""
    value = expr(value)
    return Scalar(K.index(value), expr=value)


def constant(value: PyScalar, dtype: DType) -> Scalar:
    """A Python number as one of a kernel. Raises NumberOverflow where `dtype` does not hold it."""
    check_fits(value, dtype)
    is_index = dtype is dtypes.int64
    return Scalar(_VALUES.const(dtype, value), expr=expr(int(value)) if is_index else None)


def converted(x: Scalar, dtype: DType) -> Scalar:
    """`x` as another dtype, by value."""
    return x if x.dtype is dtype else _made(K.cast(x.value, dtype), x)


def number(value: Any, dtype: DType) -> Scalar:
    """A Python number as a `dtype`, or what is one already.

    Raises DTypeError for a number of a kernel of another dtype, InvalidType for what is no number.
    """
    if not isinstance(value, Scalar):
        return constant(_python(value, dtype), dtype)
    if value.dtype is not dtype:
        raise DTypeError(f"this is {value.dtype.name}, where {dtype.name} is wanted: cast() it")
    return value


def _python(value: Any, like: DType) -> PyScalar:
    if not isinstance(value, _NUMBERS):
        raise InvalidType(
            f"a kernel computes with numbers and elements of its arrays, got"
            f" {type(value).__name__} {value!r}; a tensor is an input"
        )
    python: PyScalar = value.item() if isinstance(value, np.generic) else value
    if isinstance(python, float) and not like.is_float:
        raise DTypeError(f"{python!r} is no {like.name}: cast what it is written to, or combined")
    return python


def _paired(a: Any, b: Any) -> tuple[Scalar, Scalar]:
    """Two operands of one dtype."""
    if not isinstance(a, Scalar) and not isinstance(b, Scalar):
        a, b = (_python(x, dtypes.float64) for x in (a, b))  # the choices of a where()
        dtype = promote(dtypes.of(a), dtypes.of(b))
        return constant(a, dtype), constant(b, dtype)
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        dtype = promote(a.dtype, b.dtype)
        return converted(a, dtype), converted(b, dtype)
    known, other = (a, b) if isinstance(a, Scalar) else (b, a)
    python = _python(other, dtypes.float64)
    dtype = promote_scalar(known.dtype, python)
    pair = converted(known, dtype), constant(python, dtype)
    return pair if known is a else pair[::-1]


def _made(value: K.Value, *operands: Scalar) -> Scalar:
    lets: dict[Var, K.Value] = {}
    for each in operands:
        lets |= each.lets
    return Scalar(value, lets, frozenset().union(*(each.reads for each in operands)))


def _operation(op: str, a: Any, b: Any) -> Scalar:
    a, b = _paired(a, b)
    return _made(K.alu(op, a.value, b.value), a, b)


def _index_of(x: Any) -> Expr | None:
    """A number as index arithmetic; None where it is none."""
    if isinstance(x, Scalar):
        return x.expr
    is_int = isinstance(x, (int, np.integer)) and not isinstance(x, bool)
    return expr(int(x)) if is_int else None


def _is_divisor(x: object) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool) and int(x) > 0


def _sum(a: Any, b: Any, op: str, indices: Callable[[Expr, Expr], Expr]) -> Scalar:
    x, y = _index_of(a), _index_of(b)
    return _operation(op, a, b) if x is None or y is None else of_index(indices(x, y))


def _product(a: Scalar, b: Any) -> Scalar:
    x, y = _index_of(a), _index_of(b)
    if x is not None and y is not None and (x.is_const or y.is_const):
        return of_index(x * y.const if y.is_const else y * x.const)
    return _operation("mul", a, b)


def _quotient(a: Any, b: Any) -> Scalar:
    a, b = _paired(a, b)
    return _operation("div", a._float(), b._float())


def _combined(rule: Callable[[Scalar, Scalar], Scalar], a: Any, b: Any) -> Scalar:
    return rule(*_paired(a, b))


def _floor_division(a: Scalar, b: Scalar) -> Scalar:
    """Rounded down, as Python does it."""
    if a.dtype.is_float:
        return _operation("div", a, b).floor()
    quotient = _operation("tdiv", a, b)
    if not a.dtype.is_signed:
        return quotient
    rest = _operation("tmod", a, b)
    return ((rest != 0) & ((rest < 0) ^ (b < 0))).where(quotient - 1, quotient)


def _remainder(a: Scalar, b: Scalar) -> Scalar:
    """Of the sign of the divisor, as Python has it."""
    rest = _operation("fmod" if a.dtype.is_float else "tmod", a, b)
    if not a.dtype.is_signed and not a.dtype.is_float:
        return rest
    return ((rest != 0) & ((rest < 0) ^ (b < 0))).where(rest + b, rest)


def _comparison(op: str, a: Any, b: Any, mask: Callable[[Expr, Expr], Mask]) -> Scalar:
    x, y = _index_of(a), _index_of(b)
    result = _operation(op, a, b)
    if x is not None and y is not None:
        result.mask = mask(x, y)
    return result
