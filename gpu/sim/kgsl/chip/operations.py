"""What the packets of type 7 do that users may send. Names, fields and sizes: adreno_pm4.xml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from gpu.autogen.adreno_a6xx import ENUMERATIONS
from gpu.core.bits import bits
from gpu.sim.executor import Size3
from gpu.sim.kgsl.chip.errors import CpError
from gpu.sim.kgsl.chip.processor import Buffer, Handler, Processor

_EVENTS: Final = {number: name for name, number in ENUMERATIONS["vgt_event_type"].items()}
_FLUSHES: Final = ("CACHE_FLUSH_TS",)
_TIMED: Final = (
    *("CACHE_FLUSH_TS", "RB_DONE_TS", "WT_DONE_TS", "PC_CCU_RESOLVE_TS"),
    *("PC_CCU_FLUSH_DEPTH_TS", "PC_CCU_FLUSH_COLOR_TS"),
)
_WITHOUT_EFFECT: Final = (
    *("PC_CCU_INVALIDATE_DEPTH", "PC_CCU_INVALIDATE_COLOR", "LABEL"),
    *("START_COMPUTE_CTRS", "STOP_COMPUTE_CTRS"),
)
_TIMESTAMP: Final = 1 << 30
_COMPUTE: Final = 8
_FUNCTIONS: Final[tuple[Callable[[int, int], bool], ...]] = (
    lambda value, ref: True,
    lambda value, ref: value < ref,
    lambda value, ref: value <= ref,
    lambda value, ref: value == ref,
    lambda value, ref: value != ref,
    lambda value, ref: value >= ref,
    lambda value, ref: value > ref,
)
_POLL_REGISTER: Final = ENUMERATIONS["poll_memory_type"]["POLL_REGISTER"]
_POLL_MEMORY: Final = ENUMERATIONS["poll_memory_type"]["POLL_MEMORY"]


def _nop(cp: Processor, body: Sequence[int]) -> None:
    pass


def _address(cp: Processor, what: str, low: int, high: int, align: int = 4) -> int:
    address = low | high << 32
    if address % align:
        raise CpError(f"{what} at {address:#x}, which is no multiple of {align}")
    return address


def _indirect_buffer(cp: Processor, body: Sequence[int]) -> None:
    cp.call(Buffer(body[0] | body[1] << 32, body[2] & 0xFFFFF))


def _chain(cp: Processor, body: Sequence[int]) -> None:
    cp.chain(Buffer(body[0] | body[1] << 32, body[2] & 0xFFFFF))


def _wait_for_idle(cp: Processor, body: Sequence[int]) -> None:
    cp.wait("CP_WAIT_FOR_IDLE", lambda: cp.pipe.is_idle)


def _wait_mem_writes(cp: Processor, body: Sequence[int]) -> None:
    cp.posted.clear()


def _wait_for_me(cp: Processor, body: Sequence[int]) -> None:
    cp.unseen = False


def _set_marker(cp: Processor, body: Sequence[int]) -> None:
    """The mode of what follows; bit 8 would be the kernel's IFPC switch (a6xx_ringbuffer)."""
    if body[0] & ~0xF:
        cp.violation(f"CP_SET_MARKER {body[0]:#x}: only the mode in its low 4 bits is for users")
    if body[0] & 0xF != _COMPUTE:
        cp.violation(f"CP_SET_MARKER {body[0]:#x}: compute runs in RM6_COMPUTE, {_COMPUTE}")


def _mem_write(cp: Processor, body: Sequence[int]) -> None:
    if len(body) < 3:
        raise CpError(f"CP_MEM_WRITE of {len(body)} dwords; it has an address and data")
    address = _address(cp, "CP_MEM_WRITE", body[0], body[1])
    for i, value in enumerate(body[2:]):
        cp.port.write_word(address + 4 * i, 4, value)
    cp.wrote(address, 4 * (len(body) - 2))


def _reg_to_mem(cp: Processor, body: Sequence[int]) -> None:
    head, low, high = body
    register, count = bits(head, 17, 0), bits(head, 29, 18)
    if head >> 31:
        raise CpError("CP_REG_TO_MEM with ACCUMULATE is not modelled")
    words = max(count, 2 if head & _TIMESTAMP else 1)  # bit 30: pairs of registers
    address = _address(cp, "CP_REG_TO_MEM", low, high)
    data = b"".join(cp.registers.read(register + i).to_bytes(4, "little") for i in range(words))
    cp.port.write(address, data)
    cp.wrote(address, 4 * words)


def _mem_to_mem(cp: Processor, body: Sequence[int]) -> None:
    """Adds one to three words, each negated or not."""
    head = body[0]
    width = 8 if bits(head, 29, 29) else 4
    if bits(head, 30, 30):
        cp.posted.clear()
    addresses = [
        _address(cp, "CP_MEM_TO_MEM", body[i], body[i + 1]) for i in range(1, len(body), 2)
    ]
    total = 0
    for i, source in enumerate(addresses[1:]):
        cp.check_posted(source, width)
        value = int.from_bytes(cp.port.read(source, width), "little")
        total += -value if head >> i & 1 else value
    cp.port.write(addresses[0], (total & (1 << 8 * width) - 1).to_bytes(width, "little"))
    cp.wrote(addresses[0], width)


def _memcpy(cp: Processor, body: Sequence[int]) -> None:
    count, *rest = body
    source = _address(cp, "CP_MEMCPY", rest[0], rest[1])
    target = _address(cp, "CP_MEMCPY", rest[2], rest[3])
    cp.check_posted(source, 4 * count)
    cp.port.write(target, cp.port.read(source, 4 * count))
    cp.wrote(target, 4 * count)


def _wait_reg_mem(cp: Processor, body: Sequence[int]) -> None:
    head, low, high, ref, mask, _ = body
    function, poll = bits(head, 2, 0), bits(head, 5, 4)
    if function >= len(_FUNCTIONS):
        raise CpError(f"CP_WAIT_REG_MEM with function {function}; there are 0 to 6")
    if head & ~0x37:
        raise CpError(f"CP_WAIT_REG_MEM {head:#x}: only function and place are modelled")
    if poll == _POLL_MEMORY:
        address = _address(cp, "CP_WAIT_REG_MEM", low, high)
        place, read = f"{address:#x}", partial(cp.port.read_word, address, 4)
        cp.forget_posted(address, 4)
    elif poll == _POLL_REGISTER:
        place, read = f"register {low:#x}", partial(cp.registers.read, low)
    else:
        raise CpError(f"CP_WAIT_REG_MEM polls place {poll}; there are registers and memory")
    met = _FUNCTIONS[function]
    cp.wait(
        f"CP_WAIT_REG_MEM until {place} & {mask:#x} meets function {function} with {ref:#x}",
        lambda: met(read() & mask, ref & mask),
    )


def _wait_mem_gte(cp: Processor, body: Sequence[int]) -> None:
    address = _address(cp, "CP_WAIT_MEM_GTE", body[1], body[2])
    cp.forget_posted(address, 4)
    cp.wait(
        f"CP_WAIT_MEM_GTE until {address:#x} is at least {body[3]:#x}",
        lambda: cp.port.read_word(address, 4) >= body[3],
    )


def _event_write(cp: Processor, body: Sequence[int]) -> None:
    name = _EVENTS.get(body[0] & 0xFF, f"event {body[0] & 0xFF}")
    if body[0] >> 31:
        cp.violation(f"CP_EVENT_WRITE of {name} with IRQ: interrupts are the kernel's")
    if name == "CACHE_INVALIDATE":
        cp.gpu.caches.invalidate()
    elif name in _TIMED:
        if len(body) == 1:
            cp.violation(f"CP_EVENT_WRITE of {name} has no address for the value it writes")
        cp.after(partial(_timed_event, cp, name, body))
        cp.unseen = True
    elif name not in _WITHOUT_EFFECT:
        raise CpError(f"CP_EVENT_WRITE of {name} is not modelled")


def _timed_event(cp: Processor, name: str, body: Sequence[int]) -> None:
    """An end of all before it: flushes, and writes a value, or the time where bit 30 says so."""
    if name in _FLUSHES:
        cp.gpu.caches.flush()
    if len(body) == 1:
        return
    address = _address(cp, f"CP_EVENT_WRITE of {name}", body[1], body[2])
    if cp.gpu.sim.faults.due("stuck-fence"):
        cp.gpu.sim.debug.note(f"the value of {name} at {address:#x} was lost")
    elif body[0] & _TIMESTAMP:
        cp.port.write_word(address, 8, cp.registers.ticks)
    else:
        cp.port.write_word(address, 4, body[3])


def _exec_cs(cp: Processor, body: Sequence[int]) -> None:
    cp.dispatch(Size3(*body[1:4]))


def _exec_cs_indirect(cp: Processor, body: Sequence[int]) -> None:
    """The number of workgroups is in memory, the size of one in the packet."""
    address = _address(cp, "CP_EXEC_CS_INDIRECT", body[1], body[2])
    if cp.unseen:
        cp.violation(
            "CP_EXEC_CS_INDIRECT after writes: CP_WAIT_FOR_ME comes before the sizes are read"
        )
    cp.check_posted(address, 12)
    if body[3] & ~3 != cp.registers.value("HLSQ_CS_NDRANGE_0") & ~3:
        cp.violation("CP_EXEC_CS_INDIRECT and HLSQ_CS_NDRANGE_0 give workgroups different sizes")
    cp.dispatch(Size3(*cp.port.words(address, 3)))


def _cond_exec(cp: Processor, body: Sequence[int]) -> None:
    """Leaves dwords out where a first word is 0, or a second one below a reference."""
    first = _address(cp, "CP_COND_EXEC", body[0], body[1])
    second = _address(cp, "CP_COND_EXEC", body[2], body[3])
    for address in (first, second):
        cp.check_posted(address, 4)
    if not cp.port.read_word(first, 4) or cp.port.read_word(second, 4) < body[4]:
        cp.skip(body[5])


def _reg_write(cp: Processor, body: Sequence[int]) -> None:
    cp.write_register(body[1], body[2])


def _sizes(*sizes: int) -> frozenset[int]:
    return frozenset(sizes)


OPERATIONS: Final[Mapping[str, tuple[frozenset[int] | None, Handler]]] = {
    "CP_NOP": (None, _nop),
    "CP_INDIRECT_BUFFER": (_sizes(3), _indirect_buffer),
    "CP_INDIRECT_BUFFER_CHAIN": (_sizes(3), _chain),
    "CP_WAIT_FOR_IDLE": (_sizes(0), _wait_for_idle),
    "CP_WAIT_MEM_WRITES": (_sizes(0), _wait_mem_writes),
    "CP_WAIT_FOR_ME": (_sizes(0), _wait_for_me),
    "CP_WAIT_REG_MEM": (_sizes(6), _wait_reg_mem),
    "CP_WAIT_MEM_GTE": (_sizes(4), _wait_mem_gte),
    "CP_SET_MARKER": (_sizes(1), _set_marker),
    "CP_MEM_WRITE": (None, _mem_write),
    "CP_REG_TO_MEM": (_sizes(3), _reg_to_mem),
    "CP_MEM_TO_MEM": (_sizes(5, 7, 9), _mem_to_mem),
    "CP_MEMCPY": (_sizes(5), _memcpy),
    "CP_EVENT_WRITE": (_sizes(1, 4), _event_write),
    "CP_EXEC_CS": (_sizes(4), _exec_cs),
    "CP_EXEC_CS_INDIRECT": (_sizes(4), _exec_cs_indirect),
    "CP_COND_EXEC": (_sizes(6), _cond_exec),
    "CP_REG_WRITE": (_sizes(3), _reg_write),
}
"""By name: how many dwords they may have behind the header, and what they do."""
