"""FSP's mailbox against a mailbox that holds to its rules, and answers that are wrong."""

from __future__ import annotations

import ctypes
import random
import struct

import pytest

from gpu.autogen.nv import gsp
from gpu.core.errors import FirmwareError, InvalidValue
from gpu.drivers.boot import BootError, BootTimeout
from gpu.drivers.nv.pci import fsp, images
from gpu.drivers.nv.pci.chips import GB20X, GH100, Chip
from unit.nv_pci import made

EMEMC, EMEMD = 0x8F2AC0, 0x8F2AC4
QUEUE_HEAD, QUEUE_TAIL, MSGQ_HEAD, MSGQ_TAIL = 0x8F2C00, 0x8F2C04, 0x8F2C80, 0x8F2C84
GOOD = struct.pack("<5I", 0xC0000000, 0x1510DE7E, 7, gsp.NVDM_TYPE_COT, 0)


class FakeFsp:
    """Takes a packet when HEAD is written, and answers; ``packets`` are those that came."""

    def __init__(self, function: made.FakeFunction, answer: bytes | None = GOOD):
        self.function = function
        self.answer = answer
        self.emem = bytearray(1024)
        self.place = self.control = 0
        self.moves = True
        self.packets: list[bytes] = []
        function.writes[EMEMC] = self._select
        function.reads[EMEMC] = lambda: self.control | self.place
        function.writes[EMEMD] = self._put
        function.reads[EMEMD] = self._get
        function.writes[QUEUE_HEAD] = self._take

    def _select(self, value: int) -> None:
        self.place, self.control = value & 0xFFFC, value & 0x3000000

    def _put(self, value: int) -> None:
        struct.pack_into("<I", self.emem, self.place, value)
        if self.control & 1 << 24 and self.moves:
            self.place += 4

    def _get(self) -> int:
        value: int = struct.unpack_from("<I", self.emem, self.place)[0]
        if self.control & 1 << 25 and self.moves:
            self.place += 4
        return value

    def _take(self, value: int) -> None:
        tail = self.function.values[QUEUE_TAIL]
        self.packets.append(bytes(self.emem[value : tail + 4]))
        self.function.values[QUEUE_HEAD] = self.function.values[QUEUE_TAIL] = tail
        if self.answer is not None:
            self.emem[: len(self.answer)] = self.answer
            self.function.values[MSGQ_HEAD] = 0
            self.function.values[MSGQ_TAIL] = len(self.answer) - 4


def ask(answer: bytes | None) -> FakeFsp:
    card, function = made.make_card(GH100)
    fake = FakeFsp(function, answer)
    fsp.Mailbox(card).ask(gsp.NVDM_TYPE_COT, fsp.make_packet(gsp.NVDM_TYPE_COT, b"12345"))
    return fake


def test_a_packet_is_sent_and_its_answer_taken() -> None:
    """Whole dwords, TAIL before HEAD; the answer's queue is left empty."""
    fake = ask(GOOD)
    assert fake.packets == [struct.pack("<II", 0xC0000000, 0x1410DE7E) + b"12345\0\0\0"]
    values, log = fake.function.values, fake.function.log
    assert values[MSGQ_HEAD] == values[MSGQ_TAIL] == 0
    assert log.index((QUEUE_TAIL, 12)) < log.index((QUEUE_HEAD, 0))


@pytest.mark.parametrize(
    ("at", "word", "what"),
    [
        (0, 0x80000000, "MCTP header at offset 0"),
        (0, 0x40000000, "MCTP header at offset 0"),
        (1, 0x1410DE7E, "NVDM header at offset 4"),
        (1, 0x1510DD7E, "NVDM header at offset 4"),
        (1, 0x1510DE7D, "NVDM header at offset 4"),
        (3, 0x13, "commandNvdmType at offset 12"),
        (4, 0xA1, "error 0xa1 .invalid data"),
        (4, 0x77, "task 0x7 says error 0x77"),
    ],
)
def test_an_answer_that_is_wrong_is_named(at: int, word: int, what: str) -> None:
    """By the field and its offset, or the code that FSP gives."""
    words = list(struct.unpack("<5I", GOOD))
    words[at] = word
    with pytest.raises(FirmwareError, match=what):
        ask(struct.pack("<5I", *words))


@pytest.mark.parametrize("size", (8, 16))
def test_an_answer_that_is_short_is_refused(size: int) -> None:
    """One without all of its members."""
    with pytest.raises(FirmwareError, match=f"has {size} bytes, 20"):
        ask(GOOD[:size])


@pytest.mark.parametrize(("head", "tail"), [(8, 0), (0, 2), (0, 1024), (0, 0xFFFFFFFC)])
def test_pointers_that_hold_no_packet_are_refused(head: int, tail: int) -> None:
    """Before anything is read by them."""
    card, function = made.make_card(GH100)
    fake = FakeFsp(function, None)
    function.values.update({MSGQ_HEAD: head, MSGQ_TAIL: tail})
    with pytest.raises(FirmwareError, match=r"FSP\.MSGQ_HEAD is"):
        fsp.Mailbox(card).ask(gsp.NVDM_TYPE_COT, fsp.make_packet(gsp.NVDM_TYPE_COT, b"1234"))
    assert len(fake.packets) == 1 and (EMEMD, None) not in function.log


def test_silence_ends_with_what_fsp_left_in_scratch() -> None:
    """In bounded time, with register, last and wanted value."""
    card, function = made.make_card(GH100)
    FakeFsp(function, None)
    function.reads[0x8F0324] = lambda: 0xABC if card.waiter.now_ns() > 1e9 else 0
    with pytest.raises(BootTimeout, match=r"test: FSP\.MSGQ_TAIL is 0x0.*0xabc") as raised:
        fsp.Mailbox(card).ask(gsp.NVDM_TYPE_COT, fsp.make_packet(gsp.NVDM_TYPE_COT, b"1234"))
    assert card.waiter.now_ns() < 10e9 and raised.value.register == "FSP.MSGQ_TAIL"


def test_a_mailbox_that_is_not_empty_is_waited_for() -> None:
    """FSP has not taken the packet before."""
    card, function = made.make_card(GH100)
    fake = FakeFsp(function)
    function.values[QUEUE_TAIL] = 8
    with pytest.raises(BootTimeout, match="QUEUE_TAIL is 0x8"):
        fsp.Mailbox(card).ask(gsp.NVDM_TYPE_COT, fsp.make_packet(gsp.NVDM_TYPE_COT, b"1234"))
    assert not fake.packets and card.waiter.now_ns() < 5e9


def test_a_place_that_does_not_move_on_is_an_error() -> None:
    """Else all words were one."""
    card, function = made.make_card(GH100)
    fake = FakeFsp(function)
    fake.moves = False
    with pytest.raises(BootError, match=r"FSP\.EMEMC"):
        fsp.Mailbox(card).ask(gsp.NVDM_TYPE_COT, fsp.make_packet(gsp.NVDM_TYPE_COT, b"1234"))
    assert not fake.packets


def test_a_packet_larger_than_the_mailbox_is_refused() -> None:
    """1 KiB is there."""
    assert len(fsp.make_packet(1, bytes(1016))) == 1024
    with pytest.raises(InvalidValue, match="1025 bytes"):
        fsp.make_packet(1, bytes(1017))


@pytest.mark.parametrize(("chip", "version", "frts"), [(GH100, 1, 0x200000), (GB20X, 2, 0x1C00000)])
def test_the_chain_of_trust_is_asked_for_by_the_rules_of_the_family(
    chip: Chip, version: int, frts: int
) -> None:
    """Version, sizes, padding, and where FRTS goes, counted from the end."""
    fmc = images.parse_fmc(made.fmc_file(random.Random(7), chip), chip)
    packet = fsp.make_cot(chip, fmc, 0x12345000, 0xABCDE000)
    assert len(packet) == 0x364 and packet[:8] == struct.pack("<II", 0xC0000000, 0x1410DE7E)
    cot = gsp.NVDM_PAYLOAD_COT.from_buffer_copy(packet, 8)
    assert (cot.version, cot.size) == (version, 0x35C)
    assert (cot.gspFmcSysmemOffset, cot.gspBootArgsSysmemOffset) == (0x12345000, 0xABCDE000)
    assert (cot.frtsVidmemOffset, cot.frtsVidmemSize) == (frts, 1 << 20)
    assert (cot.frtsSysmemOffset, cot.frtsSysmemSize) == (0, 0)
    assert bytes(cot.hash384) == fmc.hash
    assert bytes(cot.publicKey) == fmc.key.ljust(384, b"\0")
    assert bytes(cot.signature) == fmc.signature.ljust(384, b"\0")
    assert ctypes.sizeof(cot) == 0x35C
