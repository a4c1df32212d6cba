"""How a transform of some length is done: the radices of its passes, and tables of numbers.

Tables are computed in float64 and rounded once. Those in use last are kept on their devices.
"""

from __future__ import annotations

import atexit
import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph.fft import factor_count, factors_of
from gpu.compiler.ir.graph.node import Place
from gpu.core.dtype import DType
from gpu.tensor.tensor import Tensor

# Time of a pass for each point: by what it loads and stores, and what it computes. What needs more
# registers than there are, as 16 does on many machines, takes as long as two passes of less.
_COST: Final = {
    2: 1.0, 3: 1.05, 4: 1.1, 5: 1.25, 6: 1.3, 7: 1.5, 8: 1.4, 9: 1.8, 10: 1.9, 11: 2.8, 12: 2.1,
    13: 3.4, 14: 2.4, 15: 2.4, 16: 2.15,
}  # fmt: skip
# Tables that are kept, of all lengths, dtypes and devices.
_KEPT: Final = 64


@lru_cache(maxsize=4096)
def radices_of(size: int) -> tuple[int, ...] | None:
    """The radices of the cheapest passes, largest first; None where a prime factor is too large.

    The first pass stores results apart, and lanes of the second are as many as its radix.
    """
    best = _cheapest(size)
    return None if best is None else best[1]


@lru_cache(maxsize=4096)
def _cheapest(size: int, most: int = max(_COST)) -> tuple[float, tuple[int, ...]] | None:
    """The cost and the radices of a length, of radices up to `most`."""
    if size == 1:
        return 0.0, ()
    found = []
    for radix in range(min(most, size), 1, -1):
        if size % radix == 0 and (rest := _cheapest(size // radix, radix)) is not None:
            found.append((_COST[radix] + rest[0], (radix, *rest[1])))
    return min(found, default=None)


@lru_cache(maxsize=4096)
def padded_size(least: int) -> int:
    """The length from `least` on, of small factors, whose transform costs least."""
    sizes = (
        [n for n in range(least, 2 * least) if _is_smooth(n)]
        if least < 64
        else [
            n
            for odd in (1, 3, 5, 9, 15)
            if (n := odd << max(0, (-(-least // odd) - 1).bit_length())) >= least
        ]
    )

    def cost(size: int) -> float:
        best = _cheapest(size)
        assert best is not None
        return size * (1 + best[0])

    return min(sizes, key=cost)


def _is_smooth(size: int) -> bool:
    return _cheapest(size) is not None


def factors(radices: tuple[int, ...], dtype: DType, device: Place) -> Node | None:
    """What the passes multiply with, on a device or several; None for a single pass."""
    return _table("passes", radices, dtype, device)._node if factor_count(radices) else None


def half_turns(size: int, dtype: DType, device: Place) -> Tensor:
    """exp(-2 pi i k / size) for k = 0 ... size / 2, of shape (2, size // 2 + 1): both parts."""
    return _table("half turns", (size,), dtype, device)


def chirp(size: int, dtype: DType, device: Place) -> Tensor:
    """exp(-pi i k**2 / size) for k < size, of shape (2, size)."""
    return _table("chirp", (size,), dtype, device)


def chirp_spectrum(size: int, padded: int, results: int, dtype: DType, device: Place) -> Tensor:
    """The transform of the conjugate chirp, around 0, in `padded` points: of shape (2, padded).

    From the places given to those of the first `results` numbers, it is that far ahead.
    """
    return _table("chirp spectrum", (size, padded, results), dtype, device)


@lru_cache(maxsize=_KEPT)
def _table(name: str, sizes: tuple[int, ...], dtype: DType, device: Place) -> Tensor:
    numbers = factors_of(sizes) if name == "passes" else _parts(_NUMBERS[name](*sizes))
    rounded = numbers.astype(dtype.np)
    if isinstance(device, str):
        return Tensor(rounded, device=device).realize()
    return Tensor(rounded, device=device[0]).shard(device).realize()


atexit.register(_table.cache_clear)  # memory is given back while devices are there to take it


def _parts(numbers: npt.NDArray[np.complex128]) -> npt.NDArray[np.float64]:
    return np.stack([numbers.real, numbers.imag])


def _half_turns(size: int) -> npt.NDArray[np.complex128]:
    return _turns(np.arange(size // 2 + 1), size)


def _turns(numbers: npt.NDArray[np.int64], whole: int) -> npt.NDArray[np.complex128]:
    angles = 2 * math.pi / whole * numbers
    made: npt.NDArray[np.complex128] = np.cos(angles) - 1j * np.sin(angles)
    return made


def _chirp(size: int) -> npt.NDArray[np.complex128]:
    places = np.arange(size, dtype=np.int64)
    return _turns(places * places % (2 * size), 2 * size)


def _chirp_spectrum(size: int, padded: int, results: int) -> npt.NDArray[np.complex128]:
    conjugate = _chirp(size).conj()
    behind = min(size - 1, padded - results)
    line = np.zeros(padded, np.complex128)
    line[:results] = conjugate[:results]
    line[padded - behind :] = conjugate[behind:0:-1]
    return np.fft.fft(line)


_NUMBERS: Final[dict[str, Any]] = {
    "half turns": _half_turns,
    "chirp": _chirp,
    "chirp spectrum": _chirp_spectrum,
}
