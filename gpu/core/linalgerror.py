"""The error of linear algebra, apart from `gpu/core/errors.py`: numpy's, which it is too, costs an
import of numpy, which processes that only compile go without.
"""

from __future__ import annotations

import numpy as np

from gpu.core.errors import InvalidValue


class LinAlgError(InvalidValue, np.linalg.LinAlgError):
    """A matrix that an operation of `gpu.linalg` has no answer for, as a singular one to `inv`.

    Attributes:
        operation: its name, such as ``inv``.
        place: the matrix by its indices in the batch; () for one alone.
    """

    def __init__(self, operation: str, what: str, place: tuple[int, ...] = ()):
        """`what` is wrong with the matrix, such as ``the matrix is singular``."""
        where = f" (matrix {list(place)} of the batch)" if place else ""
        super().__init__(f"{operation}: {what}{where}")
        self.operation = operation
        self.place = place
