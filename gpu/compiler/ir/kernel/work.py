"""How much a kernel computes and moves at least, for profiles."""

from __future__ import annotations

import math

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.tree import values_of


def operations(stmt: K.Stmt) -> int:
    """Scalar operations, the combinations of reductions among them; casts are none.

    Loops count with the most iterations that they can have, conditions as if they held. It is meant
    for kernels that are not scheduled: matrix instructions count as nothing.
    """
    if isinstance(stmt, K.Loop):
        return stmt.var.extent * operations(stmt.body)
    if isinstance(stmt, K.Block):
        return sum(map(operations, stmt.body))
    if isinstance(stmt, K.If):
        return operations(stmt.body)
    if isinstance(stmt, K.Update):
        combined = stmt.monoid is not None
        return combined + sum(value.kind == "alu" for value in values_of(stmt, set()))
    return 0


def parameter_bytes(kernel: K.Kernel) -> int:
    """The size of all parameters: what is moved where each element is read or written once."""
    return sum(math.prod(buf.shape) * buf.dtype.itemsize for buf in kernel.params)
