"""What RM is told of the machine before it starts: the card on its bus, and settings.

rpcGspSetSystemInfo_v17_00, rpcSetRegistry_v17_00 of rpc.c; gsp_static_config.h, g_os_nvoc.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from gpu.sim.nv.pci.silicon import Silicon

SYSTEM_INFO_BYTES: Final = 928
MIRROR_BYTES: Final = 0x1000  # of configuration space
_INFO: Final = struct.Struct("<10Q5I")
_ENTRY: Final = struct.Struct("<IB3xII")
_DWORD, _BINARY, _STRING = 1, 2, 3
_HOST_PAGE_AT: Final = 920


def why_no_system_info(chip: Silicon, place: int, data: bytes) -> Iterator[str]:
    """What is wrong with `GspSystemInfo`; `place` is the card's bus address as RM has it."""
    if len(data) != SYSTEM_INFO_BYTES:
        yield f"{len(data):#x} bytes, {SYSTEM_INFO_BYTES:#x} wanted"
        return
    found, ids, bus = _INFO.unpack_from(data), chip.board.ids, chip.bus
    wanted = {
        "gpuPhysAddr": (found[0], bus.place(0)),
        "gpuPhysFbAddr": (found[1], bus.place(1)),
        "gpuPhysInstAddr": (found[2], bus.place(3)),
        "nvDomainBusDeviceFunc": (found[4], place),
        "simAccessBufPhysAddr": (found[5], 0),
        "pciConfigMirrorBase": (found[10], chip.board.mirror),
        "pciConfigMirrorSize": (found[11], MIRROR_BYTES),
        "PCIDeviceID": (found[12], ids.device << 16 | ids.vendor),
        "PCISubDeviceID": (found[13], ids.subsystem_device << 16 | ids.subsystem_vendor),
        "PCIRevisionID": (found[14], ids.revision),
    }
    for name, (value, right) in wanted.items():
        if value != right:
            yield f"{name} is {value:#x}, {right:#x} wanted"
    if not found[9]:
        yield "maxUserVa is 0"
    page = int.from_bytes(data[_HOST_PAGE_AT:], "little")
    if page & page - 1 or 0 < page < 4096:
        yield f"hostPageSize is {page:#x}"


def why_no_registry(data: bytes) -> Iterator[str]:
    """What is wrong with `PACKED_REGISTRY_TABLE`."""
    if len(data) < 8:
        yield f"{len(data)} bytes hold no table"
        return
    size, count = struct.unpack_from("<II", data)
    if size != len(data):
        yield f"a size of {size:#x} with {len(data):#x} bytes"
        return
    end = 8 + count * _ENTRY.size
    if end > size:
        yield f"{count} entries in {size:#x} bytes"
        return
    for number in range(count):
        name_at, kind, value, length = _ENTRY.unpack_from(data, 8 + number * _ENTRY.size)
        if not end <= name_at < size:
            yield f"entry {number} has its name at {name_at:#x}, not behind the entries"
            return
        name, zero, _ = data[name_at:].partition(b"\0")
        if not zero or not name.isascii() or not name:
            yield f"entry {number} has no name that ends"
        if kind == _DWORD:
            if length != 4:
                yield f"entry {number} is a word of {length} bytes"
        elif kind in (_BINARY, _STRING):
            if not end <= value <= value + length <= size:
                yield f"entry {number} has {length:#x} bytes at {value:#x}, outside the table"
        else:
            yield f"entry {number} is of kind {kind}"
