"""One GPU: its rings of commands, of which one runs at a time, and what they share.

The kernel has a ring for each of four levels of priority and lets the GPU go over to a higher one
that has work (adreno_a6xx_preempt.c). A ring keeps its registers meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from gpu.core.errors import GpuFault
from gpu.sim.kgsl.chip.caches import Caches
from gpu.sim.kgsl.chip.errors import CpError
from gpu.sim.kgsl.chip.launch import KernelExecutor
from gpu.sim.kgsl.chip.operations import OPERATIONS
from gpu.sim.kgsl.chip.processor import Buffer, OtherFault, Processor
from gpu.sim.kgsl.chip.tables import PageTables
from gpu.sim.kgsl.chips import Chip
from gpu.sim.linecaches import Mode
from gpu.sim.simulation import Simulation
from gpu.sim.translate import PageFault

RINGS: Final = 4
_STEP_NS: Final = 200


class Command(Protocol):
    """What the kernel puts into a ring: buffers of a context, with its own packets around them."""

    @property
    def name(self) -> str:
        """What records call it."""
        ...

    @property
    def space(self) -> PageTables:
        """What its addresses lead to."""
        ...

    @property
    def buffers(self) -> Sequence[Buffer]:
        """Its indirect buffers; none where it is skipped."""
        ...

    @property
    def context(self) -> int:
        """Whose it is: between those of two contexts the kernel invalidates UCHE."""
        ...

    def started(self) -> None:
        """Its first packet is carried out (CP_MEM_WRITE of the start's timestamp)."""
        ...

    def ended(self) -> None:
        """All of it has ended and was flushed (CACHE_FLUSH_TS of the end's timestamp)."""
        ...


class Kernel(Protocol):
    """Who drives the GPU."""

    def faulted(self, ring: Ring, fault: Exception) -> None:
        """The GPU stands: a page fault that halts it, a bad packet, a hang, or another's."""
        ...

    @property
    def due_ns(self) -> int | None:
        """When it goes on by itself."""
        ...


class Ring:
    """One level's commands, those under way first."""

    def __init__(self, gpu: AdrenoGpu, level: int):
        self._gpu = gpu
        self.level = level
        self.processor = Processor(gpu, OPERATIONS)
        self.commands: deque[Command] = deque()
        self._is_amid = False
        self._ends = False
        self._context: int | None = None

    def __str__(self) -> str:
        return f"ring {self.level}"

    @property
    def current(self) -> Command | None:
        """What runs, or is next."""
        return self.commands[0] if self.commands else None

    @property
    def due_ns(self) -> int | None:
        """When something happens by itself."""
        return self._gpu.kernel.due_ns if self._gpu.kernel else None

    def reset(self) -> list[Command]:
        """The GPU was reset; returns what was not over."""
        self.processor.abort()
        self._is_amid, self._context = False, None
        left, self.commands = list(self.commands), deque()
        return left

    def drop(self, command: Command) -> None:
        """Takes a command out that has not begun."""
        if not (self._is_amid and self.commands[0] is command):
            self.commands.remove(command)

    @property
    def may_yield(self) -> bool:
        """Whether another ring may take over: nothing is under way behind its packets."""
        return self.processor.pipe.is_idle

    def runnable(self) -> bool:
        """Whether it could do something now; looking may already fault."""
        if not self.commands:
            return False
        try:
            return self._has_work()
        except (PageFault, CpError, OtherFault) as fault:
            self._stand(fault)
            return False

    def _has_work(self) -> bool:
        if not self._is_amid or (self.processor.is_done and not self._ends):
            return True
        return self.processor.pipe.runnable() or self.processor.get_on()

    def run(self, budget: int) -> None:
        """Does at most so many steps."""
        try:
            for _ in range(budget):
                if not self.commands or not self._has_work():
                    return
                self._step()
                self._gpu.sim.clock.advance(_STEP_NS)
        except (PageFault, CpError, OtherFault) as fault:
            self._stand(fault)

    def _step(self) -> None:
        if not self._is_amid:
            self._begin(self.commands[0])
            return
        processor, pipe = self.processor, self.processor.pipe
        gets_on = processor.get_on()
        if pipe.runnable() and (not gets_on or self._gpu.sim.rng.random() < 0.5):
            pipe.step()
        elif gets_on:
            processor.step()
        if self._is_amid and processor.is_done and not self._ends:
            self._ends = True
            processor.after(self._end)

    def _begin(self, command: Command) -> None:
        if self._context not in (None, command.context):
            self._gpu.caches.invalidate()
        self._context = command.context
        self._is_amid, self._ends = True, False
        self.processor.begin(command.space, command.buffers)
        command.started()

    def _end(self) -> None:
        self._gpu.caches.flush()
        self._is_amid = False
        self.commands.popleft().ended()

    def _stand(self, fault: Exception) -> None:
        command = self.current
        what = f"{command.name if command else self}, {self.processor.where}: {fault}"
        debug = self._gpu.sim.debug
        debug.fault(what)
        if isinstance(fault, CpError) and fault.is_drivers:
            debug.violation(what)
        if self._gpu.kernel:
            self._gpu.kernel.faulted(self, fault)

    def why_idle(self) -> str:
        """What it waits for, in words; empty where it has nothing to do."""
        command = self.current
        if command is None:
            return ""
        try:
            stuck = self.processor.pipe.why_stuck()
        except (PageFault, CpError, OtherFault, GpuFault):  # told when it runs
            stuck = ""
        if stuck:
            return f"{command.name} runs a kernel that does not get on: {stuck}"
        if self.processor.blocked:
            return f"{command.name} waits for {self.processor.blocked.what}"
        return f"{command.name} waits for its turn"


class AdrenoGpu:
    """A GPU.

    Attributes:
        chip: which kind it is.
        sim: the machine's time, chance and records.
        caches, executor: what stands before memory, and who runs kernels.
        rings: by level, 0 first.
        active: the ring that runs.
        kernel: who drives it.
    """

    def __init__(self, chip: Chip, sim: Simulation, mode: Mode, executor: KernelExecutor):
        """Raises Unsupported where the executor does not run the chip's machine code."""
        executor.check(chip)
        self.chip = chip
        self.sim = sim
        self.executor = executor
        self.caches = Caches(mode, sim.debug)
        self.plugged = True
        self.kernel: Kernel | None = None
        self.rings = [Ring(self, level) for level in range(RINGS)]
        self.active = self.rings[-1]

    def sample(self) -> None:
        """Nothing of it is rung by writes."""

    def unplug(self) -> None:
        """It is gone: calls fail from now on, rings stand still."""
        self.plugged = False

    def close(self) -> None:
        """Has no memory of its own to give back."""

    def runnable(self) -> list[Ring]:
        """The ring that could do something now, if one can."""
        if not self.plugged:
            return []
        higher = [r for r in self.rings[: self.active.level] if r.commands]
        if higher and self.active.may_yield:
            self.active = higher[0]
        elif not self.active.commands:
            self.active = next((r for r in self.rings if r.commands), self.active)
        return [self.active] if self.active.runnable() else []
