"""Where things lie in the memory of a warp, besides what `gpu/sim/isa/layout.py` says.

A register of up to 32 bits is a row; one of 64 bits is two rows with a u64 for each lane; a
predicate is a word with a bit for each lane. Lanes that wait have a place to go on in the row
`PCS`: the byte offset of a record in the program.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import layout

# Fields of the header that are not of the shared layout: byte offsets.
ALIVE: Final = 104
"""Lanes that have not ended."""
LOWEST: Final = 108
"""Lowest place of a lane that waits for its turn; `NOBODY` where none does."""
CODE: Final = 112
BLOCKED: Final = 120
"""Lanes that wait for other lanes of the warp, at a ``.sync``."""
AT_BARRIER: Final = 124
"""Lanes that have come to a barrier of the block."""
RESOLVE: Final = 128
PARAMETERS: Final = 136
SHARED_WINDOW: Final = 144
SHARED_WINDOW_SIZE: Final = 152
LOCAL_WINDOW: Final = 160
PARAMETER_SIZE: Final = 168
CLOCK: Final = 176
BARRIER_ID: Final = 184
BARRIER_THREADS: Final = 188
"""Threads that a barrier waits for; 0 for all of the block."""
BARRIER_KIND: Final = 192
BARRIER_VALUE: Final = 196
ROUND_TOWARD_ZERO: Final = 200
ROUND_DOWN: Final = 204
ROUND_UP: Final = 208
BARRIER_TARGET: Final = 212
"""Where the row of a reducing barrier's result lies."""
COUNT: Final = 216
"""As `layout.COUNT`, whose place is another's here."""

NOBODY: Final = 0xFFFFFFFF
LOCAL_WINDOW_SIZE: Final = 1 << 24

# What BARRIER_KIND says.
SYNC: Final = 0
ARRIVE: Final = 1
RED_POPC: Final = 2
RED_AND: Final = 3
RED_OR: Final = 4

STUCK: Final = 6
"""What `run` gives back when lanes wait for each other, besides what `layout` names."""
TRAP: Final = 7

PCS: Final = layout.SGPRS
_FIRST_SPECIAL: Final = layout.SGPRS + layout.ROW
SPECIALS: Final = {
    name: _FIRST_SPECIAL + number * layout.ROW
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
assert max(SPECIALS.values()) < layout.EXEC_OFFSET
