"""Commands in memory of their own: a submission patches what changed, and kicks.

What a queue may fetch is not written to, and hosts fetch early: so everything bound exists twice,
and one copy is patched when its last submission is done while the other may still run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.window import MemoryWindow
from gpu.hcq.buffer import Allocation, HCQBuffer, Pins
from gpu.hcq.channel import SLOTS, Channel, MustWait, Point
from gpu.hcq.commands import Command
from gpu.hcq.link import Linked
from gpu.hcq.patching import Places, patch_call
from gpu.hcq.symbol import (
    IMAGE,
    TIMELINE_ADDRESS,
    TIMELINE_VALUE,
    Derived,
    Symbol,
    resolve,
)

if TYPE_CHECKING:
    from gpu.hcq.device import HCQDevice

INSTANCES = 2


class BoundPart:
    """What one queue runs of one instance: an image at a fixed address, and the words to call it.

    The words are for the ring of ``channel``. ``last`` is the value of its last submission.
    """

    def __init__(self, device: HCQDevice, channel: Channel, linked: Linked):
        size = max(len(linked.image), 1)
        self.allocation = Allocation(device.allocate(size, channel.port.command_memory), device)
        memory = self.allocation.memory
        if not isinstance(memory.window, MemoryWindow):
            raise Unsupported(f"{channel.name}: bound memory must be mapped into this process")
        linked = linked.put_in({IMAGE: memory.address})
        memory.window.store(0, linked.image)
        self.channel = channel
        self.last = channel.timeline.submitted
        self.size = len(linked.ring)
        self._words = (ctypes.c_uint64 * (self.size // 8 + 1))()  # aligned to 8
        self.words = ctypes.addressof(self._words)
        ctypes.memmove(self.words, linked.ring, self.size)
        places = Places(self.words, memory.window.address)
        self.symbols = linked.symbols()
        slots = {symbol: index for index, symbol in enumerate(self.symbols)}
        self._values = (ctypes.c_uint64 * max(len(slots), 1))()
        values = ctypes.addressof(self._values)
        self._places = {
            symbol: (index, patch_call(linked, places, slots, values, [symbol]))
            for symbol, index in slots.items()
        }
        self._now = dict.fromkeys(self.symbols, -1)  # what is in memory

    def put_all(self, values: Mapping[Symbol, int]) -> None:
        """Patch in what the part uses of ``values`` and does not have yet; under the lock.

        Nothing runs in the part.
        """
        now = self._now
        for symbol, value in values.items():
            if now.get(symbol, value) != value:
                index, apply = self._places[symbol]
                self._values[index] = value
                apply()
                now[symbol] = value

    def must_be_idle(self) -> None:
        """Raise `MustWait` while the last submission may run."""
        # An interrupted submission never happened: its value may come much later.
        last = min(self.last, self.channel.timeline.submitted)
        if not self.channel.timeline.passed(last):
            raise MustWait(self.channel, last)


class Instances:
    """Instances of something bound, used in turn; each is a part for every queue it uses."""

    def __init__(
        self,
        device: HCQDevice,
        linked: Sequence[tuple[Channel, Linked]],
        given: Iterable[Symbol] = (),
    ):
        """``given`` are symbols that the owner puts in, not the user."""
        self.device = device

        def make() -> list[list[BoundPart]]:
            return [[BoundPart(device, *one) for one in linked] for _ in range(INSTANCES)]

        self._instances = device.exclusively(make)
        self._next = 0
        found = (symbol for part in self._instances[0] for symbol in part.symbols)
        known = {*SLOTS, *given}
        own = [symbol for symbol in dict.fromkeys(found) if symbol not in known]
        self.derived = [symbol for symbol in own if isinstance(symbol, Derived)]
        plain = [symbol for symbol in own if not isinstance(symbol, Derived)]
        self.inputs = dict.fromkeys([*plain, *(s for d in self.derived for s in d.sources)])

    def complete(
        self, values: dict[Symbol, int], optional: frozenset[Symbol] = frozenset()
    ) -> None:
        """Check that ``values`` are for the symbols of what is bound, and add derived ones.

        Those that are ``optional`` may be given without being used.
        """
        wanted, given = self.inputs.keys(), values.keys()
        if wanted != given and (wanted - given or given - wanted - optional):
            names = ", ".join(symbol.name for symbol in wanted) or "none"
            found = ", ".join(symbol.name for symbol in given) or "none"
            raise InvalidValue(f"values for the symbols {found}; what is bound has {names}")
        for symbol in self.derived:
            values[symbol] = resolve(symbol, values)

    def claim(self) -> list[BoundPart]:
        """The parts of the next instance, idle; under the lock. Raises `MustWait`."""
        parts = self._instances[self._next]
        for part in parts:
            part.must_be_idle()
        return parts

    def advance(self) -> None:
        """The claimed instance is in use: the other one is next."""
        self._next = (self._next + 1) % INSTANCES

    def close(self) -> None:
        """Free the memory once nothing runs in it."""
        for parts in self._instances:
            for part in parts:
                part.allocation.free()


class BoundQueue:
    """A list of commands for one queue, bound; `submit` takes values for its symbols."""

    def __init__(
        self,
        device: HCQDevice,
        channel: Channel,
        commands: Iterable[Command],
        buffers: Iterable[HCQBuffer] = (),
    ):
        self._commands = tuple(commands)  # with the programs
        self._pins = Pins(device, buffers)
        self._channel = channel
        linked = device.link(channel, self._commands, after=False, bound=True)
        self._instances = Instances(device, [(channel, linked)])

    def submit(self, values: Mapping[Symbol, int] | None = None) -> Point:
        """Run it once more; returns what `HCQDevice.wait` takes.

        Raises `InvalidValue` for a symbol without value or one that it does not have, and what
        `HCQDevice.exclusively` raises.
        """
        given = dict(values or {})
        self._instances.complete(given)
        return Point(self._channel, self._instances.device.exclusively(self._send, given))

    def _send(self, values: Mapping[Symbol, int]) -> int:
        channel = self._channel
        value = channel.next_value()
        (part,) = self._instances.claim()
        timeline = channel.timeline
        own = {TIMELINE_ADDRESS: timeline.address, TIMELINE_VALUE: timeline.payload(value)}
        part.put_all({**values, **own})
        position = channel.reserve(part.size, value)
        part.last = value
        self._instances.advance()
        channel.publish(position, part.words, part.size, value)
        return value

    def close(self) -> None:
        """Free its memory, once nothing runs in it, and unpin its buffers."""
        self._instances.close()
        self._pins.close()
