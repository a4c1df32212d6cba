"""Element types: the public names of `gpu.core.dtype`, whose table tells how they combine."""

from gpu.core.dtype import (
    DType,
    ImageDType,
    dtypes,
    from_torch_dtype,
    promote,
    to_dtype,
)
from gpu.core.scalars import promote_scalar

__all__ = [
    "DType",
    "ImageDType",
    "dtypes",
    "from_torch_dtype",
    "promote",
    "promote_scalar",
    "to_dtype",
]
