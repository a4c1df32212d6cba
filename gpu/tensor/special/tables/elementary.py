"""Of logarithms: polynomials, from the constant factor up.

Written by `tools/special_tables.py`, which computes them with mpmath: Chebyshev interpolants.
The relative error of narrow ones is at most 4e-09, that of wide ones at most 2e-17.
"""

from __future__ import annotations

from typing import Final

from gpu.tensor.coefficients import Table
from gpu.tensor.special.pieces import Piece

LOG: Final = (
    Piece(low=0.0, high=0.029437251522859413, table=Table(
        narrow=(
            0.6726167296122099, 0.006013403793595003, 6.40836662022323e-05, 7.439469765237865e-07,
        ),
        wide=(
            0.6726167307481199, 0.006013403829475416, 6.407457938622564e-05, 7.438034634414347e-07,
            9.085422734782274e-09, 1.1478990188857079e-10, 1.4861566704174262e-12,
            1.9584755111221356e-14,
        ),
    )),
)  # fmt: skip
"""2 * (atanh(s) - s) / s**3 in s**2: of the logarithm of (1 + s) / (1 - s)."""
