"""Random sizes about the lanes of vectors, where loops are split, peeled and filled up."""

from __future__ import annotations

from typing import Final

import numpy as np

# Of the vectors of all targets: 128 to 512 bits of 8 bytes down to one.
LANES: Final = (4, 8, 16, 32, 64)


def near_lanes(rng: np.random.Generator, most: int) -> int:
    """L - 1, L, L + 1, 2 L - 1, 2 L + 1 or 4 L + 3 for the lanes L of some vector, up to `most`.

    For a `most` below all of these, a size from 1 to it.
    """
    lanes = np.asarray(LANES)
    found = np.concatenate(
        [lanes - 1, lanes, lanes + 1, 2 * lanes - 1, 2 * lanes + 1, 4 * lanes + 3]
    )
    fitting = found[found <= most]
    return int(rng.choice(fitting)) if fitting.size else int(rng.integers(1, most + 1))
