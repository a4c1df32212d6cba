"""The copy class: linear and pitched copies, fills by remapping, semaphores.

Methods and fields are those of clc7b5.h, clc8b5.h and clcab5.h (NVIDIA/open-gpu-doc), which agree
in all that is used here.
"""

from __future__ import annotations

from typing import Final

from gpu.core.bits import align_down, align_up, bits
from gpu.sim.nv.chip.copyunits import P2P, SYSMEM
from gpu.sim.nv.chip.errors import COPY_ERRORS, ChannelError, class_error
from gpu.sim.nv.chip.host import Host
from gpu.sim.nv.chip.method_tables import expand
from gpu.sim.physical import Extent

_SEMAPHORE: Final = 0x240, 0x244
_PAYLOAD: Final = 0x24C, 0x248  # upper, lower
_LAUNCH: Final = 0x300
_OFFSET_IN: Final = 0x400, 0x404
_OFFSET_OUT: Final = 0x408, 0x40C
_PITCH_IN: Final = 0x410
_PITCH_OUT: Final = 0x414
_LENGTH: Final = 0x418
_COUNT: Final = 0x41C
_REMAP_CONSTANTS: Final = 0x700, 0x704
_REMAP: Final = 0x708
_VIRTUAL_LIMIT: Final = 1 << 49
_CHUNK: Final = 4 << 20
_PAGE: Final = 4096
_CONST_A: Final = 4  # sources of SET_REMAP_COMPONENTS from here on
_NO_WRITE: Final = 6


class CopyEngine:
    """The copy class on one channel.

    Attributes:
        registers: methods as last written, by address.
        number: which logical engine it is.
    """

    def __init__(self, channel: Host, number: int):
        self.channel = channel
        self.gpu = channel.gpu
        self.port = channel.port.as_agent("copy")
        self.registers: dict[int, int] = {}
        self.number = number
        self._known = expand(self.gpu.chip.copy_methods)
        unit = self.gpu.chip.copy_engine(number)
        assert unit is not None, "objects are of engines that are there"
        self._caps = unit.caps

    def method(self, address: int, value: int) -> None:
        """One method. Raises ChannelError, PageFault."""
        if address not in self._known:
            raise class_error(
                f"class {self.gpu.chip.copy:#x} has no method {address:#x} (data {value:#x})"
            )
        self.registers[address] = value
        if address == _LAUNCH:
            self._launch(value)

    def _error(self, what: str) -> ChannelError:
        return ChannelError(COPY_ERRORS[self.number], f"copy engine {self.number}: {what}")

    def _launch(self, value: int) -> None:
        if not {_REMAP} <= self.registers.keys() and value >> 10 & 1:
            raise self._error("REMAP_ENABLE before SET_REMAP_COMPONENTS")
        transfer = bits(value, 1, 0)
        if transfer == 3:
            raise self._error("DATA_TRANSFER_TYPE 3")
        if bits(value, 13, 12):
            raise self._error("physical addresses on a channel that is not privileged")
        if value >> 19 & 1 or bits(value, 23, 20) or bits(value, 31, 28) or value >> 24 & 1:
            raise self._error(f"LAUNCH_DMA {value:#x} uses what the model does not know")
        if transfer:
            self._transfer(value)
        if bits(value, 4, 3):
            self._semaphore(value)
        if bits(value, 6, 5):
            self.channel.interrupt()

    def _pair(self, methods: tuple[int, int]) -> int:
        missing = [method for method in methods if method not in self.registers]
        if missing:
            raise self._error(f"a launch before method {missing[0]:#x} was ever written")
        high, low = (self.registers[method] for method in methods)
        address = high << 32 | low
        if address >= _VIRTUAL_LIMIT:
            raise self._error(f"address {address:#x} has more than 49 bits")
        return address

    def _transfer(self, value: int) -> None:
        if bits(value, 8, 7) != 3:
            raise self._error("block-linear layouts are not modelled: set both *_LAYOUT to PITCH")
        target, source = self._pair(_OFFSET_OUT), 0
        if not value >> 10 & 1 or min(self._components()) < _CONST_A:
            source = self._pair(_OFFSET_IN)
        length = self.registers.get(_LENGTH, 0)
        lines = self.registers.get(_COUNT, 0) if value >> 9 & 1 else 1
        if not length or not lines:
            raise self._error(f"a copy of {lines} lines of {length:#x}")
        pitch_in = self.registers.get(_PITCH_IN, 0)
        pitch_out = self.registers.get(_PITCH_OUT, 0)
        for _ in range(lines):
            if value >> 10 & 1:
                self._remapped_line(source, target, length)
            else:
                self._line(source, target, length)
            source, target = source + pitch_in, target + pitch_out

    def _line(self, source: int, target: int, size: int) -> None:
        # All of both must be mapped before a byte is written: an engine checks as it goes, but
        # which bytes it wrote before a fault is not to be relied upon.
        self._reach(source, size, write=False)
        self._reach(target, size, write=True)
        for done in range(0, size, _CHUNK):
            count = min(_CHUNK, size - done)
            self.port.write(target + done, self.port.read(source + done, count))

    def _reach(self, address: int, size: int, write: bool) -> None:
        """All of a range must be mapped, and be memory that this engine has a way to.

        What silicon does on an engine without that way is not documented; here it is an error.
        """
        for mapping, _, _ in self.port.space.spans(address, size, write=write):
            if not mapping.region.local:
                needed, what = SYSMEM, "system memory"
            elif mapping.region is not self.gpu.vram:
                needed, what = P2P, "memory of another GPU"
            else:
                continue
            if not self._caps & needed:
                raise self._error(f"{what} at {address:#x}, which its capabilities lack")

    def _remapped_line(self, source: int, target: int, elements: int) -> None:
        """Elements of components that come from the source, or from two constants: a fill."""
        remap, chosen = self.registers.get(_REMAP, 0), self._components()
        width, targets = bits(remap, 17, 16) + 1, len(chosen)
        sources = bits(remap, 21, 20) + 1
        if _NO_WRITE in chosen or max(chosen) > _NO_WRITE:
            raise self._error(f"remap components {chosen}: NO_WRITE is not modelled")
        constants = [self.registers.get(method, 0) for method in _REMAP_CONSTANTS]
        self._reach(target, elements * targets * width, write=True)
        if min(chosen) >= _CONST_A:
            parts = [constants[which - _CONST_A].to_bytes(4, "little")[:width] for which in chosen]
            self._fill(target, b"".join(parts), elements)
            return
        self._reach(source, elements * sources * width, write=False)
        data = self.port.read(source, elements * sources * width)
        out = bytearray()
        for at in range(0, len(data), sources * width):
            for which in chosen:
                if which >= _CONST_A:
                    out += constants[which - _CONST_A].to_bytes(4, "little")[:width]
                elif which >= sources:
                    raise self._error(f"remap takes component {which} of {sources}")
                else:
                    out += data[at + which * width : at + (which + 1) * width]
        self.port.write(target, out)

    def _components(self) -> list[int]:
        """What each component of an element is taken from."""
        remap = self.registers.get(_REMAP, 0)
        return [bits(remap, 4 * i + 2, 4 * i) for i in range(bits(remap, 25, 24) + 1)]

    def _fill(self, target: int, pattern: bytes, elements: int) -> None:
        """Whole pages of zeros on the card cost no memory of the model's."""
        most = max(_CHUNK // len(pattern), 1)
        at, end = target, target + len(pattern) * elements
        if not any(pattern):
            for mapping, offset, size in self.port.space.spans(target, end - target, write=True):
                start, stop = align_up(offset, _PAGE), align_down(offset + size, _PAGE)
                if mapping.region is not self.gpu.vram or stop <= start:
                    continue
                self.gpu.vram.forget((Extent(start, stop - start),))
                first = mapping.start + start - mapping.offset
                self.port.write(at, bytes(first - at))
                at = first + stop - start
        while at < end:
            count = min(most, (end - at) // len(pattern))
            self.port.write(at, pattern * count)
            at += count * len(pattern)

    def _semaphore(self, value: int) -> None:
        kind = bits(value, 4, 3)
        wide = value >> 27 & 1
        if kind == 3:
            raise self._error("conditional semaphores are not modelled")
        address = self._pair(_SEMAPHORE)
        unit = 16 if kind == 2 else 8 if wide else 4
        if address % unit:
            raise self._error(f"a semaphore at {address:#x}, no multiple of {unit}")
        payload = self.registers.get(_PAYLOAD[1], 0)
        if wide:
            payload |= self.registers.get(_PAYLOAD[0], 0) << 32
        self._reach(address, 16 if kind == 2 else 8 if wide else 4, write=True)
        if self.channel.loses_completion():
            return
        if kind == 2:
            self.port.write_word(address + 8, 8, self.gpu.clock.now_ns)
        self.port.write_word(address, 8 if wide else 4, payload)
