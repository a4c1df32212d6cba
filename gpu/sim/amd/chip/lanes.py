"""The executor that runs real machine code: dispatches of the model on the lane engine."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from gpu.core.bits import bits
from gpu.core.errors import GpuFault, InvalidValue, Unsupported
from gpu.sim.amd.chip.dispatch import UNSET, Dispatch, KernelMemory
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.lanememory import LaneMemory
from gpu.sim.amd.chips import Chip
from gpu.sim.executor import Kept, RunningKernel, RunningLanes, Size3
from gpu.sim.isa.rdna import dispatch as waves
from gpu.sim.isa.rdna.chip import CHIPS, chip_of
from gpu.sim.isa.rdna.run import Execution, InstructionCache, packed

_SCRATCH_UNIT: Final = 256  # bytes that COMPUTE_TMPRING_SIZE.WAVESIZE counts on GFX11


class LaneExecutor:
    """Runs kernels of RDNA chips. Faults are those of the hardware where it has them.

    A memory violation is a PageFault. What would hang hardware, or what it leaves undefined, is a
    PacketError that says where and why: an unknown instruction, an access outside of local or
    scratch memory, one that is misaligned. An endless loop is none: see `why_stuck`.
    """

    def __init__(self, seed: int = 0):
        """`seed` decides how waves of a kernel interleave."""
        self._random = random.Random(seed)

    def check(self, chip: Chip) -> None:
        """Raises Unsupported for chips with other instructions."""
        if chip.name not in CHIPS:
            known = ", ".join(CHIPS)
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
        self.kept: Kept[Execution, LaneMemory] = Kept()


def _begin(dispatch: Dispatch, memory: KernelMemory, space: _Space, seed: int) -> _Running:
    """A dispatch under way. Raises InvalidValue, Unsupported, PageFault."""
    what = _translate(
        *(dispatch.entry, dispatch.groups, dispatch.threads, dispatch.wave_size),
        *(dispatch.rsrc1, dispatch.rsrc2, dispatch.lds_bytes),
        *(dispatch.tmpring, dispatch.scratch_base, len(dispatch.user_sgprs)),
    )
    # What nobody gave a value holds anything; the ids of the workgroup come behind all of them.
    unset = len(what.user_sgprs) - len(dispatch.user_sgprs)
    users = packed((*dispatch.user_sgprs, *[UNSET] * unset))
    fetch = partial(_fetch, memory)
    program = space.code.program(chip_of(dispatch.chip), what, fetch, anew=True)
    key = (program, what)
    if found := space.kept.take(key):
        grid, lanes = found
        lanes.again()
        grid.begin(users, seed)
    else:
        lanes = LaneMemory(memory)
        placed = _with_scratch(what, lanes)
        grid = Execution(program, placed, lanes.map, lanes.fill, seed, users)

    def leave() -> None:
        if what.scratch_address is None:
            space.kept.put(key, grid, lanes)

    return _Running(grid, lanes, leave)


def _fetch(memory: KernelMemory, address: int, size: int) -> bytes:
    """Code bytes, fewer where its mapping ends."""
    mapping = memory.space.translate(address, write=False)
    offset, count = mapping.offset + address - mapping.start, min(size, mapping.end - address)
    return memory.caches.load("code", mapping, offset, count)


class _Running(RunningLanes):
    """A grid under way. Raises PageFault, PacketError."""

    def _told(self, fault: GpuFault) -> PacketError:
        return PacketError(f"a kernel cannot go on: {fault}")


def _with_scratch(what: waves.Dispatch, memory: LaneMemory) -> waves.Dispatch:
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


@lru_cache(maxsize=256)
def _translate(
    entry: int,
    groups: Size3,
    threads: Size3,
    wave_size: int,
    rsrc1: int,
    rsrc2: int,
    lds_bytes: int,
    tmpring: int,
    scratch_base: int,
    users: int,
) -> waves.Dispatch:
    """A dispatch as waves start with it, with so many user registers, all 0.

    Raises InvalidValue, Unsupported.
    """
    scratch = bool(bits(rsrc2, 0, 0))
    per_wave = bits(tmpring, 26, 12) * _SCRATCH_UNIT
    return waves.Dispatch.of_resources(
        *(rsrc1, rsrc2, wave_size),
        pc=entry,
        grid=groups,
        block=threads,
        user_sgprs=(0,) * max(users, bits(rsrc2, 5, 1)),
        lds_bytes=lds_bytes,
        scratch_bytes=per_wave // wave_size if scratch else 0,
        scratch_address=scratch_base if scratch else None,
        scratch_waves=bits(tmpring, 11, 0) if scratch else 0,
    )
