"""Arguments of the firmware: walked as it walks them; and how video memory is divided."""

from __future__ import annotations

import ctypes
import random
import struct

import pytest

from gpu.autogen.nv import gsp
from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.pci import PciAddress
from gpu.drivers.nv.pci import boot, bootargs
from gpu.drivers.nv.pci.chips import AD10X, GA10X, GB20X, GH100, Chip
from gpu.drivers.nv.pci.images import Bootloader, parse_gsp
from gpu.drivers.nv.pci.layout import Placed, Reserved, heap_size, make_wpr_meta
from unit.nv_pci import made

MIB, GIB = 1 << 20, 1 << 30
LOADER = Bootloader(bytes(0x5000), 0x300, 0x200, 0x100, 1)


@pytest.mark.parametrize("size", (1, 4096, 4097, 512 * 4096, 512 * 4096 + 1, 70 * MIB))
def test_radix3_has_a_root_and_reaches_every_page(size: int) -> None:
    """Walking it from the root gives all pages of the image, in order."""
    levels = bootargs.radix3_levels(size)
    assert levels[0] == 1 and levels[3] == -(-size // 4096)
    pages = [0x7000_0000 + 0x2000 * number for number in range(sum(levels))]
    tables = bootargs.radix3_tables(levels, pages)
    assert len(tables) == sum(levels[:3]) * 4096
    of = {address: number for number, address in enumerate(pages)}
    reached = [pages[0]]
    for _ in range(3):
        entries = b"".join(tables[of[page] * 4096 : (of[page] + 1) * 4096] for page in reached)
        reached = [word for (word,) in struct.iter_unpack("<Q", entries) if word]
    assert reached == pages[sum(levels[:3]) :]


def test_radix3_has_bounds() -> None:
    """Nothing, and more than three levels reach."""
    for size in (0, (512**3 + 1) * 4096):
        with pytest.raises(InvalidValue):
            bootargs.radix3_levels(size)


def test_regions_are_named_by_eight_characters() -> None:
    """As RM makes the number."""
    data = bootargs.make_libos({"LOGINIT": (0x1000, 0x10000), "RMARGS": (0x2000, 0x1000)})
    first, second = struct.iter_unpack("<QQQBB6x", data)
    assert first == (int.from_bytes(b"LOGINIT", "big"), 0x1000, 0x10000, 1, 1)
    assert second[0] == int.from_bytes(b"RMARGS", "big")
    with pytest.raises(InvalidValue, match="8 characters"):
        bootargs.region_id("LOGKERNEL")


def test_registry_holds_names_and_values() -> None:
    """Walked as RM does: each name at its offset, with a zero behind it."""
    settings = {"RMOne": 1, "RMSomethingLong": 0xFFFFFFFF}
    data = bootargs.make_registry(settings)
    size, count = struct.unpack_from("<II", data)
    assert size == len(data) and count == 2
    found = {}
    for index in range(count):
        name_at, kind, value, length = struct.unpack_from("<IBxxxII", data, 8 + 16 * index)
        assert (kind, length) == (1, 4)
        found[data[name_at : data.index(b"\0", name_at)].decode()] = value
    assert found == settings


def test_system_info_is_the_functions() -> None:
    """Addresses of BARs of 64 bits and of 32, its identity, and where it is."""
    function = made.FakeFunction()
    info = gsp.GspSystemInfo.from_buffer_copy(
        bootargs.make_system_info(
            *(PciAddress(2, 0x41, 3, 0), function.ids, function.config, (0, 1, 3)),
            (0x92000, 0x1000),
        )
    )
    assert (info.gpuPhysAddr, info.gpuPhysFbAddr) == (0x1_D0000000, bar(function, 1))
    assert info.nvDomainBusDeviceFunc == 2 << 32 | 0x4103
    assert (info.PCIDeviceID, info.PCISubDeviceID) == (0x233010DE, 0x16C110DE)
    assert (info.PCIRevisionID, info.pciConfigMirrorBase) == (0xA1, 0x92000)
    assert info.hostPageSize == 4096 and info.maxUserVa == 1 << 47


def bar(function: made.FakeFunction, number: int) -> int:
    low, high = (function.config.read(0x10 + 4 * (number + each), 4) for each in (0, 1))
    return (high << 32 if low & 4 else 0) | low & ~15


def test_fmc_params_lead_to_both() -> None:
    """WPR meta with its size, libos' arguments."""
    params = gsp.GSP_FMC_BOOT_PARAMS.from_buffer_copy(bootargs.make_fmc_params(0xA000, 0xB000))
    boot_params = params.bootGspRmParams
    assert (boot_params.gspRmDescOffset, boot_params.gspRmDescSize) == (0xA000, 256)
    assert (boot_params.target, boot_params.bIsGspRmBoot) == (1, 1)
    assert (params.gspRmParams.target, params.gspRmParams.bootArgsOffset) == (2, 0xB000)


def test_heap_is_what_rm_computes() -> None:
    """For an H100 of 80 GiB and a card of 8 GiB, by hand from gsp_fw_heap.h."""
    assert heap_size(GH100, 80 * GIB) == (22 + 14 + 8 + 96) * MIB
    assert heap_size(GA10X, 8 * GIB) == (22 + 8 + 1 + 96) * MIB
    assert heap_size(GA10X, 8 * GIB, 100 * MIB + 5) == 100 * MIB


@pytest.mark.parametrize("chip", (GH100, GB20X), ids=lambda chip: chip.family)
def test_on_fsp_chips_sizes_alone_are_told(chip: Chip) -> None:
    """Offsets stay 0: the firmware lays out."""
    meta = make_wpr_meta(chip, 80 * GIB, Placed(1, 2, 3, 4, 5), LOADER)
    assert (meta.magic, meta.revision, meta.verified) == (0xDC3AAE21371A60B3, 1, 0)
    assert (meta.sysmemAddrOfRadix3Elf, meta.sizeOfRadix3Elf) == (1, 2)
    assert (meta.sysmemAddrOfBootloader, meta.sizeOfBootloader) == (3, 0x5000)
    assert (meta.sysmemAddrOfSignature, meta.sizeOfSignature) == (4, 5)
    assert (meta.bootloaderCodeOffset, meta.bootloaderManifestOffset) == (0x300, 0x100)
    assert (meta.frtsSize, meta.vgaWorkspaceSize) == (MIB, 0x20000)
    assert meta.nonWprHeapSize == chip.non_wpr_heap
    assert meta.pmuReservedSize == chip.pmu_reserve == (0 if chip is GH100 else 0x1820000)
    offsets = ("gspFwOffset", "gspFwHeapOffset", "frtsOffset", "gspFwWprStart", "fbSize")
    assert not any(getattr(meta, name) for name in offsets)


@pytest.mark.parametrize("chip", (GA10X, AD10X), ids=lambda chip: chip.family)
@pytest.mark.parametrize("seed", range(6))
def test_on_falcon_chips_memory_is_divided_from_its_end(chip: Chip, seed: int) -> None:
    """In order, without overlap, aligned, below what is somebody else's."""
    rng = random.Random(seed)
    vram = rng.randrange(2, 48) * GIB - rng.randrange(4) * MIB
    reserved = Reserved(
        rng.choice((None, vram - 0x40000, vram // 2)),
        rng.choice((None, vram - rng.randrange(2 * MIB))),
    )
    placed = Placed(1, rng.randrange(20 * MIB, 70 * MIB), 3, 4, 4096)
    meta = make_wpr_meta(chip, vram, placed, LOADER, reserved)
    edges = [
        *(meta.gspFwRsvdStart, meta.nonWprHeapOffset + meta.nonWprHeapSize, meta.gspFwWprStart),
        *(meta.gspFwWprStart + 256, meta.gspFwHeapOffset),
        *(meta.gspFwHeapOffset + meta.gspFwHeapSize, meta.gspFwOffset),
        *(meta.gspFwOffset + placed.image_size, meta.bootBinOffset),
        *(meta.bootBinOffset + len(LOADER.image), meta.frtsOffset, meta.frtsOffset + MIB),
        *(meta.gspFwWprEnd, meta.vgaWorkspaceOffset, vram),
    ]
    assert edges == sorted(edges) and edges[0] > 0
    assert meta.gspFwWprEnd % 0x20000 == meta.bootBinOffset % 0x1000 == 0
    assert meta.gspFwOffset % 0x10000 == meta.gspFwHeapOffset % MIB == meta.gspFwWprStart % MIB == 0
    assert meta.gspFwWprEnd <= (reserved.locked if reserved.locked is not None else vram)
    if chip is GA10X:  # no scrubber: all of it within what is cleared
        assert meta.nonWprHeapOffset >= vram - 256 * MIB


def test_a_card_with_too_little_memory_is_refused() -> None:
    """With both sizes."""
    with pytest.raises(Unsupported, match="64 MiB of video memory are too few"):
        make_wpr_meta(AD10X, 64 * MIB, Placed(1, 60 * MIB, 3, 4, 5), LOADER)


def test_everything_lies_where_it_is_told_to_be() -> None:
    """Arguments are placed: each is read back from where the others say that it is."""
    card, function = made.make_card(GH100)
    card.vram_size = 80 * GIB
    data = made.gsp_file(random.Random(1), "gh100", size=3 * MIB + 5)
    card.image, card.bootloader = parse_gsp(data, GH100), LOADER
    function.next_address = (1 << 52) - GIB
    boot.place_arguments(card)
    meta = gsp.GspFwWprMeta.from_buffer_copy(function.load(card.meta_at, 256))
    image = walk(function, meta.sysmemAddrOfRadix3Elf, meta.sizeOfRadix3Elf)
    assert image == card.image.image
    assert function.load(meta.sysmemAddrOfSignature, 4096) == card.image.signature
    assert function.load(meta.sysmemAddrOfBootloader, 0x5000) == LOADER.image
    regions = {
        each[0].to_bytes(8, "big").lstrip(b"\0").decode(): each[1:3]
        for each in struct.iter_unpack("<QQQBB6x", function.load(card.libos_at, 6 * 32))
    }
    assert list(regions) == ["LOGINIT", "LOGINTR", "LOGRM", "LOGMNOC", "LOGKRNL", "RMARGS"]
    for name, (address, size) in list(regions.items())[:5]:
        put, *pages = struct.unpack("<17Q", function.load(address, 17 * 8))
        assert put == 0 and pages == [address + 4096 * n for n in range(16)], name
        assert size == 0x10000
    arguments = gsp.GSP_ARGUMENTS_CACHED.from_buffer_copy(function.load(regions["RMARGS"][0], 0x48))
    queues = arguments.messageQueueInitArguments
    assert arguments.bDmemStack == 1 and arguments.srInitArguments.flags == 0
    table = struct.unpack("<129Q", function.load(queues.sharedMemPhysAddr, 129 * 8))
    assert table[0] == queues.sharedMemPhysAddr and queues.pageTableEntryCount == 129
    functions = []
    for index in (0, 1):
        element = function.load(table[2 + index], ctypes.sizeof(gsp.GSP_MSG_QUEUE_ELEMENT))
        functions.append(gsp.GSP_MSG_QUEUE_ELEMENT.from_buffer_copy(element).rpc.function)
    assert functions == [72, 73]


def walk(function: made.FakeFunction, root: int, size: int) -> bytes:
    """The bytes of an image, by its tables."""
    tables = [root]
    for _ in range(3):
        found = [struct.unpack("<512Q", function.load(each, 4096)) for each in tables]
        tables = [word for words in found for word in words if word]
    return b"".join(function.load(each, 4096) for each in tables)[:size]


def test_addresses_beyond_the_chips_bits_are_refused() -> None:
    """With what the IOMMU must do."""
    card, function = made.make_card(GA10X)
    function.next_address = (1 << 47) - 4096
    assert card.place(b"abc", "a page") == (1 << 47) - 4096
    with pytest.raises(Unsupported, match="47 bits"):
        card.place(b"abc", "a page")
