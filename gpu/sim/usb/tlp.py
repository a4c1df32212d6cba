"""The engine that sends one request at a time, by registers 0xB210 to 0xB296.

src/include/registers.h and handmade/src/{main.c,pcie_pio.h} of tinygrad/asm2464pd-firmware
c5e2090; cyrozap's usb-to-pcie-re, asm_tool.py (R), for the order with stock firmware: there the
kick comes after 0xB254, in the open firmware before it. A request goes out once both were written.
"""

from __future__ import annotations

from typing import Final

from gpu.core.window import MemoryWindow
from gpu.sim.usb.config import Refuse
from gpu.sim.usb.fabric import SUCCESS, Completion
from gpu.sim.usb.link import Link

FORMAT, LENGTH, ENABLES, ADDRESS, DATA = 0xB210, 0xB213, 0xB217, 0xB218, 0xB220
COMPLETION, GO, KIND, STATUS = 0xB22A, 0xB254, 0xB284, 0xB296
ERROR, COMPLETE, KICK = 1, 2, 4
_GO: Final = 0x0F
_WRITE, _WIDE = 0x40, 0x20
_MEMORY: Final = (0x00, 0x20, 0x40, 0x60)
_CONFIG: Final = (0x04, 0x05, 0x44, 0x45)
_DWORD: Final = 0xF
_FIRST, _LAST = FORMAT, COMPLETION + 1


class TlpEngine:
    """The engine.

    Attributes:
        status: what register 0xB296 reads of how the last request ended.
        expects: whether the last one that was sent has a completion.
    """

    def __init__(self, link: Link, refuse: Refuse):
        self._link = link
        self._refuse = refuse
        self._registers = bytearray(_LAST + 1 - _FIRST)
        self._registers[LENGTH - _FIRST] = 1  # dwords; both firmwares leave it so
        self.status = 0
        self.expects = False
        self._kind = 0
        self._is_kicked = self._is_set = False
        self._posted: list[tuple[int, int, int]] = []

    def holds(self, address: int) -> bool:
        """Whether it has a register."""
        return _FIRST <= address <= _LAST or address in (GO, KIND, STATUS)

    def read(self, address: int) -> int:
        """A register, a byte."""
        if address == STATUS:
            return self.status | KICK * self._is_set
        if address == KIND:
            return self._kind
        return _GO * self._is_set if address == GO else self._registers[address - _FIRST]

    def write(self, address: int, value: int) -> None:
        """Writes a register; the two that send do so once both were written."""
        if address == STATUS:
            self.status &= ~(value & (ERROR | COMPLETE))
            self._is_kicked |= bool(value & KICK)
        elif address == GO:
            self._is_set = value == _GO
        else:
            self._registers[address - _FIRST] = value
        if self._is_kicked and self._is_set:
            self._is_kicked = self._is_set = False
            self._send()

    def prepare(self, form: int, enables: int, address: int) -> None:
        """Sets the header of the next request."""
        registers = self._registers
        registers[0], registers[ENABLES - _FIRST] = form, enables
        low, high = (part.to_bytes(4, "big") for part in (address & 0xFFFFFFFF, address >> 32))
        registers[ADDRESS - _FIRST : DATA - _FIRST] = low + high

    @property
    def address(self) -> int:
        """The address that the next request has."""
        at = ADDRESS - _FIRST
        low, high = (
            int.from_bytes(self._registers[start : start + 4], "big") for start in (at, at + 4)
        )
        return high << 32 | low if self._registers[0] & _WIDE else low

    @property
    def data(self) -> int:
        """The dword that was read, or is to be written."""
        return int.from_bytes(self._registers[DATA - _FIRST : DATA + 4 - _FIRST], "big")

    @data.setter
    def data(self, value: int) -> None:
        self._registers[DATA - _FIRST : DATA + 4 - _FIRST] = value.to_bytes(4, "big")

    @property
    def completion(self) -> bytes:
        """Completion status and byte count, and whether it had data: 3 bytes."""
        at = COMPLETION - _FIRST
        return bytes((*self._registers[at : at + 2], self._kind))

    def drain(self) -> None:
        """Posted writes arrive."""
        posted, self._posted = self._posted, []
        for address, enables, value in posted:
            if not self._link.is_up:
                self._refuse("posted-lost", f"a write to {address:#x} found the link down")
            elif self._link.fabric.request_memory(address, enables, value).status:
                self._refuse("posted-unclaimed", f"a write to {address:#x}, which nobody claims")

    def read_stream(self, dwords: int) -> bytes | None:
        """Reads from the address on, which moves; None where the firmware never gets an answer.

        It looks at no completion status: what is not answered is the last word again.
        """
        self.drain()
        start, result = self.address, bytearray()
        while len(result) < 4 * dwords:
            if not self._link.is_up:
                if not self._fail_stream(f"a read at {start + len(result):#x}"):
                    return None
                result += self.data.to_bytes(4, "little")
                continue
            result += self._read_run(start + len(result), 4 * dwords - len(result))
            self.data = int.from_bytes(result[-4:], "little")
        self._move(start + len(result))
        return bytes(result)

    def write_stream(self, data: memoryview) -> None:
        """Writes to the address on, which moves; nobody looks whether it arrives."""
        self.drain()
        start, done = self.address, 0
        while done < len(data):
            at = start + done
            if not self._link.is_up:
                self._refuse("stream-dead-link", f"a write at {at:#x} while the link is down")
                break
            place = self._link.fabric.find(at)
            if place is None:
                self._refuse("stream-unclaimed", f"a write at {at:#x}, which nobody claims")
                done += 4
            elif isinstance(place.window, MemoryWindow):
                size = min(place.left, len(data) - done)
                place.window.store(place.offset, data[done : done + size])
                done += size
            else:
                value = int.from_bytes(data[done : done + 4], "little")
                place.window.write(place.offset, 4, value)
                done += 4
        self._move(start + len(data))

    def _read_run(self, address: int, size: int) -> bytes:
        place = self._link.fabric.find(address)
        if place is None:
            self._refuse("stream-unclaimed", f"a read at {address:#x}, which nobody claims")
            return self.data.to_bytes(4, "little")
        if isinstance(place.window, MemoryWindow):
            return place.window.load(place.offset, min(size, place.left))
        return place.window.read(place.offset, 4).to_bytes(4, "little")

    def _fail_stream(self, what: str) -> bool:
        """A read that has no answer; whether the engine at least says so."""
        self._refuse("stream-dead-link", f"{what} while the link is down")
        return self._link.dead == "stale"

    def _move(self, address: int) -> None:
        self.prepare(self._registers[0], self._registers[ENABLES - _FIRST], address)

    def _send(self) -> None:
        form, enables, address = self._registers[0], self._registers[ENABLES - _FIRST], self.address
        what = f"request {form:#x} of {address:#x}, bytes {enables:#x}"
        if self.status & ERROR:
            self._refuse("error-kept", f"{what}: the last error was not cleared")
        self.status = 0
        self.expects = form in _CONFIG or (form in _MEMORY and not form & _WRITE)
        if form not in _MEMORY + _CONFIG:
            self._refuse("tlp-type", what)
        elif self._registers[LENGTH - _FIRST] != 1:
            self._refuse("tlp-length", f"{what}: {self._registers[LENGTH - _FIRST]} dwords")
        elif enables > _DWORD:
            self._refuse("last-enables", f"{what}: of one dword")
        elif form in _MEMORY and address % 4:
            self._refuse("tlp-alignment", what)
        elif form in _MEMORY and form & _WRITE:
            self._posted.append((address, enables, self.data))
        elif not self._link.is_up:
            self._refuse("dead-link", f"{what} while the link is down ({self._link.state:#x})")
            self.status = ERROR * (self._link.dead == "stale")
        else:
            self.drain()
            self._complete(form, enables, address)

    def _complete(self, form: int, enables: int, address: int) -> None:
        fabric, value = self._link.fabric, self.data if form & _WRITE else None
        if form in _CONFIG:
            done, count = fabric.request_config(bool(form & 1), address, enables, value), 4
        else:
            done, count = fabric.request_memory(address, enables, None), _span(enables)
        has_data = done.status == SUCCESS and value is None
        self._finish(done, count, has_data)

    def _finish(self, done: Completion, count: int, has_data: bool) -> None:
        if has_data:
            self.data = done.value
        head = done.status << 13 | count
        self._registers[COMPLETION - _FIRST : COMPLETION + 2 - _FIRST] = head.to_bytes(2, "big")
        self._kind = int(has_data)
        self.status = COMPLETE


def _span(enables: int) -> int:
    """Bytes from the first that is enabled to the last; 1 where none is (2.2.8.2 of the base)."""
    return max(enables.bit_length() - ((enables & -enables).bit_length() or 1) + 1, 1)
