"""Launches and copies on several queues, laid out once and replayed with other inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, pairwise
from typing import NamedTuple

from gpu.core.errors import InvalidValue
from gpu.hcq import commands
from gpu.hcq.allocation import Pins
from gpu.hcq.bound import OWN, BoundPart, Instances
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.channel import Channel, Point
from gpu.hcq.commands import Block, Command, Grid, SymbolicSignal
from gpu.hcq.deps import DependencyTracker, Range
from gpu.hcq.device import HCQDevice
from gpu.hcq.owner import Touched
from gpu.hcq.peers import touched_by
from gpu.hcq.program import HCQProgram, ProgramArguments
from gpu.hcq.symbol import (
    AFTER_ADDRESS,
    AFTER_VALUE,
    Symbol,
    Value,
    offset,
    resolve,
)


@dataclass(frozen=True, slots=True)
class GraphLaunch:
    """Run a program, on queue ``index`` of a kind."""

    program: HCQProgram
    buffers: tuple[HCQBuffer, ...]
    vals: tuple[Value | float, ...] = ()
    grid: Grid = (1, 1, 1)
    block: Block = (1, 1, 1)
    kind: str = "compute"
    index: int = 0


@dataclass(frozen=True, slots=True)
class GraphCopy:
    """Copy all of a buffer into another of the same size."""

    dst: HCQBuffer
    src: HCQBuffer
    kind: str = "copy"
    index: int = 0


GraphItem = GraphLaunch | GraphCopy


@cache
def input_symbol(number: int) -> Symbol:
    """The symbol of the address of an input."""
    return Symbol(f"input {number}")


class HCQGraph:
    """Items in the order in which they would run one by one, on the queues that they name.

    What one reads or writes decides which it waits for; queues wait for each other only there.
    ``inputs`` are buffers that each replay gives anew: where an item uses one, or a part of it, it
    uses what the replay gives. Everything else is pinned until `close`.

    A replay patches what changed and publishes, natively. It starts after all that was submitted
    in order before, and ends before what is submitted in order after.
    """

    def __init__(
        self, device: HCQDevice, items: Sequence[GraphItem], inputs: Sequence[HCQBuffer] = ()
    ):
        if not items:
            raise InvalidValue("a graph without launches or copies: give at least one")
        self._device = device
        self._sizes = [buffer.size for buffer in inputs]
        self._symbols = [input_symbol(number) for number in range(len(inputs))]
        _check_apart(inputs)
        plan = _Plan(device, items, inputs)
        own = (b for item in items for b in _buffers(item) if plan.place(b) == b.address)
        self._pins = Pins(device, (buffer.allocation for buffer in own))
        self._items = tuple(items)  # with the programs
        self._counts = plan.counts()
        self._lines = list(plan.lines) if len(plan.lines) > 1 else []
        self._main = plan.main
        linked = []
        for channel in self._counts:
            queue, after = plan.queue_commands(channel), channel is plan.main
            linked.append((channel, device.link(channel, queue, after=after, bound=True)))
        lines = [plan.lines[channel] for channel in self._lines]
        between = [symbol for line in lines for symbol in (line.address.address, line.base)]
        own_symbols = (*OWN, AFTER_ADDRESS, AFTER_VALUE, *between)
        self._instances = Instances(device, linked, own_symbols, self._symbols)
        self._touched = plan.touched()

    def __call__(self, *inputs: HCQBuffer, values: Mapping[Symbol, int] | None = None) -> Point:
        """Replay; returns what `HCQDevice.wait` takes.

        Of an input that is larger than the one it was built with, the first bytes are used. Raises
        `InvalidValue` for inputs that are not as many, smaller, not reachable, or overlap where
        queues run at once; and what `HCQDevice.exclusively` raises.
        """
        device = self._device
        addresses: list[int] = [buffer.address for buffer in inputs]
        if [b.size for b in inputs if b.allocation.device is device] != self._sizes:
            self._check_inputs(inputs)
        if self._lines:
            _check_apart(inputs)
        if device.accesses:
            device.exclusively(self._settle, addresses)
        given: Sequence[int] = addresses
        if values or not self._instances.is_plain:
            known = dict(zip(self._symbols, addresses, strict=True))
            given = self._instances.values(values or {}, known)
        # Chosen here: a graph that held its own method would only be freed by the cycle collector.
        return device.exclusively(self._send_all if self._lines else self._send_one, given)

    def _check_inputs(self, inputs: Sequence[HCQBuffer]) -> None:
        """What `__call__` raises for inputs that do not fit."""
        if len(inputs) != len(self._sizes):
            raise InvalidValue(f"{len(inputs)} inputs for a graph that has {len(self._sizes)}")
        for number, (buffer, size) in enumerate(zip(inputs, self._sizes, strict=True)):
            buffer.check_reachable(self._device)
            if buffer.size < size:
                raise InvalidValue(f"{buffer!r} as input {number} of a graph: give {size} bytes")

    def _settle(self, inputs: Sequence[int]) -> None:
        """Have the main queue, which starts all others, wait for what is beside the order."""
        known = dict(zip(self._symbols, inputs, strict=True))
        touched = (
            (resolve(where, known) if isinstance(where, Symbol) else where, writes)
            for where, writes in self._touched
        )
        self._device.settle(self._main, touched)

    def _send_one(self, given: Sequence[int]) -> Point:
        """Submit to the only queue, which uses one value: `_send_all` without what that spares."""
        main = self._main
        own = main.timeline
        value = own.last.value + 1
        if value - own.epoch >= own.limit:
            value = main.next_value()  # of another epoch
        (part,) = self._instances.claim()
        before = self._device.frontier[0]
        line = before[0].timeline
        payload = 0 if line is own else line.payload(before[1])
        part.put((own.address, value - own.epoch, line.address, payload), given)
        position = main.reserve(part.size, value)
        part.last = value
        point = Point(main, value)
        self._device.frontier = (point, before)
        main.publish(position, part.words, part.size, value)
        return point

    def _send_all(self, given: Sequence[int]) -> Point:
        """Submit to every queue."""
        device, main = self._device, self._main
        last = [channel.next_value(count) for channel, count in self._counts.items()]
        parts = self._instances.claim()
        before, value = device.frontier[0], last[0]
        line = before[0].timeline
        after = line.address, 0 if before[0] is main else line.payload(before[1])
        between = self._between()
        for part, reached in zip(parts, last, strict=True):
            timeline = part.channel.timeline
            part.put((timeline.address, reached - timeline.epoch, *after, *between), given)
        publications = list(map(self._publication, parts, last))
        device.frontier = ((main, value), before)
        device.publish_all(publications)
        return Point(main, value)

    def _between(self) -> list[int]:
        """For each queue its signal, and what that has now at most."""
        values = []
        for channel in self._lines:
            timeline = channel.timeline
            values += [timeline.address, timeline.payload(timeline.submitted)]
        return values

    def _publication(self, part: BoundPart, value: int) -> Callable[[], None]:
        """What publishes a part that is patched, if it has not been published yet."""
        position = part.channel.reserve(part.size, value)
        part.last = value
        return partial(_publish, part, position, value)

    def close(self) -> None:
        """Free its memory, once nothing runs in it, and unpin its buffers."""
        self._instances.close()
        self._pins.close()


def _publish(part: BoundPart, position: int, value: int) -> None:
    if part.channel.timeline.submitted < value:
        part.channel.publish(position, part.words, part.size, value)


class _Line(NamedTuple):
    """Symbols for the timeline of a queue: its signal, and the payload before the replay."""

    address: SymbolicSignal
    base: Symbol

    def value(self, number: int) -> Symbol:
        """The payload of the replay's value ``number`` of that queue, from 1."""
        return offset(self.base, number)


def _line(channel: Channel) -> _Line:
    address = SymbolicSignal(Symbol(f"timeline of {channel.name}"))
    return _Line(address, Symbol(f"start of {channel.name}"))


class _Plan:
    """Which queue runs what, and where they wait for each other.

    The main queue, that of the first item, starts all others and waits for them in the end.
    """

    def __init__(self, device: HCQDevice, items: Sequence[GraphItem], inputs: Sequence[HCQBuffer]):
        self._inputs = inputs
        self._queues: dict[Channel, list[Command]] = {}
        # For each item, by queue and its number there from 1: what it waits for.
        self._waits: dict[tuple[Channel, int], dict[Channel, int]] = {}
        tracker: DependencyTracker[Channel] = DependencyTracker()
        clocks = _Clocks()
        for item in items:
            channel = device.channel(item.kind, item.index)
            queue = self._queues.setdefault(channel, [])
            queue.append(self._command(device, item))
            number = len(queue)
            reads, writes = _accesses(item)
            waits = tracker.access(channel, number, reads, writes)
            self._waits[channel, number] = clocks.prune(channel, number, waits)
        self.main = next(iter(self._queues))
        self.lines = {channel: _line(channel) for channel in self._queues}
        awaited = {(c, n) for waits in self._waits.values() for c, n in waits.items()}
        self._signals = {
            channel: [n for n in range(1, len(queue) + 1) if (channel, n) in awaited]
            for channel, queue in self._queues.items()
        }

    def counts(self) -> dict[Channel, int]:
        """How many values of its timeline each queue uses: start, signals, end."""
        forks = len(self._queues) > 1
        return {
            channel: len(self._signals[channel]) + 1 + (forks and channel is self.main)
            for channel in self._queues
        }

    def queue_commands(self, channel: Channel) -> list[Command]:
        """All that a queue runs, but for its end."""
        others = [other for other in self._queues if other is not self.main]
        main, counts = self.lines[self.main], self.counts()
        out: list[Command] = []
        if channel is not self.main:
            out.append(commands.Wait(main.address, main.value(1)))
        elif others:
            out.append(commands.Signal(main.address, main.value(1)))
        out.append(commands.Barrier())
        for number, command in enumerate(self._queues[channel], 1):
            out += [self._wait(*point) for point in self._waits[channel, number].items()]
            out.append(command)
            if number in self._signals[channel]:
                line = self.lines[channel]
                value = line.value(self._number(channel, number))
                out.append(commands.Signal(line.address, value))
        if channel is self.main:
            for line, count in ((self.lines[other], counts[other]) for other in others):
                out.append(commands.Wait(line.address, line.value(count)))
        return out

    def touched(self) -> list[Touched]:
        """Where the graph reads and writes memory."""
        return list(dict.fromkeys(chain.from_iterable(map(touched_by, self._queues.values()))))

    def _wait(self, channel: Channel, number: int) -> commands.Wait:
        line = self.lines[channel]
        return commands.Wait(line.address, line.value(self._number(channel, number)))

    def _number(self, channel: Channel, item: int) -> int:
        """The value, from 1, that a queue signals after one of its items."""
        return self._signals[channel].index(item) + (2 if channel is self.main else 1)

    def _command(self, device: HCQDevice, item: GraphItem) -> Command:
        for buffer in _buffers(item):
            buffer.check_reachable(device)
        if isinstance(item, GraphCopy):
            if item.dst.size != item.src.size:
                raise InvalidValue(f"copy of {item.src!r} into {item.dst!r}: take a view")
            return commands.Copy(self.place(item.dst), self.place(item.src), item.src.size)
        pointers = tuple(self.place(buffer) for buffer in item.buffers)
        args = ProgramArguments(item.program.layout, pointers, item.vals)
        return item.program.launch(args, item.grid, item.block)

    def place(self, buffer: HCQBuffer) -> Value:
        """The address of a buffer, or of its part of an input."""
        for number, given in enumerate(self._inputs):
            start = buffer.address - given.address
            if start >= 0 and start + buffer.size <= given.size:
                return offset(input_symbol(number), start)
            if start < given.size and start + buffer.size > 0:
                raise InvalidValue(f"{buffer!r} is not inside of {given!r}, which is an input")
        return buffer.address


class _Clocks:
    """What each queue is known to have waited for, also through others: spares waits."""

    def __init__(self) -> None:
        self._now: dict[Channel, dict[Channel, int]] = {}
        self._after: dict[tuple[Channel, int], dict[Channel, int]] = {}

    def prune(self, channel: Channel, number: int, waits: dict[Channel, int]) -> dict[Channel, int]:
        """The waits of an item that are not implied by earlier ones, or by one another."""
        known = self._now.setdefault(channel, {})
        kept: dict[Channel, int] = {}
        # The latest first: what it implies need not be waited for.
        for other, value in sorted(waits.items(), key=lambda w: -len(self._after[w])):
            if known.get(other, 0) < value:
                kept[other] = value
                for third, passed in {**self._after[other, value], other: value}.items():
                    known[third] = max(known.get(third, 0), passed)
        self._after[channel, number] = dict(known)
        return kept


def _buffers(item: GraphItem) -> tuple[HCQBuffer, ...]:
    return item.buffers if isinstance(item, GraphLaunch) else (item.dst, item.src)


def _range(buffer: HCQBuffer) -> Range:
    return buffer.address, buffer.address + buffer.size


def _accesses(item: GraphItem) -> tuple[list[Range], list[Range]]:
    """What an item reads, and what it writes."""
    if isinstance(item, GraphCopy):
        return [_range(item.src)], [_range(item.dst)]
    written = item.program.written
    reads = [_range(buffer) for buffer in item.buffers]
    return reads, [_range(b) for number, b in enumerate(item.buffers) if number in written]


def _check_apart(inputs: Iterable[HCQBuffer]) -> None:
    """Raise `InvalidValue` for inputs that overlap."""
    ordered = sorted(inputs, key=lambda buffer: buffer.address)
    for before, after in pairwise(ordered):
        if before.address + before.size > after.address:
            raise InvalidValue(f"inputs {before!r} and {after!r} overlap: copy one of them")
