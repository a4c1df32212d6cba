"""A GPU under its command queues, through KFD: queues, memory, clock, faults, sleeping.

Opening, in order: the process's session and its link to the GPU, an event to wake the host, memory,
queues. `KfdPort.close` undoes all but session and link, which belong to the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Unpack

from gpu.core.errors import DeviceError, DeviceLost, GpuFault, HwTimeout, InvalidValue, Unsupported
from gpu.core.log import get_logger
from gpu.core.wait import Waiter
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.encode.aql_encoder import AqlEncoder
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.encode.pm4_encoder import Pm4Encoder
from gpu.drivers.am.encode.sdma import SdmaEncoder
from gpu.drivers.am.kfd.drm import clock_hz
from gpu.drivers.am.kfd.events import MemoryFault
from gpu.drivers.am.kfd.hdp import HdpPage
from gpu.drivers.am.kfd.ioctls import HAS_CONTEXTS, Event
from gpu.drivers.am.kfd.memory import KfdMemory
from gpu.drivers.am.kfd.process import GpuLink, KfdSession, session_of
from gpu.drivers.am.kfd.questions import HDP_FLUSH, PAGES, PRIV, QUESTIONS, RUNTIME
from gpu.drivers.am.kfd.queues import Doorbells, QueueMaker
from gpu.drivers.am.kfd.topology import target_of
from gpu.drivers.am.queue import AmQueue, QueueKind
from gpu.drivers.am.target import Target, Wake
from gpu.drivers.cleanup import Undo
from gpu.drivers.device import Rung
from gpu.drivers.questions import Variants
from gpu.hcq.device import DeviceOptions
from gpu.hcq.encoder import Encoder
from gpu.hcq.symbol import GpuVA
from gpu.transport.world import World

ComputeKind = Literal["pm4", "aql"]
_log = get_logger(__name__)
_MILLISECOND: Final = 1_000_000
_RUN_OUT_SLEEPS: Final = 3  # of some milliseconds: what waited only has little to do


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Which queues a device gets; sizes of rings are bytes, powers of two from 4096 up.

    Attributes:
        compute: what its compute queues read; by default PM4, and AQL where a GPU has several XCCs.
        compute_queues: how many; copy queues likewise, and fewer where the hardware has fewer.
    """

    compute: ComputeKind | None = None
    compute_queues: int = 2
    copy_queues: int = 2
    compute_ring: int = 1 << 20
    copy_ring: int = 1 << 18

    def __post_init__(self) -> None:
        if self.compute not in (None, "pm4", "aql"):
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

    def use(self, session: KfdSession, event: Event) -> None:
        """Sleep in another context from now on."""
        self._session, self.event = session, event

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
    """The `AmPort` of GPUs behind KFD. Made by `open_port`.

    Attributes:
        link: the GPU in the context that the device is in.
        explain: says what more is known of a fault at an address, for its message.
    """

    signal_bits: int = 32

    def __init__(
        self,
        world: World,
        link: GpuLink,
        target: Target,
        options: QueueOptions,
        ticks: float,
        variants: Variants,
    ):
        """Opens nothing yet."""
        self.name = str(link.node)
        self.world = world
        self.link = link
        self.target = target
        self.clock_hz = ticks
        self.memory = KfdMemory(link.session.kfd, link.node, link.render_fd, link.apertures.memory)
        self.memory.aligns_large = variants.choose(PAGES) == "aligned"
        self.hdp = HdpPage(self.memory, variants.choose(HDP_FLUSH))
        self.explain: Callable[[int], str] = lambda address: ""
        gpu = link.node
        most = gpu.num_sdma_engines * gpu.num_sdma_queues_per_engine
        self.queue_counts: Mapping[str, int] = {
            "compute": options.compute_queues,
            "copy": min(options.copy_queues, most),
        }
        self._options = options
        default = "aql" if target.xccs > 1 else "pm4"
        self._is_aql = (options.compute or default) == "aql"
        self._opened = Undo()  # all but queues, which end before
        self._queues = Undo()

    def open(self) -> None:
        """Opens all there is. What was opened when it fails `close` gives back."""
        session = self.link.session
        if not self.queue_counts["copy"]:
            raise Unsupported(f"{self.name} has no copy engine (num_sdma_engines is 0)")
        session.enter(self.link)
        self._opened.add(self._leave)
        event, slot = session.wake_event()
        self.waiter = KfdWaiter(session, event, self.world.waiter)
        self._opened.add(self._end_event)
        self._opened.add(self.memory.close)
        self._opened.add(self.hdp.close)
        wake = Wake(GpuVA(slot), event.number)
        self._encoder: Encoder = (AqlEncoder if self._is_aql else Pm4Encoder)(self.target, wake)
        self._copier = SdmaEncoder(self.target, wake)
        self._start()

    def _start(self) -> None:
        """Begins to open queues, of which there are none."""
        kfd = self.link.session.kfd
        doorbells = Doorbells(kfd)
        self._queues.add(doorbells.close)
        self._maker = QueueMaker(kfd, self.memory, self.link.apertures, doorbells, self.hdp)
        self._open_now: list[AmQueue] = []

    def open_queue(self, kind: str, index: int) -> AmQueue:
        """As `DevicePort.open_queue`."""
        if kind == "copy":
            queue = self._maker.make(QueueKind.SDMA, self._copier, self._options.copy_ring)
        else:
            packets = QueueKind.AQL if self._is_aql else QueueKind.PM4
            queue = self._maker.make(packets, self._encoder, self._options.compute_ring)
        self._queues.add(queue.close)
        self._open_now.append(queue)
        return queue

    def begin_wait(self) -> None:
        """As `AmPort.begin_wait`."""
        self.waiter.begin()

    def host_wrote(self) -> None:
        """As `AmPort.host_wrote`."""
        self.hdp.flush()

    def clock(self) -> int:
        """The GPU's clock in ticks of `clock_hz`."""
        return self.link.session.kfd.clock(self.link.node.gpu_id)

    def check(self) -> None:
        """Raise GpuFault for a memory violation, DeviceLost for a reset."""
        lost = self.link.lost
        if isinstance(lost, MemoryFault):
            near = self.memory.describe(lost.address)
            told = (f"{lost}; it is {near}", self.explain(lost.address), self._advice())
            raise GpuFault(f"{self.name}: {'; '.join(filter(None, told))}", lost.address)
        if lost is not None:
            where = "" if self._is_given_back else " in a new process"
            raise DeviceLost(f"{self.name}: {lost}. Close it, and open it anew{where}")

    def _advice(self) -> str:
        if self._is_given_back:
            return "recover() makes the device usable again"
        return "the kernel keeps it from this process now: open it in a new one"

    @property
    def _is_given_back(self) -> bool:
        return self.link.session.kfd.version >= HAS_CONTEXTS

    def look(self) -> None:
        """Learns of faults and resets that the kernel has told of by now."""
        self.link.session.sleep(self.waiter.event, 0)

    def stop(self) -> Rung | None:
        """As `AmPort.stop`; the kernel tells later what it has reset."""
        try:
            self._queues.close()
        except DeviceError as error:
            _log.warning("stopping the queues of %s: %s", self.name, error)
        return None

    def let_run_out(self) -> bool:
        """As `AmPort.let_run_out`."""
        self.waiter.begin()
        with suppress(HwTimeout):  # of a model, where nothing goes on any more
            for _ in range(_RUN_OUT_SLEEPS):
                if self._is_drained():
                    break
                self.waiter.idle(_MILLISECOND)
        return self._is_drained()

    def _is_drained(self) -> bool:
        return all(queue.is_drained for queue in self._open_now)

    def renew(self, rung: Rung) -> None:
        """As `AmPort.renew`."""
        if rung is Rung.ADDRESS_SPACE:
            self._move()
        self._start()

    def _move(self) -> None:
        """Has everything in a context that has not lost the GPU.

        Memory stays where it is. Raises DeviceLost where the kernel has no other, Unsupported for
        memory that cannot go there, and what opening raises; then all is as before.
        """
        link = self.link.session.other(self.link)
        event, _ = link.session.wake_event(self.waiter.event.number)
        with Undo() as undo:
            undo.add(link.session.kfd.destroy_event, event.number)
            self.memory.move(link.session.kfd, link.render_fd)
            undo.take()
        self.hdp.close()
        self._end_event()
        link.session.enter(link)
        before, self.link = self.link, link
        self.waiter.use(link.session, event)
        before.session.leave(before)

    def _end_event(self) -> None:
        self.link.session.kfd.destroy_event(self.waiter.event.number)

    def _leave(self) -> None:
        self.link.session.leave(self.link)

    def close(self) -> None:
        """Give everything back: queues, doorbells, memory, the event. Again does nothing.

        All is tried before an error is raised.
        """
        with Undo() as undo:
            undo.add(self._opened.close)
            undo.add(self._queues.close)


def open_port(
    world: World, index: int, options: QueueOptions, *, force: Mapping[str, str] | None = None
) -> KfdPort:
    """Opens a GPU by its place in KFD's list; on an error nothing of it stays open.

    ``force`` names variants of `QUESTIONS`. Raises what `session_of`, `KfdSession.link`,
    `Kfd.enable_runtime` and `target_of` raise, OutOfMemory where there are no more queues.
    """
    variants = Variants(QUESTIONS, force)
    session = session_of(world.os)
    link = session.link(index)
    target = target_of(world.os, link.node)._replace(priv=variants.choose(PRIV) == "set")
    if variants.choose(RUNTIME) == "told":
        session.enable_runtime()
    packets_of(target.generation)  # made here, where an interrupt does no harm
    with Undo() as undo:
        ticks = clock_hz(world.os, link.render_fd)
        port = KfdPort(world, link, target, options, ticks, variants)
        undo.add(port.close)
        port.open()
        undo.take()
    return port


def open_kfd(
    world: World,
    index: int = 0,
    *,
    options: QueueOptions | None = None,
    force: Mapping[str, str] | None = None,
    **device: Unpack[DeviceOptions],
) -> AmDevice:
    """Opens a GPU by its place in KFD's list; on an error nothing of it stays open.

    ``force`` names variants of open questions, see `QUESTIONS`.

    Raises AccessDenied with what to do, DeviceError where there is no KFD, no GPU, or other code of
    this process has it, InvalidIndex, Unsupported for an old kernel or an unknown chip, DeviceLost
    where this process lost it before, OutOfMemory, TransportError.
    """
    return AmDevice(open_port(world, index, options or QueueOptions(), force=force), **device)
