"""The executor that runs real machine code: dispatches of the model on the lane engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from gpu.core.bits import bits
from gpu.core.errors import InvalidValue, Unsupported
from gpu.sim.amd.chip.dispatch import Dispatch, KernelMemory, RunningKernel
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.lanememory import LaneMemory
from gpu.sim.amd.chips import RUNS, Chip
from gpu.sim.isa.rdna import dispatch as waves
from gpu.sim.isa.rdna.faults import IllegalInstruction, WaveFault
from gpu.sim.isa.rdna.run import InstructionCache, Machine
from gpu.sim.translate import Translation

T = TypeVar("T")
_UNSET: Final = 0xB1A5_B1A5
_SCRATCH_UNIT: Final = 256  # bytes that COMPUTE_TMPRING_SIZE.WAVESIZE counts on GFX11


class LaneExecutor:
    """Runs kernels for gfx1100. Faults are those of the hardware where it has them.

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
        if chip.name not in RUNS:
            known = ", ".join(RUNS)
            raise Unsupported(f"the lane engine runs no code of {chip.name}, but of {known}")

    def launch(self, dispatch: Dispatch, memory: KernelMemory) -> RunningKernel:
        """Begins a grid. Raises PageFault, PacketError for a dispatch that cannot be."""
        caches = self._code.setdefault(memory.space, InstructionCache())
        self._seed += 1
        return _Grid(dispatch, memory, caches, self._seed)


class _Grid:
    """A grid under way."""

    def __init__(
        self, dispatch: Dispatch, memory: KernelMemory, caches: InstructionCache, seed: int
    ):
        self._memory = LaneMemory(memory)
        try:
            what = _with_scratch(_translate(dispatch), self._memory)
            machine = Machine(
                *(self._memory.map, seed),
                on_miss=self._memory.fill,
                fetch=self._memory.fetch,
                caches=caches,
            )
            self._execution = machine.start(what)
        except (InvalidValue, Unsupported) as error:
            raise PacketError(f"a dispatch of {dispatch.entry:#x}: {error}") from error

    @property
    def instructions(self) -> int:
        """Executed by the waves that have ended."""
        return self._execution.instructions

    def step(self, budget: int) -> bool:
        """Does about `budget` branches of it; True when the whole grid is done.

        Raises PageFault, PacketError.
        """
        return self._in_turn(lambda: self._execution.step(budget))

    def why_stuck(self) -> str:
        """Why it does not get on unless others write memory. Raises PageFault, PacketError."""
        return self._in_turn(self._execution.why_stuck) if self._execution.stands else ""

    def _in_turn(self, run: Callable[[], T]) -> T:
        self._memory.begin_turn()
        failed = True
        try:
            result = run()
            failed = False
            return result
        except (WaveFault, IllegalInstruction) as error:
            raise PacketError(f"a kernel cannot go on: {error}") from error
        finally:
            self._memory.end_turn(last=failed or self._execution.ended)


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
        user_sgprs=(*dispatch.user_sgprs, *[_UNSET] * unset),
        lds_bytes=dispatch.lds_bytes,
        scratch_bytes=per_wave // dispatch.wave_size if scratch else 0,
        scratch_address=dispatch.scratch_base if scratch else None,
        scratch_waves=bits(dispatch.tmpring, 11, 0) if scratch else 0,
    )
