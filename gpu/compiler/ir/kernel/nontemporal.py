"""Which stores go past the caches, because nothing of them would still be there when it is read."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.tree import reads, walk

# An output of this size leaves nothing of itself in the caches.
STREAMED_BYTES: Final = 1 << 25
# Bytes of a cache line: what goes past the caches should be whole ones.
LINE_BYTES: Final = 64


def streamed_outputs(kernel: K.Kernel, written: Set[K.Buf]) -> set[K.Buf]:
    """The large parameters of those `written` whose elements are stored once and not read."""
    read = {buf for buf, _, _ in reads(kernel.body)}
    combined = {s.buf for s in walk(kernel.body) if isinstance(s, K.Update) and s.monoid}
    return {buf for buf in written - read - combined if _is_large(buf) and not buf.image}


def fills_lines(nbytes: int, beside: int) -> bool:
    """Whether `beside` pieces of `nbytes` side by side are whole cache lines."""
    return nbytes * beside % LINE_BYTES == 0


def _is_large(buf: K.Buf) -> bool:
    return buf.space == "global" and math.prod(buf.shape) * buf.dtype.itemsize >= STREAMED_BYTES
