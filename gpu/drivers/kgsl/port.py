"""An Adreno GPU under its command queue, through KGSL: memory, the queue, clock, faults, sleeping.

Opening, in order: KGSL's file and what GPU it has, memory of what all submissions need, a context.
There is one queue. Contexts of one priority share a ring of the command processor, which stops at
the first that waits: two queues that wait for each other would wait for ever.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gpu.core.errors import DeviceError, DeviceLost, GpuFault, HwTimeout, InvalidIndex
from gpu.core.hoststore import KICK_BLOCK, KICK_CHANGES, kick_block
from gpu.core.log import get_logger
from gpu.core.wait import Waiter
from gpu.drivers.cleanup import Undo
from gpu.drivers.kgsl.calls import Kgsl
from gpu.drivers.kgsl.chips import Chip, find_chip
from gpu.drivers.kgsl.clock import HZ, Clock
from gpu.drivers.kgsl.contexts import DEPTH, Context
from gpu.drivers.kgsl.copy_code import copy_code
from gpu.drivers.kgsl.encoder import KgslEncoder
from gpu.drivers.kgsl.memory import PAGE, GpuObject, KgslMemory, Use
from gpu.drivers.kgsl.program import LoadedKernel
from gpu.hcq.ports import MemoryKind
from gpu.hcq.symbol import GpuVA
from gpu.transport import qualcomm as nodes
from gpu.transport.world import World

RING: Final = 1 << 20
"""Bytes of the ring, if not given."""
_log = get_logger(__name__)
_MILLISECOND: Final = 1_000_000


class KgslWaiter:
    """Sleeps in the kernel until the queue is done, or its context is lost.

    On a model the sleep lets the GPU work; one that has nothing to do says so at once.
    """

    def __init__(self, inner: Waiter):
        """``inner`` is the world's waiter."""
        self._inner = inner
        self.spin_ns: int = inner.spin_ns
        self.context: Context | None = None
        self._seen = _Seen()

    def now_ns(self) -> int:
        """The world's clock."""
        return self._inner.now_ns()

    def idle(self, timeout_ns: int) -> None:
        """Sleep until what was submitted is done, at most ``timeout_ns`` in whole milliseconds.

        Where nothing is under way sleeps as the world does. Raises HwTimeout where a model is stuck
        and was when this thread idled before: what it ran meanwhile has then been looked at.
        """
        seen, context = self._seen, self.context
        undisturbed = seen.stuck and self._inner.now_ns() == seen.at_ns
        seen.stuck = False
        if context is not None and context.is_busy:
            if context.sleep(-(-timeout_ns // _MILLISECOND)):
                return
            timeout_ns = 1  # it has slept, but for models
        try:
            self._inner.idle(timeout_ns)
        except HwTimeout:
            if undisturbed:
                raise
            seen.stuck, seen.at_ns = True, self._inner.now_ns()


class _Seen(threading.local):
    """Whether a model was stuck when this thread idled last, and when that was."""

    stuck = False
    at_ns = 0


class Sent(NamedTuple):
    """What was published last: the value that it stored, and where; where its packets are."""

    last: int
    value: int
    start: int
    size: int


class KgslQueue:
    """A context and its ring: memory that each GPU_COMMAND names a part of; a `QueuePort`.

    Attributes:
        sent: what may be under way, and more, the oldest first; for reports.
    """

    ring_align: int = 4
    command_memory: MemoryKind = MemoryKind.VISIBLE

    def __init__(self, context: Context, ring: GpuObject, encoder: KgslEncoder):
        self.context, self.ring, self.encoder = context, ring, encoder
        self.ring_size = ring.size
        unchanging = (ring.host, ring.size >> 2, 0, 0, 0, 0)
        packed = KICK_BLOCK.pack(*[0] * 7, *unchanging)
        self._block = ctypes.create_string_buffer(packed, len(packed))
        self._at = ctypes.addressof(self._block)
        self.sent: deque[Sent] = deque(maxlen=2 * DEPTH)
        self._begun: Sent | None = None

    def publish(self, position: int, words: int, size: int, last: int, value: int, /) -> None:
        """As `QueuePort.publish`: the words and a fence in one native call, then the kernel's.

        Where a Ctrl-C comes between that and what is noted of it, the kernel is asked whether it
        has the submission. Raises ContextLost, and then nothing was done.
        """
        KICK_CHANGES.pack_into(self._block, 0, position >> 2, words, size >> 2, 0, 0, 0, 0)
        kick_block(self._at)
        start = position % self.ring_size
        self._begun = sent = Sent(last, value, start, size)
        try:
            self._submit(start, size)
            self._end(sent)
            self.context.last += 1
            self._begun = None
        finally:
            self.settle()

    def _end(self, sent: Sent) -> None:
        """Notes a submission. Doing so twice is as well."""
        ctypes.c_uint64.from_address(sent.last).value = sent.value
        self.sent.append(sent)

    def settle(self) -> None:
        """Notes the last submission if the kernel has it, and an interrupt left that out."""
        if self._begun is not None:
            if self.context.settle():
                self._end(self._begun)
            self._begun = None

    def _submit(self, start: int, size: int) -> None:
        address, number = self.ring.address, self.ring.made.id
        first = self.ring_size - start
        if size <= first:
            self.context.submit(number, (address + start, size))
        else:
            self.context.submit(number, (address + start, first), (address, size - first))

    def packets(self, sent: Sent) -> bytes:
        """What was published, as it is in the ring."""
        memory, first = self.ring.memory, min(sent.size, self.ring_size - sent.start)
        rest = sent.size - first
        return memory.load(sent.start, first) + (memory.load(0, rest) if rest else b"")


class KgslPort:
    """The `DevicePort` of the GPU behind KGSL.

    Attributes:
        chip: what GPU it is.
        encoder: that of its queue.
        explain: says what more is known of a failure, maybe at an address, for its message.
    """

    signal_bits: int = 32
    clock_hz: float = HZ
    queue_counts: Mapping[str, int] = {"compute": 1}

    def __init__(self, world: World, index: int = 0, ring: int = RING):
        """Opens the GPU; `open_queue` makes its context.

        Raises InvalidIndex for another than the first, Unsupported for a chip that there is no
        code for, DeviceError where there is no KGSL, AccessDenied.
        """
        if index:
            raise InvalidIndex(f"KGSL has one GPU, {nodes.NODE}; there is none with index {index}")
        self.world = world
        self.explain: Callable[[int | None], str] = lambda address: ""
        self._ring_size = ring
        self._opened, self._queues = Undo(), Undo()
        self.waiter = KgslWaiter(world.waiter)
        self._queue: KgslQueue | None = None
        try:
            self._open()
        except BaseException:
            self._opened.close()
            raise

    def _open(self) -> None:
        self.kgsl = Kgsl(self.world.os)
        self._opened.add(self.kgsl.close)
        info = self.kgsl.info()
        self.chip: Chip = find_chip(info.chip_id)
        self.name = info.model or f"Adreno {self.chip.name[1:]}"
        self.memory = KgslMemory(self.kgsl, self.name)
        self._opened.add(self.memory.close)
        page = self.memory.hold(PAGE, Use.VISIBLE)
        self._clock = Clock(page, self.waiter)
        self.encoder = KgslEncoder(self.chip, self._copier(), page.address + PAGE // 2)
        self._ring = self.memory.hold(self._ring_size, Use.RING)

    def _copier(self) -> LoadedKernel:
        """The kernel that copies, in memory."""
        kernel = copy_code(self.chip.name)
        held = self.memory.hold(len(kernel.code), Use.CODE)
        held.memory.store(0, kernel.code)
        return LoadedKernel(kernel, GpuVA(held.address))

    def open_queue(self, kind: str, index: int) -> KgslQueue:
        """As `DevicePort.open_queue`: a context, on the ring that was there before."""
        context = Context(self.kgsl)
        self._queues.add(context.close)
        self.waiter.context = context
        self._queue = KgslQueue(context, self._ring, self.encoder)
        return self._queue

    def clock(self) -> int:
        """The counter now, behind all that was submitted. Raises ContextLost, DeviceHang."""
        assert self._queue is not None, "a device has a queue"
        return self._clock.read(self._queue.context)

    @property
    def is_lost(self) -> bool:
        """Whether the context is known to be lost."""
        return self._queue is not None and self._queue.context.is_lost

    def look(self) -> None:
        """Learn by now whether the context is lost."""
        if self._queue is not None:
            self._queue.context.look()

    def check(self) -> None:
        """Raise GpuFault where the GPU failed while the context ran."""
        if not self.is_lost:
            return
        assert self._queue is not None, "it is lost"
        found = self._queue.context.page_faults()
        address = found[0] if found else None
        if address is None:
            what = "the GPU failed (a hang, or packets it does not take) and KGSL reset it"
        else:
            what = f"page fault at {address:#x}; it is {self.memory.describe(address)}"
        told = (what, self.explain(address), "recover() makes the device usable again")
        where = f"the kernel's snapshot is {nodes.SNAPSHOT}"
        raise GpuFault(f"{self.name}: {'; '.join(filter(None, (*told, where)))}", address)

    def renew(self) -> None:
        """Ends the context, so that another one can be opened; memory stays.

        Raises DeviceLost where the GPU is gone.
        """
        if not self.is_lost:
            _log.warning(
                "%s hangs: ending its context takes the kernel up to 35 s, for a reset, and"
                " the screen may stand still",
                self.name,
            )
        self.waiter.context = self._queue = None
        try:
            self._queues.close()
        except DeviceLost:
            raise
        except DeviceError as error:
            _log.warning("ending the context of %s: %s", self.name, error)

    def close(self) -> None:
        """Gives everything back: the context first, which may still use the rest."""
        self.waiter.context = self._queue = None
        with self._opened, self._queues:
            pass
