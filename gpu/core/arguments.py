"""Reading what callers of public functions pass: whole numbers, bytes, seconds, by their names."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Final

from gpu.core.errors import InvalidType, InvalidValue

WORD: Final = (1 << 64) - 1
"""The largest number of 64 bits."""


def integer(value: object, name: str) -> int:
    """An argument that has to be a whole number, numpy's included. Raises InvalidType."""
    if type(value) is int:
        return value
    error: TypeError | None = None
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # what this is to find out
        except TypeError as reason:
            error = reason
    raise InvalidType(f"{name} must be an int, got {type(value).__name__} {value!r}") from error


def whole(value: object, name: str, least: int = 0, most: int = WORD) -> int:
    """A whole number from `least` to `most`. Raises InvalidType, InvalidValue."""
    number = integer(value, name)
    if not least <= number <= most:
        raise InvalidValue(f"{name} is {number}: give {least} to {most}")
    return number


def count_of(value: object, name: str) -> int:
    """A number of things or bytes, however large. Raises InvalidType, InvalidValue if negative."""
    number = integer(value, name)
    if number < 0:
        raise InvalidValue(f"{name} is {number}: give 0 or more")
    return number


def seconds(value: object, name: str) -> float:
    """A length of time. Raises InvalidType, InvalidValue."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidType(f"{name} must be seconds, got {type(value).__name__} {value!r}")
    length = float(value)
    if not math.isfinite(length) or length < 0:
        raise InvalidValue(f"{name} is {length} seconds: give a finite number from 0 up")
    return length


def host_bytes(data: object, name: str, writable: bool = False) -> memoryview:
    """Contiguous bytes of a buffer of the host's. Raises InvalidType, InvalidValue."""
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # what this is to find out
    except TypeError as error:
        wanted = "a buffer of bytes, as of bytearray or numpy"
        raise InvalidType(f"{name} must be {wanted}, got {type(data).__name__} {data!r}") from error
    if not view.c_contiguous:
        raise InvalidValue(f"{name} is not contiguous: copy it first")
    if writable and view.readonly:
        raise InvalidValue(f"{name} is read-only: give memory that may be written")
    if not view.nbytes:  # a view with a 0 in its shape cannot be cast
        return view[:0] if view.ndim == 1 else memoryview(b"")
    return view.cast("B")
