"""The front end of a channel: ring entries, method headers, host methods.

Layouts are those of clc56f.h, clc86f.h and clca6f.h; what they do is in manuals/ampere/ga100/
dev_pbdma.ref.txt of NVIDIA/open-gpu-doc. The semaphore operations that clc86f.h leaves out are
assumed to be kept from Ampere.
"""

from __future__ import annotations

from typing import Final

from gpu.core.bits import bits
from gpu.sim.nv.chip.errors import class_error, pbdma
from gpu.sim.nv.chip.host import Engine, Host

_INC: Final = 1
_NON_INC: Final = 3
_IMMEDIATE: Final = 4
_ONE_INC: Final = 5
_END_SEGMENT: Final = 7

_SET_OBJECT: Final = 0x0
_NOP: Final = 0x8
_NON_STALL_INTERRUPT: Final = 0x20
_MEM_OP_A: Final = 0x28
_MEM_OP_D: Final = 0x34
_SET_REFERENCE: Final = 0x50
_SEM_ADDRESS: Final = 0x60, 0x5C
_SEM_PAYLOAD: Final = 0x68, 0x64
_SEM_EXECUTE: Final = 0x6C
_WFI: Final = 0x78
_YIELD: Final = 0x80
_STORED: Final = (_MEM_OP_A, 0x2C, 0x30, _SET_REFERENCE, *_SEM_ADDRESS, *_SEM_PAYLOAD, _NOP, _YIELD)

_ACQUIRE, _RELEASE, _STRICT_GEQ, _CIRC_GEQ, _AND, _NOR = range(6)
_SEM_BITS: Final = 0x7 | 1 << 12 | 1 << 20 | 1 << 24 | 1 << 25 | 0xF << 27 | 1 << 31
_OP_TLB_INVALIDATE: Final = (0x9, 0xA)
_MEM_OPS: Final = (0x5, 0xD, 0xE, 0xF, 0x10, 0x15)  # barriers and L2 maintenance
_ADDRESS_LIMIT: Final = 1 << 57


class Pbdma:
    """Fetches and decodes what one channel was given.

    Attributes:
        subchannels: engines by subchannel, after SET_OBJECT.
        segment: the pushbuffer at hand, None between entries.
    """

    def __init__(self, channel: Host):
        self.channel = channel
        self.port = channel.port.as_agent("host")
        self.subchannels: dict[int, Engine] = {}
        self._counts = channel.gpu.counts
        self.segment: list[int] | None = None
        self._at = 0
        self._base = 0
        self._extended = 0
        self._host: dict[int, int] = {}
        self._header: tuple[int, int, int, int] | None = None  # opcode, subchannel, address, left

    def entry(self, value: int) -> None:
        """Takes one ring entry. Raises ChannelError, PageFault."""
        self._counts.packets += 1
        low, high = value & 0xFFFF_FFFF, value >> 32
        length = bits(high, 30, 10)
        if not length:
            self._control(low, bits(high, 7, 0))
            return
        if low & 1:
            raise pbdma(f"ring entry {value:#018x}: conditional fetches are not modelled")
        if low & 2 or high >> 8 & 1:
            raise pbdma(f"ring entry {value:#018x} has reserved bits set")
        address = self._extended << 40 | (high & 0xFF) << 32 | low & ~3
        self.segment = self.port.words(address, length)
        self._base, self._at = address, 0

    def _control(self, operand: int, opcode: int) -> None:
        if opcode == 4 and self.channel.number >= 0xC86F:
            self._extended = bits(operand, 24, 8)
        elif opcode in (1, 4) or opcode > 4:
            raise pbdma(f"ring entry of length 0 with opcode {opcode}")

    def step(self) -> None:
        """One method, or one header. Raises ChannelError, PageFault, KernelFault."""
        assert self.segment is not None
        word = self.segment[self._at]
        self._at += 1
        if self._header:
            self._data(word)
        else:
            self._parse(word)
        if self.segment is not None and self._at == len(self.segment):
            self.segment = None  # data of a method may go on in the next one

    def _parse(self, word: int) -> None:
        if not word:  # a group-0 header without data
            return
        opcode, count = bits(word, 31, 29), bits(word, 28, 16)
        subchannel, address = bits(word, 15, 13), bits(word, 11, 0) << 2
        if word >> 12 & 1 and opcode != _END_SEGMENT:
            raise pbdma(f"method header {word:#010x} has bit 12 set")
        if opcode == _IMMEDIATE:
            self._method(subchannel, address, count)
        elif opcode in (_INC, _NON_INC, _ONE_INC):
            self._header = (opcode, subchannel, address, count) if count else None
        elif opcode == _END_SEGMENT:
            self.segment = None
        else:
            where = self._base + 4 * self._at - 4
            raise pbdma(f"method header {word:#010x} at {where:#x} has the opcode {opcode}")

    def _data(self, value: int) -> None:
        assert self._header
        opcode, subchannel, address, left = self._header
        following = address + 4 if opcode in (_INC, _ONE_INC) else address
        again = _NON_INC if opcode == _ONE_INC else opcode
        self._header = (again, subchannel, following, left - 1) if left > 1 else None
        self._method(subchannel, address, value)

    def _method(self, subchannel: int, address: int, value: int) -> None:
        self._counts.packets += 1
        if address == _SET_OBJECT:
            self.subchannels[subchannel] = self.channel.engine_for(subchannel, value)
        elif address < 0x100:
            self._host_method(address, value)
        elif subchannel not in self.subchannels:
            raise class_error(f"method {address:#x} on subchannel {subchannel} before SET_OBJECT")
        else:
            self.subchannels[subchannel].method(address, value)

    def _host_method(self, address: int, value: int) -> None:
        if address in _STORED:
            self._host[address] = value
        elif address == _SEM_EXECUTE:
            self._semaphore(value)
        elif address == _NON_STALL_INTERRUPT:
            self.channel.interrupt()
        elif address == _WFI:
            self.channel.wait_idle(f"{self.channel}: WFI")
        elif address == _MEM_OP_D:
            self._memory_operation(bits(value, 31, 27))
        else:
            raise pbdma(f"host method {address:#x} (data {value:#x})")

    def _memory_operation(self, operation: int) -> None:
        if operation in _OP_TLB_INVALIDATE:
            self.channel.port.space.flush_tlb()
        elif operation not in _MEM_OPS:
            raise pbdma(f"MEM_OP_D operation {operation:#x}")

    def _semaphore(self, value: int) -> None:
        operation = value & 7
        if value & ~_SEM_BITS or operation > _NOR:
            raise pbdma(f"SEM_EXECUTE {value:#x} is not modelled")
        width = 8 if value >> 24 & 1 else 4
        stamped = operation == _RELEASE and value >> 25 & 1
        address = self._pair(_SEM_ADDRESS)
        unit = 16 if stamped else width
        if address % unit or address >= _ADDRESS_LIMIT:
            raise pbdma(f"a semaphore at {address:#x}, no multiple of {unit}")
        payload = self._pair(_SEM_PAYLOAD) & ((1 << 8 * width) - 1)
        if operation == _RELEASE:
            self._release(address, payload, width, bool(stamped), bool(value >> 20 & 1))
        else:
            self.channel.wait(
                f"{self.channel} waits at a semaphore: {width} bytes at {address:#x}, operation"
                f" {operation} with {payload:#x}",
                lambda: _met(operation, self.port.read_word(address, width), payload, width),
            )

    def _release(self, address: int, payload: int, width: int, stamped: bool, idle: bool) -> None:
        def act() -> None:
            self.port.space.translate(address, True)
            if self.channel.loses_completion():
                return
            if stamped:
                self.port.write_word(address + 8, 8, self.channel.gpu.clock.now_ns)
            self.port.write_word(address, width, payload)

        if idle:
            self.channel.wait_idle(f"{self.channel}: a release with RELEASE_WFI", act)
        else:
            act()

    def _pair(self, methods: tuple[int, int]) -> int:
        high, low = (self._host.get(method, 0) for method in methods)
        return high << 32 | low


def _met(operation: int, value: int, payload: int, width: int) -> bool:
    """Whether an acquire goes on."""
    if operation == _ACQUIRE:
        return value == payload
    if operation == _STRICT_GEQ:
        return value >= payload
    if operation == _CIRC_GEQ:
        return not (value - payload) >> (8 * width - 1) & 1
    if operation == _AND:
        return value & payload != 0
    return ~(value | payload) & ((1 << 8 * width) - 1) != 0  # ACQ_NOR
