"""Which launches a failed channel may have been at, read back from its ring.

Nothing is noted when launches are submitted: what they are made of is still in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpu.drivers.fault_report import Read, SentLaunch
from gpu.drivers.nv.channel.channel import ENTRY_SIZE, GpfifoChannel
from gpu.drivers.nv.encode.methods import host
from gpu.drivers.nv.encode.methods.compute import SEND_PCAS_A
from gpu.drivers.nv.encode.methods.host import SemOperation
from gpu.drivers.nv.encode.methods.method import Engine
from gpu.drivers.nv.encode.pushbuf import GpEntry
from gpu.drivers.nv.encode.qmd_layout import QmdLayout
from gpu.drivers.nv.fault.pushbuf_text import written_methods

_MOST_ENTRIES: Final = 256  # that are looked at
_LONGEST_CHAIN: Final = 4096  # descriptors that are followed
_WORD: Final = 4


def launches_in_flight(channel: GpfifoChannel, layout: QmdLayout, read: Read) -> list[SentLaunch]:
    """Launches that were submitted and are not known to be done, the oldest first.

    Each submission ends by writing a semaphore: the youngest whose semaphore has its value is done,
    and all before it.
    """
    buffers = unfinished(channel, read)
    return [each for data in buffers for each in launches_of(written_methods(data), layout, read)]


def unfinished(channel: GpfifoChannel, read: Read) -> list[bytes]:
    """Pushbuffers of submissions that are not known to be done, the oldest first."""
    found: list[bytes] = []
    for entry in _youngest_first(channel):
        data = read(entry.GET << 2, entry.LENGTH * _WORD)
        if data is None or _is_done(written_methods(data), read):
            break
        found.insert(0, data)
    return found


def _youngest_first(channel: GpfifoChannel) -> Iterator[GpEntry]:
    """Entries with a pushbuffer."""
    put = channel.put()
    for back in range(1, min(channel.entries, _MOST_ENTRIES)):
        at = (put - back) % channel.entries * ENTRY_SIZE
        entry = GpEntry.parse(channel.ring.read(at, ENTRY_SIZE))
        if entry.LENGTH:
            yield entry


def _is_done(methods: Iterable[tuple[int, int, int]], read: Read) -> bool:
    """Whether the last semaphore that the host engine releases has its value, or a later one."""
    state: dict[int, int] = {}
    last: tuple[int, int, int] | None = None
    for _, address, word in methods:
        state[address] = word
        if address == host.SEM_EXECUTE.address:
            execute = host.SEM_EXECUTE.parse(word)
            if execute.OPERATION == SemOperation.RELEASE:
                high, low = host.SEM_ADDR_HI.address, host.SEM_ADDR_LO.address
                at = state.get(high, 0) << 32 | state.get(low, 0)
                size = 8 if execute.PAYLOAD_SIZE else 4
                upper = state.get(host.SEM_PAYLOAD_HI.address, 0) << 32 if size == 8 else 0
                last = at, size, upper | state.get(host.SEM_PAYLOAD_LO.address, 0)
    if last is None:
        return False
    at, size, payload = last
    now = read(at, size)
    return now is not None and int.from_bytes(now, "little") >= payload


def launches_of(
    methods: Iterable[tuple[int, int, int]], layout: QmdLayout, read: Read
) -> Iterator[SentLaunch]:
    """What the methods of a pushbuffer launch, as far as the host sees the descriptors.

    Their arguments are constant bank 0.
    """
    for subchannel, address, word in methods:
        if (subchannel, address) != (Engine.COMPUTE, SEND_PCAS_A.address):
            continue
        for qmd in _chain(word << 8, layout, read):
            bank0 = layout.join(qmd, "CONSTANT_BUFFER_ADDR", 0)
            yield SentLaunch(layout.join(qmd, "PROGRAM_ADDRESS"), bank0)


def _chain(address: int, layout: QmdLayout, read: Read) -> Iterator[int]:
    """A descriptor, and those that it starts one after the other, as far as the host sees them."""
    for _ in range(_LONGEST_CHAIN):
        data = read(address, layout.size)
        if data is None:
            return
        qmd = int.from_bytes(data, "little")
        yield qmd
        if not layout.span("DEPENDENT_QMD_ENABLE", 0).extract(qmd):
            return
        pointer = layout.span("DEPENDENT_QMD_POINTER", 0)
        address = pointer.extract(qmd) << 8
