"""Falcons: reset, DMA, the boot ROM, and the way from the card's own firmware to RM and back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from gpu.sim.nv.pci.securecode import BOOTER_ERROR, FRTS_ERROR, SB_ERROR
from gpu.sim.nv.pci.signed import Engine
from sim.nv_pci.client import CPUCTL, DOORBELL, MIB, OS, PAGE, WPR2_HI, WPR2_LO
from sim.nv_pci.falcons import (
    ALIAS,
    ALIAS_EN,
    BCR,
    BOOTVEC,
    DMABASE,
    DMACMD,
    DMACTL,
    DMEM,
    ENGIDMASK,
    ENGINE,
    FALCON_CPUCTL,
    FBIF_CTL,
    FBOFFS,
    FRTS_SCRATCH,
    GFW,
    GFW_MASK,
    HALTED,
    HANDOFF,
    HWCFG2,
    IMEM,
    MOD_SEL,
    MOFFS,
    NISO_HIGH,
    NISO_LOW,
    RM,
    SB,
    SB_SCRATCH,
    START,
    TRANSCFG,
    FalconClient,
    Job,
)

GSP, SEC2 = Engine.GSP, Engine.SEC2
CHIPS = ("ga102", "ad102")


@pytest.fixture
def client() -> Iterator[FalconClient]:
    """A card whose boot is prepared; nothing was sent."""
    made = FalconClient("ga102").prepare()
    yield made  # type: ignore[misc]
    made.close()


@pytest.fixture
def reset(client: FalconClient) -> FalconClient:
    """SEC2 is fresh from a reset, and may load by DMA."""
    client.reset(SEC2)
    client.allow_dma(SEC2)
    return client


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_boot_and_the_way_back(chip: str, seed: int) -> None:
    """What a driver sees of WPR2, and that the card can be booted again."""
    client = FalconClient(chip, seed=seed).prepare()
    client.queue_first()
    client.make_frts()
    assert client.read(FRTS_SCRATCH) == 0
    assert client.read(WPR2_LO) >> 4 == client.frts_at >> 12
    assert client.read(WPR2_HI) << 8 == client.frts_at + MIB - PAGE
    client.reset_to_riscv()
    assert client.peek_at(GSP, BCR) & 0x11 == 0x11 and not client.read(CPUCTL) & 0x80
    client.scrub()
    assert client.load_rm() == 0
    assert client.read(CPUCTL) == 0x80 and client.peek_at(GSP, BCR) >> 16 == 0xBADF
    client.write(OS, client.app_version)
    assert client.read(WPR2_LO) << 8 == client.meta.gspFwWprStart
    assert client.wait_for(0x1001, 100) is not None
    stored = client.card.chip.vram.load(client.meta.gspFwWprStart, 256)
    assert stored[:248] == bytes(client.meta)[:248] and stored[248:] == b"\xa0" * 8
    client.leave()
    assert client.read(WPR2_HI) == 0 and client.read(SB_SCRATCH) == 0
    client.prepare()
    assert client.boot() is not None and not client.violations
    client.close()


def test_the_cards_own_firmware_is_waited_for() -> None:
    """Its progress can be read once its mask lets it be; both are only read."""
    client = FalconClient("ga102", settle_ns=40_000_000)
    assert client.read(GFW_MASK) == 0 and client.read(GFW) >> 16 == 0xBADF
    client.pass_ms(21)
    assert client.read(GFW_MASK) == 1 and client.read(GFW) & 0xFF != 0xFF
    client.pass_ms(20)
    assert client.read(GFW) == 0xFF and not client.violations
    client.write(GFW, 0xFF)
    assert client.told("read-only")
    client.close()


def test_the_rom_is_only_read(client: FalconClient) -> None:
    """Words of it, at its place."""
    rom = client.rom.data
    for offset in (0, 4, 0x400, len(rom) - 4):
        assert client.read(0x300000 + offset) == struct.unpack_from("<I", rom, offset)[0]
    client.write(0x300000, 1)
    assert client.told("NV_PROM_DATA(0x0)", "read-only")


def test_fuses_are_only_read(client: FalconClient) -> None:
    """For each ucode of either falcon."""
    for place in (0x8241C0, 0x8241FC, 0x824140, 0x82417C):
        value = client.read(place)
        assert value & value + 1 == 0
        client.write(place, 1)
        assert client.told("NV_FUSE_OPT_FPF", "read-only")


@pytest.mark.parametrize("chip", CHIPS)
def test_a_scrubbers_mark_is_on_chips_that_have_one(chip: str) -> None:
    """Ada's alone."""
    client = FalconClient(chip, seed=3)
    client.read(HANDOFF)
    assert bool(client.violations) is (chip == "ga102")
    client.close()


# Reset


def test_a_reset_scrubs_and_flushes(client: FalconClient) -> None:
    """HWCFG2 tells when memories are there again; the flush page is written."""
    client.poke(client.flush, b"\xff" * 4)
    client.put_at(SEC2, ENGINE, 1)
    client.put_at(SEC2, ENGINE, 0)
    assert client.peek_at(SEC2, HWCFG2) & 1 << 12 and client.peek_at(SEC2, DMACTL) == 6
    client.pass_ms(1)
    assert not client.peek_at(SEC2, HWCFG2) & 1 << 12 and client.peek_at(SEC2, DMACTL) == 0
    assert client.peek(client.flush, 4) == bytes(4) and not client.violations


def test_no_reset_before_there_is_a_page_to_flush_to(client: FalconClient) -> None:
    """It is what a reset does first."""
    client.write(NISO_LOW, 0)
    client.write(NISO_HIGH, 0)
    client.put_at(GSP, ENGINE, 1)
    client.put_at(GSP, ENGINE, 0)
    assert client.told("GSP is not reset", "nobody told of the page")
    client.pass_ms(1)
    assert client.peek_at(GSP, HWCFG2) & 1 << 12


def test_dma_reaches_47_bits(client: FalconClient) -> None:
    """The flush page, whose address has 8 bits less in its lower half."""
    client.write(NISO_HIGH, 1 << 7)
    client.put_at(GSP, ENGINE, 1)
    client.put_at(GSP, ENGINE, 0)
    assert client.told("beyond the 47 bits")


def test_the_engine_register_has_one_bit(client: FalconClient) -> None:
    client.put_at(SEC2, ENGINE, 2)
    assert client.told("it has one bit, RESET")


def test_nothing_is_loaded_before_a_reset(client: FalconClient) -> None:
    """Nor while it is held there, nor while its memories are scrubbed."""
    client.allow_dma(SEC2)
    client.put_at(SEC2, DMACMD, IMEM)
    assert client.told("something ran on it since its last reset")
    client.put_at(SEC2, ENGINE, 1)
    client.put_at(SEC2, BOOTVEC, 0)
    assert client.told("it is held in reset")
    client.put_at(SEC2, ENGINE, 0)
    client.put_at(SEC2, BCR, 0x111)
    assert client.told("its memories are still scrubbed")


def test_code_that_runs_is_not_reset(reset: FalconClient) -> None:
    reset.load_job(reset.job("booter_load"))
    reset.start_cpu(SEC2)
    assert not reset.peek_at(SEC2, HWCFG2) & 1 << 31
    reset.put_at(SEC2, ENGINE, 1)
    assert reset.told("SEC2 is not reset: signed code runs on it")
    reset.put_at(SEC2, BOOTVEC, 0)
    assert reset.told("SEC2: it runs")


def test_gsp_is_not_reset_while_rm_runs(client: FalconClient) -> None:
    assert client.boot() is not None
    client.put_at(GSP, ENGINE, 1)
    assert client.told("GSP is not reset: RM runs on it")
    client.put_at(GSP, BCR, 0)
    assert client.told("its other core runs")


def test_the_choice_of_a_core_has_three_bits(client: FalconClient) -> None:
    client.reset(GSP)
    client.put_at(GSP, BCR, 0x112)
    assert client.told("it has VALID, CORE_SELECT and BRFETCH")
    client.put_at(GSP, BCR, 0x111)
    assert not client.peek_at(GSP, BCR) & 1
    client.pass_ms(1)
    assert client.peek_at(GSP, BCR) == 0x111


# DMA


def fill(client: FalconClient, count: int, command: int = IMEM) -> None:
    """So many requests at once."""
    client.put_at(SEC2, DMABASE, client.hold(bytes(PAGE)) >> 8)
    for _ in range(count):
        client.put_at(SEC2, DMACMD, command)


def test_a_queue_that_is_full_takes_no_more(reset: FalconClient) -> None:
    fill(reset, 12)
    assert reset.told("the queue of requests is full")
    assert reset.peek_at(SEC2, DMACMD) & 2 == 0
    reset.pass_ms(1)
    assert reset.peek_at(SEC2, DMACMD) & 3 == 2


@pytest.mark.parametrize(
    "offset,value,words",
    [
        (DMACMD, IMEM | 1 << 5, "not read by a driver"),
        (DMACMD, IMEM & ~0x700, "a size of 0: 6"),
        (DMACTL, 2, "REQUIRE_CTX"),
    ],
    ids=["write", "size", "scrubbing"],
)
def test_requests_that_are_refused(
    reset: FalconClient, offset: int, value: int, words: str
) -> None:
    reset.put_at(SEC2, offset, value)
    assert reset.told(words)


@pytest.mark.parametrize(
    "offset,value,words",
    [
        (FBIF_CTL, 0, "DMA without a context"),
        (DMACTL, 1, "DMA without a context"),
        (TRANSCFG, 1, "not coherent system memory, physical"),
        (TRANSCFG, 4, "not coherent system memory, physical"),
        (MOFFS, 0x80, "blocks have 0x100 bytes"),
        (FBOFFS, 0x80, "blocks have 0x100 bytes"),
        (MOFFS, 1 << 16, "blocks have 0x100 bytes"),
        (BCR, 0x111, "the other core is selected"),
    ],
    ids=["no context", "context", "virtual", "video", "to", "from", "end", "core"],
)
def test_a_request_that_is_set_up_wrongly(
    reset: FalconClient, offset: int, value: int, words: str
) -> None:
    reset.put_at(SEC2, offset, value)
    reset.put_at(SEC2, DMACMD, IMEM)
    assert reset.told(words)


def test_dma_of_what_is_not_the_cards(reset: FalconClient) -> None:
    reset.put_at(SEC2, DMABASE, 0x7777700)
    reset.put_at(SEC2, DMACMD, DMEM)
    reset.pass_ms(1)
    assert reset.told("SEC2: a block for SEC2", "are not the card's")


# Start


def test_the_register_that_starts_is_told_by_another() -> None:
    """ALIAS_EN, which either way is met with some seeds."""
    seen = set()
    for seed in range(6):
        client = FalconClient("ga102", seed=seed).prepare()
        client.reset(SEC2)  # type: ignore[attr-defined]
        alias = bool(client.peek_at(SEC2, FALCON_CPUCTL) & ALIAS_EN)  # type: ignore[attr-defined]
        seen.add(alias)
        client.put_at(SEC2, FALCON_CPUCTL if alias else ALIAS, START)  # type: ignore[attr-defined]
        assert client.told(f"ALIAS_EN is {int(alias)}: the other register starts it")
        client.close()
    assert seen == {False, True}


def start(client: FalconClient, value: int = START) -> None:
    alias = client.peek_at(SEC2, FALCON_CPUCTL) & ALIAS_EN
    client.put_at(SEC2, ALIAS if alias else FALCON_CPUCTL, value)


def test_a_start_that_is_not_one(reset: FalconClient) -> None:
    start(reset, 0)
    assert reset.told("it has STARTCPU")


def test_no_start_while_dma_is_under_way(reset: FalconClient) -> None:
    fill(reset, 4)
    start(reset)
    assert reset.told("DMA is not idle")


def test_no_start_of_the_other_core(reset: FalconClient) -> None:
    reset.put_at(SEC2, BCR, 0x111)
    start(reset)
    assert reset.told("the other core is selected")


def test_falcon_rm_has_the_chips_number(reset: FalconClient) -> None:
    reset.put_at(SEC2, RM, 0)
    start(reset)
    assert reset.told("FALCON_RM")


def change(**fields: object) -> Callable[[Job], None]:
    def apply(job: Job) -> None:
        for name, value in fields.items():
            setattr(job, name, value)

    return apply


def other_signature(job: Job) -> None:
    image = job.image
    at = image.signature_at
    current = bytes(job.data[at : at + 384])
    other = next(each for each in image.signatures.values() if each != current)
    job.data[at : at + 384] = other


def no_signature(job: Job) -> None:
    job.data[job.image.signature_at] ^= 1


def other_data(job: Job) -> None:
    job.data[0] ^= 1


def other_code(job: Job) -> None:
    code = bytes([job.image.code[0] ^ 1]) + job.image.code[1:]
    job.image = job.image._replace(code=code)


BROM: dict[str, tuple[Callable[[Job], None], int, str]] = {
    "algorithm": (change(algorithm=0), 0x11, "MOD_SEL"),
    "engine": (change(engine_mask=2), 0x12, "ENGIDMASK"),
    "vector": (change(vector=0x200), 0x13, "BOOTVEC"),
    "not secure": (change(code_command=IMEM & ~4), 0x14, "is not secure"),
    "code": (other_code, 0x15, "is not booter_load's"),
    "place": (change(signature_at=0x200), 0x16, "PARAADDR"),
    "fuse version": (other_signature, 0x17, "the signature is fuse version"),
    "signature": (no_signature, 0x17, "the signature is none of the image's"),
    "data": (other_data, 0x18, "data memory is not"),
    "ucode": (change(ucode_id=9), 0x21, "no ucode 9 is for it"),
    "no vector": (change(skip={BOOTVEC}), 0x22, "FALCON_BOOTVEC not written"),
    "no words": (change(skip={MOD_SEL, ENGIDMASK}), 0x22, "BROM_ENGIDMASK, MOD_SEL not written"),
}


@pytest.mark.parametrize("case", BROM)
def test_what_the_boot_rom_does_not_start(reset: FalconClient, case: str) -> None:
    """It halts with a code, and the falcon is to be reset again."""
    apply, code, words = BROM[case]
    job = reset.job("booter_load")
    apply(job)
    assert reset.execute(job, 0x1000) == code
    assert reset.told("boot ROM of SEC2", words)
    assert reset.peek_at(SEC2, FALCON_CPUCTL) & HALTED
    reset.put_at(SEC2, BOOTVEC, 0)
    assert reset.told("something ran on it")


# FWSEC


def set_region(index: int, value: int) -> Callable[[FalconClient], None]:
    return lambda client: client.region.__setitem__(index, value)


REGIONS: dict[str, tuple[Callable[[FalconClient], None], str]] = {
    "version": (set_region(0, 2), "FRTS: version 2"),
    "size": (set_region(1, 24), "FRTS: version 1 of 24 bytes"),
    "medium": (set_region(4, 1), "in 1: 1, 20 and 2 wanted"),
    "bytes": (set_region(3, 0x80), "FRTS has 0x80000 bytes"),
    "nowhere": (set_region(2, 0), "FRTS at 0x0"),
    "place": (set_region(2, 0x10010), "FRTS at 0x10010000, not at 0x20000"),
    "end": (set_region(2, (24 << 18) - 0x100), "FRTS ends at"),
    "reading": (
        lambda client: setattr(client, "read_command", (1, 24, 0, 0, 0)),
        "reads the VBIOS",
    ),
}


@pytest.mark.parametrize("case", REGIONS)
def test_what_fwsec_refuses(client: FalconClient, case: str) -> None:
    """With an error in a scratch register, and without WPR2."""
    apply, words = REGIONS[case]
    apply(client)
    client.make_frts()
    assert client.told("FWSEC", words)
    assert client.read(FRTS_SCRATCH) >> 16 == FRTS_ERROR and client.read(WPR2_HI) == 0


def test_fwsec_has_two_commands(client: FalconClient) -> None:
    client.reset(GSP)
    client.execute(client.fwsec(0x16))
    assert client.told("command 0x16")


def test_frts_is_made_once(client: FalconClient) -> None:
    client.make_frts()
    client.make_frts()
    assert client.told("FRTS while WPR2 is up")


def test_there_is_nothing_to_end_without_wpr2(client: FalconClient) -> None:
    client.reset(GSP)
    client.execute(client.fwsec(SB))
    assert client.told("SB while WPR2 is down") and client.read(SB_SCRATCH) == SB_ERROR


# Booter


def test_booter_wants_frts(client: FalconClient) -> None:
    client.reset_to_riscv()
    assert client.load_rm() == BOOTER_ERROR
    assert client.told("WPR2 does not hold FRTS alone")


def test_booter_wants_gsp_in_its_other_core(client: FalconClient) -> None:
    client.make_frts()
    assert client.load_rm() == BOOTER_ERROR
    assert client.told("GSP was not reset into its other core")


def test_booter_wants_memory_scrubbed() -> None:
    """On Ada, where it was not before: some seeds."""
    unscrubbed = 0
    for seed in range(5):
        client = FalconClient("ad102", seed=seed).prepare()
        assert isinstance(client, FalconClient)
        if client.read(HANDOFF) >> 29 < 3:
            unscrubbed += 1
            client.make_frts()
            client.reset_to_riscv()
            assert client.load_rm() == BOOTER_ERROR
            assert client.told("the end of memory was not scrubbed")
        client.close()
        if unscrubbed:
            return
    raise AssertionError("no seed leaves memory unscrubbed")


def set_meta(**fields: int) -> Callable[[FalconClient], None]:
    def apply(client: FalconClient) -> None:
        for name, value in fields.items():
            setattr(client.meta, name, getattr(client.meta, name) + value)

    return apply


META: dict[str, tuple[Callable[[FalconClient], None], str]] = {
    "end of memory": (set_meta(fbSize=-MIB), "fbSize"),
    "frts": (set_meta(frtsOffset=-0x20000), "frtsOffset"),
    "frts bytes": (set_meta(frtsSize=-PAGE), "frtsSize"),
    "end": (set_meta(gspFwWprEnd=0x20000), "gspFwWprEnd"),
    "reserved": (set_meta(gspFwRsvdStart=PAGE), "gspFwRsvdStart"),
    "pmu": (set_meta(pmuReservedSize=PAGE), "pmuReservedSize"),
    "flags": (set_meta(flags=2), "flags is 0x2"),
    "verified": (set_meta(verified=1), "verified is 0x1"),
    "boots": (set_meta(bootCount=1), "bootCount is 0x1"),
    "workspace": (set_meta(vgaWorkspaceOffset=PAGE), "a VGA work space"),
    "workspace bytes": (set_meta(vgaWorkspaceSize=PAGE), "a VGA work space"),
    "heap in front": (set_meta(nonWprHeapSize=-PAGE), "nonWprHeapSize is 0xff000"),
    "heap": (set_meta(gspFwHeapSize=-64 * MIB), "gspFwHeapSize is"),
    "front": (set_meta(nonWprHeapOffset=PAGE, gspFwRsvdStart=PAGE), "nonWprHeapOffset is"),
    "start": (set_meta(gspFwWprStart=PAGE), "gspFwWprStart is"),
    "heap place": (set_meta(gspFwHeapOffset=PAGE), "gspFwHeapOffset is"),
    "image": (set_meta(gspFwOffset=PAGE), "gspFwOffset is"),
    "bootloader": (set_meta(bootBinOffset=16), "bootBinOffset is"),
    "overlap": (set_meta(bootBinOffset=PAGE), "what begins at bootBinOffset ends at"),
    "order": (set_meta(gspFwWprStart=-4 * MIB), "what begins at nonWprHeapOffset ends at"),
}


@pytest.mark.parametrize("case", META)
def test_wpr_meta_that_booter_refuses(client: FalconClient, case: str) -> None:
    """Its mailbox has an error, and WPR2 holds FRTS alone."""
    apply, words = META[case]
    apply(client)
    assert client.start() == BOOTER_ERROR
    assert client.told("booter_load: WPR meta", words)
    assert client.read(WPR2_LO) >> 4 == client.frts_at >> 12


def test_wpr_meta_is_at_a_page(client: FalconClient) -> None:
    client.make_frts()
    client.reset_to_riscv()
    client.reset(SEC2)
    assert client.execute(client.job("booter_load"), client.hold(bytes(PAGE)) + 8) == BOOTER_ERROR
    assert client.told("WPR meta at", "not at a page")


def test_rm_boosts_clocks_where_it_is_told(client: FalconClient) -> None:
    client.meta.flags = 1
    assert client.boot() is not None and not client.violations


def unload(client: FalconClient, mailbox: int = 0xFF << 32 | 0xFF) -> int:
    client.reset(SEC2)
    return client.execute(client.job("booter_unload"), mailbox)


def test_booter_unload_comes_after_fwsec(client: FalconClient) -> None:
    assert client.boot() is not None and client.call(47, bytes(8)) is not None
    client.pass_ms(10)
    assert unload(client) == BOOTER_ERROR and client.told("FWSEC was not told")
    client.reset(GSP)
    client.execute(client.fwsec(SB))
    assert unload(client, 0) == BOOTER_ERROR and client.told("0xff in both halves is wanted")
    assert client.read(WPR2_HI)
    assert unload(client) == 0 and client.read(WPR2_HI) == 0


def test_the_doorbell_is_one_zero(client: FalconClient) -> None:
    client.write(DOORBELL, 1)
    assert client.told("the doorbell of the one queue is a 0")
    client.write(DOORBELL + 8, 0)
    assert client.told("queue 1")


def test_a_function_level_reset_forgets_all(client: FalconClient) -> None:
    """WPR2, whatever ran, and that falcons were reset."""
    assert client.boot() is not None
    client.function.reset()
    client.pass_ms(200)
    assert client.read(WPR2_HI) == 0 and client.read(GFW) == 0xFF
    client.put_at(GSP, BOOTVEC, 0)
    assert client.told("something ran on it")
    assert client.prepare().boot() is not None and not client.violations
