"""What the kernels of `tools.hw_acceptance.kernels` must give, by numpy."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Dims = tuple[int, int, int]
LOCAL_WORDS: Final = 64
SHARED_WORDS: Final = 256


def shape(grid: Dims, block: Dims) -> Words:
    """Eight words a thread: its place in block and grid, and both sizes."""
    axes = (*reversed(grid), *reversed(block))
    places = np.indices(axes, dtype=np.uint32).reshape(6, -1)
    bz, by, bx, tz, ty, tx = places
    rows = [tx | ty << 10 | tz << 20, bx | by << 10 | bz << 20]
    rows += [np.full_like(tx, size) for size in (*block, *grid)]
    return np.stack(rows, axis=1).astype(np.uint32).ravel()


def shared(numbers: Words) -> tuple[Words, Words]:
    """Each block's numbers reversed, and their sums modulo 2**32."""
    rows = numbers.reshape(-1, SHARED_WORDS)
    return rows[:, ::-1].ravel(), rows.sum(axis=1, dtype=np.uint32)


def dynamic(numbers: Words, count: int) -> Words:
    """Each block's ``count`` numbers reversed."""
    return numbers.reshape(-1, count)[:, ::-1].ravel()


def local(numbers: Words, threads: int, rounds: int) -> Words:
    """A hash of each thread's array after it was stirred."""
    at = np.arange(threads, dtype=np.uint32)
    arrays = numbers[:, None] + at
    for i in range(rounds):
        places = (i * 7 + at) % LOCAL_WORDS
        arrays[places, np.arange(threads)] += arrays[(i * 3) % LOCAL_WORDS]
    total = np.zeros(threads, np.uint32)
    for row in arrays:
        total = total * np.uint32(31) + row
    return total
