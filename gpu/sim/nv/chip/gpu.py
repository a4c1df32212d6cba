"""One GPU: memory, doorbell page, channels, and what a fault does to them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpu.sim.clock import VirtualClock
from gpu.sim.counts import Counts
from gpu.sim.faults import FaultPlan
from gpu.sim.nv.chip.caches import Caches, Mode
from gpu.sim.nv.chip.chips import Chip
from gpu.sim.nv.chip.launch import KernelExecutor
from gpu.sim.nv.rm.status import Status, check
from gpu.sim.physical import Pool
from gpu.sim.record import DebugChannel
from gpu.sim.translate import PageFault

if TYPE_CHECKING:
    from gpu.sim.nv.chip.channel import Channel
    from gpu.sim.nv.rm.objects import ChannelGroup, Event

USERMODE_SIZE: Final = 64 << 10
_CHANNEL_IDS: Final = 2048  # of a runlist, NV_RUNLIST_CHANNEL_CONFIG
_CLEAN: Final = bytes(USERMODE_SIZE)
DOORBELL: Final = 0x90  # NVC361_NOTIFY_CHANNEL_PENDING
TIME_LOW: Final = 0x80  # NVC361_TIME_0, _1
UNRUNG: Final = 0xFFFF_FFFF
ENGINE_GRAPHICS: Final = 1  # NV2080_ENGINE_TYPE_*, class/cl2080.h
ENGINE_COPY0: Final = 9
NOTIFY_GRAPHICS: Final = 12  # NV2080_NOTIFIERS_*, class/cl2080_notification.h
NOTIFY_CE0: Final = 23
NOTIFY_RC_ERROR: Final = 37
FAULT_PTE: Final = 2  # NV_PFAULT_FAULT_TYPE_*, dev_fault.h
FAULT_RO_VIOLATION: Final = 6


@dataclass(frozen=True, slots=True)
class MmuFault:
    """What READ_MMU_FAULT_INFO tells: address, NV_PFAULT_FAULT_TYPE_*, NV_PFAULT_ACCESS_TYPE_*."""

    address: int
    kind: int
    access: int

    @staticmethod
    def of(fault: PageFault) -> MmuFault:
        """An engine's page fault as the MMU reports it: the page, not the byte."""
        kind = FAULT_RO_VIOLATION if fault.present else FAULT_PTE
        return MmuFault(fault.address & ~0xFFF, kind, int(fault.write))


class NvGpu:
    """A GPU of a world.

    Attributes:
        index: its number: minor of its node, and device instance.
        gpu_id: what RM calls it.
        uuid: 16 bytes, what UVM calls it.
        groups: channel groups of all processes.
        usermode: the page that processes map: the doorbell at 0x90, the clock at 0x80.
        counts: the machine's, to which it adds what it does.
        bar1_used: bytes of the BAR1 aperture that are mapped.
        events: those that wait for something of this GPU; `deliver` queues one for its file.
    """

    def __init__(
        self,
        chip: Chip,
        index: int,
        host: Pool,
        clock: VirtualClock,
        debug: DebugChannel,
        rng: random.Random,
        plan: FaultPlan,
        counts: Counts,
        mode: Mode,
        executor: KernelExecutor,
    ):
        self.chip = chip
        self.index = index
        self.gpu_id = 0x100 * (index + 1)
        self.bus = index + 1
        self.uuid = random.Random(f"{chip.name} {index}").randbytes(16)
        self.host = host
        self.clock = clock
        self.debug = debug
        self.rng = rng
        self.plan = plan
        self.counts = counts
        self.executor = executor
        self.vram = Pool("video memory", chip.vram_size, local=True)
        self.usermode = Pool("usermode registers", USERMODE_SIZE)
        self.caches = Caches(mode, debug)
        self.groups: list[ChannelGroup] = []
        self.events: list[Event] = []
        self.deliver: Callable[[Event, int], None] | None = None
        self.bar1_used = 0
        self.plugged = True
        self._next_channel: dict[int, int] = {}
        self._order = threading.Lock()
        self.usermode.write_word(DOORBELL, 4, UNRUNG)
        self.show_clock()

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.chip.name})"

    @property
    def channels(self) -> list[Channel]:
        """All channels of all processes."""
        return [channel for group in self.groups for channel in group.channels]

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

    def new_channel_id(self, runlist: int) -> int:
        """A channel id of a runlist; not from 0, so that a wrong token is noticed.

        Raises RmError(NO_FREE_FIFOS).
        """
        used = {c.number_on_runlist for c in self.channels if c.group.runlist == runlist}
        full = len(used) == _CHANNEL_IDS
        check(not full, Status.NO_FREE_FIFOS, f"{_CHANNEL_IDS} channels on runlist {runlist}")
        at = self._next_channel.get(runlist, 8 + self.rng.randrange(64))
        while at in used:
            at = (at + 1) % _CHANNEL_IDS
        self._next_channel[runlist] = (at + 1) % _CHANNEL_IDS
        return at

    def sample(self) -> None:
        """Looks at what processes wrote without a call: the doorbell."""
        self.take_ring()
        self._check_usermode()
        self.show_clock()
        for channel in self.channels:
            channel.sample()

    def take_ring(self) -> None:
        """Has the channel look that was rung for, if any."""
        token = self._take_token()
        if token is not None:
            self._ring(token)

    def _take_token(self) -> int | None:
        """What was written to the doorbell, which is free for the next one from then on.

        Processes write it whenever they like, so a ring may come between the look and the clearing.
        It is not lost: it came after its GP_PUT, and whoever was given a token looks at GP_PUT of
        all channels, after the clearing. A lock's atomic operation keeps the two in this order
        on x86; elsewhere it is the time that Python takes between them.
        """
        token = self.usermode.read_word(DOORBELL, 4)
        if token == UNRUNG:
            return None
        self.usermode.write_word(DOORBELL, 4, UNRUNG)
        with self._order:
            self.counts.doorbells += 1
        return token

    def _check_usermode(self) -> None:
        """Notices what was written beside the doorbell, and clears that only."""
        written = bytearray(self.usermode.load(0, USERMODE_SIZE))
        written[TIME_LOW : TIME_LOW + 8] = bytes(8)
        written[DOORBELL : DOORBELL + 4] = bytes(4)
        if written == _CLEAN:
            return
        at = next(i for i, byte in enumerate(written) if byte)
        self.debug.violation(
            f"the usermode page was written at {at:#x}; the doorbell is at {DOORBELL:#x}"
        )
        self.usermode.store(0, _CLEAN[:DOORBELL])
        self.usermode.store(DOORBELL + 4, _CLEAN[DOORBELL + 4 :])

    def _ring(self, token: int) -> None:
        """A ring came. A later one hides an earlier one, so all that moved count as rung."""
        target = [channel for channel in self.channels if channel.token == token]
        if not target:
            self.debug.violation(f"the doorbell was rung with {token:#x}, no channel's token")
        for channel in self.channels:
            channel.ring(hidden=channel.token != token)

    def show_clock(self) -> None:
        """Puts the clock where processes see it."""
        self.usermode.write_word(TIME_LOW, 8, self.clock.now_ns)

    def signal(self, engine: int) -> None:
        """A non-stall interrupt of an engine: events of that engine's notifier are told."""
        index = NOTIFY_GRAPHICS if engine == ENGINE_GRAPHICS else NOTIFY_CE0 + engine - ENGINE_COPY0
        self._tell(index, 0)

    def signal_error(self, group: ChannelGroup) -> None:
        """A group was torn down: events of RC_ERROR are told."""
        self._tell(NOTIFY_RC_ERROR, group.engine)

    def _tell(self, index: int, info32: int) -> None:
        for event in self.events:
            if event.index == index and self.deliver:
                self.deliver(event, info32)

    def runnable(self) -> list[Channel]:
        """Channels that could do something now."""
        if not self.plugged:
            return []
        return [channel for channel in self.channels if channel.runnable()]

    def close(self) -> None:
        """Gives its memory back."""
        self.vram.close()
        self.usermode.close()
