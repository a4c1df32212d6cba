"""Calling generated code, and letting generated code call the C library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any


def native_function(address: int, signature: str) -> Callable[..., Any]:
    """The C function at `address`, with a C type such as ``void(*)(uintptr_t, int64_t)``.

    The interpreter lock is released during a call. A `char const *` parameter takes bytes.
    """
    function: Callable[..., Any] = _ffi().cast(signature, address)
    return function


def native_pointer(address: int) -> object:
    """An address as `void *` parameters take it."""
    pointer: object = _ffi().cast("void *", address)
    return pointer


def read_memory(target: memoryview, address: int) -> None:
    """Copies bytes from an address, as many as `target` has, without the interpreter lock."""
    ffi = _ffi()
    _copy()(ffi.from_buffer(target), ffi.cast("char *", address), target.nbytes)


def write_memory(address: int, source: memoryview) -> None:
    """Copies the bytes of `source` to an address, without the interpreter lock."""
    ffi = _ffi()
    _copy()(ffi.cast("char *", address), ffi.from_buffer(source), source.nbytes)


@cache
def _copy() -> Callable[..., Any]:
    memmove = c_library_addresses(["memmove"])["memmove"]
    return native_function(memmove, "void(*)(char *, char const *, size_t)")


def c_library_addresses(names: Iterable[str]) -> dict[str, int]:
    """Addresses of functions of the C library. Raises AttributeError for one it lacks."""
    library = ctypes.CDLL(None)
    return {name: ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in names}


@cache
def _ffi() -> Any:
    # The compiled half of cffi parses C types by itself; `cffi.FFI` would import a C parser
    # written in Python, which takes 70 ms.
    import _cffi_backend  # type: ignore[import-untyped]

    return _cffi_backend.FFI()
