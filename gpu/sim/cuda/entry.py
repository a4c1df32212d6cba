"""The C side: exported functions with the types of cuda.h, and what every call goes through.

A body is a function of a `Call` and the call's arguments, numbers but for structures. It raises
`CudaError` for a result that is not success.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from gpu.sim.cuda.codes import INVALID_VALUE, CudaError


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


TYPES: Final[dict[str, Any]] = {
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "z": ctypes.c_size_t,
    "Q": ctypes.c_uint64,
    "p": ctypes.c_size_t,  # a pointer or a handle
    "B": ctypes.c_ubyte,
    "H": ctypes.c_ushort,
    "h": IpcHandle,
}
Needs = Literal["nothing", "driver", "context"]
"""What must be there: nothing, a driver that is initialised, or a context of the thread too.

What is given back knows its context: real drivers take it back from threads that have none, as the
resets of numba's own tests do on them.
"""
Twin = Literal["", "ptsz", "ptds"]
"""The suffix of the function's twin whose default stream is one of the thread."""


class Export(NamedTuple):
    """A function of the library.

    Attributes:
        base: what cuGetProcAddress calls it.
        since: the version of CUDA that brought it, as 12000 for 12.0; of several with one base,
            those of a later version take the place of earlier ones.
        twin_since: the same of its twin.
    """

    symbol: str
    base: str
    signature: str
    body: Callable[..., None]
    needs: Needs
    twin: Twin
    since: int
    twin_since: int


EXPORTS: Final[dict[str, Export]] = {}
Body = Callable[..., None]


def export(
    symbol: str,
    signature: str,
    *,
    needs: Needs = "context",
    twin: Twin = "",
    since: int = 2000,
) -> Callable[[Body], Body]:
    """Makes a body a function of the library; `signature` has a letter of `TYPES` an argument."""
    base, _, version = symbol.rpartition("_v")
    if not version.isdigit():
        base = symbol

    def register(body: Body) -> Body:
        assert symbol not in EXPORTS
        EXPORTS[symbol] = Export(
            symbol, base, signature, body, needs, twin, since, max(since, 7000)
        )
        return body

    return register


def _place(pointer: int, what: str) -> int:
    if not pointer:
        raise CudaError(INVALID_VALUE, f"{what} is NULL")
    return pointer


def put32(pointer: int, value: int, what: str = "where the result goes") -> None:
    """Writes an int to the caller's memory. Raises CudaError for NULL."""
    ctypes.c_uint32.from_address(_place(pointer, what)).value = value


def put64(pointer: int, value: int, what: str = "where the result goes") -> None:
    """Writes a pointer, a handle or a size. Raises CudaError for NULL."""
    ctypes.c_uint64.from_address(_place(pointer, what)).value = value


def put_float(pointer: int, value: float) -> None:
    """Writes a float. Raises CudaError for NULL."""
    ctypes.c_float.from_address(_place(pointer, "where the result goes")).value = value


def get32(pointer: int, what: str = "an argument") -> int:
    """Reads an unsigned int. Raises CudaError for NULL."""
    return ctypes.c_uint32.from_address(_place(pointer, what)).value


def get64(pointer: int, what: str = "an argument") -> int:
    """Reads a pointer, a handle or a size. Raises CudaError for NULL."""
    return ctypes.c_uint64.from_address(_place(pointer, what)).value


def get_bytes(pointer: int, size: int, what: str = "an argument") -> bytes:
    """Reads bytes. Raises CudaError for NULL."""
    return ctypes.string_at(_place(pointer, what), size)


def get_text(pointer: int, what: str = "a name") -> str:
    """Reads text up to its zero. Raises CudaError for NULL."""
    return ctypes.string_at(_place(pointer, what)).decode(errors="replace")


def put_text(pointer: int, size: int, text: str) -> int:
    """Writes text and a zero into `size` bytes, cut where it is too long; gives the bytes."""
    data = text.encode()[: max(0, size - 1)] + b"\0"
    if size < 1:
        raise CudaError(INVALID_VALUE, f"{size} bytes for text")
    ctypes.memmove(_place(pointer, "where the text goes"), data, len(data))
    return len(data)
