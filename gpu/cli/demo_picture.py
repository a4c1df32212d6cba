"""The picture of `gpu demo`: images of digits, each with what the network takes it for.

A right answer is green. A wrong one is red, in a red frame, and followed by what the digit is, as
in 3 ≠ 5.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidValue
from gpu.data import Bytes

Numbers = npt.NDArray[np.int64]
Colour = tuple[int, int, int]

_BACKGROUND: Final[Colour] = (22, 24, 30)
_PAPER: Final[Colour] = (38, 42, 52)
_INK: Final[Colour] = (244, 240, 228)
_RIGHT: Final[Colour] = (104, 211, 120)
_WRONG: Final[Colour] = (255, 98, 92)
_FAINT: Final[Colour] = (150, 156, 170)

_COLUMNS: Final = 12
_ENLARGED: Final = 9  # pixels along a side of a point of an image
_FRAME: Final = 3
_LABEL: Final = 3  # pixels along a side of a point of a label
_GAP: Final = 18
_MOST_INK: Final = 16

# Glyphs of 5 x 7 points, as used on small displays; a row is five bits, the left one highest.
_GLYPHS: Final[dict[str, tuple[int, ...]]] = {
    "0": (0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110),
    "1": (0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110),
    "2": (0b01110, 0b10001, 0b00001, 0b00010, 0b00100, 0b01000, 0b11111),
    "3": (0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110),
    "4": (0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010),
    "5": (0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110),
    "6": (0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110),
    "7": (0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000),
    "8": (0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110),
    "9": (0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100),
    "≠": (0b00001, 0b00010, 0b11111, 0b00100, 0b11111, 0b01000, 0b10000),
}
_GLYPH_WIDTH, _GLYPH_HEIGHT = 5, 7
_TILE: Final = 8 * _ENLARGED + 2 * _FRAME
_CELL: Final = (_TILE + 8 + _GLYPH_HEIGHT * _LABEL, _TILE)


def choose(predicted: Numbers, labels: Bytes, count: int) -> Numbers:
    """The numbers of `count` images to show: those with wrong answers first, then from the start.

    Fewer where there are not as many.
    """
    wrong = predicted != labels
    order = np.argsort(~wrong, kind="stable")
    return order[:count]


def draw(images: Bytes, predicted: Numbers, labels: Bytes) -> Bytes:
    """A sheet of `images`, of shape (n, 8, 8) and values 0..16, as RGB: (height, width, 3).

    Raises InvalidValue where there is no image.
    """
    if not len(images):
        raise InvalidValue("a picture needs at least one image, got none")
    columns = min(_COLUMNS, len(images))
    rows = -(-len(images) // columns)
    height, width = (
        _GAP + n * (size + _GAP) for n, size in zip((rows, columns), _CELL, strict=True)
    )
    sheet = np.empty((height, width, 3), np.uint8)
    sheet[:] = _BACKGROUND
    for number, (image, answer, label) in enumerate(zip(images, predicted, labels, strict=True)):
        row, column = divmod(number, columns)
        top, left = (_GAP + n * (size + _GAP) for n, size in zip((row, column), _CELL, strict=True))
        _draw_cell(sheet[top : top + _CELL[0], left : left + _CELL[1]], image, answer, label)
    return sheet


def _draw_cell(cell: Bytes, image: Bytes, answer: int, label: int) -> None:
    is_right = answer == label
    colour = _RIGHT if is_right else _WRONG
    tile = cell[:_TILE]
    tile[:] = _PAPER if is_right else colour
    large = image.repeat(_ENLARGED, 0).repeat(_ENLARGED, 1)[..., np.newaxis] / _MOST_INK
    tile[_FRAME:-_FRAME, _FRAME:-_FRAME] = np.rint(_PAPER + large * np.subtract(_INK, _PAPER))
    text = [(str(answer), colour)]
    if not is_right:
        text += [("≠", _FAINT), (str(label), _FAINT)]
    _write(cell[-_GLYPH_HEIGHT * _LABEL :], text)


def _write(line: Bytes, text: list[tuple[str, Colour]]) -> None:
    """Glyphs, each in its colour, in the middle of `line`."""
    space = 2 * _LABEL
    advance = _GLYPH_WIDTH * _LABEL + space
    left = (line.shape[1] - (len(text) * advance - space)) // 2
    for character, colour in text:
        mask = _glyph(character).repeat(_LABEL, 0).repeat(_LABEL, 1)
        line[:, left : left + mask.shape[1]][mask] = colour
        left += advance


def _glyph(character: str) -> npt.NDArray[np.bool_]:
    rows = np.array(_GLYPHS[character])[:, np.newaxis]
    bits = np.arange(_GLYPH_WIDTH)[::-1]
    return (rows >> bits & 1).astype(np.bool_)
