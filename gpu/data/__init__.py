"""Batches of data, and data that comes with the package: 1,797 handwritten digits, real ones.

Where those are from and under which licence is told in README.md beside this file.
"""

from __future__ import annotations

import zlib
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import FormatError
from gpu.core.files import read_bytes
from gpu.data.loader import Loader

__all__ = ["DIGITS_FILE", "Loader", "load_digits", "split_digits"]

Bytes = npt.NDArray[np.uint8]

DIGITS_FILE: Final = Path(__file__).with_name("digits.zlib")
_COUNT: Final = 1797
_SHAPE: Final = (_COUNT, 8, 8)
_SHA256: Final = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def load_digits(path: Path = DIGITS_FILE) -> tuple[Bytes, Bytes]:
    """Images and labels of handwritten digits, as read-only arrays.

    The images have the shape (1797, 8, 8): an element is how many of the 4 x 4 points of a finer
    black and white image are ink, 0..16. The labels, 0..9, have the shape (1797,).

    Raises FormatError where the file is not the one that came with the package.

    >>> images, labels = load_digits()
    >>> images.shape, int(images.max()), labels[:10].tolist()
    ((1797, 8, 8), 16, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    try:
        content = zlib.decompress(read_bytes(path))
    except zlib.error as error:
        raise FormatError(f"{path} cannot be unpacked: {error}; install the package anew") from None
    digest = sha256(content).hexdigest()
    if digest != _SHA256:
        raise FormatError(
            f"{path} holds other data than it should: its SHA-256 is {digest}, expected {_SHA256}; "
            "install the package anew"
        )
    values = np.frombuffer(content, np.uint8)
    return values[:-_COUNT].reshape(_SHAPE), values[-_COUNT:]


def split_digits() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of the 1,198 images to train with, and of the 599 to test with.

    An image whose number is a multiple of 3 is for the test, and for nothing else: whatever is
    chosen, such as a learning rate, is chosen by the others.
    """
    numbers = np.arange(_COUNT)
    is_test = numbers % 3 == 0
    return numbers[~is_test], numbers[is_test]
