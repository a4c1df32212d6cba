"""Commands in memory of their own: a submission patches what changed, and kicks.

What a queue may fetch is not written to, and hosts fetch early: so everything bound exists twice,
and one copy is patched when its last submission is done while the other may still run.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpu.core.errors import InvalidValue
from gpu.hcq.allocation import Allocation, Pins
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.channel import SLOTS, Channel, MustWait, Point
from gpu.hcq.commands import Command
from gpu.hcq.far import command_window
from gpu.hcq.link import Linked
from gpu.hcq.owner import Owner
from gpu.hcq.patching import PatchCall, Places
from gpu.hcq.symbol import (
    IMAGE,
    TIMELINE_ADDRESS,
    TIMELINE_VALUE,
    Derived,
    Symbol,
    resolve,
)

INSTANCES = 2
OWN: Final = (TIMELINE_ADDRESS, TIMELINE_VALUE)
"""What a queue puts into everything bound, first of all."""
_ALL_64: Final = 0xFFFF_FFFF_FFFF_FFFF
_AT_ONCE: Final = 64
"""So many patches are applied together, whether their values have changed or not."""


class BoundPart:
    """What one queue runs of one instance: an image at a fixed address, and the words to call it.

    The words are for the ring of ``channel``. ``last`` is the value of its last submission. ``own``
    and ``given`` are symbols whose values `put` takes, in order, whether the part has them or not.
    """

    def __init__(
        self,
        device: Owner,
        channel: Channel,
        linked: Linked,
        own: Sequence[Symbol],
        given: Sequence[Symbol],
    ):
        size = max(len(linked.image), 1)
        self.allocation = Allocation(device.allocate(size, channel.port.command_memory), device)
        memory = self.allocation.memory
        window, self._far = command_window(memory)
        linked = linked.put_in({IMAGE: memory.address})
        window.store(0, linked.image)
        self.channel = channel
        self.timeline = channel.timeline
        self.last = channel.timeline.submitted
        self.size = len(linked.ring)
        self._words = (ctypes.c_uint64 * (self.size // 8 + 1))()  # aligned to 8
        self.words = ctypes.addressof(self._words)
        ctypes.memmove(self.words, linked.ring, self.size)
        places = Places(self.words, window.address)
        slots = {symbol: index for index, symbol in enumerate((*own, *given))}
        self._values = (ctypes.c_uint64 * len(slots))()
        self._set = struct.Struct(f"<{len(slots)}Q").pack_into
        counts = linked.patch_counts()
        few = sum(counts[symbol] for symbol in given) <= _AT_ONCE
        first, *others = [(*own, *given)] if few else [own, *((symbol,) for symbol in given)]
        values = ctypes.addressof(self._values)
        always = PatchCall(linked, places, slots, values, first)
        self._keep = always
        self._apply = always.apply
        self._changed = [PatchCall(linked, places, slots, values, group) for group in others]
        self._given: Sequence[int] = ()  # what is in memory

    def put(self, own: Sequence[int], given: Sequence[int]) -> None:
        """Patch values in, of what is ``given`` those that have changed; under the lock.

        Nothing runs in the part.
        """
        self._set(self._values, 0, *own, *given)
        self._apply()
        if self._changed and given != self._given:
            # Unknown until all is done: an interrupt in between must not leave a part behind.
            before, self._given = self._given or [-1] * len(given), ()
            for call, old, new in zip(self._changed, before, given, strict=True):
                if old != new:
                    call.apply()
            self._given = given
        if self._far is not None:
            self._far.send_changes()

    def must_be_idle(self) -> None:
        """Raise `MustWait` while the last submission may run."""
        # An interrupted submission never happened: its value may come much later.
        last = min(self.last, self.timeline.submitted)
        if not self.timeline.passed(last):
            raise MustWait(self.channel, last)


class Instances:
    """Instances of something bound, used in turn; each is a part for every queue it uses.

    ``given`` are the symbols whose values the user gives, in the order that `values` gives them.
    """

    def __init__(
        self,
        device: Owner,
        linked: Sequence[tuple[Channel, Linked]],
        own: Sequence[Symbol] = OWN,
        inputs: Sequence[Symbol] = (),
    ):
        """``own`` are symbols that the owner puts in, not the user; ``inputs`` come first."""
        self.device = device
        found = (symbol for _, part in linked for symbol in part.symbols())
        known = {*SLOTS, *own, *inputs}
        others = [symbol for symbol in dict.fromkeys(found) if symbol not in known]
        derived = [symbol for symbol in others if isinstance(symbol, Derived)]
        plain = [symbol for symbol in others if not isinstance(symbol, Derived)]
        sources = (source for symbol in derived for source in symbol.sources)
        self.given: tuple[Symbol, ...] = (*inputs, *others)
        # What the user has to name values of, and what is computed from them.
        self._inputs = frozenset(inputs)
        self._named = dict.fromkeys([*plain, *(s for s in sources if s not in self._inputs)])
        self.is_plain = not derived and not self._named
        """Whether the values of the inputs are all that it takes."""

        def make() -> list[list[BoundPart]]:
            return [
                [BoundPart(device, *one, own, self.given) for one in linked]
                for _ in range(INSTANCES)
            ]

        self._instances = device.exclusively(make)
        self._next = 0

    def values(
        self, named: Mapping[Symbol, int], inputs: Mapping[Symbol, int] | None = None
    ) -> tuple[int, ...]:
        """The values of ``given``, modulo 2**64; derived ones are computed.

        Raises `InvalidValue` unless ``named`` are for the symbols that the user has to name.
        """
        wanted = self._named.keys()
        if wanted != named.keys():
            names = ", ".join(symbol.name for symbol in wanted) or "none"
            found = ", ".join(symbol.name for symbol in named) or "none"
            raise InvalidValue(f"values for the symbols {found}; what is bound has {names}")
        known = {**(inputs or {}), **named}
        return tuple([resolve(symbol, known) & _ALL_64 for symbol in self.given])

    def claim(self) -> list[BoundPart]:
        """The parts of the next instance, idle; under the lock. Raises `MustWait`.

        The one after it is next, also if these parts come to nothing.
        """
        parts = self._instances[self._next]
        for part in parts:
            if not part.timeline.passed(part.last):
                part.must_be_idle()
        self._next = (self._next + 1) % INSTANCES
        return parts

    def close(self) -> None:
        """Free the memory once nothing runs in it."""
        for parts in self._instances:
            for part in parts:
                part.allocation.free()


class BoundQueue:
    """A list of commands for one queue, bound; `submit` takes values for its symbols."""

    def __init__(
        self,
        device: Owner,
        channel: Channel,
        commands: Iterable[Command],
        buffers: Iterable[HCQBuffer] = (),
    ):
        self._commands = tuple(commands)  # with the programs
        self._pins = Pins(device, (buffer.allocation for buffer in buffers))
        self._channel = channel
        linked = device.link(channel, self._commands, after=False, bound=True)
        self._instances = Instances(device, [(channel, linked)])

    def submit(self, values: Mapping[Symbol, int] | None = None) -> Point:
        """Run it once more; returns what `HCQDevice.wait` takes.

        Raises `InvalidValue` for a symbol without value or one that it does not have, and what
        `HCQDevice.exclusively` raises.
        """
        given = self._instances.values(values or {})
        return Point(self._channel, self._instances.device.exclusively(self._send, given))

    def _send(self, given: tuple[int, ...]) -> int:
        channel = self._channel
        value = channel.next_value()
        (part,) = self._instances.claim()
        timeline = channel.timeline
        part.put((timeline.address, timeline.payload(value)), given)
        position = channel.reserve(part.size, value)
        part.last = value
        channel.publish(position, part.words, part.size, value)
        return value

    def close(self) -> None:
        """Free its memory, once nothing runs in it, and unpin its buffers."""
        self._instances.close()
        self._pins.close()
