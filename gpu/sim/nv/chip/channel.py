"""Channels: rings of entries, their doorbells, turns, and how they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from typing import Final, NamedTuple

from gpu.sim.nv.chip.compute import ComputeEngine
from gpu.sim.nv.chip.copyengine import CopyEngine
from gpu.sim.nv.chip.errors import GR_EXCEPTION, MMU_FAULT, ChannelError, class_error, pbdma
from gpu.sim.nv.chip.hardware import Hardware
from gpu.sim.nv.chip.host import Engine
from gpu.sim.nv.chip.launch import KernelFault
from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.chip.pbdma import Pbdma
from gpu.sim.nv.chip.port import Port
from gpu.sim.translate import GpuSpace, PageFault

_GP_GET: Final = 0x88  # Nvc86fControl
_GP_PUT: Final = 0x8C
USERD_SIZE: Final = 0x200
_STEP_NS: Final = 50
_ENGINE_SUBCHANNELS: Final = range(5)
_COPY_SUBCHANNEL: Final = 4  # of runlists with graphics (cla06fsubch.h)
ERROR_SLOT: Final = 0
TOKEN_SLOT: Final = 1
FAULT_PTE: Final = 2  # NV_PFAULT_FAULT_TYPE_*, dev_fault.h
FAULT_RO_VIOLATION: Final = 6
_TOKEN_STATUS: Final = 0xFFFF  # IN_PROGRESS and the value's bits, kchannelNotifyWorkSubmitToken


@dataclass(slots=True)
class Blocked:
    """What a channel waits for; `met` looks whether it is there, `then` comes first afterwards."""

    what: str
    met: Callable[[], bool]
    then: Callable[[], None] | None = None


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


@dataclass(eq=False)
class Group:
    """Channels that are scheduled together, and die together.

    Attributes:
        engine: NV2080_ENGINE_TYPE_*, which decides the runlist.
        enabled: whether it is scheduled.
        channels: its channels, oldest first.
        dead: why it was torn down, or "".
        mmu_faults, sm_errors: what a debugger reads after a fault.
    """

    engine: int
    runlist: int
    enabled: bool = False
    dead: str = ""
    channels: list[Channel] = field(default_factory=list)
    mmu_faults: list[MmuFault] = field(default_factory=list)
    sm_errors: list[KernelFault] = field(default_factory=list)


class Unit(NamedTuple):
    """An engine's class on a channel, and of which copy engine it is."""

    number: int
    engine: int


@dataclass(eq=False)
class Channel:
    """One channel of a group.

    Attributes:
        gpu, name, number: the GPU it is on, what records call it, and its class.
        number_on_runlist, token: how the doorbell names it.
        space: its addresses.
        ring_address, entries: GPU address and length of the ring.
        userd, userd_offset: where its control words lie.
        error_memory: where errors are written; None for nowhere.
        needs_context: whether its context must be bound before it may run.
        units: classes that SET_OBJECT may name.
        bound: whether its context is mapped.
        stopped: whether it was let go, for good unless its context is mapped again.
        get, put: entries that were fetched, and up to where the last ring said.
    """

    gpu: Hardware
    name: str
    number: int
    group: Group
    number_on_runlist: int
    space: InitVar[GpuSpace]
    ring_address: int
    entries: int
    userd: Physical
    userd_offset: int
    error_memory: Physical | None
    needs_context: bool
    units: list[Unit] = field(default_factory=list)
    bound: bool = False
    stopped: bool = False
    get: int = 0
    put: int = 0
    blocked: Blocked | None = None
    compute: ComputeEngine | None = None
    _copy: CopyEngine | None = None
    _ring_due: int | None = None

    def __post_init__(self, space: GpuSpace) -> None:
        self.port = Port(space, self.gpu.caches, "host")
        self.pbdma = Pbdma(self)
        self._published: deque[int] = deque()
        self.group.channels.append(self)

    def __str__(self) -> str:
        return self.name

    @property
    def token(self) -> int:
        """Runlist in bits 22:16, channel in 11:0 (kernel_fifo_ga100.c).

        From GB20x on bit 30 says that it is a runlist's (kernel_fifo_gb202.c); kernel RM tells that
        too, of which drivers of the model for kernel RM's files need not know (U).
        """
        mark = self.gpu.has_runlist_doorbell << 30
        return mark | self.group.runlist << 16 | self.number_on_runlist

    @property
    def active(self) -> bool:
        """Whether it is on the runlist."""
        return self.group.enabled and not self.group.dead and not self.stopped

    @property
    def due_ns(self) -> int | None:
        """When a delayed ring will be noticed."""
        return self._ring_due

    # Doorbell.

    def ring(self, hidden: bool) -> None:
        """The doorbell rang; `hidden` when only another's token is still to be seen."""
        if hidden and (not self.active or self._gp_put() == self.put):
            return
        if not self.active:
            debug, dead = self.gpu.debug, self.group.dead
            tell = debug.note if dead else debug.violation  # whoever rings may not know yet
            tell(f"{self}: a ring of its doorbell, but {dead or 'it was never scheduled'}")
            return
        fault = self.gpu.faults.due("lost-doorbell", "late-doorbell")
        if fault is None:
            self._guarded(self._take_put)
        elif fault.name == "late-doorbell":
            self._ring_due = self.gpu.clock.now_ns + fault.late_ns
        else:
            self.gpu.debug.note(f"{self}: lost a ring of its doorbell")

    def sample(self) -> None:
        """Looks whether a delayed ring is due."""
        if self._ring_due is not None and self.gpu.clock.now_ns >= self._ring_due:
            self._ring_due = None
            if self.active:
                self._guarded(self._take_put)

    def _gp_put(self) -> int:
        return self.userd.read_word(self.userd_offset + _GP_PUT)

    def _take_put(self) -> None:
        """Takes over GP_PUT, and remembers the entries as they are published."""
        put = self._gp_put()
        if put >= self.entries:
            raise pbdma(f"GP_PUT {put} in a ring of {self.entries} entries")
        while self.put != put:
            self._published.append(self._entry(self.put))
            self.put = (self.put + 1) % self.entries

    def _entry(self, index: int) -> int:
        return self.port.read_word(self.ring_address + 8 * index, 8)

    # Turns.

    def runnable(self) -> bool:
        """Whether it could do something now; looking may already fault."""
        if not self.active:
            return False
        try:
            return self._has_work()
        except (PageFault, KernelFault) as fault:
            self.fail(fault)
            return False

    def _has_work(self) -> bool:
        if self._grids() and not self._why_grids_stuck():
            return True
        return self.blocked.met() if self.blocked else self._more()

    def _grids(self) -> bool:
        return self.compute is not None and bool(self.compute.grids)

    def _why_grids_stuck(self) -> str:
        """Why none of its grids gets on; empty where one does. Raises PageFault, KernelFault."""
        reasons = [grid.why_stuck() for grid in (self.compute.grids if self.compute else ())]
        return "; ".join(reasons) if all(reasons) else ""

    def run(self, budget: int) -> None:
        """Does at most so many steps."""

        def work() -> None:
            for _ in range(budget):
                if not self.runnable():
                    break
                self._step()
                self.gpu.clock.advance(_STEP_NS)

        self._guarded(work)
        idle = not self.runnable()
        if self.active and (idle or self.gpu.rng.random() < 0.5):  # written back now and then
            self._store_userd(_GP_GET, self.get)

    def _step(self) -> None:
        beside = self._grids()
        forward = self.blocked.met() if self.blocked else self._more()
        if beside and (not forward or self.gpu.rng.random() < 0.5):
            assert self.compute is not None
            self.compute.step()
        elif self.blocked:
            then = self.blocked.then
            self.blocked = None
            if then:
                then()
        elif self.pbdma.segment is not None:
            self.pbdma.step()
        else:
            self._fetch()

    def _more(self) -> bool:
        return self.pbdma.segment is not None or self.get != self.put

    def _fetch(self) -> None:
        value, published = self._entry(self.get), self._published.popleft()
        if value != published:
            self.gpu.debug.violation(
                f"{self}: ring entry {self.get} was overwritten before it was fetched:"
                f" {published:#018x}, now {value:#018x}"
            )
        self.get = (self.get + 1) % self.entries
        self.pbdma.entry(value)

    def wait(
        self, what: str, met: Callable[[], bool], then: Callable[[], None] | None = None
    ) -> None:
        """Goes no further until something is there."""
        self.blocked = Blocked(what, met, then)

    def wait_idle(self, what: str, then: Callable[[], None] | None = None) -> None:
        """Goes no further until its grids are done."""
        self.wait(what, lambda: not self._grids(), then)

    def loses_completion(self) -> bool:
        """Whether a completion is lost on purpose."""
        if self.gpu.faults.due("stuck-fence") is None:
            return False
        self.gpu.debug.note(f"{self}: lost a completion")
        return True

    def interrupt(self) -> None:
        """A non-stall interrupt of its engine, unless a fault is to lose it."""
        if self.gpu.faults.due("lost-interrupt"):
            self.gpu.debug.note(f"{self}: lost an interrupt")
            return
        self.gpu.signal(self.group.engine)

    # Engines.

    def engine_for(self, subchannel: int, value: int) -> Engine:
        """What SET_OBJECT puts on a subchannel. Raises ChannelError."""
        number, chip = value & 0xFFFF, self.gpu.chip
        if subchannel not in _ENGINE_SUBCHANNELS:
            raise class_error(f"SET_OBJECT {value:#x} on the software subchannel {subchannel}")
        found = [unit for unit in self.units if unit.number == number]
        if not found:
            raise class_error(f"SET_OBJECT of class {number:#x}, which {self} has no object of")
        graphics = self.group.runlist == 0
        if graphics and (number == chip.copy) != (subchannel == _COPY_SUBCHANNEL):
            raise class_error(
                f"class {number:#x} on subchannel {subchannel}; beside graphics, the copy class"
                f" has {_COPY_SUBCHANNEL} and others 0 to 3"
            )
        if number == chip.copy:
            self._copy = self._copy or CopyEngine(self, found[0].engine)
            return self._copy
        self.compute = self.compute or ComputeEngine(self)
        return self.compute

    # Ends.

    def _guarded(self, act: Callable[[], None]) -> None:
        """Does something; what goes wrong tears the group down."""
        try:
            act()
        except (PageFault, ChannelError, KernelFault) as error:
            self.fail(error)

    def fail(self, error: PageFault | ChannelError | KernelFault) -> None:
        """Robust-channel recovery: the whole group stops and every channel's notifier tells why.

        kernel_rc_notification.c, krcErrorSetNotifier with RC_NOTIFIER_SCOPE_TSG: all channels of
        the group get the same number, and the status 0xffff.
        """
        code = MMU_FAULT if isinstance(error, PageFault) else GR_EXCEPTION
        if isinstance(error, PageFault):
            self.group.mmu_faults.append(MmuFault.of(error))
        elif isinstance(error, KernelFault):
            self.group.sm_errors.append(error)
        else:
            code = error.code
        what = f"{self}: {error}"
        self.gpu.debug.fault(f"{what} (Xid {code})")
        if isinstance(error, ChannelError) and error.is_drivers:
            self.gpu.debug.violation(what)
        self.group.dead = f"it was torn down: {error}"
        for channel in self.group.channels:
            channel.stop()
            channel.notify(ERROR_SLOT, code, self.group.engine, 0xFFFF)
        self.gpu.signal_error(self.group.engine)

    def stop(self) -> None:
        """Forgets what was under way."""
        self.blocked = None
        self.pbdma.segment = None
        if self.compute:
            self.compute.grids.clear()

    def notify(self, slot: int, info32: int, info16: int, status: int) -> None:
        """Fills a slot of the error notifier, as notifyFillNvNotification of method_notification.c.

        The high half of the time comes first.
        """
        if self.error_memory is None:
            return
        now = self.gpu.clock.now_ns
        data = (now >> 32).to_bytes(4, "little") + (now & 0xFFFF_FFFF).to_bytes(4, "little")
        data += info32.to_bytes(4, "little") + info16.to_bytes(2, "little")
        self.error_memory.store(16 * slot, data + status.to_bytes(2, "little"))

    def notify_token(self) -> None:
        """Writes the token where GET_WORK_SUBMIT_TOKEN does."""
        self.notify(TOKEN_SLOT, self.token, 0, _TOKEN_STATUS)

    def _store_userd(self, offset: int, value: int) -> None:
        self.userd.store(self.userd_offset + offset, value.to_bytes(4, "little"))

    def why_idle(self) -> str:
        """What it waits for, in words; "" when it has nothing to do."""
        if self.group.dead:
            return f"{self}: {self.group.dead}"
        with suppress(PageFault, KernelFault):  # told when it runs
            if self.active and (why := self._why_grids_stuck()):
                return f"{self} runs a kernel that does not get on: {why}"
        if self.blocked:
            return self.blocked.what
        put = self._gp_put()
        if put != self.put:
            scheduled = "" if self.active else ", and it was never scheduled"
            return f"{self}: GP_PUT is {put}, but its doorbell was not rung{scheduled}"
        return ""
