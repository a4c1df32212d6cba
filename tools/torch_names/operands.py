"""Random operands for the calls of each family, and choices among a call's arguments."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

Rng = np.random.Generator
Array = np.ndarray[Any, Any]
# Makes numbers of a domain, in the dtype that is tried.
Fill = Callable[..., Array]
LARGE: Final = 1_000_000  # elements of the largest operand where a call is timed


def rng_for(*names: object) -> Rng:
    """Random numbers of their own for each case, the same in every run."""
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def drawn(call: str, rng: Rng) -> str:
    """The call with one of each ``{a|b}`` in its place."""
    return re.sub(r"\{([^{}]*)\}", lambda found: str(rng.choice(found[1].split("|"))), call)


def first(call: str) -> str:
    """The call with the first of each ``{a|b}``."""
    return re.sub(r"\{([^{}]*)\}", lambda found: found[1].split("|")[0], call)


def operands(family: str, rng: Rng, dtype: str, large: bool = False) -> dict[str, Array]:
    """What the letters of a family stand for.

    Args:
        family: one of `rows`.
        rng: draws shapes and numbers.
        dtype: of operands that are not places, counts or masks, as ml_dtypes names it.
        large: of `LARGE` elements, where the largest operand has so many.
    """
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))

    def fill(low: float, high: float, *shape: int, least: int | None = None) -> Array:
        if kind.kind in "iu":
            low = low if least is None else least
            low, high = (max(low, 0) if kind.kind == "u" else low), max(high, low + 1)
        values = rng.uniform(low, high, shape)
        if not large:
            values = values.round(2)  # so that ties and kinks come up too
        return np.asarray(values, kind)

    return dict(_FAMILIES[family](rng, fill, large))


def _sizes(rng: Rng, count: int, low: int = 2, high: int = 5) -> list[int]:
    return [int(n) for n in rng.integers(low, high + 1, count)]


def _elementwise(rng: Rng, fill: Fill, large: bool) -> Mapping[str, Array]:
    """x, y, z; p positive, q more so, u within -1..1; i small integers, m a mask; r, a places.

    c is a square matrix, e another, v and w vectors.
    """
    shape = [1000, 1000] if large else _sizes(rng, int(rng.integers(0, 4)), 1, 4)
    other = (
        shape if large or rng.random() < 0.5 else [n if rng.random() < 0.6 else 1 for n in shape]
    )
    side = 1000 if large else 3
    return {
        "x": fill(-3, 4, *shape), "y": fill(-3, 4, *other), "z": fill(-3, 4, *shape[1:]),
        "p": fill(0.1, 4, *shape, least=1), "q": fill(0.5, 5, *shape, least=1),
        "u": fill(-0.95, 0.95, *shape), "i": rng.integers(-3, 4, shape).astype("int32"),
        "m": rng.random(shape) < 0.5, "c": fill(-3, 4, side, side), "e": fill(-3, 4, side, side),
        "r": rng.permutation(side), "a": rng.permuted(np.indices((side, side))[0], axis=0),
        "v": fill(-3, 4, side), "w": fill(-3, 4, side), "n": np.asarray(LARGE if large else 12),
    }  # fmt: skip


def _products(rng: Rng, fill: Fill, large: bool) -> Mapping[str, Array]:
    """x by y is z; v, w, h fit them; b by d is e, in batches; k of vectors of three; g, o small."""
    n, m, o = [1000] * 3 if large else _sizes(rng, 3)
    batch, rows = (100, 100) if large else (2, 3)
    return {
        "x": fill(-3, 4, n, m), "y": fill(-3, 4, m, o), "z": fill(-3, 4, n, o),
        "v": fill(-3, 4, m), "w": fill(-3, 4, n), "h": fill(-3, 4, o),
        "b": fill(-3, 4, batch, rows, rows), "d": fill(-3, 4, batch, rows, rows),
        "e": fill(-3, 4, batch, rows, rows), "k": fill(-3, 4, 333_333 if large else 3, 3),
        "g": fill(-3, 4, *((30, 33) if large else (2, 3))),
        "o": fill(-3, 4, *((30, 33) if large else (2, 2))),
    }  # fmt: skip


def _order(rng: Rng, fill: Fill, large: bool) -> Mapping[str, Array]:
    """x and y matrices, s sorted, i places below 5."""
    n, m = [1000] * 2 if large else _sizes(rng, 2, 2, 6)
    return {
        "x": fill(-3, 4, n, m), "y": fill(-3, 4, n, m), "s": np.sort(fill(-3, 4, 8)),
        "i": rng.integers(0, 5, LARGE if large else 9),
    }  # fmt: skip


def _block(rng: Rng, fill: Fill, large: bool) -> Mapping[str, Array]:
    """x of three axes; r places along its first axis, a places of x's shape, j flat places."""
    shape = [100] * 3 if large else [*_sizes(rng, 2, 2, 4), 3]
    return {
        "x": fill(-3, 4, *shape), "r": rng.permutation(shape[0]),
        "a": rng.permuted(np.indices(shape)[0], axis=0),
        "j": rng.permutation(math.prod(shape))[: LARGE if large else 6],
    }  # fmt: skip


def _images(rng: Rng, fill: Fill, large: bool) -> Mapping[str, Array]:
    """x images of two channels; c for each channel; weights q, o, s, t; l a grid, g transforms."""
    n, sides = (2, [500, 500]) if large else (int(rng.integers(1, 3)), _sizes(rng, 2, 4, 7))
    return {
        "x": fill(-3, 4, n, 2, *sides), "c": fill(-3, 4, 2), "q": fill(-1, 1, 3, 2, 3, 2),
        "o": fill(-1, 1, 3, sides[0], 2),
        "s": fill(-1, 1, 1, 1, 2, 2, 2), "t": fill(-1, 1, 3, sides[1]),
        "l": fill(-1.2, 1.2, n, sides[0], sides[1], 2), "g": fill(-1, 1, n, 2, 3),
        "f": fill(0, 1, n, 2, 2), "k": fill(0, 1, 1, n, 3),
    }  # fmt: skip


def _losses(rng: Rng, fill: Fill, large: bool) -> Mapping[str, Array]:
    """x, y, z; u within 0..1, p positive, b 0 or 1; c classes, l classes and -1, g and s signs.

    k logarithms of shares, t classes of sequences, a and d their lengths, w a class's weight.
    """
    rows, classes = (1000, 1000) if large else _sizes(rng, 2, 3, 6)
    shape = (rows, classes)
    signs = np.asarray(rng.choice([-1, 1], rows))
    steps, batch, letters = (100, 10, 1000) if large else (7, 2, 4)
    scores = np.asarray(fill(-2, 2, steps, batch, letters), "float64")
    scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
    dtype = fill(0, 1).dtype
    return {
        "x": fill(-3, 3, *shape), "y": fill(-3, 3, *shape), "z": fill(-3, 3, *shape),
        "u": fill(0.05, 0.95, *shape), "p": fill(0.1, 4, *shape),
        "b": np.asarray(rng.integers(0, 2, shape)).astype(dtype),
        "c": rng.integers(0, classes, rows),
        "l": np.sort(rng.permuted(np.indices(shape)[1], axis=1) - 1)[:, ::-1].copy(),
        "g": signs.astype(dtype), "s": rng.choice([-1, 1], shape).astype(dtype),
        "k": scores.astype(dtype), "t": rng.integers(1, letters, (batch, 3)),
        "a": np.full(batch, steps), "d": rng.integers(1, 4, batch), "w": fill(0.5, 2, classes),
    }  # fmt: skip


def _layers(rng: Rng, fill: Fill, large: bool) -> Mapping[str, Array]:
    """c, x, v of four channels and one to three axes; s a sequence of vectors of 4; i numbers."""
    sides = _sizes(rng, 3, 4, 6)
    line, plane, volume = (
        ([62_500], [250, 250], [40, 40, 40]) if large else (sides[:1], sides[:2], sides)
    )
    n = 4
    batch, length = (500, 500) if large else (3, 2)
    return {
        "c": fill(-3, 3, n, 4, *line), "x": fill(-3, 3, n, 4, *plane),
        "v": fill(-3, 3, n, 4, *volume),
        "s": fill(-3, 3, length, batch, 4), "i": rng.integers(0, 4, (length, batch)),
        "f": fill(0, 1, n, 4, 2), "k": fill(0, 1, n, 4, 3),
    }  # fmt: skip


_FAMILIES: Final = {
    "elementwise": _elementwise, "in place": _elementwise, "special": _elementwise,
    "windows": _elementwise, "products": _products, "order": _order, "reductions": _block,
    "movement": _block, "index": _block, "nn": _images, "losses": _losses, "layers": _layers,
}  # fmt: skip
