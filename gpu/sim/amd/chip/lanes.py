"""The executor that runs real machine code: dispatches of the model on the lane engine."""

from __future__ import annotations

import random
from dataclasses import replace
from operator import attrgetter
from typing import Final

from gpu.core.bits import bits
from gpu.core.errors import GpuFault, InvalidValue, Unsupported
from gpu.sim.amd.chip.dispatch import Dispatch, KernelMemory
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chips import Chip, find_chip
from gpu.sim.chunks import ChunkedMemory
from gpu.sim.executor import Kept, RunningKernel, RunningLanes
from gpu.sim.isa.rdna import chip as isa
from gpu.sim.isa.rdna import dispatch as waves
from gpu.sim.isa.rdna.run import Execution, InstructionCache, packed

_SCRATCH_UNIT: Final = {9: (13, 1024), 10: (13, 1024), 11: (15, 256), 12: (18, 256)}
"""Bits of COMPUTE_TMPRING_SIZE.WAVESIZE, and the bytes that it counts, by the graphics core (Linux,
``gc_9_4_3_sh_mask.h`` and on)."""
_SCRATCH_EN: Final = 1  # of COMPUTE_PGM_RSRC2
_alike: Final = attrgetter(
    *("chip", "entry", "groups", "threads", "wave_size", "rsrc1", "rsrc2", "rsrc3"),
    *("lds_bytes", "tmpring", "scratch_base"),
)
"""What dispatches have in common of which one takes over what another has left."""


class LaneExecutor:
    """Runs kernels of RDNA and CDNA chips. Faults are those of the hardware where it has them.

    A memory violation is a PageFault. What would hang hardware, or what it leaves undefined, is a
    PacketError that says where and why: an unknown instruction, an access outside of local or
    scratch memory, one that is misaligned. An endless loop is none: see `why_stuck`.
    """

    def __init__(self, seed: int = 0):
        """`seed` decides how waves of a kernel interleave."""
        self._random = random.Random(seed)

    def check(self, chip: Chip) -> None:
        """Raises Unsupported for chips with other instructions."""
        if chip.name not in isa.CHIPS:
            known = ", ".join(isa.CHIPS)
            raise Unsupported(f"the lane engine runs no code of {chip.name}, but of {known}")

    def launch(self, dispatch: Dispatch, memory: KernelMemory) -> RunningKernel:
        """Begins a grid. Raises PageFault, PacketError for a dispatch that cannot be."""
        space = memory.space.kept.get(self)
        if not isinstance(space, _Space):
            space = memory.space.kept[self] = _Space()
        try:
            return _begin(dispatch, memory, space, self._random.getrandbits(64))
        except (InvalidValue, Unsupported) as error:
            raise PacketError(f"a dispatch of {dispatch.entry:#x}: {error}") from error


class _Space:
    """What is kept of the kernels of one address space: their code, and those that have ended."""

    def __init__(self) -> None:
        self.code = InstructionCache()
        self.kept: Kept[Execution] = {}


def _begin(dispatch: Dispatch, memory: KernelMemory, space: _Space, seed: int) -> _Running:
    """A dispatch under way. Raises InvalidValue, Unsupported, PageFault."""
    users, fetch = packed(dispatch.user_sgprs), memory.code.fetch
    key = (_alike(dispatch), len(users))
    found = None if dispatch.tally is not None else space.kept.pop(key, None)
    if found and found[0].program.is_same(fetch):
        grid, lanes = found
        lanes.again()
        grid.begin(users, seed)
    else:
        chip = isa.chip_of(dispatch.chip)
        what = _translate(dispatch, chip)
        program = space.code.program(chip, what, fetch, anew=True)
        lanes = ChunkedMemory(memory.vector, memory.scalar)
        placed = _with_scratch(what, lanes)
        grid = Execution(program, placed, lanes.map, lanes.fill, seed, users)
    once = dispatch.rsrc2 & _SCRATCH_EN or dispatch.tally is not None
    return _Running(grid, lanes, None if once else (space.kept, key))


class _Running(RunningLanes[Execution]):
    """A grid under way. Raises PageFault, PacketError."""

    def _told(self, fault: GpuFault) -> PacketError:
        return PacketError(f"a kernel cannot go on: {fault}")


def _with_scratch(what: waves.Dispatch, memory: ChunkedMemory) -> waves.Dispatch:
    """The dispatch, with its scratch memory mapped. Raises PageFault.

    Nobody else sees what scratch holds: where the model's caches stand before it, waves get memory
    of the engine's own.
    """
    if what.scratch_address is None:
        return what
    per_wave = what.scratch_bytes * what.lanes
    if memory.hold(what.scratch_address, per_wave * what.scratch_waves):
        return what
    return replace(what, scratch_address=None)


def _translate(dispatch: Dispatch, chip: isa.Chip) -> waves.Dispatch:
    """A dispatch as waves start with it, but for user registers, which are 0.

    Its scratch memory has no address where those describe it. Raises InvalidValue, Unsupported.
    """
    scratch = bool(dispatch.rsrc2 & _SCRATCH_EN)
    model = find_chip(dispatch.chip)
    size_bits, unit = _SCRATCH_UNIT[model.gc[0]]
    if dispatch.lds_bytes > model.lds_kib << 10:
        raise InvalidValue(
            f"{dispatch.lds_bytes} bytes of LDS for a workgroup; those of {model.name} have at most"
            f" {model.lds_kib} KiB"
        )
    per_wave = bits(dispatch.tmpring, 11 + size_bits, 12) * unit
    return waves.Dispatch.of_resources(
        *(dispatch.rsrc1, dispatch.rsrc2, dispatch.wave_size),
        pc=dispatch.entry,
        grid=dispatch.groups,
        block=dispatch.threads,
        user_sgprs=(0,) * len(dispatch.user_sgprs),
        lds_bytes=dispatch.lds_bytes,
        scratch_bytes=per_wave // dispatch.wave_size if scratch else 0,
        scratch_address=dispatch.scratch_base if scratch and not chip.scratch_in_sgprs else None,
        scratch_waves=bits(dispatch.tmpring, 11, 0) if scratch else 0,
        rsrc3=dispatch.rsrc3 if chip.has_accumulators else None,
        tally=0 if dispatch.tally is None else dispatch.tally.ctypes.data,
    )
