"""Tensors of what other libraries have: by DLPack, the buffer protocol, or ``__array__``, by copy.

In this order, which is that of how much each can say: DLPack knows bfloat16 and where memory is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.core.errors import GpuError, InvalidType, InvalidValue


def is_foreign(data: object) -> bool:
    """Whether an object says in one of these ways what elements it has."""
    if isinstance(data, type):  # which tells how its instances do
        return False
    return any(
        hasattr(data, name) for name in ("__dlpack__", "__array__", "__array_interface__")
    ) or _has_buffer(data)


def array_of(data: Any) -> npt.NDArray[Any]:
    """The elements of such an object as an array on the host, perhaps over its memory.

    Raises:
        InvalidType: what it gives is no array of numbers.
        InvalidValue: it does not lend its memory, as a tensor of torch's that wants a gradient.
        Unsupported: its memory is not the host's, or of a dtype that is not known here.
    """
    if hasattr(data, "__dlpack__"):
        from gpu.tensor.dlpack import take_capsule
        from gpu.tensor.interop import host_capsule_of

        try:
            return take_capsule(host_capsule_of(data)).host_array()
        except GpuError:
            raise
        # torch's, of a device that DLPack lacks; arrow's, of numbers that may be missing
        except (BufferError, TypeError, ValueError) as error:
            raise InvalidValue(f"a {_kind(data)} cannot be copied: {error}") from error
    try:
        array = np.asarray(memoryview(data) if _has_buffer(data) else data)
    except (TypeError, ValueError) as error:
        raise InvalidType(f"a {_kind(data)} gives no array: {error}") from error
    if array.dtype.kind not in "biufcV" or array.dtype.names:
        raise InvalidType(
            f"a tensor cannot be made of a {_kind(data)} of {array.dtype}: it takes numbers and "
            "bools; convert its columns first"
        )
    return array


def _has_buffer(data: object) -> bool:
    try:
        memoryview(data).release()  # type: ignore[arg-type]
    except (TypeError, BufferError):
        return False
    return True


def _kind(data: object) -> str:
    return f"{type(data).__module__}.{type(data).__qualname__}"
