"""Device memory, and copies between it and the host through memory that the GPU reads by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from gpu.backends.cpu.native import read_memory, write_memory
from gpu.backends.cuda.context import CudaContext
from gpu.backends.cuda.library import Words
from gpu.backends.cuda.peers import Peers
from gpu.backends.cuda.streams import Event
from gpu.core.arguments import host_bytes
from gpu.core.errors import DeviceLost, InvalidType, OutOfMemory
from gpu.core.interrupts import put_off
from gpu.runtime.allocator import Allocator, LRUAllocator

UNTOLD: Final = -1
"""A stream of others that they do not tell; also what `__dlpack__` takes to mean none."""
SLOTS: Final = 4
SLOT_BYTES: Final = 1 << 20
"""Of pinned memory: what the host copies while the GPU copies the slot before."""


class Replays:
    """Those of a graph, of which each uses the same memory.

    Attributes:
        ticket: of the latest.
        are_over: whether there is none to come.
    """

    __slots__ = ("are_over", "ticket")

    def __init__(self, ticket: int = 0):
        self.ticket, self.are_over = ticket, False


class CudaMemory:
    """Memory of a GPU.

    Attributes:
        address: where the GPU has it; None when it was lost.
        nbytes: how many it has.
        ticket: of what used it last besides `replays`; see `streams`.
        replays: of the graphs that use it each time.
        users: streams of other libraries that it was lent to, each with an event that is recorded
            in it when they are done; under `UNTOLD` None, where all there is must be waited for.
    """

    __slots__ = ("__weakref__", "_context", "address", "nbytes", "replays", "ticket", "users")
    is_borrowed = False  # from another library, which may give its bytes out twice

    def __init__(self, context: CudaContext, nbytes: int):
        """Raises the error of cuMemAlloc's code. The context's lock is held."""
        words = Words()
        allocated = context.library.cuMemAlloc_v2(words.address, nbytes)
        context.check(allocated, f"allocate {nbytes:,} bytes")
        self._hold(context, words[0], nbytes)

    def _hold(self, context: CudaContext, address: int, nbytes: int) -> None:
        self.address: int | None = address
        self._context, self.nbytes, self.ticket = context, nbytes, 0
        self.replays: tuple[Replays, ...] = ()
        self.users: dict[int, Event | None] = {}
        context.note(self)

    def lose(self) -> None:
        """The context was made anew."""
        self.address = None
        self.users.clear()

    def is_used_by(self, replays: Replays) -> None:
        """Each of these uses it from now on; the context's lock is held."""
        self.ticket = self.last_use()
        self.replays = (*(each for each in self.replays if not each.are_over), replays)

    def last_use(self) -> int:
        """The ticket of what used it last."""
        return max([self.ticket, *[each.ticket for each in self.replays]])

    def take_back(self) -> None:
        """What is launched from now on comes behind what those did that it was lent to."""
        context = self._context
        if UNTOLD in self.users:
            context.synchronize_all()
        with context.lock:
            context.enter()
            self.ticket = context.streams.next_ticket()
            for event in self._events():
                followed = context.streams.follow_event(event)
                context.check(followed, "wait for a stream of another library")
                event.destroy()
            self.users.clear()

    def _events(self) -> list[Event]:
        return [event for event in self.users.values() if event is not None]

    def close(self) -> None:
        """Gives it back; nothing uses it any more, and the context's lock is held."""
        if self.address is not None:
            if self.users:
                self._context.synchronize_all()
                for event in self._events():
                    event.destroy()
                self.users.clear()
            freed = self._context.library.cuMemFree_v2(self.address)
            self.address = None
            self._context.check(freed, f"free {self.nbytes:,} bytes")

    def place(self) -> int:
        """The address. Raises DeviceLost where the context was made anew since."""
        if self.address is None:
            raise DeviceLost(
                "what this tensor held is lost: the GPU was reset by recover(force=True) since;"
                " compute it again"
            )
        return self.address


class CudaAllocator(LRUAllocator[CudaMemory]):
    """Memory of one GPU."""

    def __init__(self, context: CudaContext):
        super().__init__()
        self._context = context
        self._staging = Staging(context)
        self._peers = Peers(context)

    def _alloc(self, nbytes: int) -> CudaMemory:
        context = self._context
        if nbytes > context.info.memory:
            raise OutOfMemory(
                f"cannot allocate {nbytes:,} bytes: {context.info.name} has"
                f" {context.info.memory:,}; use smaller tensors"
            )
        with context.lock:
            context.enter()
            made: list[CudaMemory] = []
            try:
                with put_off():  # what libcuda gave is noted down at once
                    made.append(CudaMemory(context, max(nbytes, 1)))
                return made[0]
            except OutOfMemory as error:
                error.add(self._left())
                raise
            except KeyboardInterrupt:
                for memory in made:
                    memory.close()
                raise

    def _left(self) -> str:
        free, total = Words(), Words()
        told = self._context.library.cuMemGetInfo_v2(free.address, total.address)
        self._context.check(told, "tell how much memory is free")
        return (
            f"{free[0]:,} of {total[0]:,} bytes are free, {self.live:,} are in use here and"
            f" {self.cached:,} kept"
        )

    def _free(self, memory: CudaMemory, nbytes: int) -> None:
        context = self._context
        if memory.address is None or context.is_lost:
            return
        try:
            if memory.last_use() > context.streams.finished:
                context.synchronize()
            with context.lock:
                context.enter()
                with put_off():
                    memory.close()
        except KeyboardInterrupt:  # nobody else knows of it
            if memory.address is not None:
                context.retire(context.library.cuMemFree_v2, memory.address)
                memory.address = None
            raise

    def _keep(self, memory: CudaMemory, nbytes: int) -> None:
        """As `LRUAllocator` does; what was lost with its context is not kept."""
        if memory.address is not None:
            super()._keep(memory, nbytes)

    def _take(self, nbytes: int) -> CudaMemory:
        """As `LRUAllocator` does; what was lost with its context is not given."""
        memory = super()._take(nbytes)
        while memory.address is None:
            memory = super()._take(nbytes)
        if memory.users:
            memory.take_back()
        return memory

    def copy_in(self, memory: CudaMemory, data: memoryview) -> None:
        """Copies bytes from the host, behind what was launched on this memory before."""
        source = host_bytes(data, "data")
        if source.nbytes:
            self._staging.upload(_ours(memory), source)

    def copy_out(self, data: memoryview, memory: CudaMemory) -> None:
        """Copies bytes to the host, when what was launched on this memory before is done."""
        target = host_bytes(data, "data", writable=True)
        if target.nbytes:
            self._staging.download(target, _ours(memory))

    def copy(self, target: CudaMemory, source: CudaMemory, nbytes: int) -> None:
        """Copies within the GPU, behind what was launched before; returns at once."""
        if not nbytes:
            return
        context = self._context
        to, of = _ours(target).place(), _ours(source).place()
        with context.lock:
            context.enter()
            streams = context.streams
            target.ticket = source.ticket = streams.next_ticket()
            copied = context.library.cuMemcpyDtoDAsync_v2(to, of, nbytes, streams.launches)
            context.check(copied, f"copy {nbytes:,} bytes")

    def transfer(
        self, target: CudaMemory, source: object, nbytes: int, owner: Allocator[Any]
    ) -> bool:
        """As `Allocator.transfer`: between GPUs that are peers; returns at once."""
        if not isinstance(owner, CudaAllocator):
            return False
        theirs, mine = owner._context, _ours(target)
        if theirs.library is not self._context.library:
            return False
        return not nbytes or self._peers.copy(mine, _ours(source), nbytes, theirs)


def _ours(memory: object) -> CudaMemory:
    if not isinstance(memory, CudaMemory):
        raise InvalidType(f"memory of CUDA is copied, got {type(memory).__name__} {memory!r}")
    return memory


class _Slot:
    """Pinned memory of `SLOT_BYTES`, with an event that is reached when the GPU is done with it.

    The context's lock is held while it is made.
    """

    def __init__(self, context: CudaContext):
        words = Words()
        allocated = context.library.cuMemHostAlloc(words.address, SLOT_BYTES, 0)
        context.check(allocated, f"allocate {SLOT_BYTES:,} bytes of pinned memory")
        self.address = words[0]
        self.event = Event(context.library, context.check)
        self._is_used = False

    def wait(self) -> None:
        """Waits until the GPU is done with it. Raises what went wrong there."""
        if self._is_used:
            self.event.wait()

    def record(self, stream: int) -> None:
        """The GPU is done with it when what is in the stream now is."""
        self._is_used = True
        self.event.record(stream)


class Staging:
    """Copies between host and GPU in pieces, by slots that are used in turn; one copy at a time."""

    def __init__(self, context: CudaContext):
        self._context = context
        self._slots: deque[_Slot] = deque()
        context.note(self)

    def lose(self) -> None:
        """The context was made anew."""
        self._slots.clear()

    def close(self) -> None:
        """Gives the slots back."""
        library, check = self._context.library, self._context.check
        while self._slots:
            slot = self._slots.popleft()
            check(library.cuMemFreeHost(slot.address), "free pinned memory")
            slot.event.destroy()

    def upload(self, memory: CudaMemory, source: memoryview) -> None:
        """Copies bytes to the GPU; returns when they were read, before they have arrived."""
        copy_in = self._context.library.cuMemcpyHtoDAsync_v2
        with self._context.copying, self._settled():
            place = self._begin(memory)
            for at in range(0, source.nbytes, SLOT_BYTES):
                piece = source[at : at + SLOT_BYTES]
                slot = self._next_slot()
                write_memory(slot.address, piece)
                self._enqueue(copy_in, place + at, slot.address, piece.nbytes, slot)
            self._end(memory)

    def download(self, target: memoryview, memory: CudaMemory) -> None:
        """Copies bytes from the GPU; returns when they are there."""
        copy_out = self._context.library.cuMemcpyDtoHAsync_v2
        with self._context.copying, self._settled():
            place = self._begin(memory)
            under_way: deque[tuple[_Slot, memoryview]] = deque()
            for at in range(0, target.nbytes, SLOT_BYTES):
                piece = target[at : at + SLOT_BYTES]
                if len(under_way) == SLOTS:
                    _land(*under_way.popleft())
                slot = self._next_slot()
                self._enqueue(copy_out, slot.address, place + at, piece.nbytes, slot)
                under_way.append((slot, piece))
            for slot, piece in under_way:
                _land(slot, piece)

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Where an error or a Ctrl-C ends a copy half way, none of it is under way any more."""
        try:
            yield
        except BaseException:
            context = self._context
            if not context.is_lost:  # codes are let go: there is an error already
                context.library.cuStreamSynchronize(context.streams.copies)
            raise

    def _next_slot(self) -> _Slot:
        """The slot that was used longest ago, when the GPU is done with it."""
        context = self._context
        with context.lock:
            context.enter()
            if len(self._slots) < SLOTS:
                with put_off():
                    self._slots.append(_Slot(context))
            else:
                self._slots.rotate(-1)
        slot = self._slots[-1]
        slot.wait()
        return slot

    def _enqueue(
        self, copy: Callable[..., int], to: int, of: int, nbytes: int, slot: _Slot
    ) -> None:
        context = self._context
        with context.lock:
            context.enter()
            stream = context.streams.copies
            context.check(copy(to, of, nbytes, stream), f"copy {nbytes:,} bytes")
            slot.record(stream)

    def _begin(self, memory: CudaMemory) -> int:
        """What is copied from now on comes behind what was launched on the memory."""
        context = self._context
        with context.lock:
            context.enter()
            if memory.last_use() > context.streams.finished:
                context.streams.let_copies_follow()
            return memory.place()

    def _end(self, memory: CudaMemory) -> None:
        """What is launched from now on comes behind what was copied."""
        context = self._context
        with context.lock:
            context.enter()
            memory.ticket = context.streams.next_ticket()
            context.streams.let_launches_follow()


def _land(slot: _Slot, piece: memoryview) -> None:
    slot.wait()
    read_memory(piece, slot.address)
