"""Data types, and functions of them."""

from __future__ import annotations

from functools import reduce
from typing import Final, NamedTuple

from gpu.core.dtype import COMPLEXES, DType, Number, dtypes, promote, to_dtype
from gpu.core.errors import DTypeError, InvalidType, InvalidValue
from gpu.core.floatlimits import limits_of
from gpu.core.scalars import promote_scalar
from gpu.tensor.array_api.arguments import Dtype, tensor_of
from gpu.tensor.tensor import Tensor

# The dtypes of the standard that there are, under its names.
BY_NAME: Final[dict[str, DType]] = {
    d.name: d
    for d in (
        *(dtypes.bool, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint8),
        *(dtypes.uint16, dtypes.uint32, dtypes.uint64, dtypes.float32, dtypes.float64),
        *COMPLEXES,
    )
}
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}


class FloatInfo(NamedTuple):
    """What `finfo` gives: limits of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerInfo(NamedTuple):
    """What `iinfo` gives: limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def astype(x: Tensor, dtype: Dtype, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """`x` in another dtype and on another device; itself without `copy` where nothing changes."""
    wanted, place = to_dtype(dtype), tensor_of(x).device if device is None else device
    if not copy and wanted is x.dtype and place == x.device:
        return x
    return x.cast(wanted).clone(None if device is None else device)


def can_cast(from_: Dtype | Tensor, to: Dtype, /) -> bool:
    """Whether what is `from_` becomes `to` when it is combined with that."""
    source, target = dtype_of(from_), to_dtype(to)
    return promote(source, target) is target


def finfo(type: Dtype | Tensor, /) -> FloatInfo:
    """Limits of a float dtype, and of the parts of a complex one. Raises DTypeError for others."""
    dtype = dtype_of(type).real
    limits = limits_of(dtype)
    return FloatInfo(limits.bits, limits.eps, limits.max, limits.min, limits.smallest_normal, dtype)


def iinfo(type: Dtype | Tensor, /) -> IntegerInfo:
    """Limits of an integer dtype. Raises DTypeError for any other."""
    dtype = dtype_of(type)
    if not dtype.is_int:
        raise DTypeError(f"{dtype.name} is no integer")
    return IntegerInfo(dtype.bits, int(dtype.max), int(dtype.min), dtype)


def isdtype(dtype: Dtype, kind: Dtype | tuple[Dtype, ...]) -> bool:
    """Whether a dtype is of a kind, is another dtype, or either of several.

    Raises InvalidValue for a kind that the standard does not have.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    if isinstance(kind, DType):
        return to_dtype(dtype) is kind
    return to_dtype(dtype).kind in kinds_of(kind)


def result_type(*arrays_and_dtypes: Tensor | Number | Dtype) -> DType:
    """The dtype that tensors, dtypes and numbers combine to.

    Raises InvalidType where there are numbers only.
    """
    numbers = [x for x in arrays_and_dtypes if isinstance(x, bool | int | float | complex)]
    others = [dtype_of(x) for x in arrays_and_dtypes if isinstance(x, Tensor | DType | str)]
    if not others:
        raise InvalidType("result_type needs a Tensor or a dtype")
    return reduce(promote_scalar, numbers, reduce(promote, others))


def kinds_of(kind: object) -> tuple[str, ...]:
    """The kinds that dtypes here have of what the standard calls `kind`. Raises InvalidValue."""
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidValue(f"kind must be a dtype or one of {', '.join(_KINDS)}, got {kind!r}")
    return _KINDS[kind]


def dtype_of(x: Dtype | Tensor) -> DType:
    """A dtype, or that of a tensor."""
    return x.dtype if isinstance(x, Tensor) else to_dtype(x)
