"""Writes images as PNG (https://www.w3.org/TR/png-3/), with 8 bits a channel."""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import DTypeError, ShapeError

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB = 0, 2  # colour types, section 11.2.1 of the specification


def encode(pixels: npt.NDArray[np.uint8]) -> bytes:
    """The file of an image of shape (height, width), grey, or (height, width, 3), coloured.

    Raises DTypeError unless the elements are uint8, ShapeError for another shape or no pixels.
    """
    if pixels.dtype != np.uint8:
        raise DTypeError(f"an image holds uint8, 0 to 255, got {pixels.dtype}: cast it")
    coloured = pixels.ndim == 3 and pixels.shape[2] == 3
    if not (coloured or pixels.ndim == 2) or not pixels.size:
        raise ShapeError(
            f"an image has the shape [height, width] or [height, width, 3], got "
            f"{list(pixels.shape)}"
        )
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB if coloured else _GREY, 0, 0, 0)
    lines = pixels.reshape(height, -1)
    # Each line begins with its filter: 0, the bytes as they are.
    filtered = np.pad(lines, ((0, 0), (1, 0)))
    data = zlib.compress(filtered.tobytes(), level=9)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)
