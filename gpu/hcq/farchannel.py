"""A queue over a bus such as USB: one stream brings all that a submission reads.

What lies beside the ring elsewhere, as arguments of kernels, lies in the ring here, as the body of
a packet that does nothing. So nothing else is sent before the doorbell.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

from gpu.core.bits import align_up
from gpu.core.window import MemoryWindow
from gpu.hcq.channel import SET_SLOTS, Channel, Template
from gpu.hcq.ports import QueuePort

_WORD: Final = 4
_SHARE: Final = 8  # of the ring that an image may take; what is larger goes beside it

_After = tuple[Channel, int] | None
_Pack = Callable[..., None] | None


class FarChannel(Channel):
    """A `Channel` whose images lie in the ring, where `carries` says that they can."""

    def carries(self, port: QueuePort) -> int:
        """Where the device has the ring, if one packet can be filler of any size, else 0."""
        return 0

    def _use(self, port: QueuePort) -> None:
        super()._use(port)
        self._ring_at = self.carries(port)
        self._image = MemoryWindow.over(bytearray(port.ring_size // 2))

    def send(
        self,
        template: Template,
        value: int,
        after: _After,
        pack_into: _Pack = None,
        arguments: Sequence[int | float] = (),
    ) -> None:
        """As `Channel.send`."""
        size, align = template.image_size, max(template.image_align, _WORD)
        if not size or not self._ring_at or align + size > self.port.ring_size // _SHARE:
            super().send(template, value, after, pack_into, arguments)
            return
        ahead = align + align_up(size, _WORD)
        whole = ahead + template.ring_size
        position = self.reserve(whole, value)
        start = self._ring_at + position % self.port.ring_size
        place = align_up(start + _WORD, align) - start
        image, timeline = self._image, self.timeline
        image.memory[:_WORD] = self.port.encoder.filler(ahead)[:_WORD]
        image.store(place, template.image.raw[:size])
        if pack_into is not None:
            pack_into(image.memory, place + template.arguments, *arguments)
        awaited = payload = 0
        if after is not None:
            awaited, payload = after[0].timeline.address, after[0].timeline.payload(after[1])
        reached = value - timeline.epoch
        template.addresses[1] = image.address + place
        SET_SLOTS(template.values, 0, start + place, timeline.address, reached, awaited, payload)
        template.patch()
        image.store(ahead, ctypes.string_at(template.ring, template.ring_size))
        self.publish(position, image.address, whole, value)
