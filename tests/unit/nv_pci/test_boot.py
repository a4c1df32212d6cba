"""Steps of a boot, each against registers that a test gives."""

from __future__ import annotations

import random

import pytest

from gpu.core.errors import DeviceError, InvalidValue, Unsupported
from gpu.drivers.boot import BootError, BootTimeout, check_steps
from gpu.drivers.nv.pci import boot
from gpu.drivers.nv.pci.boot import STEPS, BootCard
from gpu.drivers.nv.pci.chips import AD10X, GA10X, GB20X, GH100, Chip
from gpu.drivers.nv.pci.images import parse_bootloader
from unit.nv_pci import made

WPR2_HI = 0x1FA828
HWCFG2, MAILBOX0, MAILBOX1, RISCV = 0x1100F4, 0x110040, 0x110044, 0x111388
PARAMS = 0x1_2345_6000


def ready(chip: Chip) -> tuple[BootCard, made.FakeFunction]:
    card, function = made.make_card(chip)
    card.fmc_params_at = PARAMS
    card.bootloader = parse_bootloader(made.bootloader_file(random.Random(1)))
    return card, function


def test_the_steps_follow_each_other() -> None:
    """Each needs what one before it promises, and all are bounded."""
    check_steps(STEPS)
    assert [step.name for step in STEPS] == [
        *("claim", "state", "reset", "ready", "memory", "images", "arguments"),
        *("protect", "start", "init"),
    ]
    with pytest.raises(InvalidValue, match="no boot step 'gsp'"):
        list(boot.boot(ready(GH100)[0], "gsp"))


@pytest.mark.parametrize(
    ("boot42", "name"),
    [(0x180000A1, "GH100"), (0x1B2000A1, "GB202"), (0x172000A1, "GA102"), (0x19200000, "AD102")],
)
def test_claim_knows_the_chip(boot42: int, name: str) -> None:
    """By PMC_BOOT_42."""
    card, function = made.make_card()
    function.values.update({0: boot42, 0xA00: boot42})
    boot.claim(card)
    assert card.chip_name == name and function.is_master


def test_claim_refuses_what_is_no_such_card() -> None:
    """Another vendor's, one without BARs, one that does not answer, a chip that is out."""
    card, function = made.make_card()
    function.values.update({0: 0xFFFFFFFF})
    with pytest.raises(DeviceError, match="read as ones"):
        boot.claim(card)
    function.values.update({0: 0x164000A1, 0xA00: 0x164000A1})
    with pytest.raises(Unsupported, match="Turing"):
        boot.claim(card)
    del function.bars[3]
    with pytest.raises(Unsupported, match="no BAR 3"):
        boot.claim(card)
    function.ids = function.ids._replace(vendor=0x1002)
    with pytest.raises(Unsupported, match="0x1002, not NVIDIA"):
        boot.claim(card)


def test_a_card_with_wpr2_is_reset_and_nothing_touches_it_meanwhile() -> None:
    """Bus mastering ends before, 100 ms pass after; a cold card is left alone."""
    card, function = ready(GH100)
    boot.find_state(card)
    assert card.state == "cold"
    boot.reset(card)
    assert function.resets == 0
    function.reads[WPR2_HI] = lambda: 0 if function.resets else 0x3FE000
    boot.find_state(card)
    assert card.state == "alive"
    accesses = len(function.log)
    function.reads[WPR2_HI] = lambda: 0 if card.waiter.now_ns() >= 100_000_000 else 0x3FE000
    boot.reset(card)
    assert function.resets == 1 and function.is_master and card.state == "cold"
    assert len(function.log) == accesses + 1


def test_a_card_that_a_reset_does_not_help_must_lose_power() -> None:
    """WPR2 stays up."""
    card, function = ready(GH100)
    function.values[WPR2_HI] = 0x3FE000
    boot.find_state(card)
    with pytest.raises(BootError, match=r"WPR2_ADDR_HI is 0x3fe000.*lose power"):
        boot.reset(card)


@pytest.mark.parametrize(
    ("chip", "register"), [(GH100, 0x200BC), (GB20X, 0xAD00BC), (GA10X, 0x118234)]
)
def test_ready_waits_for_the_register_of_the_family(chip: Chip, register: int) -> None:
    """In bounded time; 0xbadf41ff ends with 0xff and is not ready."""
    card, function = ready(chip)
    function.values[0x118128] = 1
    for value in (0, 0xBADF41FF, 0xFFFFFFFF):
        function.values[register] = value
        with pytest.raises(BootTimeout, match="0xff"):
            boot.wait_ready(card)
        card.begin("test", card.waiter.now_ns() + 30_000_000_000)
    function.values[register] = 0xFF
    boot.wait_ready(card)


@pytest.mark.parametrize(
    ("chip", "low", "high", "shift"),
    [
        (GA10X, 0x100C10, 0x100C40, 8),
        (AD10X, 0x100C10, 0x100C40, 8),
        (GH100, 0x100A34, 0x100A38, 0),
        (GB20X, 0x8A1D58, 0x8A1D5C, 0),
    ],
)
def test_what_the_card_writes_is_flushed_to_a_page_of_its_own(
    chip: Chip, low: int, high: int, shift: int
) -> None:
    """Before the first reset of an engine: the step comes before all that resets one."""
    card, function = ready(chip)
    function.values[0x1183A4] = 24576
    boot.find_memory(card)
    assert card.vram_size == 24 << 30
    address = function.values[high] << 32 | function.values[low]
    assert address << shift == function.memory[0].pieces[0].address
    names = [step.name for step in STEPS]
    assert names.index("memory") < names.index("protect")
    function.values[0x1183A4] = 0
    with pytest.raises(DeviceError, match="FB_SIZE"):
        boot.find_memory(card)


def test_a_locked_register_is_not_unlocked_though_its_bit_is_0() -> None:
    """0 and 0xbadf41xx say that FSP has not released the target mask."""
    for value in (0, 0xBADF4100, 0xBADF41FF, 0xFFFFFFFF):
        card, function = ready(GH100)
        function.values[HWCFG2] = value
        with pytest.raises(BootTimeout, match=r"GSP\.FALCON_HWCFG2 is .*0xbadf41xx"):
            boot.start(card)
        assert card.waiter.now_ns() <= 4_100_000_000


def test_lockdown_is_waited_for_and_the_address_in_the_mailbox_is_no_error() -> None:
    """FSP, then the FMC let go; until then its arguments' address may be in the mailboxes."""
    card, function = ready(GH100)
    function.values.update({MAILBOX0: PARAMS & 0xFFFFFFFF, MAILBOX1: PARAMS >> 32, RISCV: 0x80})

    def hwcfg2() -> int:
        now = card.waiter.now_ns()
        return 0xBADF4121 if now < 1e6 else 0x2400 if now < 5e6 else 0x400

    function.reads[HWCFG2] = hwcfg2
    boot.start(card)
    assert card.waiter.now_ns() >= 5e6 and function.values[0x110080] == 0x1234


def test_an_error_of_the_fmc_ends_the_wait_with_its_code() -> None:
    """At once, though the lockdown stays."""
    card, function = ready(GH100)
    function.values.update({HWCFG2: 0x2400, MAILBOX0: 0x5A})
    with pytest.raises(BootError, match=r"GSP\.FALCON_MAILBOX0 is 0x5a.*the FMC gave up"):
        boot.start(card)
    assert card.waiter.now_ns() < 1e6


def test_lockdown_that_stays_is_a_timeout() -> None:
    """It names the register."""
    card, function = ready(GH100)
    function.values[HWCFG2] = 0x2400
    with pytest.raises(BootTimeout, match=r"FALCON_HWCFG2 is 0x2400.*RISCV_BR_PRIV_LOCKDOWN 0"):
        boot.start(card)


def test_a_core_that_does_not_run_is_an_error() -> None:
    """Released, and yet not active."""
    card, function = ready(GH100)
    function.values[HWCFG2] = 0x400
    with pytest.raises(BootError, match=r"GSP\.RISCV_CPUCTL is 0x0"):
        boot.start(card)


def test_closing_gives_everything_back_bus_mastering_first() -> None:
    """Whatever step was reached; memory only after the card may no more write to it."""
    card, function = ready(GH100)
    order: list[str] = []
    memory = card.allocate_dma(4096)
    memory.close = lambda: order.append("memory")  # type: ignore[method-assign]
    function.set_bus_master = lambda allowed: order.append(f"master {allowed}")  # type: ignore[method-assign]
    boot.close_card(card)
    assert order == ["master False", "memory"] and function.closed and function.resets == 0
    card.runs = True  # firmware was given to it: a reset ends that, before memory goes
    function.reset = lambda: order.append("reset")  # type: ignore[method-assign]
    boot.close_card(card)
    assert order[2:] == ["master False", "reset", "memory"]


def test_names_of_registers_are_told_to_who_listens() -> None:
    """A trace has blocks and names."""
    card, _ = ready(GH100)
    heard: list[str] = []
    card.listener = heard.append
    card.mmio.read(0x110040, 4)
    card.mmio.write(0x8F2C04, 4, 8)
    card.mmio.read(0x824144, 4)
    assert heard == [
        "GSP.FALCON_MAILBOX0 -> 0x00000000",
        "FSP.QUEUE_TAIL <- 0x00000008",
        "FUSE_SEC2_UCODE_VERSION[1] -> 0x00000000",
    ]
