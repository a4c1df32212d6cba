"""A GPU under its command queues, through KFD: queues, memory, clock, faults, sleeping.

Opening, in order: the process's session and its link to the GPU, an event to wake the host, memory,
queues. `KfdPort.close` undoes all but session and link, which belong to the process.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gpu.core.errors import DeviceError, DeviceLost, GpuFault, HwTimeout, InvalidValue, Unsupported
from gpu.core.log import get_logger
from gpu.core.wait import Waiter
from gpu.drivers.am.aql_encoder import AqlEncoder
from gpu.drivers.am.hdp import HdpPage
from gpu.drivers.am.kfd import Event, MemoryFault
from gpu.drivers.am.memory import KfdMemory
from gpu.drivers.am.pm4 import packets_of
from gpu.drivers.am.pm4_encoder import Pm4Encoder
from gpu.drivers.am.queues import Doorbells, KfdQueue, QueueKind, QueueMaker
from gpu.drivers.am.render import clock_hz
from gpu.drivers.am.sdma import SdmaEncoder
from gpu.drivers.am.session import GpuLink, KfdSession, session_of
from gpu.drivers.am.target import Target, Wake
from gpu.drivers.am.topology import target_of
from gpu.drivers.undo import Undo
from gpu.hcq.encoder import Encoder
from gpu.hcq.symbol import GpuVA
from gpu.transport.world import World

ComputeKind = Literal["pm4", "aql"]
_log = get_logger(__name__)
_MILLISECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Which queues a device gets; sizes of rings are bytes, powers of two from 4096 up.

    Attributes:
        compute: what its compute queues read.
        compute_queues: how many; copy queues likewise, and fewer where the hardware has fewer.
    """

    compute: ComputeKind = "pm4"
    compute_queues: int = 2
    copy_queues: int = 2
    compute_ring: int = 1 << 20
    copy_ring: int = 1 << 18

    def __post_init__(self) -> None:
        if self.compute not in ("pm4", "aql"):
            raise InvalidValue(f"compute queues of {self.compute!r}: give 'pm4' or 'aql'")
        if min(self.compute_queues, self.copy_queues) < 1:
            raise InvalidValue(
                f"{self.compute_queues} compute queues and {self.copy_queues} copy queues: at least"
                " one of each is needed"
            )


class KfdWaiter:
    """Sleeps in the kernel until a queue of the device is done, or faults.

    On a model the sleep lets engines work; one that has nothing to do says so at once.
    """

    def __init__(self, session: KfdSession, event: Event, inner: Waiter):
        """``event`` is what the device's queues set; ``inner`` is the world's waiter."""
        self.spin_ns: int = inner.spin_ns
        self._session = session
        self.event = event
        self._inner = inner
        self._seen = _Seen()

    def now_ns(self) -> int:
        """The world's clock."""
        return self._inner.now_ns()

    def begin(self) -> None:
        """A wait of this thread begins: what the last one saw does not count any more."""
        self._seen.stuck = False

    def idle(self, timeout_ns: int) -> None:
        """Sleep until something ends, at most ``timeout_ns`` in whole milliseconds.

        Raises HwTimeout where a model is stuck and was when this wait idled before: what it ran
        meanwhile, for this thread or another, has then been looked at.
        """
        seen = self._seen
        undisturbed = seen.stuck and self._inner.now_ns() == seen.at_ns
        seen.stuck = False
        if self._session.sleep(self.event, max(1, -(-timeout_ns // _MILLISECOND))):
            return
        try:
            self._inner.idle(1)
        except HwTimeout:
            if undisturbed:
                raise
            seen.stuck, seen.at_ns = True, self._inner.now_ns()


class _Seen(threading.local):
    """Whether a model was stuck when this thread idled last, and when that was."""

    stuck = False
    at_ns = 0


class KfdPort:
    """The `gpu.hcq.ports.DevicePort` of GPUs behind KFD. Made by `open_port`."""

    signal_bits: int = 32

    def __init__(
        self,
        world: World,
        link: GpuLink,
        target: Target,
        session: KfdSession,
        memory: KfdMemory,
        hdp: HdpPage,
        waiter: KfdWaiter,
        queues: Mapping[str, Sequence[KfdQueue]],
        ticks: float,
        undo: Undo,
    ):
        self.name = str(link.node)
        self.world = world
        self.link = link
        self.target = target
        self.memory = memory
        self.hdp = hdp
        self.waiter = waiter
        self.queues = queues
        self.clock_hz = ticks
        self._session = session
        self._undo = undo

    def clock(self) -> int:
        """The GPU's clock in ticks of `clock_hz`."""
        return self._session.kfd.counters(self.link.node.gpu_id).gpu

    def check(self) -> None:
        """Raise GpuFault for a memory violation, DeviceLost for a reset.

        Either way the kernel gives the GPU to new processes only.
        """
        lost = self.link.lost
        if isinstance(lost, MemoryFault):
            near = self.memory.describe(lost.address)
            raise GpuFault(f"{self.name}: {lost}; it is {near}. {_ADVICE}", lost.address)
        if lost is not None:
            raise DeviceLost(f"{self.name}: {lost}. {_ADVICE}")

    def stop(self) -> None:
        """Take all queues off the hardware, whatever they do; a fault or a reset may be the end."""
        for kind in self.queues.values():
            for queue in kind:
                try:
                    queue.close()
                except DeviceError as error:
                    _log.warning("stopping a queue of %s: %s", self.name, error)

    def close(self) -> None:
        """Give everything back: queues, doorbells, memory, the event. Again does nothing.

        All is tried before an error is raised.
        """
        self._undo.close()


_ADVICE: Final = "The kernel keeps it from this process now; open it in a new one"


def open_port(world: World, index: int, options: QueueOptions) -> KfdPort:
    """Opens a GPU by its place in KFD's list; on an error nothing of it stays open.

    Raises what `session_of`, `KfdSession.link` and `target_of` raise, OutOfMemory where there are
    no more queues.
    """
    session = session_of(world.os)
    link = session.link(index)
    target = target_of(world.os, link.node)
    packets_of(target.generation)  # made here, where an interrupt does no harm
    with Undo() as undo:
        event, slot = session.wake_event()
        undo.add(session.kfd.destroy_event, event.number)
        memory = KfdMemory(session.kfd, link.node, link.render_fd, link.apertures.memory)
        undo.add(memory.close)
        hdp, doorbells = HdpPage(memory), Doorbells(session.kfd)
        undo.add(hdp.close)
        undo.add(doorbells.close)
        maker = QueueMaker(session.kfd, memory, link.apertures, doorbells, hdp)
        queues = _open_queues(maker, target, Wake(GpuVA(slot), event.number), options, undo)
        ticks = clock_hz(world.os, link.render_fd)
        waiter = KfdWaiter(session, event, world.waiter)
        return KfdPort(
            *(world, link, target, session, memory, hdp, waiter, queues, ticks), undo.take()
        )


def _open_queues(
    maker: QueueMaker, target: Target, wake: Wake, options: QueueOptions, undo: Undo
) -> dict[str, list[KfdQueue]]:
    """The queues by kind, one copy engine queue for each direction where there are as many."""

    def make(kind: QueueKind, encoder: Encoder, size: int) -> KfdQueue:
        queue = maker.make(kind, encoder, size)
        undo.add(queue.close)
        return queue

    is_aql = options.compute == "aql"
    encoder: Encoder = AqlEncoder(target, wake) if is_aql else Pm4Encoder(target, wake)
    kind = QueueKind.AQL if is_aql else QueueKind.PM4
    copier = SdmaEncoder(target, wake)
    gpu = maker.memory.gpu
    if not gpu.num_sdma_engines:
        raise Unsupported(f"{gpu} has no copy engine (num_sdma_engines is 0)")
    most = gpu.num_sdma_engines * gpu.num_sdma_queues_per_engine
    return {
        "compute": [
            make(kind, encoder, options.compute_ring) for _ in range(options.compute_queues)
        ],
        "copy": [
            make(QueueKind.SDMA, copier, options.copy_ring)
            for _ in range(min(options.copy_queues, most))
        ],
    }
