"""`LinAlgError`, apart from other errors: numpy's is a base of it, and not every process has that.

The processes that compile run without numpy.
"""

from __future__ import annotations

import numpy as np

from gpu.core.errors import InvalidValue


class LinAlgError(InvalidValue, np.linalg.LinAlgError):
    """A matrix has no such factors, inverse or solution; tells which of a batch, and why.

    Attributes:
        operation: what was asked for, as ``cholesky``.
        index: the matrix in the batch; () where there is one.
    """

    def __init__(self, message: str, operation: str = "", index: tuple[int, ...] = ()):
        super().__init__(message)
        self.operation = operation
        self.index = index
