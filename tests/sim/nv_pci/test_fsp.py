"""FSP: its memory, its queues, its messages and the chain of trust."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from sim.nv_pci.client import (
    AINCR,
    AINCW,
    EMEMC,
    EMEMD,
    HWCFG2,
    MIB,
    MSGQ_HEAD,
    MSGQ_TAIL,
    PAGE,
    QUEUE_HEAD,
    QUEUE_TAIL,
    STATUS,
    WPR2_HI,
    WPR2_LO,
    Answer,
    Client,
)

INVALID_STATE, NOT_SUPPORTED, INVALID_DATA = 0x9E, 0xA0, 0xA1


@pytest.fixture
def ready(client: Client) -> Client:
    """FSP runs, and what it reads is in memory."""
    client.settle()
    client.place()
    return client


def test_it_starts_some_time_after_a_reset(client: Client) -> None:
    client.card.reset()
    client.pass_ms(101)
    assert client.read(STATUS[client.chip]) == 0
    client.load(bytes(64))
    client.write(QUEUE_TAIL, 60)
    client.write(QUEUE_HEAD, 0)
    assert client.told("FSP has not started")
    client.settle()
    assert not client.violations


def test_the_port_counts_by_itself(ready: Client) -> None:
    words = [0x11111111 * n for n in range(1, 9)]
    ready.load(struct.pack("<8I", *words))
    assert ready.read(EMEMC) == 32 | AINCW
    ready.write(EMEMC, AINCR)
    assert [ready.read(EMEMD) for _ in words] == words
    ready.write(EMEMC, 8)
    assert ready.read(EMEMD) == ready.read(EMEMD) == words[2], "it does not count unasked"


def test_the_port_has_words_and_two_switches(ready: Client) -> None:
    for value in (1, 2, 1 << 16, 1 << 26):
        ready.write(EMEMC, value)
        assert ready.told("NV_PFSP_EMEMC(0)", "no other bits")


def test_the_drivers_memory_has_one_kib(ready: Client) -> None:
    ready.load(bytes(1024))
    ready.write(EMEMD, 0)
    assert ready.told("NV_PFSP_EMEMD(0)", "beyond the driver's 1 KiB")
    ready.read(EMEMD)
    assert ready.told("a read", "beyond the driver's 1 KiB")


def test_the_tail_comes_first(ready: Client) -> None:
    ready.load(ready.packet())
    ready.write(QUEUE_HEAD, 0)
    assert ready.told("NV_PFSP_QUEUE_HEAD(0)", "the tail is written first")


@pytest.mark.parametrize(
    "head,tail",
    [(4, 64), (0, 61), (0, 0), (0, 1024)],
    ids=["begins later", "half a word", "one word", "longer than a KiB"],
)
def test_a_packet_is_whole(ready: Client, head: int, tail: int) -> None:
    ready.write(QUEUE_TAIL, tail)
    ready.write(QUEUE_HEAD, head)
    assert ready.told("a packet from", "begins at 0")


def test_one_packet_at_a_time(ready: Client) -> None:
    ready.load(ready.packet())
    ready.write(QUEUE_TAIL, 0x360)
    ready.write(QUEUE_HEAD, 0)
    ready.write(QUEUE_TAIL, 0x360)
    assert ready.told("NV_PFSP_QUEUE_TAIL(0)", "still reads the last packet")
    ready.write(QUEUE_HEAD, 0)
    assert ready.told("NV_PFSP_QUEUE_HEAD(0)", "still reads the last packet")
    ready.write(EMEMD, 0)
    assert ready.told("NV_PFSP_EMEMD(0)", "still reads the last packet")


def test_answers_are_taken(ready: Client) -> None:
    ready.nvdm ^= 1
    ready.load(ready.packet())
    ready.write(QUEUE_TAIL, 0x360)
    ready.write(QUEUE_HEAD, 0)
    ready.pass_ms(5)
    ready.world.debug.records.clear()
    assert (ready.read(MSGQ_HEAD), ready.read(MSGQ_TAIL)) == (0, 16)
    ready.write(QUEUE_TAIL, 0x360)
    ready.write(QUEUE_HEAD, 0)
    assert ready.told("its last answer was not taken")
    ready.write(MSGQ_TAIL, 4)
    assert ready.told("NV_PFSP_MSGQ_TAIL(0)", "making the tail the head")
    ready.write(MSGQ_HEAD, 16)
    assert ready.told("NV_PFSP_MSGQ_HEAD(0)", "making the tail the head")
    assert ready.take().code == INVALID_DATA


@pytest.mark.parametrize("register", [QUEUE_HEAD, QUEUE_TAIL, MSGQ_HEAD, MSGQ_TAIL])
def test_the_driver_has_channel_0(ready: Client, register: int) -> None:
    ready.write(register + 8, 0)
    assert ready.told("channel 1 is not the driver's")


HEADERS = {
    "not the start": ("mctp", 0x40000000, INVALID_DATA, "not the whole message"),
    "not the end": ("mctp", 0x80000000, INVALID_DATA, "not the whole message"),
    "second packet": ("mctp", 0xD0000000, INVALID_DATA, "sequence, tag and endpoints are 0"),
    "type": ("nvdm", 0x1410DE7F, INVALID_DATA, "not of a vendor of PCI"),
    "vendor": ("nvdm", 0x1410DD7E, INVALID_DATA, "the vendor is 0x10de"),
    "other message": ("nvdm", 0x1610DE7E, NOT_SUPPORTED, "only the chain of trust"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_are_refused(ready: Client, case: str) -> None:
    field, value, code, why = HEADERS[case]
    setattr(ready, field, value)
    assert ready.ask(ready.packet()) == Answer(0, ready.nvdm >> 24, code)
    assert ready.told("FSP: ", why)


@pytest.mark.parametrize("length", [4, 64, 0x35C, 0x368])
def test_a_chain_of_trust_has_its_length(ready: Client, length: int) -> None:
    packet = ready.packet()[:length].ljust(length, b"\0")
    if length == 4:
        ready.load(packet)
        ready.write(QUEUE_TAIL, 0)
        ready.write(QUEUE_HEAD, 0)
        assert ready.told("a packet from")
        return
    answer = ready.ask(packet)
    assert answer is not None and answer.code == INVALID_DATA
    assert ready.told(f"a chain of trust of {length - 8:#x} bytes")


def flip(field: str, index: int = 0) -> Callable[[Client], None]:
    """Another bit in a word of an array."""

    def change(client: Client) -> None:
        array = getattr(client.cot, field)
        array[index] ^= 1 << 7

    return change


def put(field: str, value: int) -> Callable[[Client], None]:
    return lambda client: setattr(client.cot, field, value)


def torn(client: Client) -> None:
    client.poke(client.cot.gspFmcSysmemOffset + 0x1234, b"\xa5")


COTS: dict[str, tuple[Callable[[Client], None], int, str]] = {
    "version": (put("version", 3), NOT_SUPPORTED, "COT version 3"),
    "size": (put("size", 0x358), INVALID_DATA, "COT has a size of 0x358"),
    "unknown hash": (flip("hash384"), INVALID_DATA, "no image has the hash"),
    "key": (flip("publicKey"), INVALID_DATA, "of the image's key"),
    "signature": (flip("signature"), INVALID_DATA, "of the image's signature"),
    "torn image": (torn, INVALID_DATA, "is not what its hash says"),
    "unmapped image": (put("gspFmcSysmemOffset", 1 << 33), INVALID_DATA, "are not the card's"),
    "high image": (put("gspFmcSysmemOffset", 1 << 52), INVALID_DATA, "beyond the 52 bits"),
    "size of FRTS": (put("frtsVidmemSize", 2 * MIB), INVALID_DATA, "FRTS in video memory"),
    "no FRTS": (put("frtsVidmemSize", 0), INVALID_DATA, "0x0 bytes of FRTS in video memory"),
    "FRTS at 1 MiB": (put("frtsVidmemOffset", 33 * MIB), INVALID_DATA, "not at 2 MiB"),
    "FRTS at the end": (put("frtsVidmemOffset", 0), INVALID_DATA, "too few for the VGA"),
    "FRTS too low": (put("frtsVidmemOffset", 256 * MIB), INVALID_DATA, "was not scrubbed"),
    "FRTS nowhere": (put("frtsSysmemSize", MIB), INVALID_DATA, "FRTS in system memory"),
    "FRTS of no size": (put("frtsSysmemOffset", PAGE), INVALID_DATA, "0x0 bytes of FRTS at 0x1000"),
    "little FRTS": (put("frtsSysmemSize", PAGE), INVALID_DATA, "0x1000 bytes of FRTS"),
}


@pytest.mark.parametrize("case", COTS)
def test_chains_of_trust_that_are_refused(ready: Client, case: str) -> None:
    change, code, why = COTS[case]
    change(ready)
    assert ready.ask(ready.packet()) == Answer(0, 0x14, code)
    assert ready.told("FSP: ", why)
    ready.pass_ms(20)
    assert ready.read(HWCFG2) == 0xBADF4100, "nothing was booted"


def test_keys_and_signatures_are_padded_with_zeros() -> None:
    client = Client("gb202").prepare()
    client.settle()
    client.place()
    for field in ("publicKey", "signature"):
        flip(field, 95)(client)
        assert client.ask(client.packet()) == Answer(0, 0x14, INVALID_DATA)
        assert client.told("of the image's")
        flip(field, 95)(client)
    client.close()


def test_what_the_vbios_leaves_is_copied_to_the_system(ready: Client) -> None:
    ready.cot.frtsSysmemOffset, ready.cot.frtsSysmemSize = ready.hold(b"\xa5" * MIB), MIB
    assert ready.ask(ready.packet()) == Answer(0, 0x14, 0)
    assert ready.peek(ready.cot.frtsSysmemOffset, MIB) != b"\xa5" * MIB
    assert not ready.violations


def test_frts_is_in_wpr2_at_once(ready: Client) -> None:
    assert ready.ask(ready.packet()) == Answer(0, 0x14, 0)
    end = ready.card.chip.vram.size - ready.cot.frtsVidmemOffset
    assert (ready.read(WPR2_LO), ready.read(WPR2_HI)) == (end - MIB >> 8, end - PAGE >> 8)


def test_a_second_chain_of_trust(ready: Client) -> None:
    assert ready.ask(ready.packet()) == Answer(0, 0x14, 0)
    assert ready.ask(ready.packet()) == Answer(0, 0x14, INVALID_STATE)
    assert ready.told("a COT while WPR2 is up")


def test_no_dma_without_bus_mastering(ready: Client) -> None:
    ready.function.set_bus_master(False)
    assert ready.ask(ready.packet()) == Answer(0, 0x14, INVALID_DATA)
    assert any("while it is no bus master" in each for each in ready.violations)
    assert ready.told("the FMC", "no bus master")


def test_dma_outside_of_what_is_mapped_is_recorded(ready: Client) -> None:
    ready.cot.gspFmcSysmemOffset = 1 << 33
    ready.ask(ready.packet())
    assert any("DMA read at 0x200000000" in each for each in ready.world.debug.faults)
