"""The executor that runs real machine code: dispatches of the model on the lane engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from gpu.core.bits import bits
from gpu.core.errors import GpuFault, InvalidValue, Unsupported
from gpu.sim.amd.chip.dispatch import UNSET, Dispatch, KernelMemory
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.lanememory import LaneMemory
from gpu.sim.amd.chips import Chip
from gpu.sim.executor import RunningKernel, RunningLanes
from gpu.sim.isa.rdna import dispatch as waves
from gpu.sim.isa.rdna.chip import CHIPS
from gpu.sim.isa.rdna.run import InstructionCache, Machine
from gpu.sim.translate import Translation

_SCRATCH_UNIT: Final = 256  # bytes that COMPUTE_TMPRING_SIZE.WAVESIZE counts on GFX11


class LaneExecutor:
    """Runs kernels of RDNA chips. Faults are those of the hardware where it has them.

    A memory violation is a PageFault. What would hang hardware, or what it leaves undefined, is a
    PacketError that says where and why: an unknown instruction, an access outside of local or
    scratch memory, one that is misaligned. An endless loop is none: see `why_stuck`.
    """

    def __init__(self, seed: int = 0):
        """`seed` decides how waves of a kernel interleave."""
        self._seed = seed
        self._code: WeakKeyDictionary[Translation, InstructionCache] = WeakKeyDictionary()

    def check(self, chip: Chip) -> None:
        """Raises Unsupported for chips with other instructions."""
        if chip.name not in CHIPS:
            known = ", ".join(CHIPS)
            raise Unsupported(f"the lane engine runs no code of {chip.name}, but of {known}")

    def launch(self, dispatch: Dispatch, memory: KernelMemory) -> RunningKernel:
        """Begins a grid. Raises PageFault, PacketError for a dispatch that cannot be."""
        caches = self._code.setdefault(memory.space, InstructionCache())
        self._seed += 1
        return _Running(dispatch, memory, caches, self._seed)


class _Running(RunningLanes):
    """A grid under way. Raises PageFault, PacketError."""

    def __init__(
        self, dispatch: Dispatch, memory: KernelMemory, caches: InstructionCache, seed: int
    ):
        lanes = LaneMemory(memory)
        try:
            what = _with_scratch(_translate(dispatch), lanes)
            machine = Machine(
                *(lanes.map, seed),
                on_miss=lanes.fill,
                fetch=lanes.fetch,
                caches=caches,
                chip=dispatch.chip,
            )
            super().__init__(machine.start(what), lanes)
        except (InvalidValue, Unsupported) as error:
            raise PacketError(f"a dispatch of {dispatch.entry:#x}: {error}") from error

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


def _translate(dispatch: Dispatch) -> waves.Dispatch:
    """A dispatch as waves start with it. Raises InvalidValue, Unsupported."""
    rsrc1, rsrc2 = dispatch.rsrc1, dispatch.rsrc2
    scratch = bool(bits(rsrc2, 0, 0))
    per_wave = bits(dispatch.tmpring, 26, 12) * _SCRATCH_UNIT
    # What nobody gave a value holds anything; the ids of the workgroup come behind all of them.
    unset = bits(rsrc2, 5, 1) - len(dispatch.user_sgprs)
    return waves.Dispatch.of_resources(
        *(rsrc1, rsrc2, dispatch.wave_size),
        pc=dispatch.entry,
        grid=dispatch.groups,
        block=dispatch.threads,
        user_sgprs=(*dispatch.user_sgprs, *[UNSET] * unset),
        lds_bytes=dispatch.lds_bytes,
        scratch_bytes=per_wave // dispatch.wave_size if scratch else 0,
        scratch_address=dispatch.scratch_base if scratch else None,
        scratch_waves=bits(dispatch.tmpring, 11, 0) if scratch else 0,
    )
