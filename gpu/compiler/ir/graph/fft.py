"""What a Fourier transform is multiplied with, pass by pass.

A transform of n = r1 * r2 * ... points takes one pass for each of its radices (T. G. Stockham,
"High-speed convolution and correlation", 1966). When s = r1 * ... points are done, there are n / s
transforms of s points each, of every (n / s)th of the numbers. The next pass, of radix r, makes one
of r * s points of each r of them: transform j has its element q multiplied with w ** (j * q), where
w = exp(-2 pi i / (r * s)), before those with one q are combined. So the first pass multiplies with
nothing, and what comes out is in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul

import numpy as np
from numpy.typing import NDArray


def passes(radices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of each pass the points that are done before it, and its radix."""
    return zip(accumulate(radices[:-1], mul, initial=1), radices, strict=True)


def factor_count(radices: Sequence[int]) -> int:
    """How many factors there are; 0 for a transform of one pass."""
    return sum(done * (radix - 1) for done, radix in passes(radices) if done > 1)


def factors_of(radices: Sequence[int]) -> NDArray[np.float64]:
    """The factors of all passes but the first: of shape (2, count), real and imaginary parts.

    Those of a pass are in the order of (j, q), for j = 1 ... radix - 1.
    """
    turns = [
        np.outer(np.arange(1, radix), np.arange(done)).reshape(-1) / (done * radix)
        for done, radix in passes(radices)
        if done > 1
    ]
    angles = 2 * math.pi * np.concatenate(turns)
    return np.stack([np.cos(angles), -np.sin(angles)])
