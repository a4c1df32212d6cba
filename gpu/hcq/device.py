"""A device with command queues: submits, waits, keeps memory alive, and knows when it is lost."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Final, TypedDict, TypeVar, TypeVarTuple, Unpack
from weakref import WeakSet

from gpu.core.arguments import integer, seconds, whole
from gpu.core.errors import (
    DeviceError,
    DeviceHang,
    DeviceLost,
    GpuFault,
    HwTimeout,
    InvalidIndex,
    InvalidType,
    InvalidValue,
)
from gpu.core.interrupts import put_off
from gpu.core.wait import wait_until
from gpu.hcq import peers
from gpu.hcq.allocation import Allocation, Pins
from gpu.hcq.allocator import STAGING, HCQAllocator
from gpu.hcq.channel import SLOTS, Channel, MustWait, Point, Template
from gpu.hcq.commands import Command, Launch, SymbolicSignal, Wait
from gpu.hcq.commands import Signal as SignalCommand
from gpu.hcq.counting import Counting, no_counters
from gpu.hcq.link import Linked, link
from gpu.hcq.owner import Access, Owner, Touched
from gpu.hcq.ports import DevicePort, Memory, MemoryKind
from gpu.hcq.queue import HWQueue
from gpu.hcq.signal import OWN_TIMELINE, SIGNAL_SIZE, Signal, Timeline
from gpu.hcq.symbol import AFTER_ADDRESS, AFTER_VALUE, TIMELINE_VALUE, GpuVA

T = TypeVar("T")
Args = TypeVarTuple("Args")
TIMEOUT: Final = 30.0
_SIGNAL_PAGE: Final = 4096
_AFTER: Final = Wait(SymbolicSignal(AFTER_ADDRESS), AFTER_VALUE)
_DONE: Final = SignalCommand(OWN_TIMELINE, TIMELINE_VALUE)


class DeviceOptions(TypedDict, total=False):
    """What any device can be opened with.

    Attributes:
        timeline_start: the payload that timelines begin at; tests begin just before the wrap.
        timeout: seconds that a wait goes on without progress, `TIMEOUT` if not given.
        command_memory: bytes of each queue for what lies beside its ring, 1 MiB if not given.
        staging: bytes of what copies from the host go through, `STAGING` if not given.
    """

    timeline_start: int
    timeout: float
    command_memory: int
    staging: int


class HCQDevice:
    """Queues, memory and signals over what a vendor provides.

    Two ways to submit: `submit` gives a queue what it shall do, and order between queues is the
    caller's business; `submit_in_order` makes each submission wait for the one before it, on
    whatever queue that was. Programs and the allocator do the latter.

    Threads may share a device: one lock covers submitting, and is never held while waiting.
    """

    channel_type: type[Channel] = Channel
    """What its queues are; vendors may know more of theirs."""
    signal_memory: MemoryKind = MemoryKind.SYSTEM
    """Where signals are, which the host and the device see as they are."""

    def __init__(self, port: DevicePort, **options: Unpack[DeviceOptions]):
        """Opens the first compute queue of ``port``, and closes it when that fails."""
        self.port = port
        self.name = port.name
        self.waiting: Callable[[str], AbstractContextManager[object]] = nullcontext
        """What each wait of the host runs in, given what is waited for; profilers set it."""
        self.timeout = options.get("timeout", TIMEOUT)
        self.lock = threading.Lock()
        self._pid = os.getpid()
        self._error: DeviceError | None = None
        self._closed = False
        _devices.add(self)
        self._memories: set[Memory] = set()
        self._parked: deque[Allocation | Pins] = deque()
        self._publishing: list[Callable[[], None]] = []
        self._free_signals: list[Signal] = []
        self.signal_pages: list[Memory] = []
        self.accesses: list[Access] = []
        """Of its memory, beside its order; those that are over stay until they are looked at."""
        self.lent: dict[Memory, dict[Owner, int]] = {}
        """What others have mapped, and how often each was lent it: 0 where it is free again."""
        self.allocator = HCQAllocator(self, options.get("staging", STAGING))
        self._timeline_start = options.get("timeline_start", 0)
        self._command_memory = options.get("command_memory", 1 << 20)
        self._opening = threading.Lock()
        self.queues: dict[str, list[Channel]] = {kind: [] for kind in port.queue_counts}
        """Those that are open, by kind."""
        try:
            if not port.queue_counts.get("compute"):
                raise InvalidValue(f"{self.name} has no compute queue: a device needs one")
            with self.lock:
                first = self._open_queue("compute")
            start = (first, first.timeline.submitted)
            self.frontier: tuple[tuple[Channel, int], tuple[Channel, int]] = (start, start)
            """The last submission in order, set before it is published, and the one before it.

            Under the lock; `exclusively` takes the one before where the last never happened.
            """
            self.set_up("compute", first)
        except BaseException:
            port.close()
            raise
        self.queues["compute"].append(first)

    def _open_queue(self, kind: str) -> Channel:
        """The next queue of a kind, which is not set up yet; under the lock."""
        index = len(self.queues[kind])
        queue = self.port.open_queue(kind, index)
        memory = self.allocate(self._command_memory, queue.command_memory)
        timeline = Timeline((self._new_signal(), self._new_signal()), self._timeline_start)
        return self.channel_type(f"{self.name} {kind} queue {index}", queue, timeline, memory)

    def set_up(self, kind: str, channel: Channel) -> None:
        """Run what a new queue, or one that was made anew, needs before all else.

        Vendors say what that is.
        """

    def channels(self) -> list[Channel]:
        """All queues that are open."""
        return [channel for kind in self.queues.values() for channel in kind]

    def channel(self, kind: str, index: int = 0) -> Channel:
        """A queue, opened at its first use; `InvalidIndex` tells which there are.

        Raises what opening raises too.
        """
        if not isinstance(kind, str):
            raise InvalidType(f"a kind of queue is a str, as compute; got {kind!r}")
        index, counts = integer(index, "the index of a queue"), self.port.queue_counts
        if not 0 <= index < counts.get(kind, 0):
            known = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise InvalidIndex(f"{self.name} has no {kind} queue {index}; its queues are {known}")
        found = self.queues[kind]
        while len(found) <= index:
            with self._opening:
                if len(found) <= index:
                    opened = self.exclusively(self._open_queue, kind)
                    try:
                        self.set_up(kind, opened)
                    except DeviceError:  # what it was given may still come: it goes on from there
                        found.append(opened)
                        raise
                    found.append(opened)
        return found[index]

    def queue(self, kind: str = "compute", index: int = 0) -> HWQueue:
        """An empty list of commands for a queue."""
        self.channel(kind, index)
        return HWQueue(kind, index)

    def signal(self, value: int = 0) -> Signal:
        """A signal of one's own, set to ``value``; `release_signal` takes it back."""
        with self.lock:
            self.check_usable()
            signal = self._new_signal()
        signal.set(value)
        return signal

    def release_signal(self, signal: Signal) -> None:
        """Let a signal be used again; nothing that was submitted waits for it or writes it."""
        self._free_signals.append(signal)

    def _new_signal(self) -> Signal:
        if not self._free_signals:
            page = self.allocate(_SIGNAL_PAGE, self.signal_memory)
            self.signal_pages.append(page)
            assert page.window is not None, "the host has signals mapped"
            for offset in range(0, _SIGNAL_PAGE, SIGNAL_SIZE):
                window = page.window.sub(offset, SIGNAL_SIZE)
                address = GpuVA(page.address + offset)
                bits = self.port.signal_bits
                self._free_signals.append(Signal(window, address, bits, self.check_usable))
        return self._free_signals.pop()

    # Submitting

    def template(self, channel: Channel, commands: Iterable[Command], after: bool) -> Template:
        """Encode commands for `Channel.send`, to wait ``after`` another queue or not.

        Raises `InvalidValue` where a symbol is left that is not the queue's own.
        """
        template = Template(self.link(channel, commands, after=after))
        left = [symbol.name for symbol in template.slots if symbol not in SLOTS]
        if left:
            raise InvalidValue(f"symbols {', '.join(left)} have no value: bind the commands")
        return template

    def link(
        self, channel: Channel, commands: Iterable[Command], *, after: bool, bound: bool = False
    ) -> Linked:
        """Commands as a submission, which ends by writing the queue's timeline.

        Raises `InvalidType` for a launch of another device's program, and what encoders raise.
        """
        encoder = channel.port.encoder
        commands = tuple(commands)
        for command in commands:
            if isinstance(command, Launch):
                command.program.check_owner(self)
        whole = (*([_AFTER] if after else []), *commands, _DONE)
        return link(encoder.encode(whole), encoder, bound=bound)

    def submit(self, channel: Channel, commands: Iterable[Command]) -> Point:
        """Give a queue some commands. It waits for nothing but what they say."""
        template = self.template(channel, commands, after=False)
        return self.exclusively(self._send, channel, template)

    def _send(self, channel: Channel, template: Template) -> Point:
        point = Point(channel, channel.next_value())
        channel.send(template, point.value, None)
        return point

    def submit_in_order(self, channel: Channel, commands: Iterable[Command]) -> Point:
        """Give a queue commands that start when the submission in order before them is done."""
        return self.exclusively(self.send_in_order, channel, tuple(commands))

    def send_in_order(self, channel: Channel, commands: Iterable[Command]) -> Point:
        """`submit_in_order` under the lock; raises `MustWait` while there is no room."""
        if self.accesses:
            self.settle(channel, peers.touched_by(commands))
        before = self.frontier[0]
        after = None if before[0] is channel else before
        template = self.template(channel, commands, after is not None)
        point = Point(channel, channel.next_value())
        self.frontier = (point, before)
        channel.send(template, point.value, after)
        return point

    def settle(self, channel: Channel, touched: Iterable[Touched]) -> None:
        """Before what is submitted in order: have it wait for `accesses` of what it touches."""
        peers.settle(self, channel, touched)

    def exclusively(self, action: Callable[[*Args], T], *args: *Args) -> T:
        """Run what submits under the lock; when it has to wait, wait without the lock and retry.

        Raises `DeviceLost` in a forked child, after a fault and after `close`.
        """
        while True:
            if self._error is not None:
                self.check_usable()
            try:
                with self.lock:
                    if self._publishing:
                        self.finish_publishing()
                    last, before = self.frontier
                    if last[0].timeline.last.value < last[1]:  # it was interrupted
                        self.frontier = (before, before)
                    if self._parked:
                        self.allocator.collect(self._parked)
                    return action(*args)
            except MustWait as full:
                blocked = Point(full.channel, full.value)
            self.wait(blocked)

    def publish_all(self, publications: list[Callable[[], None]]) -> None:
        """Publish for several queues that wait for each other; under the lock.

        Each publication does nothing when it has been done. One that an exception interrupts is
        made up for by whoever submits or waits next, so that no queue waits for ever.
        """
        self._publishing = publications
        self.finish_publishing()

    def finish_publishing(self) -> None:
        """Do what is left of the last `publish_all`; under the lock."""
        for publish in self._publishing:
            publish()
        self._publishing = []

    # Waiting

    def wait(self, point: Point, timeout: float | None = None) -> None:
        """Wait until a submission is done.

        ``timeout`` is in seconds without progress. Raises `DeviceHang`, which leaves the device
        usable, `GpuFault` and `DeviceLost`. Interrupting it cancels nothing.
        """
        if not isinstance(point, tuple):
            raise InvalidType(f"what is waited for is what submit() returns, not {point!r}")
        timeout = None if timeout is None else seconds(timeout, "timeout")
        channel, value = point
        self.forked()
        self.check_usable()
        if self._publishing:
            with self.lock:
                self.finish_publishing()
        timeline = channel.timeline
        if not timeline.passed(value):
            self._wait(timeline.reached, value, channel.name, timeout)

    def wait_in_order(self, timeout: float | None = None) -> None:
        """Wait for the last submission in order, and all `accesses`; errors as of `wait`."""
        for access in peers.unfinished(self):
            self.wait(access.point, timeout)
        self.wait(self.exclusively(lambda: Point(*self.frontier[0])), timeout)

    def wait_signal(self, signal: Signal, value: int, timeout: float | None = None) -> None:
        """Wait until a signal is at least ``value``; errors as of `wait`."""
        value = whole(value, "the value of a signal")
        timeout = None if timeout is None else seconds(timeout, "timeout")
        self._wait(lambda: signal.value, value, f"{self.name} signal", timeout)

    def _wait(self, read: Callable[[], int], value: int, what: str, timeout: float | None) -> None:
        try:
            with self.waiting(what):
                wait_until(
                    self.port.waiter,
                    read,
                    lambda now: now >= value,
                    what=what,
                    timeout=self.timeout if timeout is None else timeout,
                    wanted=f"at least {value:#x}",
                    check=self._check,
                    progress=True,
                )
        except DeviceHang:
            raise
        except HwTimeout as late:
            why = "; ".join(filter(None, (late.reason, self.under_way())))
            hang = DeviceHang(late.what, late.last, late.wanted, late.seconds, why)
            if timeout is None:  # else whoever waited may not have wanted to wait for its end
                self.failed(hang)
            raise hang from late

    def counting(self, names: Sequence[str]) -> Counting:
        """What counts events by their names, for a `Profiler`. Raises InvalidValue, Unsupported."""
        raise no_counters(names, self.name)

    def under_way(self) -> str:
        """What is known of launches that have not ended, for messages; vendors know more."""
        return ""

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until all that was submitted is done, and all `accesses`; errors as of `wait`."""
        timeout = None if timeout is None else seconds(timeout, "timeout")
        for point in self.exclusively(self._submitted):
            self.wait(point, timeout)

    def _submitted(self) -> list[Point]:
        own = (Point(channel, channel.timeline.submitted) for channel in self.channels())
        return [*own, *(access.point for access in peers.unfinished(self))]

    # Life

    def check_usable(self) -> None:
        """Raise `DeviceLost` in a forked child, after a fault and after `close`."""
        if self._error is not None:
            raise DeviceLost(f"{self.name} cannot be used any more: {self._error}")

    def forked(self) -> None:
        """Lose the device if this process is a child of the one that opened it."""
        if os.getpid() != self._pid:
            self._error = DeviceLost(
                f"forked: it belongs to process {self._pid}; open it in this process, or start"
                " processes by multiprocessing's 'spawn'"
            )

    def restart(self) -> None:
        """Go on after a fault or a hang, with other queues: the port has none open.

        What was submitted and not done counts as done. Raises what opening raises. No other thread
        may use the device meanwhile.
        """
        with self.lock:
            self._error = None
            self._publishing = []
            for kind, channels in self.queues.items():
                for index, channel in enumerate(channels):
                    channel.restart(self.port.open_queue(kind, index))
        for kind, channels in self.queues.items():
            for channel in channels:
                self.set_up(kind, channel)

    def _check(self) -> None:
        self.check_usable()
        try:
            self.port.check()
        except (GpuFault, DeviceLost, DeviceHang) as error:
            self.failed(error)  # while it may still be looked at
            if not isinstance(error, DeviceHang):
                self._let_peers_go()
            self._error = error
            raise

    def _let_peers_go(self) -> None:
        """Have nobody wait for a device that is gone, whose signals nothing reaches any more."""
        if any(page in self.lent for page in self.signal_pages):
            for channel in self.channels():
                with suppress(DeviceLost):  # it was before, and signals say so
                    channel.timeline.settle()

    def part(self, *, closing: bool = False) -> None:
        """End what it and others have mapped of each other; under the lock, nothing runs on it.

        What `map_to` lent stays so unless it is ``closing``.
        """
        peers.part(self, list(_devices), closing=closing)

    def failed(self, error: DeviceError) -> None:
        """The device has failed, and nobody was told yet; vendors may add to the message."""

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """Memory straight from the port, freed by `close` at the latest; under the lock."""
        with put_off():
            memory = self.port.memory.allocate(size, kind)
            self._memories.add(memory)
        return memory

    def release(self, memory: Memory) -> None:
        """Give memory back to the port: nothing uses it any more; under the lock."""
        with put_off():
            self._memories.remove(memory)
            self.port.memory.free(memory)

    def adopt(self, memory: Memory) -> None:
        """Have memory that was got otherwise released like that of `allocate`; under the lock."""
        self._memories.add(memory)

    def park(self, item: Allocation | Pins) -> None:
        """Take memory back at the next submission. Needs no lock: finalizers call it."""
        self._parked.append(item)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Wait for all that was submitted, then give everything back. Again does nothing.

        In a forked child nothing is given back: it is the parent's.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            # What a fault has stopped is not waited for.
            with suppress(GpuFault, DeviceLost):
                self.synchronize()
        finally:
            self._let_peers_go()
            self._error = self._error or DeviceLost("it is closed")
            with ExitStack() as rest:  # all of it is done, whatever a part of it raises
                rest.callback(self.port.close)
                for memory in self._memories:
                    rest.callback(self.release, memory)
                rest.callback(self.part, closing=True)

    def __enter__(self) -> HCQDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# So that a child finds out at once, and submitting need not ask for the process each time.
_devices: Final[WeakSet[HCQDevice]] = WeakSet()


def _after_fork() -> None:
    for device in list(_devices):
        device.forked()


os.register_at_fork(after_in_child=_after_fork)
