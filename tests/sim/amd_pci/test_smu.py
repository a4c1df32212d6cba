"""The power management unit's mailboxes, and the reset that goes through them."""

from __future__ import annotations

import pytest

from gpu.sim.amd.pci.silicon import FB_BASE
from gpu.sim.amd.pci.smu import FAILED, OK, PREREQUISITE, UNKNOWN
from sim.amd_pci.client import MIB, READY, Client

NAME = "MP1_SMN_C2PMSG_{}"


def test_a_message_needs_firmware(cold: Client) -> None:
    cold.write(NAME.format(66), 1)
    cold.told("C2PMSG_66", "has no firmware")
    cold.write(NAME.format(75), 2)
    cold.told("C2PMSG_75", "has no firmware")


def test_the_last_answer_is_cleared_first(booted: Client) -> None:
    assert booted.message(1, 5) == (OK, 6)
    booted.write(NAME.format(66), 1)
    booted.told("C2PMSG_90, is 0x1")
    booted.write(NAME.format(90), 0)
    booted.write(NAME.format(66), 1)
    booted.write(NAME.format(66), 2)
    booted.told("one is under way")
    booted.write(NAME.format(90), 0)
    booted.told("no answer yet")


def test_messages(booted: Client) -> None:
    assert booted.message(2)[1] == 0x4E4B00
    assert booted.message(6) == (OK, 0)
    assert booted.message(0x0C)[1] == 0xFFFFFFFF
    assert [booted.message(0x1F, 2 << 16 | n)[1] for n in (0xFF, 0, 3)] == [4, 96, 1249]
    assert booted.message(0x1D, 2 << 16)[1] == 96 and booted.message(0x1E, 2 << 16)[1] == 1249
    assert booted.message(0x1A, 2 << 16 | 1249) == (OK, 0)
    assert booted.message(0x32, 200) == (OK, 0) and booted.message(0x33) == (OK, 200)
    assert not booted.violations


@pytest.mark.parametrize(
    ("message", "argument", "status", "said"),
    [
        (0xEE, 0, UNKNOWN, "is not known"),
        (0x12, 5, PREREQUISITE, "no address for tables"),
        (0x12, 3, FAILED, "there is no table 3"),
        (0x1F, 99 << 16, FAILED, "there is no clock 99"),
        (0x1F, 2 << 16 | 7, FAILED, "level 7 of 4"),
        (0x1A, 77 << 16, FAILED, "there is no clock 77"),
        (0x32, 5000, FAILED, "5000 W"),
    ],
)
def test_refusals(booted: Client, message: int, argument: int, status: int, said: str) -> None:
    assert booted.message(message, argument)[0] == status
    booted.told(f"SMU message {message:#x}", said)


def test_tables_go_where_the_address_says(booted: Client) -> None:
    booted.vram.store(32 * MIB, b"\xff" * 0x1000)
    booted.message(0x0E, FB_BASE >> 32)
    booted.message(0x0F, 32 * MIB)
    assert booted.message(0x12, 5)[0] == OK
    assert booted.vram.load(32 * MIB, 0x221) == bytes(0x220) + b"\xff"
    assert booted.message(0x13, 5)[0] == OK
    booted.message(0x0E, 0)
    booted.message(0x0F, 0x1000)
    assert booted.message(0x12, 5)[0] == FAILED
    booted.told("not mapped")


def test_mode1_forgets_all(booted: Client) -> None:
    booted.write("SCRATCH_REG7", 0xA0000008)
    booted.vram.write(40 * MIB, 4, 1)
    assert booted.message(0x2F)[0] == OK
    start = booted.world.waiter.now_ns()
    booted.settle(1_000_000)
    assert booted.function.config.read(4, 2) & 6 == 0  # config space too
    booted.function.config.write(4, 2, 2)
    assert booted.read("SCRATCH_REG7") == 0xFFFFFFFF
    while booted.read("MP0_SMN_C2PMSG_33") == 0xFFFFFFFF:
        booted.world.waiter.idle(10_000_000)
    assert booted.world.waiter.now_ns() - start >= 500_000_000
    assert booted.read("SCRATCH_REG7") == booted.read("MP0_SMN_C2PMSG_81") == 0
    assert booted.vram.read(40 * MIB, 4) == 0
    size = booted.card.chip.vram.size
    assert booted.vram.read(size - (64 << 10), 4) == 0x28211407
    booted.function.set_bus_master(True)
    booted.boot()


@pytest.mark.parametrize("chip", ["gfx1101", "gfx1201"])
def test_the_debug_mailbox_resets(chip: str) -> None:
    client = Client(chip)
    client.boot()
    assert client.message(0x2F)[0] == UNKNOWN
    client.told("debug mailbox")
    client.write(NAME.format(53), 0)
    client.write(NAME.format(75), 9)
    client.write(NAME.format(54), 0)
    client.wait(NAME.format(54), 0xFF, UNKNOWN)
    client.write(NAME.format(75), 2)
    client.write(NAME.format(54), 0)
    client.wait(NAME.format(54), 1, 1)
    client.settle(1_000_000)
    client.function.config.write(4, 2, 6)
    assert client.read("SCRATCH_REG6") == 0xFFFFFFFF
    client.close()


def test_sos_resets_as_well(booted: Client) -> None:
    booted.write("MP0_SMN_C2PMSG_64", 7 << 16)
    booted.settle(1_000_000)
    booted.function.config.write(4, 2, 6)
    assert booted.read("SCRATCH_REG6") == 0xFFFFFFFF


def test_closing_resets_the_bus_where_vfio_has_all_of_it(booted: Client) -> None:
    booted.write("SCRATCH_REG7", 5)
    booted.function.close()
    booted.open()
    assert booted.read("SCRATCH_REG7") == 0 and booted.read("MP0_SMN_C2PMSG_33") == READY


def test_closing_leaves_a_card_whose_sound_is_others() -> None:
    client = Client(sound_driver="")
    client.boot()
    client.write("SCRATCH_REG7", 5)
    client.function.close()
    client.open()
    assert client.read("SCRATCH_REG7") == 5 and client.read("MP0_SMN_C2PMSG_81")
    client.close()
