"""The security processor: what its bootloader and sOS take, in which order, what they refuse."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.sim.amd.pci.boards import find_board
from gpu.sim.amd.pci.firmware import KINDS, SOS, make_images, signed, why_refused, write_images
from gpu.sim.amd.pci.psp import BAD_PARAMETERS, BAD_STATE, NOT_SUPPORTED, SECURITY, TMR_BYTES
from gpu.sim.amd.pci.silicon import FB_BASE
from sim.amd_pci.client import COMMAND, FENCE, MSG, READY, RING, TMR, Client


def test_components_come_in_order(cold: Client) -> None:
    parts = dict(cold.components())
    assert cold.load_component(0x80000, parts[0x80000]) == READY
    assert cold.load_component(0x20000, parts[0x20000]) == READY | 1
    cold.told("command 0x20000", "the system driver was not loaded")
    assert cold.load_component(0x10000, parts[0x10000]) == READY
    assert cold.load_component(0x80000, parts[0x80000]) == READY | 1
    cold.told("it comes after 0x10000")
    assert cold.read("MP0_SMN_C2PMSG_81") == 0


def test_a_component_needs_a_ready_bootloader(cold: Client) -> None:
    cold.vram.store(MSG, next(cold.components())[1])
    cold.write("MP0_SMN_C2PMSG_36", FB_BASE + MSG >> 20)
    cold.write("MP0_SMN_C2PMSG_35", 0x80000)
    cold.write("MP0_SMN_C2PMSG_35", 0x10000)
    cold.told("is not ready, C2PMSG_35 is 0x0")
    cold.wait("MP0_SMN_C2PMSG_35", READY, READY)
    cold.write("MP0_SMN_C2PMSG_35", 0x12345)
    cold.told("no command of the bootloader")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:0x6C] + b"\xff\xff\xff\xff" + data[0x70:], "tells"),
        (lambda data: data[:0x10] + b"1234" + data[0x14:], "no $PS1 at 0x10, but 31323334"),
        (lambda data: data[:0x30] + b"\0" + data[0x31:], "it is not signed"),
        (lambda data: data[:0x200] + b"\xaa\x55" + data[0x202:], "signature is of other bytes"),
        (lambda data: signed(SOS, 0x40, 1, ""), "it is of kind 0x9, not 0xa"),
        (lambda data: bytes(0x1000), "no $PS1"),
    ],
)
def test_what_is_no_component(cold: Client, change: Callable[[bytes], bytes], said: str) -> None:
    parts = dict(cold.components())
    cold.load_component(0x80000, parts[0x80000])
    assert cold.load_component(0x10000, change(parts[0x10000])) == READY | 1
    cold.told("command 0x10000", said)


def test_the_message_buffer_begins_at_a_mib(cold: Client) -> None:
    _, keys = next(cold.components())
    assert cold.load_component(0x80000, keys, at=MSG + 0x8000) == READY | 1
    cold.told("at 0x8000100000")


def test_a_message_buffer_nowhere(cold: Client) -> None:
    cold.write("MP0_SMN_C2PMSG_36", 0x123)
    cold.write("MP0_SMN_C2PMSG_35", 0x80000)
    assert cold.wait("MP0_SMN_C2PMSG_35", READY, READY) == READY | 1
    cold.told("C2PMSG_36", "0x12300000", "not mapped")


def test_bytes_that_were_not_flushed() -> None:
    client = Client(coherence="oldest")
    _, keys = next(client.components())
    client.vram.store(MSG, keys)
    client.write("MP0_SMN_C2PMSG_36", FB_BASE + MSG >> 20)
    client.write("MP0_SMN_C2PMSG_35", 0x80000)
    assert client.wait("MP0_SMN_C2PMSG_35", READY, READY) == READY | 1
    client.told("no $PS1")
    assert client.load_component(0x80000, keys) == READY
    client.close()


def test_rings_need_sos(cold: Client) -> None:
    cold.write("MP0_SMN_C2PMSG_64", 2 << 16)
    cold.told("sOS does not run")
    cold.write("MP0_SMN_C2PMSG_67", 16)
    cold.told("there is no ring")


def test_rings(cold: Client) -> None:
    cold.start_sos()
    cold.write("MP0_SMN_C2PMSG_35", 0x80000)
    cold.told("the bootloader has ended")
    assert cold.make_ring(FB_BASE + RING + 64) == READY | BAD_PARAMETERS & 0xFFFF
    cold.told("PSP ring", "not whole pages")
    assert cold.make_ring(0x1000) == READY | BAD_PARAMETERS & 0xFFFF
    cold.told("PSP ring", "not mapped")
    assert cold.make_ring() == READY
    assert cold.make_ring() == READY | BAD_PARAMETERS & 0xFFFF
    cold.told("there is one already")
    cold.write("MP0_SMN_C2PMSG_64", 3 << 16)
    assert cold.wait("MP0_SMN_C2PMSG_64", READY, READY) == READY
    assert cold.make_ring() == READY
    cold.write("MP0_SMN_C2PMSG_67", 5)
    cold.told("frames have 0x10 dwords")
    cold.write("MP0_SMN_C2PMSG_67", 0x4000)
    cold.told("the ring 0x4000")
    cold.write("MP0_SMN_C2PMSG_64", 9 << 16)
    cold.told("no command that is known")


def test_frames(cold: Client) -> None:
    cold.start_sos()
    cold.make_ring()
    high = FB_BASE >> 32
    for words in ((COMMAND + 4, high, 0, FENCE, high, 1), (COMMAND, high, 0, FENCE + 2, high, 1)):
        cold.vram.store(RING + 4 * cold.wptr, struct.pack("<6I", *words).ljust(64, b"\0"))
        cold.wptr += 16
        cold.write("MP0_SMN_C2PMSG_67", cold.wptr)
        cold.world.run_until_idle()
        cold.told("PSP frame", "buffers begin at a page")
    assert cold.vram.read(FENCE, 4) == 0
    words = (COMMAND, high, 0, 0x5000, 0, 1)
    cold.vram.store(RING + 4 * cold.wptr, struct.pack("<6I", *words).ljust(64, b"\0"))
    cold.write("MP0_SMN_C2PMSG_67", cold.wptr + 16)
    cold.world.run_until_idle()
    cold.told("PSP frame", "0x5000", "not mapped")


def test_the_ring_goes_round(cold: Client) -> None:
    cold.start_sos()
    cold.make_ring(size=0x1000)
    for _ in range(70):
        toc = cold.toc()
        cold.vram.store(MSG, toc)
        assert cold.submit(0x20, MSG, FB_BASE >> 32, len(toc))[0] == 0


def test_the_order_of_commands(cold: Client) -> None:
    cold.start_sos()
    cold.make_ring()
    firmware = dict(cold.ip_firmware())
    assert cold.setup_tmr(TMR_BYTES) == BAD_STATE
    cold.told("table of contents")
    assert cold.load_ip(89, firmware[89]) == BAD_STATE
    cold.told("type 89 before the TMR")
    assert cold.load_toc() == TMR_BYTES
    assert cold.load_ip(18, firmware[18]) == 0
    high = FB_BASE >> 32
    for size, *at in (
        (TMR_BYTES - 4096, TMR, high),
        (TMR_BYTES, TMR + 4096, high),
        (TMR_BYTES, 0, 0),
    ):
        assert cold.submit(5, *at, size, 2, *at)[0] == BAD_PARAMETERS
        cold.told("of video memory")
    assert cold.setup_tmr(TMR_BYTES, 0) == BAD_PARAMETERS
    cold.told("which is in use")
    assert cold.setup_tmr(TMR_BYTES) == 0
    assert cold.submit(0x21)[0] == BAD_STATE
    cold.told("firmware of types [8, 26, 48, 68, 69, 71, 72, 89, 94, 95, 96, 97] was not loaded")
    assert cold.load_ip(200, firmware[89]) == NOT_SUPPORTED
    cold.told("type 200 is not this chip's")
    assert cold.load_ip(89, firmware[88]) == SECURITY
    cold.told("of kind 0x2046, not 0x2048")
    assert cold.submit(6, MSG + 4, FB_BASE >> 32, 4096, 89)[0] == BAD_PARAMETERS
    cold.told("does not begin a page")
    assert cold.load_ip(89, firmware[89][:64]) == SECURITY
    cold.told("too few for a header")
    assert cold.load_ip(8, firmware[8]) == 0
    assert cold.load_ip(89, firmware[89]) == BAD_STATE
    cold.told("after RLC's")
    assert cold.submit(0x77)[0] == NOT_SUPPORTED


def test_rlc_tells_only_when_it_has_loaded(cold: Client) -> None:
    assert cold.read("RLC_RLCS_BOOTLOAD_STATUS") == 0
    cold.start_sos()
    cold.load_all()
    assert cold.read("RLC_RLCS_BOOTLOAD_STATUS") & READY


def test_gfx12_has_its_tmr_from_the_boot() -> None:
    client = Client("gfx1201")
    client.start_sos()
    client.make_ring()
    size = client.load_toc()
    assert client.setup_tmr(size) == BAD_STATE
    client.told("set up at boot")
    for kind, data in client.ip_firmware():
        if kind not in (88, 96, 97):
            assert client.load_ip(kind, data) == 0
    assert client.submit(0x21)[0] == BAD_STATE
    client.told("firmware of types [88] was not loaded")
    client.close()


def test_nobody_else_reaches_the_tmr(booted: Client) -> None:
    root = booted.start_memory(1)
    booted.map(root, 0x10000, TMR + 0x1000)
    booted.invalidate("GFXHUB", 1)
    with pytest.raises(Exception, match="0x10000"):
        booted.card.gfxhub.spaces[1].translate(0x10000, write=False)
    booted.told("0x10000 of VMID 1 is in the TMR")


def test_images_are_files_with_the_headers_of_real_ones(tmp_path: Path) -> None:
    hashes = write_images(tmp_path, "gfx1100")
    assert len(hashes) == 9
    for name, data in make_images(find_board("gfx1100")).items():
        found = (tmp_path / name).read_bytes()
        assert found == data and hashlib.sha256(found).hexdigest() == hashes[name]
        size, header, *_ = struct.unpack_from("<II", data)
        assert size == len(data) and header <= 256
    assert not why_refused(signed(KINDS[89], 64, 1, "x"), KINDS[89])
