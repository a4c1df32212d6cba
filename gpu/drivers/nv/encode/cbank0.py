"""Constant bank 0: what the driver tells a kernel, and then the kernel's parameters.

Offsets were found in what ptxas 13.0 makes of kernels that read one special register each, for
sm_80, 86, 89, 90, 100 and 120; windows and the top of the stack are from tinygrad's ops_nv.py,
which runs with them on all but sm_90. Words that nothing sets are zero, as memory descriptors must
be.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.nv.encode.qmd import MAX_CONSTANT
from gpu.hcq.encoder import Patch
from gpu.hcq.symbol import Symbol, Value

STACK_TOP: Final = (16 << 20) - 0x240
"""Where the stack of a thread begins in its local window; what is above is the system's."""
SHARED_WINDOW: Final = 0x7294_0000_0000
LOCAL_WINDOW: Final = 0x7293_0000_0000
"""Where generic addresses mean shared and local memory: no buffer may lie there.

The values of tinygrad's ops_nv.py; both are multiples of 4 GiB, as Hopper needs.
"""


@dataclass(frozen=True, slots=True)
class ClusterWords:
    """Offsets of what a kernel asks about its cluster; without clusters each block is one.

    Attributes:
        explicit: a word, whether the launch has clusters.
        size: three words, blocks of a cluster.
        inverse: three floats, one by those; inferred from how kernels use them.
        count: three words, clusters of the grid.
        blocks: a word, blocks of a cluster in all.
    """

    explicit: int
    size: int
    inverse: int
    count: int
    blocks: int


@dataclass(frozen=True, slots=True)
class BankLayout:
    """Offsets in bank 0 of one family of architectures.

    Attributes:
        block: three words, blockDim.
        grid: three words, gridDim.
        shared_window: 8 bytes.
        local_window: 8 bytes.
        stack_top: a word.
        dynamic_shared: a word, bytes of shared memory that the launch adds.
        total_shared: a word, all shared memory of a block, the reserved bytes included.
        parameters: where the kernel's own begin.
        clusters: where there can be any.
    """

    block: int
    grid: int
    shared_window: int
    local_window: int
    stack_top: int
    dynamic_shared: int
    total_shared: int
    parameters: int
    clusters: ClusterWords | None


_AMPERE: Final = BankLayout(
    block=0x0,
    grid=0xC,
    shared_window=0x18,
    local_window=0x20,
    stack_top=0x28,
    dynamic_shared=0x2C,
    total_shared=0x114,
    parameters=0x160,
    clusters=None,
)
_HOPPER: Final = replace(
    _AMPERE,
    parameters=0x210,
    clusters=ClusterWords(explicit=0x140, size=0x144, inverse=0x150, count=0x15C, blocks=0x188),
)
_BLACKWELL: Final = BankLayout(
    block=0x360,
    grid=0x370,
    shared_window=0x2F0,
    local_window=0x2F8,
    stack_top=0x37C,
    dynamic_shared=0x2AC,
    total_shared=0x16C,
    parameters=0x380,
    clusters=ClusterWords(explicit=0x36C, size=0x2A0, inverse=0x2B0, count=0x2C0, blocks=0x2CC),
)
_LAYOUTS: Final = {
    80: _AMPERE,
    86: _AMPERE,
    89: _AMPERE,
    90: _HOPPER,
    100: _BLACKWELL,
    120: _BLACKWELL,
}


def bank_layout(sm: int) -> BankLayout:
    """The layout for an architecture. Raises Unsupported for one that is not in the table."""
    if sm not in _LAYOUTS:
        known = ", ".join(f"sm_{number}" for number in _LAYOUTS)
        raise Unsupported(f"constant bank 0 of sm_{sm} is not known here; those are: {known}")
    return _LAYOUTS[sm]


@dataclass(frozen=True, slots=True)
class Bank0:
    """Bank 0 of one launch: its bytes, the parameters' place, and patches of segment 0."""

    data: bytes
    parameters: int
    patches: tuple[Patch, ...] = ()


def build_bank0(
    sm: int,
    parameters: bytes,
    grid: tuple[Value, Value, Value],
    block: tuple[int, int, int],
    *,
    shared: int,
    dynamic_shared: int = 0,
    cluster: tuple[int, int, int] | None = None,
) -> Bank0:
    """The bank for a launch; ``shared`` is all of a block, the reserved bytes included.

    A symbol of the grid becomes a patch. Raises InvalidValue where parameters do not fit 64 KiB,
    Unsupported for an architecture that is not known, for clusters where there are none, and for
    clusters in a grid of symbols.
    """
    layout = bank_layout(sm)
    if layout.parameters + len(parameters) > MAX_CONSTANT:
        raise InvalidValue(
            f"{len(parameters)} bytes of parameters: bank 0 has room for"
            f" {MAX_CONSTANT - layout.parameters}"
        )
    data = bytearray(layout.parameters) + parameters
    patches = _put_grid(data, layout.grid, grid)
    struct.pack_into("<III", data, layout.block, *block)
    struct.pack_into("<Q", data, layout.shared_window, SHARED_WINDOW)
    struct.pack_into("<Q", data, layout.local_window, LOCAL_WINDOW)
    struct.pack_into("<I", data, layout.stack_top, STACK_TOP)
    struct.pack_into("<I", data, layout.dynamic_shared, dynamic_shared)
    struct.pack_into("<I", data, layout.total_shared, shared)
    if layout.clusters is not None:
        patches += _put_cluster(data, layout.clusters, grid, cluster)
    elif cluster is not None:
        raise Unsupported(f"clusters on sm_{sm}: they came with sm_90")
    return Bank0(bytes(data), layout.parameters, tuple(patches))


def _put_grid(data: bytearray, offset: int, sizes: Sequence[Value]) -> list[Patch]:
    """Three words; those that are symbols become patches."""
    patches = []
    for at, size in zip(range(offset, offset + 12, 4), sizes, strict=True):
        if isinstance(size, Symbol):
            patches.append(Patch(0, at, 4, 0, 0xFFFF_FFFF, size))
        else:
            struct.pack_into("<I", data, at, size)
    return patches


def _put_cluster(
    data: bytearray,
    words: ClusterWords,
    grid: tuple[Value, Value, Value],
    cluster: tuple[int, int, int] | None,
) -> list[Patch]:
    x, y, z = cluster or (1, 1, 1)
    counts = [_divided(blocks, size) for blocks, size in zip(grid, (x, y, z), strict=True)]
    struct.pack_into("<I", data, words.explicit, int(cluster is not None))
    struct.pack_into("<III", data, words.size, x, y, z)
    struct.pack_into("<fff", data, words.inverse, 1 / x, 1 / y, 1 / z)
    struct.pack_into("<I", data, words.blocks, x * y * z)
    return _put_grid(data, words.count, counts)


def _divided(blocks: Value, size: int) -> Value:
    if size == 1:
        return blocks
    if isinstance(blocks, Symbol):
        raise Unsupported(f"clusters of {size} in a grid with the symbol {blocks.name!r}")
    return blocks // size
