"""The copy engine's queues and packets.

Layouts: the generated tables of Linux 6.12's *_sdma_pkt_open.h, one per version; bits that they do
not name must be 0. Rules beside them: hw/dossier 5.4 (byte pointers that never wrap, no packet
across the ring's end, indirect buffers that end on 8 dwords).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final, NamedTuple

from gpu.autogen.amd import sdma_packets_v4, sdma_packets_v5, sdma_packets_v6
from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.atomics import find_atomic
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.hwqueue import Blocked, HwQueue, Kind, QueueHost, RingSettings
from gpu.sim.amd.chip.pm4_memory import COMPARE, gcr_control
from gpu.sim.amd.chips import Chip

_TABLES: Final[Mapping[int, ModuleType]] = {
    4: sdma_packets_v4,
    5: sdma_packets_v5,
    6: sdma_packets_v6,
    7: sdma_packets_v6,
}
_FOREVER: Final = 0xFFF
_COPY_SLICE: Final = 1 << 20
_Words = list[int]


class Layout(NamedTuple):
    """One packet of one version.

    Attributes:
        size: dwords, without data that follows.
        fields: dword, lowest bit and width by the part of the name after the dot.
        masks: which bits of each dword are named.
    """

    name: str
    size: int
    fields: Mapping[str, tuple[int, int, int]]
    masks: tuple[int, ...]

    def check(self, words: _Words) -> None:
        """Raises PacketError for bits without a name."""
        for i, mask in enumerate(self.masks):
            if words[i] & ~mask:
                raise PacketError(f"{self.name} dword {i} is {words[i]:#x}: {mask:#x} allowed")

    def get(self, words: _Words, field: str) -> int:
        """A field's value; 0 where this version has no such field."""
        word, low, width = self.fields.get(field, (0, 0, 0))
        return words[word] >> low & (1 << width) - 1

    def address(self, words: _Words, field: str, align: int) -> int:
        """An address in two dwords, by the name of its low one. Raises PacketError."""
        word, low, width = self.fields[field]
        address = words[word + 1] << 32 | words[word] & ((1 << width) - 1) << low
        if address % align:
            raise PacketError(f"{self.name} at {address:#x}: must be a multiple of {align}")
        return address


@functools.cache
def layouts(chip: Chip) -> dict[str, Layout]:
    """All packets of a chip's copy engine."""
    found = {}
    for name, table in _TABLES[chip.sdma[0]].PACKETS.items():
        fields = dict(table)
        if name == "COPY_LINEAR" and chip.sdma[:2] == (5, 2):
            fields["COUNT.count"] = (1, 0, 30)  # the header has version 5.0's 22; dossier 5.4
        size = 1 + max(word for word, _, _ in fields.values())
        masks = [0] * size
        for word, low, width in fields.values():
            masks[word] |= (1 << width) - 1 << low
        short = {key.partition(".")[2]: place for key, place in fields.items()}
        found[name] = Layout(name, size, short, tuple(masks))
    return found


class SdmaQueue(HwQueue):
    """A queue of the copy engine; its pointers count bytes."""

    kind: Kind = "sdma"
    unit, unit_name = 1, "bytes"

    def __init__(self, host: QueueHost, asic: Asic, settings: RingSettings):
        super().__init__(host, asic, settings)
        self._layouts = layouts(self.asic.chip)
        self._buffer: tuple[_Words, int] | None = None  # an indirect buffer and the place in it
        self._copying: Callable[[], bool] | None = None  # a long copy; true when it is done

    def _take_wptr(self, doorbell: int, in_memory: int) -> None:
        if doorbell % 4:
            raise PacketError(f"doorbell {doorbell:#x}: byte pointers are multiples of 4")
        super()._take_wptr(doorbell, in_memory)

    def has_work(self) -> bool:
        """Packets to handle, or a copy under way."""
        return super().has_work() or (bool(self._buffer or self._copying) and not self.waits())

    def step(self) -> None:
        """One packet, or a slice of a long copy."""
        if self._copying:
            if self._copying():
                self._copying = None
        elif self._buffer:
            self._step_buffer(*self._buffer)
        else:
            self._step_ring()

    def report(self) -> None:
        """The read pointer: 64 bits of bytes that never wrap."""
        self.port.write_word(self.settings.rptr, 8, self.rptr)

    def _step_ring(self) -> None:
        at, end = self.rptr // 4, self.wptr // 4
        size = self._size(self.ring_words.word(at, end), lambda i: self._peek(at, end, i))
        ring = self.settings.size // 4
        if at % ring + size > ring:
            raise PacketError(f"a packet of {size} dwords goes across the end of the ring")
        if at + size > end:
            raise PacketError(f"a packet of {size} dwords goes beyond the write pointer")
        if self._execute(self.ring_words.words(at, end, size), at):
            self.rptr += 4 * size
            self.sim.counts.packets += 1

    def _peek(self, at: int, end: int, i: int) -> int:
        if at + i >= end:
            raise PacketError("a packet goes beyond the write pointer")
        return self.ring_words.words(at, end, i + 1)[i]

    def _step_buffer(self, words: _Words, at: int) -> None:
        if at == len(words):
            self._buffer = None
            return

        def peek(i: int) -> int:
            if at + i >= len(words):
                raise PacketError("a packet goes beyond its indirect buffer")
            return words[at + i]

        size = self._size(words[at], peek)
        peek(size - 1)
        if self._execute(words[at : at + size], None):
            self.sim.counts.packets += 1
            done = at + size == len(words)
            self._buffer = None if done else (words, at + size)

    def _size(self, header: int, peek: Callable[[int], int]) -> int:
        """Dwords of the packet that begins with a header."""
        layout = self._layout(header)
        if layout.name == "NOP":
            return 1 + layout.get([header, 0], "count")
        if layout.name == "WRITE_UNTILED":
            word, low, width = layout.fields["count"]
            return layout.size + (peek(word) >> low & (1 << width) - 1)
        return layout.size

    def _layout(self, header: int) -> Layout:
        name = _NAMES.get((header & 0xFF, header >> 8 & 0xFF))
        if header & 0xFF == 10:  # ATOMIC has no sub-operation
            name = "ATOMIC"
        if name is None or name not in self._layouts:
            op, sub = header & 0xFF, header >> 8 & 0xFF
            raise PacketError(f"copy engine operation {op:#x}, {sub:#x} is not for user queues")
        if name == "COPY_LINEAR" and header >> 27 & 1:
            name = "COPY_BROADCAST_LINEAR"
        return self._layouts[name]

    def _execute(self, words: _Words, ring_at: int | None) -> bool:
        layout = self._layout(words[0])
        if layout.name == "NOP":
            return True
        layout.check(words[: layout.size])
        if layout.name == "INDIRECT":
            self._indirect(layout, words, ring_at)
            return True
        return _HANDLERS[layout.name](self, layout, words) is not False

    def _indirect(self, layout: Layout, words: _Words, ring_at: int | None) -> None:
        if ring_at is None:
            raise PacketError("an indirect buffer in an indirect buffer")
        if (ring_at + layout.size) % 8:
            raise PacketError(f"INDIRECT at dword {ring_at:#x} does not end on 8 dwords")
        if layout.get(words, "vmid"):
            raise PacketError("INDIRECT with a VMID: the queue's own is 0")
        size = layout.get(words, "ib_size")
        if not size:
            raise PacketError("INDIRECT of size 0")
        self._buffer = (self.port.words(layout.address(words, "ib_base_31_0", 32), size), 0)

    def copy(self, source: int, targets: tuple[int, ...], size: int) -> None:
        """Copies in slices, so that other queues run between them."""
        done = 0

        def work() -> bool:
            nonlocal done
            count = min(_COPY_SLICE, size - done)
            data = self.port.read(source + done, count)
            for target in targets:
                self.port.write(target + done, data)
            done += count
            return done == size

        if not work():
            self._copying = work


def _copy_linear(queue: SdmaQueue, layout: Layout, words: _Words) -> None:
    for field in ("encrypt", "tmz", "backwards"):
        if layout.get(words, field):
            raise PacketError(f"{layout.name} with {field} is not modelled")
    size = layout.get(words, "count") + 1
    source = layout.address(words, "src_addr_31_0", 1)
    if layout.name == "COPY_LINEAR":
        queue.copy(source, (layout.address(words, "dst_addr_31_0", 1),), size)
        return
    first = layout.address(words, "dst1_addr_31_0", 1)
    queue.copy(source, (first, layout.address(words, "dst2_addr_31_0", 1)), size)


def _write(queue: SdmaQueue, layout: Layout, words: _Words) -> None:
    address = layout.address(words, "dst_addr_31_0", 4)
    data = b"".join(word.to_bytes(4, "little") for word in words[layout.size - 1 :])
    queue.port.write(address, data)


def _const_fill(queue: SdmaQueue, layout: Layout, words: _Words) -> None:
    width = {0: 1, 1: 2, 2: 4}.get(layout.get(words, "fillsize"))
    if width is None:
        raise PacketError("CONSTANT_FILL with fillsize 3")
    count = layout.get(words, "count") + 1
    address = layout.address(words, "dst_addr_31_0", width)
    if count % width:
        raise PacketError(f"CONSTANT_FILL of {count} bytes by {width}")
    pattern = layout.get(words, "src_data_31_0").to_bytes(4, "little")[:width]
    queue.port.write(address, pattern * (count // width))


def _fence(queue: SdmaQueue, layout: Layout, words: _Words) -> None:
    address = layout.address(words, "addr_31_0", 4)
    if not queue.loses_completion():
        queue.port.write_word(address, 4, layout.get(words, "data"))


def _trap(queue: SdmaQueue, layout: Layout, words: _Words) -> None:
    queue.interrupt(layout.get(words, "int_context"), 28)


def _poll(queue: SdmaQueue, layout: Layout, words: _Words) -> bool:
    if layout.get(words, "hdp_flush"):
        queue.asic.vram.flush()
        return True
    if not layout.get(words, "mem_poll"):
        raise PacketError("POLL_REGMEM on a register: user queues poll memory")
    if layout.get(words, "retry_count") != _FOREVER:
        queue.sim.debug.violation(f"{queue}: POLL_REGMEM that gives up after some tries")
    function = layout.get(words, "func")
    if function not in COMPARE:
        raise PacketError("POLL_REGMEM with function 7")
    text, compare = COMPARE[function]
    address = layout.address(words, "addr_31_0", 4)
    reference, mask = layout.get(words, "value"), layout.get(words, "mask")

    def met() -> bool:
        return compare(queue.port.read_word(address, 4) & mask, reference)

    if met():
        return True
    queue.blocked = Blocked(f"POLL_REGMEM of {address:#x} & {mask:#x} {text} {reference:#x}", met)
    return False


def _timestamp(queue: SdmaQueue, layout: Layout, words: _Words) -> None:
    address = layout.address(words, "write_addr_31_3", 8)
    queue.port.write_word(address, 8, queue.sim.clock.gpu_ticks)


def _atomic(queue: SdmaQueue, layout: Layout, words: _Words) -> None:
    if layout.get(words, "loop"):
        raise PacketError("ATOMIC with loop is not modelled")
    atomic = find_atomic(layout.get(words, "atomic_op"))
    address = layout.address(words, "addr_31_0", atomic.width)
    source = words[layout.fields["src_data_31_0"][0] + 1] << 32 | layout.get(words, "src_data_31_0")
    compare = words[layout.fields["cmp_data_31_0"][0] + 1] << 32 | layout.get(
        words, "cmp_data_31_0"
    )
    atomic.apply(queue.port, address, source, compare)


def _gcr(queue: SdmaQueue, layout: Layout, words: _Words) -> None:
    high = layout.get(words, "gcr_control_18_16")
    queue.asic.caches.control(gcr_control(high << 16 | layout.get(words, "gcr_control_15_0")))


# (operation, sub-operation) -> packet, among those that user queues may have
_NAMES: Final = {
    (0, 0): "NOP",
    (1, 0): "COPY_LINEAR",
    (2, 0): "WRITE_UNTILED",
    (4, 0): "INDIRECT",
    (5, 0): "FENCE",
    (6, 0): "TRAP",
    (8, 0): "POLL_REGMEM",
    (10, 0): "ATOMIC",
    (11, 0): "CONSTANT_FILL",
    (13, 2): "TIMESTAMP_GET_GLOBAL",
    (17, 0): "GCR_REQ",
}
_HANDLERS: Final[Mapping[str, Callable[[SdmaQueue, Layout, _Words], bool | None]]] = {
    "COPY_LINEAR": _copy_linear,
    "COPY_BROADCAST_LINEAR": _copy_linear,
    "WRITE_UNTILED": _write,
    "FENCE": _fence,
    "TRAP": _trap,
    "POLL_REGMEM": _poll,
    "ATOMIC": _atomic,
    "CONSTANT_FILL": _const_fill,
    "TIMESTAMP_GET_GLOBAL": _timestamp,
    "GCR_REQ": _gcr,
}
