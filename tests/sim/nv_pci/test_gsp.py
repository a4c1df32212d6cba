"""GSP: what its first code wants, what the driver sees meanwhile, how it ends."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from gpu.sim.nv.pci.boards import find_board
from gpu.sim.nv.pci.images import make_images
from sim.nv_pci.client import (
    CPUCTL,
    DOORBELL,
    HWCFG2,
    MAILBOX,
    MIB,
    OS,
    PAGE,
    WPR2_HI,
    WPR2_LO,
    Answer,
    Client,
)

FMC_ERROR = 0x31
Change = Callable[[Client], None]


def test_a_boot(client: Client) -> None:
    """What a driver sees on the way, and where memory is in the end."""
    client.queue_first()
    client.settle()
    client.place()
    assert client.ask(client.packet()) == Answer(0, 0x14, 0)
    assert client.read(HWCFG2) == client.read(MAILBOX) == 0xBADF4100
    client.pass_ms(4)
    arguments = client.cot.gspBootArgsSysmemOffset
    assert client.read(MAILBOX) | client.read(MAILBOX + 4) << 32 == arguments
    assert client.read(HWCFG2) == 1 << 10 | 1 << 13
    assert client.read(CPUCTL) == client.read(OS) == 0xBADF4100
    client.pass_ms(4)
    assert client.read(MAILBOX) == 0 and client.read(HWCFG2) == 1 << 10
    assert client.read(CPUCTL) == 1 << 7 and client.read(0x111668) == 0xBADF4100
    client.write(OS, client.app_version)
    assert client.read(OS) == client.app_version
    start, last = client.read(WPR2_LO) << 8, client.read(WPR2_HI) << 8
    end = client.card.chip.vram.size - client.cot.frtsVidmemOffset
    assert last + PAGE == end and start % (128 << 10) == 0
    assert 128 * MIB < end - start < 135 * MIB
    assert client.wait_for(0x1001, 100) is not None
    assert not client.violations


def test_an_image_with_tables_of_many_pages() -> None:
    """More than 512 pages, so that the last level has more than one table."""
    files = make_images(find_board("gb202"), image_bytes=0x20DE40)
    client = Client("gb202", firmware=files).prepare()
    assert client.boot() is not None and not client.violations
    client.close()


def param(field: str, value: int) -> Change:
    def change(client: Client) -> None:
        *path, last = field.split(".")
        target = client.params
        for name in path:
            target = getattr(target, name)
        setattr(target, last, value)

    return change


PARAMS: dict[str, tuple[Change, str]] = {
    "confidential computing": (param("initParams.regkeys", 1), "of confidential computing"),
    "SPDM": (param("gspSpdmParams.payloadBufferSize", 1), "of confidential computing"),
    "meta in video memory": (param("bootGspRmParams.target", 0), "target 0 of WPR meta"),
    "size of meta": (param("bootGspRmParams.gspRmDescSize", 248), "WPR meta has 0xf8 bytes"),
    "carveout": (param("bootGspRmParams.wprCarveoutOffset", MIB), "FMC chooses where WPR2 is"),
    "carveout's size": (param("bootGspRmParams.wprCarveoutSize", MIB), "FMC chooses where WPR2"),
    "no RM": (param("bootGspRmParams.bIsGspRmBoot", 0), "bIsGspRmBoot is not 1"),
    "arguments in video memory": (param("gspRmParams.target", 0), "target 0 of RM's arguments"),
    "unmapped meta": (param("bootGspRmParams.gspRmDescOffset", 1 << 34), "WPR meta: 0x100 bytes"),
}


def meta(field: str, value: int) -> Change:
    return lambda client: setattr(client.meta, field, value)


def bigger(field: str, by: int = PAGE) -> Change:
    return lambda client: setattr(client.meta, field, getattr(client.meta, field) + by)


def torn_page(client: Client) -> None:
    client.poke(client.image_pages[5] + 100, b"\xa5\x5a")


def lost_page(client: Client) -> None:
    client.poke(client.radix + 2 * PAGE + 8 * 3, struct.pack("<Q", 0))


def odd_page(client: Client) -> None:
    client.poke(client.radix + PAGE, struct.pack("<Q", client.radix + 2 * PAGE + 8))


def far_page(client: Client) -> None:
    client.poke(client.radix + 2 * PAGE, struct.pack("<Q", 1 << 34))


def torn_signature(client: Client) -> None:
    client.poke(client.signature + 77, b"\xa5\x5a")


def other_signature(client: Client) -> None:
    client.poke(client.signature, client.rm[".fwsignature_ga10x"])


def torn_bootloader(client: Client) -> None:
    client.poke(client.bootloader + 0x400, b"\xa5\x5a")


METAS: dict[str, tuple[Change, str]] = {
    "magic": (meta("magic", 0), "magic 0x0"),
    "revision": (meta("revision", 2), "revision 2"),
    **{
        f"place {name}": (meta(name, 16 * MIB), f"{name} is 0x1000000: the FMC chooses it")
        for name in (
            *("gspFwRsvdStart", "nonWprHeapOffset", "gspFwWprStart", "gspFwHeapOffset"),
            *("gspFwOffset", "bootBinOffset", "frtsOffset", "gspFwWprEnd", "vgaWorkspaceOffset"),
            "fbSize",
        )
    },
    **{
        f"unused {name}": (meta(name, 1), f"{name} is 0x1, 0 wanted")
        for name in ("bootCount", "gspFwHeapVfPartitionCount", "flags", "verified")
    },
    **{
        f"size {name}": (bigger(name), f"{name} is ")
        for name in (
            *("sizeOfRadix3Elf", "sizeOfBootloader", "bootloaderCodeOffset", "frtsSize"),
            *("bootloaderDataOffset", "bootloaderManifestOffset", "vgaWorkspaceSize"),
            *("pmuReservedSize", "nonWprHeapSize", "gspFwHeapSize"),
        )
    },
    "small heap": (meta("gspFwHeapSize", 64 * MIB), "gspFwHeapSize is 0x4000000"),
    "short signature": (meta("sizeOfSignature", 0x800), "sizeOfSignature is 0x800"),
    "image at no page": (bigger("sysmemAddrOfRadix3Elf", 8), "sysmemAddrOfRadix3Elf"),
    "crash queue of no size": (meta("sysmemAddrOfCrashReportQueue", PAGE), "a queue of crash"),
    "torn page": (torn_page, "RM's image is not this release's"),
    "lost page": (lost_page, "level 2 has 0x0, which is no page"),
    "odd page": (odd_page, "level 1 has"),
    "page that is not mapped": (far_page, "a page of the image"),
    "torn signature": (torn_signature, "the signature is not that of"),
    "signature of another chip": (other_signature, "the signature is not that of"),
    "torn bootloader": (torn_bootloader, "the bootloader is not this release's"),
}


def refused(change: Change, before: str, why: str) -> None:
    client = Client("gb202").prepare()
    change(client)
    assert client.start() == FMC_ERROR
    assert client.told("FMC: ", before, why)
    assert client.read(HWCFG2) & 1 << 13, "the lockdown stays"
    client.pass_ms(50)
    assert client.read(WPR2_HI), "so does WPR2"
    client.close()


@pytest.mark.parametrize("case", PARAMS)
def test_boot_parameters_that_are_refused(case: str) -> None:
    refused(PARAMS[case][0], "", PARAMS[case][1])


@pytest.mark.parametrize("case", METAS)
def test_wpr_meta_that_is_refused(case: str) -> None:
    refused(METAS[case][0], "", METAS[case][1])


def test_boot_parameters_begin_at_a_page() -> None:
    def change(client: Client) -> None:
        client.cot.gspBootArgsSysmemOffset = client.hold(bytes(PAGE)) + 8

    refused(change, "", "not at a page")


def test_fsp_alone_talks_to_gsp(client: Client) -> None:
    client.settle()
    client.place()
    assert client.ask(client.packet()) == Answer(0, 0x14, 0)
    client.pass_ms(4)
    client.write(MAILBOX, 0x1000)
    assert client.told("NV_PGSP_FALCON_MAILBOX0", "comes by FSP")
    client.write(OS, 1)
    assert client.told("NV_PGSP_FALCON_OS", "locked")


@pytest.mark.parametrize(
    "page, why", [(0, "nobody told of"), (0xFFFF_FFFF_F000, "are not the card's")]
)
def test_the_page_to_flush_to_is_told_before_gsp_is_reset(
    client: Client, page: int, why: str
) -> None:
    client.flush = page
    client.settle()
    client.place()
    assert client.ask(client.packet()) == Answer(0, 0x14, 0)
    assert client.told("GSP is not reset", why)
    client.pass_ms(20)
    assert client.read(HWCFG2) == 0xBADF4100


def test_a_doorbell_before_the_boot_is_lost(client: Client) -> None:
    client.write(DOORBELL, 0)
    assert client.boot() is not None and not client.violations


REFUSED = {
    "another version": (OS, 1, "the bootloader's version is"),
    "reset": (0x1103C0, 1, "FSP resets GSP"),
    "start": (CPUCTL, 1, "FSP starts GSP"),
    "another queue": (DOORBELL + 8, 0, "queue 1, 0x0"),
    "number of a doorbell": (DOORBELL, 1, "queue 0, 0x1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_while_it_runs(booted: Client, case: str) -> None:
    offset, value, why = REFUSED[case]
    booted.write(offset, value)
    assert booted.told(why)


def test_unloading(booted: Client) -> None:
    reply = booted.call(47, bytes(8))
    assert reply is not None and reply.result == 0
    for _ in range(20):
        booted.pass_ms(1)
    assert booted.read(MAILBOX) == 0x80000000
    assert booted.read(CPUCTL) == 1 << 4 and booted.read(WPR2_HI) == booted.read(WPR2_LO) == 0
    booted.write(DOORBELL, 0)
    assert booted.told("GSP was shut down")


def test_a_boot_after_unloading(booted: Client) -> None:
    booted.call(47, bytes(8))
    booted.pass_ms(20)
    assert booted.prepare().boot() is not None and not booted.violations


def test_wpr2_falls_by_a_reset(booted: Client) -> None:
    assert booted.read(WPR2_HI)
    booted.function.reset()
    assert not booted.read(WPR2_HI) and booted.read(HWCFG2) == 0xBADF4100
    assert booted.prepare().boot() is not None and not booted.violations


def test_a_card_that_is_closed_is_reset(booted: Client) -> None:
    booted.function.close()
    booted.open()
    assert not booted.read(WPR2_HI) and not booted.violations
