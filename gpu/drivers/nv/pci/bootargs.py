"""Arguments of GSP's firmware: RM's image as a tree of pages, libos' regions, RM's own, the FMC's.

All of it is in the machine's memory, by addresses on the bus.

Sources: kgspCreateRadix3, _kgspInitLibosLoggingStructures, _setupLogBufferBaremetal,
kgspSetupLibosInitArgs, kgspPopulateGspRmInitArgs, kgspSetupGspFmcArgs_GH100, rpcGspSetSystemInfo,
RmPackageRegistry of open-gpu-kernel-modules at tag 570.144; which settings RM gets is nouveau's
(gsp/rm/r535/gsp.c).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from gpu.autogen.nv import gsp
from gpu.core.errors import InvalidValue
from gpu.core.pci import PciAddress, PciIds
from gpu.core.window import Window

PAGE: Final = 1 << gsp.LIBOS_MEMORY_REGION_RADIX_PAGE_LOG2
_ENTRIES: Final = PAGE // 8
LEVELS: Final = 3  # of tables
LOGS: Final = ("LOGINIT", "LOGINTR", "LOGRM", "LOGMNOC", "LOGKRNL")
"""Tasks' logs; LOGINIT comes first, so that nothing of the start is lost."""
LOG_SIZE: Final = 0x1_0000
RMARGS: Final = "RMARGS"
REGISTRY: Final[Mapping[str, int]] = {"RMForcePcieConfigSave": 1, "RMSecBusResetEnable": 1}
"""Settings of RM."""
_MAX_USER_VA: Final = 1 << 47  # of processes on the host
_BAR_FLAGS, _BAR_64BIT = 0xF, 0x4
_LINK_CAPABILITIES: Final = 0xC  # in PCI Express' capability


def radix3_levels(size: int) -> tuple[int, ...]:
    """How many pages each level has: three of tables, then the data's.

    Raises InvalidValue for more than three levels reach, and for nothing.
    """
    if size <= 0:
        raise InvalidValue(f"an image of {size} bytes")
    pages = [-(-size // PAGE)]
    for _ in range(LEVELS):
        pages.insert(0, -(-pages[0] // _ENTRIES))
    if pages[0] != 1:
        raise InvalidValue(f"an image of {size} bytes: {LEVELS} levels reach {_ENTRIES**3} pages")
    return tuple(pages)


def radix3_tables(levels: Sequence[int], pages: Sequence[int]) -> bytes:
    """The tables, given where each page of all levels is, in their order."""
    tables = []
    start = 0
    for count, below in pairwise(levels):
        start += count
        table = struct.pack(f"<{below}Q", *pages[start : start + below])
        tables.append(table.ljust(count * PAGE, b"\0"))
    return b"".join(tables)


def region_id(name: str) -> int:
    """Up to eight characters as libos compares them."""
    data = name.encode("ascii")
    if len(data) > 8:
        raise InvalidValue(f"region {name!r}: 8 characters fit")
    return int.from_bytes(data, "big")


def log_head(pages: Sequence[int]) -> bytes:
    """How the memory of a log begins: how much is written, then where its pages are."""
    return struct.pack(f"<Q{len(pages)}Q", 0, *pages)


def make_libos(regions: Mapping[str, tuple[int, int]]) -> bytes:
    """The list of regions that libos reads: address and size of each, by name."""
    return b"".join(
        bytes(
            gsp.LibosMemoryRegionInitArgument(
                id8=region_id(name),
                pa=address,
                size=size,
                kind=gsp.LIBOS_MEMORY_REGION_CONTIGUOUS,
                loc=gsp.LIBOS_MEMORY_REGION_LOC_SYSMEM,
            )
        )
        for name, (address, size) in regions.items()
    )


def make_rmargs(queues: gsp.MESSAGE_QUEUE_INIT_ARGUMENTS) -> bytes:
    """RM's arguments, for a first boot."""
    return bytes(gsp.GSP_ARGUMENTS_CACHED(messageQueueInitArguments=queues, bDmemStack=1))


def make_fmc_params(wpr_meta: int, libos: int) -> bytes:
    """The FMC's arguments: where it finds those two."""
    params = gsp.GSP_FMC_BOOT_PARAMS()
    boot = params.bootGspRmParams
    boot.target = gsp.GSP_DMA_TARGET_COHERENT_SYSTEM
    boot.gspRmDescOffset = wpr_meta
    boot.gspRmDescSize = ctypes.sizeof(gsp.GspFwWprMeta)
    boot.bIsGspRmBoot = 1
    params.gspRmParams.target = gsp.GSP_DMA_TARGET_NONCOHERENT_SYSTEM
    params.gspRmParams.bootArgsOffset = libos
    return bytes(params)


def make_registry(settings: Mapping[str, int]) -> bytes:
    """Settings of RM, as SET_REGISTRY takes them."""
    head = ctypes.sizeof(gsp.PACKED_REGISTRY_TABLE)
    names_at = head + len(settings) * ctypes.sizeof(gsp.PACKED_REGISTRY_ENTRY)
    entries, names = b"", b""
    for name, value in settings.items():
        entries += bytes(
            gsp.PACKED_REGISTRY_ENTRY(
                nameOffset=names_at + len(names),
                type=gsp.REGISTRY_TABLE_ENTRY_TYPE_DWORD,
                data=value,
                length=4,
            )
        )
        names += name.encode("ascii") + b"\0"
    size = names_at + len(names)
    return bytes(gsp.PACKED_REGISTRY_TABLE(size=size, numEntries=len(settings))) + entries + names


def bar_address(config: Window, bar: int) -> int:
    """Where a BAR is on the bus, from config space."""
    at = 0x10 + 4 * bar
    low = config.read(at, 4)
    high = config.read(at + 4, 4) if low & _BAR_64BIT else 0
    return high << 32 | low & ~_BAR_FLAGS


def make_system_info(
    address: PciAddress, ids: PciIds, config: Window, bars: Sequence[int], mirror: tuple[int, int]
) -> bytes:
    """What RM is told of the card on its bus.

    ``bars`` are the numbers of those for registers, video memory and instance memory; ``mirror`` is
    where BAR 0 has config space, and its size.
    """
    registers, memory, instance = (bar_address(config, bar) for bar in bars)
    info = gsp.GspSystemInfo(
        gpuPhysAddr=registers,
        gpuPhysFbAddr=memory,
        gpuPhysInstAddr=instance,
        nvDomainBusDeviceFunc=address.domain << 32 | address.bus << 8 | address.device,
        maxUserVa=_MAX_USER_VA,
        pciConfigMirrorBase=mirror[0],
        pciConfigMirrorSize=mirror[1],
        PCIDeviceID=ids.device << 16 | ids.vendor,
        PCISubDeviceID=ids.subsystem_device << 16 | ids.subsystem_vendor,
        PCIRevisionID=ids.revision,
        hostPageSize=PAGE,
    )
    return bytes(info)
