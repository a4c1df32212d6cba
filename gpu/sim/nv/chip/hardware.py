"""What the parts of one GPU share: its memory, caches and time, and its interrupts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Final

from gpu.sim.clock import VirtualClock
from gpu.sim.counts import Counts
from gpu.sim.faults import Faults
from gpu.sim.linecaches import Mode
from gpu.sim.nv.chip.caches import Caches
from gpu.sim.nv.chip.chips import Chip
from gpu.sim.nv.chip.launch import KernelExecutor
from gpu.sim.physical import Pool
from gpu.sim.record import DebugChannel

ENGINE_GRAPHICS: Final = 1  # NV2080_ENGINE_TYPE_*, class/cl2080.h
ENGINE_COPY0: Final = 9
NOTIFY_GRAPHICS: Final = 12  # NV2080_NOTIFIERS_*, class/cl2080_notification.h
NOTIFY_CE0: Final = 23
NOTIFY_RC_ERROR: Final = 37


@dataclass(eq=False)
class Hardware:
    """A GPU, as its engines and the memory on it know it.

    Attributes:
        index: its number: minor of its node, and device instance.
        host, clock, debug, rng, faults: the machine's.
        counts: the machine's, to which it adds what it does.
        gpu_id, bus: what RM calls it, and where it is.
        uuid: 16 bytes, what UVM calls it.
        needs_reset: whether its firmware has stopped answering.
        bar1_used: bytes of the BAR1 aperture that are mapped.
        has_runlist_doorbell: whether tokens have bit 30.
        interrupt: whom it interrupts, with an index of NV2080_NOTIFIERS_* and 32 bits about it.
    """

    chip: Chip
    index: int
    host: Pool
    clock: VirtualClock
    debug: DebugChannel
    rng: random.Random
    faults: Faults
    counts: Counts
    coherence: InitVar[Mode]
    executor: KernelExecutor
    bar1_used: int = 0
    plugged: bool = True
    needs_reset: bool = False
    has_runlist_doorbell: bool = False

    def __post_init__(self, coherence: Mode) -> None:
        self.gpu_id = 0x100 * (self.index + 1)
        self.bus = self.index + 1
        self.uuid = random.Random(f"{self.chip.name} {self.index}").randbytes(16)
        self.vram = Pool("video memory", self.chip.vram_size, local=True)
        self.caches = Caches(coherence, self.debug)
        self.interrupt: Callable[[int, int], None] = lambda index, info32: None

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.chip.name})"

    @property
    def vram_used(self) -> int:
        """Bytes of its memory that are allocated."""
        return self.vram.size - self.vram.free_bytes

    def runlist(self, engine: int) -> int:
        """Which runlist serves an engine: GRCEs share that of graphics (kernel_ce_gh100.c)."""
        unit = self.chip.copy_engine(engine - ENGINE_COPY0)
        if engine == ENGINE_GRAPHICS or (unit is not None and unit.graphics):
            return 0
        return engine - ENGINE_COPY0

    def has_engine(self, engine: int) -> bool:
        """Whether it has an engine of that NV2080_ENGINE_TYPE."""
        unit = self.chip.copy_engine(engine - ENGINE_COPY0)
        return engine == ENGINE_GRAPHICS or unit is not None

    def lose_firmware(self) -> None:
        """Its firmware stops answering, until someone resets it."""
        raise NotImplementedError

    def signal(self, engine: int) -> None:
        """A non-stall interrupt of an engine."""
        index = NOTIFY_GRAPHICS if engine == ENGINE_GRAPHICS else NOTIFY_CE0 + engine - ENGINE_COPY0
        self.interrupt(index, 0)

    def signal_error(self, engine: int) -> None:
        """A group of channels of an engine was torn down."""
        self.interrupt(NOTIFY_RC_ERROR, engine)
