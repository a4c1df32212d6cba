"""A small driver for tests of the bridge's model: the protocol's requests, and no more."""

from __future__ import annotations

import struct
from typing import Any

from gpu.core.usb import UsbId
from gpu.core.window import TrappedWindow, Window
from gpu.sim.amd.pci.nbio import HOLE
from gpu.sim.usb.world import UsbWorld
from gpu.transport.usb import UsbDevice
from sim.amd_pci.client import Client

IN, OUT = 0xC0, 0x40
BULK_IN, BULK_OUT = 0x81, 0x02
CONFIG_READ, CONFIG_WRITE, MEMORY_READ, MEMORY_WRITE = 0x04, 0x44, 0x20, 0x60
SINGLE, STREAM_WRITE, STREAM_READ = 0, 1, 2
LTSSM, L0 = 0xB450, 0x78
SRAM_AT, COMPLETION_AT = 0x200000, 0x82200C
SECTOR, SLOT = 512, 16 << 10
GPU_BUS = 4
PORTS = 4
MEMORY_BASE, PREFETCHABLE_BASE = 0x10000000, 1 << 35
VRAM_BAR, DOORBELL_BAR, REGISTER_BAR = 0, 2, 5
UNSUPPORTED, RETRY = 1, 2


class TlpError(Exception):
    """A request failed: completion status, and what the firmware says."""

    def __init__(self, status: int, returned: int):
        super().__init__(f"status {status}, returned {returned:#x}")
        self.status, self.returned = status, returned


class Bridge:
    """A machine with one bridge, which is open; keywords are those of `UsbWorld`."""

    def __init__(self, chip: str = "gfx1100", **knobs: Any):
        self.world = UsbWorld(knobs.pop("seed", 0), chip, **knobs)
        self.card = self.world.gpus[0]
        self.model = self.world.bridges[0]
        self.bars: dict[int, tuple[int, int]] = {}
        self.open()

    def open(self) -> UsbDevice:
        (found,) = self.world.usb.list_devices()
        assert isinstance(found, UsbId)
        self.device: UsbDevice = self.world.usb.open(found)
        self.device.claim(0)
        return self.device

    def close(self) -> None:
        self.device.close()
        self.world.close()

    @property
    def violations(self) -> list[str]:
        return self.world.debug.violations

    def told(self, *rules: str) -> bool:
        """Whether these rules were broken since the last call, in this order, and no others."""
        assert [text.split(": ")[1] for text in self.violations] == list(rules), self.violations
        self.world.debug.records.clear()
        return True

    @property
    def now_ns(self) -> int:
        return self.world.waiter.now_ns()

    # Requests of the open firmware.

    def read(self, address: int, size: int = 1, bank: int = 0) -> bytes:
        return self.device.control_in(IN, 0xE4, address, bank << 8, size)

    def write(self, address: int, value: int, bank: int = 0) -> None:
        self.device.control_out(OUT, 0xE5, address, bank << 8 | value)

    def power(self, on: bool = True, timeout: int = 10_000) -> None:
        self.device.control_out(OUT, 0xF3, int(on), 0, timeout=timeout)

    def send(
        self, form: int, address: int, value: int = 0, enables: int = 0xF, mode: int = 0
    ) -> None:
        header = struct.pack("<III", address & 0xFFFFFFFF, address >> 32, value)
        self.device.control_out(OUT, 0xF0, form | enables << 8, mode, header)

    def completion(self) -> bytes:
        return self.device.control_in(IN, 0xF0, 0, 0, 8)

    def ask(self, form: int, address: int, value: int = 0, enables: int = 0xF) -> int:
        """A request that has a completion. Raises TlpError."""
        self.send(form, address, value, enables)
        answer = self.completion()
        if answer[7] or answer[4] >> 5:
            raise TlpError(answer[4] >> 5, answer[7])
        return int.from_bytes(answer[:4], "little")

    def arm(
        self, size: int, slot: int = 0, to_host: bool = False, slots: int | None = None
    ) -> None:
        count = -(-size // SLOT) if slots is None else slots
        sectors = size // SECTOR | to_host << 15
        self.device.control_out(OUT, 0xF2, sectors, slot | count << 8)

    # Config space.

    def config(self, bus: int, offset: int, value: int | None = None, width: int = 4) -> int:
        """A config request of function 0 on a bus."""
        return self.function_config(bus, 0, offset, value, width)

    def function_config(
        self, bus: int, function: int, offset: int, value: int | None = None, width: int = 4
    ) -> int:
        lane = offset & 3
        form = (CONFIG_READ if value is None else CONFIG_WRITE) | (bus > 0)
        address = bus << 24 | function << 16 | offset & ~3
        enables = (1 << width) - 1 << lane
        found = self.ask(form, address, (value or 0) << 8 * lane, enables)
        return found >> 8 * lane & (1 << 8 * width) - 1

    def start(self, resize: bool = True) -> None:
        """From power-on to a card that decodes its BARs and is bus master."""
        self.power()
        assert self.read(LTSSM) == bytes((L0,))
        for bus in range(PORTS):
            self.config(bus, 0x18, bus | bus + 1 << 8 | GPU_BUS << 16)
            self.config(bus, 0x20, MEMORY_BASE >> 16 | 0x1FF0 << 16)
            self.config(bus, 0x24, 0 | 0xFFF0 << 16)
            self.config(bus, 0x28, PREFETCHABLE_BASE >> 32)
            self.config(bus, 0x2C, 0x1F)
            self.config(bus, 4, 7, 1)
        if resize:
            self.resize()
        self.place()
        self.config(GPU_BUS, 4, 6, 2)

    def resize(self) -> None:
        """BAR 0 gets the largest size that it can have."""
        sizes = self.config(GPU_BUS, 0x204) >> 4
        control = self.config(GPU_BUS, 0x208)
        most = sizes.bit_length() - 1
        self.config(GPU_BUS, 0x208, control & ~0x3F00 | most << 8)

    def place(self) -> None:
        """Sizes and addresses of all BARs."""
        free, at = {False: MEMORY_BASE, True: PREFETCHABLE_BASE}, 0
        while at < 6:
            register = 0x10 + 4 * at
            kind = self.config(GPU_BUS, register)
            width = 2 if kind & 4 else 1
            mask = 0
            for part in range(width):
                self.config(GPU_BUS, register + 4 * part, 0xFFFFFFFF)
                mask |= self.config(GPU_BUS, register + 4 * part) << 32 * part
            size = -(mask & ~0xF) & (1 << 32 * width) - 1
            if size:
                pool = bool(kind & 8)
                base = -(-free[pool] // size) * size
                self.bars[at], free[pool] = (base, size), base + size
                for part in range(width):
                    self.config(GPU_BUS, register + 4 * part, base >> 32 * part & 0xFFFFFFFF)
            at += width

    # Memory.

    def read_memory(self, address: int, size: int) -> bytes:
        self.send(MEMORY_READ, address, size // 4, mode=STREAM_READ)
        return self.device.bulk_in(BULK_IN, size, 30_000)

    def write_memory(self, address: int, data: bytes) -> None:
        self.send(MEMORY_WRITE, address, len(data) // 4, mode=STREAM_WRITE)
        self.device.bulk_out(BULK_OUT, data, 30_000)

    def dma(self, address: int, data: bytes) -> None:
        """What the card writes, as if one of its engines did."""
        self.card.chip.bus.store(address, data)

    def window(self, bar: int) -> Window:
        """A BAR, by single requests."""
        base, size = self.bars[bar]

        def read(offset: int, width: int) -> int:
            words = (
                self._word(base + offset + 4 * n, min(width, 4)) for n in range(-(-width // 4))
            )
            return sum(word << 32 * n for n, word in enumerate(words))

        def write(offset: int, width: int, value: int) -> None:
            if width == 8:
                self.write_memory(base + offset, value.to_bytes(8, "little"))
                return
            lane = offset & 3
            enables = (1 << width) - 1 << lane
            self.send(MEMORY_WRITE, base + offset - lane, value << 8 * lane, enables)

        return TrappedWindow(size, read, write)

    def _word(self, address: int, width: int) -> int:
        lane = address & 3
        word = self.ask(MEMORY_READ, address - lane, 0, (1 << width) - 1 << lane)
        return word >> 8 * lane & (1 << 8 * width) - 1


class Vram(TrappedWindow):
    """Video memory: words by single requests, whole pieces by streams."""

    def __init__(self, bridge: Bridge):
        inner = bridge.window(VRAM_BAR)
        super().__init__(inner.size, inner.read, inner.write)
        self._bridge, self._start = bridge, bridge.bars[VRAM_BAR][0]

    def load(self, offset: int, size: int) -> bytes:
        return self._bridge.read_memory(self._start + offset, size)

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._bridge.write_memory(
            self._start + offset, bytes(data).ljust(-(-len(data) // 4) * 4, b"\0")
        )


class UsbClient(Client):
    """The client of cards on PCI, with its windows behind a bridge."""

    def __init__(self, chip: str, **knobs: Any):
        self.bridge = Bridge(chip, **knobs)
        self.bridge.start()
        self.world: Any = self.bridge.world
        self.card = self.bridge.card
        self.known = self.card.chip.regs
        self.fence = self.wptr = self.next_table = 0
        self.registers: Any = self.bridge.window(REGISTER_BAR)
        self.vram: Any = Vram(self.bridge)
        self.doorbells: Any = self.bridge.window(DOORBELL_BAR)
        self.hole: Any = self.registers.sub(HOLE, 4096)

    def close(self) -> None:
        self.bridge.close()
