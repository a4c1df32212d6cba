"""Matrix instructions and asynchronous copies as lines of PTX: "PTX ISA", sections 9.7.9.25
("cp.async") and 9.7.14.5 ("mma", "ldmatrix").

Operands are `{first}`, the first of those that are given, and so on in order.
"""

from __future__ import annotations

import itertools
from typing import Final

from gpu.core.dtype import DType, dtypes

COMMIT: Final = "cp.async.commit_group;"
_PTX: Final = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}


def copy(nbytes: int, masked: bool) -> str:
    """Operands: address in shared memory, address, and with `masked` the bytes that there are.

    16 bytes go past the L1 cache; lines of the L2 cache are read in pairs of 64 bytes, the next of
    which is what the next step of a sum will need.
    """
    way = "cg" if nbytes == 16 else "ca"
    size = ", {2}" if masked else ""
    return f"cp.async.{way}.shared.global.L2::128B [{{0}}], [{{1}}], {nbytes}{size};"


def wait(pending: int) -> str:
    """All groups but so many have landed."""
    return f"cp.async.wait_group {pending};"


def load(parts: int, transposed: bool) -> str:
    """Operands: registers of the parts, then the address of a row in shared memory."""
    how = ".trans" if transposed else ""
    registers = ", ".join(f"{{{number}}}" for number in range(parts))
    return (
        f"ldmatrix.sync.aligned.m8n8.x{parts}{how}.shared.b16 {{{{{registers}}}}}, [{{{parts}}}];"
    )


def multiply(shape: str, operand: DType, sums: int, a: int, b: int) -> str:
    """Operands: registers of the result, of A, of B, and of what is added to."""
    names = [f"{{{number}}}" for number in range(2 * sums + a + b)]
    ends = (0, sums, sums + a, sums + a + b, 2 * sums + a + b)
    groups = [", ".join(names[first:last]) for first, last in itertools.pairwise(ends)]
    lists = ", ".join(f"{{{{{group}}}}}" for group in groups)
    kind = _PTX[operand]
    return f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 {lists};"
