"""What a dispatch starts its waves with: the registers of a dispatcher, decoded.

Field positions: Linux, ``gc_11_0_0_sh_mask.h`` (COMPUTE_PGM_RSRC1 and 2);
initial registers: LLVM, "User Guide for AMDGPU Backend", "Initial Kernel Execution State".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpu.core.bits import bits
from gpu.core.errors import InvalidValue, Unsupported
from gpu.sim.isa import layout

VGPR_GRANULE: Final = {32: 8, 64: 4}
"""Vector registers that one step of COMPUTE_PGM_RSRC1.VGPRS stands for, by lanes of a wave (LLVM,
"User Guide for AMDGPU Backend", GRANULATED_WORKITEM_VGPR_COUNT)."""
_UNIFIED_GRANULE: Final = 8  # where accumulators are among them
MAX_LDS: Final = 160 << 10  # of CDNA4, of others 64 KiB
MAX_WORKGROUP: Final = 1024
MAX_VGPRS: Final = 256
MAX_USER_SGPRS: Final = 32
DEFAULT_MODE: Final = 0xF0 | layout.MODE_DX10_CLAMP | layout.MODE_IEEE
"""MODE as compilers ask for it: nearest even, denormals kept, IEEE, DX10_CLAMP."""


@dataclass(frozen=True, eq=False)
class Dispatch:
    """A dispatch of workgroups; each is equal to itself alone.

    Attributes:
        pc: GPU address of the first instruction, a multiple of 256.
        grid: workgroups in x, y, z.
        block: work-items of a workgroup in x, y, z.
        user_sgprs: values for s0 on, in the order that the code expects.
        workgroup_ids: which of the ids x, y, z follow them.
        workgroup_info: whether TG_SIZE, the last of these registers, follows.
        workitem_dims: how many of the packed ids in v0 are there, 1 to 3 (10 bits each).
        vgprs: vector registers of a wave.
        accumulators: which of them is the first accumulator, 0 for none.
        lds_bytes: LDS of a workgroup.
        scratch_bytes: scratch of a lane.
        scratch_address: GPU address of scratch memory, None for memory of the simulator's own.
        scratch_waves: waves that scratch memory has room for.
        has_scratch: whether waves have scratch memory: on chips whose user SGPRs describe it, they
            are told where theirs begins in it.
        mode: the MODE register (rounding 3:0, denormals 7:4, DX10_CLAMP 8, IEEE 9).
        lanes: of a wave, 32 or 64.
        tally: host address of what its waves count in (gpu/sim/isa/tally.py), 0 for no counting.
    """

    pc: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    user_sgprs: tuple[int, ...] = ()
    workgroup_ids: tuple[bool, bool, bool] = (True, True, True)
    workgroup_info: bool = False
    workitem_dims: int = 3
    vgprs: int = MAX_VGPRS
    accumulators: int = 0
    lds_bytes: int = 0
    scratch_bytes: int = 0
    scratch_address: int | None = None
    scratch_waves: int = 0
    has_scratch: bool = False
    mode: int = DEFAULT_MODE
    lanes: int = 32
    tally: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidValue for what no dispatcher accepts, Unsupported for some modes."""
        _check("work-items of a workgroup", self.threads, 1, MAX_WORKGROUP)
        for axis in self.block:
            _check("an axis of the workgroup", axis, 1, MAX_WORKGROUP)
        for count in self.grid:
            _check("workgroups of an axis", count, 1, 0xFFFFFFFF)
        most = MAX_VGPRS + bool(self.accumulators) * MAX_VGPRS
        _check("vector registers", self.vgprs, 1, most)
        _check("bytes of LDS", self.lds_bytes, 0, MAX_LDS)
        _check("user SGPRs", len(self.user_sgprs), 0, MAX_USER_SGPRS)
        if self.pc % 4:
            raise InvalidValue(f"pc {self.pc:#x} is not a multiple of 4")
        if bits(self.mode, 7, 6) != 3:
            raise Unsupported(
                f"MODE {self.mode:#x} flushes denormals of 16- and 64-bit floats, which is not"
                " simulated; set FP_DENORM of them to 3"
            )

    @classmethod
    def of_resources(
        cls,
        rsrc1: int,
        rsrc2: int,
        lanes: int,
        pc: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        user_sgprs: tuple[int, ...],
        lds_bytes: int,
        scratch_bytes: int,
        scratch_address: int | None = None,
        scratch_waves: int = 0,
        rsrc3: int | None = None,
        tally: int = 0,
    ) -> Dispatch:
        """What COMPUTE_PGM_RSRC1 and 2 say, for waves of 32 or 64 lanes. Raises what it does.

        `rsrc3` is COMPUTE_PGM_RSRC3 of chips that have accumulators (its field ACCUM_OFFSET).
        """
        count = bits(rsrc1, 5, 0) + 1
        vgprs, accumulators = min(MAX_VGPRS, count * VGPR_GRANULE[lanes]), 0
        if rsrc3 is not None:
            vgprs = min(2 * MAX_VGPRS, count * _UNIFIED_GRANULE)
            accumulators = min(vgprs, 4 * (bits(rsrc3, 5, 0) + 1))
        return cls(
            *(pc, grid, block, user_sgprs, *ids_of(rsrc2)),
            vgprs=vgprs,
            accumulators=accumulators,
            lds_bytes=lds_bytes,
            scratch_bytes=scratch_bytes,
            scratch_address=scratch_address,
            scratch_waves=scratch_waves,
            has_scratch=bool(rsrc2 & 1),
            mode=mode_of(rsrc1),
            lanes=lanes,
            tally=tally,
        )

    @cached_property
    def code(self) -> tuple[int, int, int, bool, bool]:
        """What decoding depends on: pc, vector registers, accumulators, mixed modes, counting.

        Modes are mixed where 32-bit floats are rounded, or their denormals treated, unlike all
        others.
        """
        low, high = (self.mode & 3, self.mode >> 4 & 3), (self.mode >> 2 & 3, self.mode >> 6 & 3)
        return self.pc, self.vgprs, self.accumulators, low != high, bool(self.tally)

    @property
    def threads(self) -> int:
        """Work-items of a workgroup."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def waves_per_group(self) -> int:
        """Waves of a workgroup."""
        return -(-self.threads // self.lanes)


def ids_of(rsrc2: int) -> tuple[tuple[bool, bool, bool], bool, int]:
    """What COMPUTE_PGM_RSRC2 enables: `workgroup_ids`, `workgroup_info`, `workitem_dims`."""
    x, y, z = (bool(bits(rsrc2, bit, bit)) for bit in (7, 8, 9))
    return (x, y, z), bool(bits(rsrc2, 10, 10)), min(3, bits(rsrc2, 12, 11) + 1)


def mode_of(rsrc1: int) -> int:
    """MODE as COMPUTE_PGM_RSRC1 sets it: FLOAT_MODE, DX10_CLAMP, IEEE_MODE."""
    clamp = layout.MODE_DX10_CLAMP * bits(rsrc1, 21, 21)
    return bits(rsrc1, 19, 12) | clamp | layout.MODE_IEEE * bits(rsrc1, 23, 23)


def _check(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidValue(f"{what}: {value}, must be {low} to {high}")
