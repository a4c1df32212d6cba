"""The executor that runs real machine code: grids on the lane engine for ir3."""

from __future__ import annotations

import random
from operator import attrgetter
from typing import Final

from gpu.core.errors import GpuFault, InvalidValue, Unsupported
from gpu.sim.chunks import ChunkedMemory
from gpu.sim.executor import Kept, RunningKernel, RunningLanes
from gpu.sim.isa.faults import IllegalInstruction, WaveFault
from gpu.sim.isa.ir3.dispatch import Buffer, Dispatch
from gpu.sim.isa.ir3.run import CHIPS, Execution, InstructionCache
from gpu.sim.kgsl.chip.launch import KernelFault, KernelMemory, Launch
from gpu.sim.kgsl.chips import Chip

_alike: Final = attrgetter(
    *("code", "code_size", "groups", "block", "lanes", "full", "merged", "branches", "group_at"),
    *("thread_at", "shared_bytes", "private", "ubos", "uavs"),
)
"""What launches have in common of which one takes over what another has left."""


class Ir3Executor:
    """Runs kernels of Adreno 6xx.

    A memory violation is a PageFault where it halts the GPU. What would hang hardware, or what it
    leaves undefined, is a KernelFault that says where and why. An endless loop is none: see
    `why_stuck`.
    """

    def __init__(self, seed: int = 0):
        """`seed` decides how waves of a kernel interleave."""
        self._random = random.Random(seed)

    def check(self, chip: Chip) -> None:
        """Raises Unsupported for chips with other instructions."""
        if chip.name not in CHIPS:
            raise Unsupported(
                f"the lane engine runs no code of {chip.name}, but of {', '.join(CHIPS)}"
            )

    def launch(self, what: Launch, memory: KernelMemory) -> RunningKernel:
        """Begins a grid. Raises PageFault, KernelFault for one that cannot be."""
        space = memory.space.kept.get(self)
        if not isinstance(space, _Space):
            space = memory.space.kept[self] = _Space(what.chip)
        try:
            return _begin(what, memory, space, self._random.getrandbits(64))
        except (InvalidValue, Unsupported) as error:
            raise KernelFault(f"a dispatch of {what.code:#x}: {error}", what.code) from error


class _Space:
    """What is kept of the kernels of one address space: their code, and those that have ended."""

    def __init__(self, chip: str) -> None:
        self.code = InstructionCache(chip)
        self.kept: Kept[Execution] = {}


def _begin(what: Launch, memory: KernelMemory, space: _Space, seed: int) -> _Running:
    """A grid under way. Raises InvalidValue, Unsupported, PageFault."""
    fetch, key = memory.code.fetch, (_alike(what), len(what.constants))
    found = space.kept.pop(key, None)
    if found and found[0].program.is_same(fetch):
        grid, lanes = found
        lanes.again()
        grid.begin(what.constants, seed)
    else:
        dispatch = _translate(what)
        program = space.code.program(dispatch, fetch)
        lanes = ChunkedMemory(memory.data)
        grid = Execution(program, dispatch, lanes.map, lanes.fill, seed)
    return _Running(grid, lanes, (space.kept, key))


class _Running(RunningLanes[Execution]):
    """A grid under way. Raises PageFault, KernelFault."""

    def _told(self, fault: GpuFault) -> KernelFault:
        assert isinstance(fault, IllegalInstruction | WaveFault)
        return KernelFault(f"a kernel cannot go on: {fault.message}", fault.pc)


def _translate(what: Launch) -> Dispatch:
    """A launch as the engine takes it; private memory is the engine's own, as nobody else sees it.

    Raises InvalidValue, Unsupported.
    """
    return Dispatch(
        code=what.code,
        size=what.code_size,
        groups=what.groups,
        block=what.block,
        lanes=what.lanes,
        constants=what.constants,
        full=what.full,
        half=what.half,
        merged=what.merged,
        branches=what.branches,
        group_at=what.group_at,
        thread_at=what.thread_at,
        shared_bytes=what.shared_bytes,
        private_bytes=what.private.per_fiber if what.private else 0,
        ubos=tuple(Buffer(*each) for each in what.ubos),
        uavs=tuple(Buffer(*each) for each in what.uavs),
    )
