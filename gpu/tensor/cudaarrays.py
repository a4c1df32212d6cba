"""`__cuda_array_interface__`, by which libraries on CUDA share an array: read, made, or refused.

It names an address that libcuda of the same process knows. The device CUDA is driven by libcuda,
and shares memory by it both ways. The device NV is driven without libcuda, by page tables of our
own: its addresses mean nothing in libcuda's, nor its to NV (docs/drivers/nv.md).

Version 3 of the interface is read and made, and versions before are read: numba's documentation,
"CUDA Array Interface (Version 3)".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import DTypeError, FormatError, InvalidValue, Unsupported

if TYPE_CHECKING:
    from gpu.tensor.strided import Strided

INTERFACE: Final = "__cuda_array_interface__"
"""The attribute by which libraries on CUDA share an array."""
_VERSION: Final = 3
_LAST_STREAM: Final = (1 << 64) - 1
_WHY: Final = (
    "its address means nothing outside of CUDA's own driver, and device='CUDA' alone is driven by"
    " that"
)
NOT_OFFERED: Final = (
    f"this Tensor has no {INTERFACE}: those on CUDA alone have one, of dtypes that numpy has. On NV"
    " the GPU has page tables of its own, in which CUDA finds nothing. Go through the host, as in"
    " cupy.asarray(x.numpy()) or torch.from_dlpack(x.to('CPU')), or by DLPack, which knows more"
    " dtypes, as in cupy.from_dlpack(x) of one on CUDA"
)
"""Why a tensor has none."""


def is_array(x: object) -> bool:
    """Whether it is an array of a library on CUDA; its class is none."""
    return hasattr(x, INTERFACE) and not isinstance(x, type)


def not_taken(x: object) -> str:
    """Why an array of CUDA's cannot become a tensor on a device that is not CUDA."""
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    return (
        f"a tensor cannot be made of the memory of a {kind}: {_WHY}; copy it through the host, as"
        " in Tensor(array.get()) of cupy's or Tensor.from_dlpack(tensor.cpu()) of torch's"
    )


def has_name(dtype: DType) -> bool:
    """Whether the interface has a name for a dtype: its names are numpy's own."""
    return dtype.np.isbuiltin == 1


def interface_of(memory: Strided) -> dict[str, Any]:
    """What the attribute is, of row-major memory that is up to date.

    It says that the memory may be written, as torch takes nothing else.
    """
    return {
        "shape": memory.shape,
        "typestr": memory.dtype.np.str,
        "data": (memory.address if 0 not in memory.shape else 0, False),
        "version": _VERSION,
        "strides": None,
        "stream": None,
    }


def read_interface(x: object) -> tuple[Strided, int | None]:
    """The memory of an array, which its owner keeps, and the stream that makes its value.

    The memory's device is not told: (0, 0). The stream is None where none is named.

    Raises FormatError where it makes no sense, InvalidValue for stream 0, which it forbids, and
    Unsupported for a mask, a dtype that there is not, and strides between its elements.
    """
    from gpu.tensor.strided import Strided, row_major

    told = getattr(x, INTERFACE)
    if not isinstance(told, Mapping):
        raise FormatError(f"{INTERFACE} must be a dict, got {type(told).__name__}")
    shape = _numbers(told.get("shape"), "shape")
    if min(shape, default=0) < 0:
        raise FormatError(f"{INTERFACE} of shape {list(shape)}; sizes must not be negative")
    if told.get("mask") is not None:
        raise Unsupported(f"{INTERFACE} with a mask; apply it before, or give the array under it")
    dtype = _dtype(told.get("typestr"))
    match told.get("data"):
        case (int() | None as address, read_only):
            pass
        case data:
            raise FormatError(f"data of {INTERFACE} must be (address, read-only), got {data!r}")
    if not address and 0 not in shape:
        raise FormatError(f"{INTERFACE} of shape {list(shape)} without memory")
    strides = row_major(shape)
    if told.get("strides") is not None:
        strides = _elements(_numbers(told["strides"], "strides"), shape, dtype)
    memory = Strided((0, 0), address or 0, shape, strides, dtype, x, bool(read_only))
    return memory, _stream(told.get("stream"))


def _numbers(told: object, name: str) -> tuple[int, ...]:
    is_sequence = isinstance(told, Sequence) and not isinstance(told, (str, bytes))
    if not is_sequence or not all(isinstance(each, int) for each in told):  # type: ignore[attr-defined]
        raise FormatError(f"{name} of {INTERFACE} must be a tuple of ints, got {told!r}")
    return tuple(told)  # type: ignore[arg-type]


def _dtype(typestr: object) -> DType:
    if not isinstance(typestr, str):
        raise FormatError(f"typestr of {INTERFACE} must be a str, got {typestr!r}")
    try:
        return dtypes.from_numpy(np.dtype(typestr))
    except TypeError as error:  # of numpy; ours is one as well
        if isinstance(error, DTypeError):
            raise Unsupported(f"typestr {typestr!r} of {INTERFACE}: {error.message}") from error
        raise FormatError(f"typestr {typestr!r} of {INTERFACE} is no type of numpy's") from error


def _elements(strides: tuple[int, ...], shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Strides in elements; they come in bytes."""
    if len(strides) != len(shape):
        raise FormatError(f"{INTERFACE} of shape {list(shape)} with strides {list(strides)}")
    if any(step % dtype.itemsize for step in strides):
        raise Unsupported(
            f"strides {list(strides)} of {INTERFACE} are no multiples of the {dtype.itemsize} bytes"
            f" of {dtype.name}; make the array contiguous before"
        )
    return tuple(step // dtype.itemsize for step in strides)


def _stream(told: object) -> int | None:
    if told is None:
        return None
    if isinstance(told, bool) or not isinstance(told, int) or not 1 <= told <= _LAST_STREAM:
        raise InvalidValue(
            f"stream={told!r} of {INTERFACE}: expected None, 1 or 2 for CUDA's default streams, or"
            " the handle of a stream as an int; 0 is forbidden, as it may mean either of the two"
        )
    return told
