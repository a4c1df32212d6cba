"""One queue of a device at work: its ring, its command memory and its timeline."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue
from gpu.core.ring import FencedRing
from gpu.hcq.far import command_window
from gpu.hcq.link import Linked
from gpu.hcq.patching import PatchCall, Places
from gpu.hcq.ports import Memory, QueuePort
from gpu.hcq.signal import Timeline
from gpu.hcq.symbol import (
    AFTER_ADDRESS,
    AFTER_VALUE,
    IMAGE,
    TIMELINE_ADDRESS,
    TIMELINE_VALUE,
)

# Where the symbols that a channel defines itself stand in every table of values.
SLOTS: Final = (IMAGE, TIMELINE_ADDRESS, TIMELINE_VALUE, AFTER_ADDRESS, AFTER_VALUE)
IMAGE_ALIGN: Final = 256
"""What the segments of a submission are aligned to, together: as much as any may ask for."""
SET_SLOTS: Final = struct.Struct(f"<{len(SLOTS)}Q").pack_into


class MustWait(Exception):
    """Something is full until a value has passed: leave the lock, wait, and try again."""

    def __init__(self, channel: Channel, value: int):
        super().__init__(f"{channel.name} has to reach {value}")
        self.channel = channel
        self.value = value


class Chunks:
    """Takes from a `FencedRing` by and by what it got from it in one piece.

    What is taken is free again when all that was submitted before the next piece has passed, or
    with ``filled`` what follows it too: the rest of a piece of a ring is read as filler only then.
    """

    def __init__(self, size: int, align: int, channel: Channel, what: str, *, filled: bool = False):
        self._what = what
        self._following = int(filled)
        self._ring = FencedRing(size, channel.must_pass, align=align)
        self._timeline = channel.timeline
        self._piece = align_up(size // 8, align)
        self._largest = size // 4  # and so is the gap before it: together they fit the ring
        self._next = self._end = 0

    def take(self, size: int) -> int:
        """The offset of ``size`` bytes, a multiple of ``align``.

        Raises `MustWait` while it is full, `InvalidValue` for more than it can give at once.
        """
        start = self._next
        end = start + size
        if end > self._end:
            return self._take_from_new(size)
        self._next = end
        return start

    def _take_from_new(self, size: int) -> int:
        if size > self._largest:
            raise InvalidValue(
                f"a submission takes {size} bytes of the {self._what}, of at most {self._largest}:"
                " submit less at once, or bind it"
            )
        self._next = self._end = 0  # what is left belongs to the fence too
        self._ring.fence(self._timeline.submitted + self._following)
        piece = max(self._piece, size)
        start = self._ring.reserve(piece)
        self._next, self._end = start + size, start + piece
        return start


class Point(NamedTuple):
    """A submission: a queue of a device, and the value its timeline reaches when it is done."""

    channel: Channel
    value: int


class Template:
    """A linked submission, ready to be sent again and again with other values.

    ``pack_into`` of `ArgumentLayout` may write the arguments straight into the memory; whatever
    else the image holds is copied first. Used under the device's lock.
    """

    def __init__(self, linked: Linked):
        self.slots = {symbol: index for index, symbol in enumerate(SLOTS)}
        for symbol in linked.symbols():
            self.slots.setdefault(symbol, len(self.slots))
        self.values = (ctypes.c_uint64 * len(self.slots))()
        self.ring_size = len(linked.ring)
        self._ring = (ctypes.c_uint64 * (len(linked.ring) // 8 + 1))()  # aligned to 8
        self.ring = ctypes.addressof(self._ring)
        ctypes.memmove(self.ring, linked.ring, len(linked.ring))
        if linked.image_align > IMAGE_ALIGN:
            raise InvalidValue(f"segment aligned to {linked.image_align}: at most {IMAGE_ALIGN}")
        self.image_size = len(linked.image)
        self.image_align = linked.image_align
        self.image_room = align_up(self.image_size, IMAGE_ALIGN)
        self.image = ctypes.create_string_buffer(linked.image, max(len(linked.image), 1))
        self.has_data = any(linked.image)  # besides arguments
        self.arguments = linked.arguments[0] if linked.arguments else 0
        places = Places(self.ring)
        self.addresses = places.addresses
        address = ctypes.addressof(self.values)
        self._patches = PatchCall(linked, places, self.slots, address, SLOTS)
        self.patch = self._patches.apply


class Channel:
    """Publishes submissions of one queue; every method needs the device's lock."""

    def __init__(self, name: str, port: QueuePort, timeline: Timeline, memory: Memory):
        """``memory`` is where the segments beside the ring go; the host must reach it."""
        window, self._far = command_window(memory)
        self.name = name
        self.timeline = timeline
        self._bytes = window.memory
        self._host = window.address
        self._base = memory.address
        self._arena = Chunks(memory.size, IMAGE_ALIGN, self, f"command memory of {name}")
        self._use(port)

    def _use(self, port: QueuePort) -> None:
        """Begin with an empty ring."""
        self.port = port
        self._publish = port.publish
        self._ring_size = port.ring_size
        ring = f"ring of {self.name}"
        self._ring = Chunks(port.ring_size, port.ring_align, self, ring, filled=True)
        # (value, bytes published before, and after it) of the last submission; if its value was
        # never submitted, an exception came in between.
        self._plan = (self.timeline.submitted, 0, 0)
        # How far filler was published, stored by the call that did.
        self._filled = ctypes.c_uint64(0)

    def restart(self, port: QueuePort) -> None:
        """Go on with another queue of the same kind, whose ring is empty; the old one is gone.

        What was submitted counts as done, whether it was or not.
        """
        self.timeline.settle()
        self._use(port)

    def must_pass(self, value: int) -> None:
        """Raise `MustWait` unless a value has passed: what waits in a `FencedRing` here.

        Of values that were never submitted, because they were interrupted, the last before counts.
        """
        value = min(value, self.timeline.submitted)
        if not self.timeline.passed(value):
            raise MustWait(self, value)

    def next_value(self, count: int = 1) -> int:
        """The last of the next ``count`` values; begins a new epoch of the timeline if it must."""
        timeline = self.timeline
        value = timeline.last.value + count
        if value - timeline.epoch >= timeline.limit:
            self.must_pass(timeline.submitted)
            timeline.swap()
        return value

    def send(
        self,
        template: Template,
        value: int,
        after: tuple[Channel, int] | None,
        pack_into: Callable[..., None] | None = None,
        arguments: Sequence[int | float] = (),
    ) -> None:
        """Submit, to reach ``value``, which `next_value` gave.

        ``after`` is what the template waits for first. Raises `MustWait` while there is no room.
        """
        timeline, image, awaited, payload = self.timeline, 0, 0, 0
        if after is not None:
            awaited = after[0].timeline.address
            payload = after[0].timeline.payload(after[1])
        if template.image_size:
            place = self._arena.take(template.image_room)
            image = self._base + place
            template.addresses[1] = self._host + place
            if template.has_data:
                ctypes.memmove(self._host + place, template.image, template.image_size)
            if pack_into is not None:
                pack_into(self._bytes, place + template.arguments, *arguments)
        address, reached = timeline.address, value - timeline.epoch
        SET_SLOTS(template.values, 0, image, address, reached, awaited, payload)
        template.patch()
        if self._far is not None and template.image_size:
            self._far.send(image - self._base, template.image_size)
        size = template.ring_size
        self._publish(self.reserve(size, value), template.ring, size, timeline.last_address, value)

    def reserve(self, size: int, value: int) -> int:
        """Room for ``size`` bytes of the ring, to be published with ``value``; its position."""
        offset = self._ring.take(size)
        planned, before, after = self._plan
        position = after if self.timeline.last.value >= planned else before
        filled = self._filled.value
        position = filled if filled > position else position  # interrupted after filler
        gap = (offset - position) % self._ring_size
        if gap:
            self._fill(position, gap)
            position += gap
        self._plan = (value, position, position + size)
        return position

    def _fill(self, position: int, size: int) -> None:
        """Publish what does nothing, up to where the ring goes on."""
        words = ctypes.create_string_buffer(self.port.encoder.filler(size), size)
        filled, end = ctypes.addressof(self._filled), position + size
        self._publish(position, ctypes.addressof(words), size, filled, end)

    def publish(self, position: int, words: int, size: int, value: int) -> None:
        """Publish what was reserved: afterwards ``value`` counts as submitted."""
        self._publish(position, words, size, self.timeline.last_address, value)
