"""Where things lie in the memory of a warp, besides what `gpu/sim/isa/layout.py` says.

A register of up to 32 bits is a row; one of 64 bits is two rows with a u64 for each lane; a
predicate is a word with a bit for each lane. Lanes that wait have a place to go on in the row
`PCS`: the byte offset of a record in the program.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import layout

# Fields of the header that are not of the shared layout: byte offsets.
BARRIER_VALUE: Final = layout.OWN
BARRIER_TARGET: Final = layout.OWN + 4
"""Where the row of a reducing barrier's result lies."""
ALIVE: Final = layout.OWN + 8
"""Lanes that have not ended."""
CODE: Final = layout.OWN + 16
BLOCKED: Final = layout.OWN + 24
"""Lanes that wait for other lanes of the warp, at a ``.sync``."""
AT_BARRIER: Final = layout.OWN + 28
"""Lanes that have come to a barrier of the block."""
RESOLVE: Final = layout.OWN + 32
PARAMETERS: Final = layout.OWN + 40
SHARED_WINDOW: Final = layout.OWN + 48
SHARED_WINDOW_SIZE: Final = layout.OWN + 56
LOCAL_WINDOW: Final = layout.OWN + 64
PARAMETER_SIZE: Final = layout.OWN + 72
ROUND_TOWARD_ZERO: Final = layout.OWN + 80
ROUND_DOWN: Final = layout.OWN + 84
ROUND_UP: Final = layout.OWN + 88

LOCAL_WINDOW_SIZE: Final = 1 << 24
MOST_BARRIERS: Final = 16
"""Of a block."""

# What BARRIER_KIND says.
SYNC: Final = 0
ARRIVE: Final = 1
RED_POPC: Final = 2
RED_AND: Final = 3
RED_OR: Final = 4

WARP: Final = layout.WAVE32
LANES: Final = WARP.lanes
ROW: Final = WARP.row
EXEC: Final = WARP.exec
PCS: Final = WARP.scalars
_FIRST_SPECIAL: Final = WARP.scalars + ROW
SPECIALS: Final = {
    name: _FIRST_SPECIAL + number * ROW
    for number, name in enumerate(
        (
            *("%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%warpid"),
            *("%ntid.x", "%ntid.y", "%ntid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"),
            *("%laneid", "%nwarpid", "%smid", "%nsmid", "%gridid"),
            *("%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt"),
            *("%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size"),
            *("%clusterid.x", "%clusterid.y", "%clusterid.z"),
            *("%nclusterid.x", "%nclusterid.y", "%nclusterid.z"),
            *("%cluster_ctaid.x", "%cluster_ctaid.y", "%cluster_ctaid.z", "%cluster_ctarank"),
            *("%cluster_nctaid.x", "%cluster_nctaid.y", "%cluster_nctaid.z", "%cluster_nctarank"),
            "%is_explicit_cluster",
        )
    )
}
"""Rows of special registers."""
assert max(SPECIALS.values()) < EXEC
