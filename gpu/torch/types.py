"""Element types of torch's and ours."""

from __future__ import annotations

from typing import Final

import torch

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

OURS: Final[dict[torch.dtype, DType]] = {
    torch.bool: dtypes.bool,
    torch.uint8: dtypes.uint8,
    torch.int8: dtypes.int8,
    torch.uint16: dtypes.uint16,
    torch.int16: dtypes.int16,
    torch.uint32: dtypes.uint32,
    torch.int32: dtypes.int32,
    torch.uint64: dtypes.uint64,
    torch.int64: dtypes.int64,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32,
    torch.float64: dtypes.float64,
    torch.complex64: dtypes.complex64,
    torch.complex128: dtypes.complex128,
    torch.float8_e4m3fn: dtypes.fp8e4m3,
    torch.float8_e5m2: dtypes.fp8e5m2,
}
TORCHS: Final[dict[DType, torch.dtype]] = {ours: theirs for theirs, ours in OURS.items()}


def ours(dtype: torch.dtype) -> DType:
    """Our name of one of torch's element types. Raises Unsupported where there is none."""
    try:
        return OURS[dtype]
    except KeyError:
        raise Unsupported(
            f"{dtype} has no dtype here; there are {', '.join(map(str, OURS))}"
        ) from None
