"""The driver over PCI against the model of the cards, which was written by somebody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpu.cli.main import main
from gpu.core.config import Context
from gpu.core.errors import DeviceError, FirmwareError, FormatError, GpuError, InvalidIndex
from gpu.core.firmware import Wanted
from gpu.drivers.boot import BootError
from gpu.drivers.nv.pci import boot, events, msgq
from gpu.drivers.nv.pci.boot import STEPS, BootCard, close_card, take_card
from gpu.drivers.nv.pci.msgq import Message
from gpu.sim.nv.pci.gsp import FMC_ERROR
from gpu.sim.nv.pci.rm import NOT_SUPPORTED
from gpu.sim.nv.pci.securecode import BOOTER_ERROR, FRTS_ERROR
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World
from simulated import own_machines

CHIPS = ("ga102", "ad102", "gh100", "gb202")
WITH_FALCONS, WITH_FSP = CHIPS[:2], CHIPS[2:]
NAMES = [step.name for step in STEPS]
_NOP = 0  # rpc_global_enums.h


def load_of(sim: NvPciWorld) -> Callable[[Wanted], bytes]:
    return lambda wanted: sim.firmware[wanted.name]


def world_of(sim: NvPciWorld) -> World:
    return World(sim.os, sim.waiter, HostPci(sim.os))


def take(sim: NvPciWorld) -> BootCard:
    return take_card(world_of(sim), 0, load_of(sim))


@contextmanager
def machine(chip: str | tuple[str, ...], **options: object) -> Iterator[NvPciWorld]:
    sim = NvPciWorld(chip=chip, **options)  # type: ignore[arg-type]
    try:
        yield sim
    finally:
        sim.close()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", (3,))
def test_a_card_boots_and_is_given_back_and_boots_again(chip: str, seed: int) -> None:
    """Up to GSP_INIT_DONE, nothing of which the model refuses; WPR2 is down afterwards."""
    with machine(chip, seed=seed) as sim:
        for _ in range(2):
            card = take(sim)
            assert [done.name for done in boot.boot(card)] == NAMES
            assert boot.is_protected(card)
            boot.leave(card)
            assert not boot.is_protected(card)
            card.done.remove("init")
            close_card(card)
            assert not sim.debug.violations


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("until", NAMES)
def test_a_boot_that_ends_at_any_step_can_be_begun_anew(chip: str, until: str) -> None:
    """Whatever was left, the next one comes up."""
    with machine(chip) as sim:
        card = take(sim)
        for _ in boot.boot(card, until):
            pass
        close_card(card)
        card = take(sim)
        assert len(list(boot.boot(card))) == len(STEPS)
        close_card(card)
        assert not sim.debug.violations


@pytest.mark.parametrize("chip", CHIPS)
def test_a_card_that_somebody_left_running_is_reset(chip: str) -> None:
    """WPR2 is up: whoever booted it neither asked RM to end nor closed the function."""
    with machine(chip) as sim:
        left = take(sim)
        for _ in boot.boot(left):
            pass
        card = BootCard(left.function, sim.waiter, load=load_of(sim))
        states = {done.name: card.state for done in boot.boot(card)}
        assert (states["state"], states["reset"]) == ("alive", "cold")
        close_card(card)
        assert not sim.debug.violations


@pytest.mark.parametrize("chip", CHIPS)
def test_calls_wrap_in_both_queues(chip: str) -> None:
    """Calls of all lengths, often around: each comes back as it was, as RM does not have it."""
    rng = Random(5)
    most = msgq.MOST - msgq.RPC
    with machine(chip) as sim:
        card = take(sim)
        for _ in boot.boot(card):
            pass
        card.begin("calls", sim.waiter.now_ns() + 10**10)
        for size in (0, 1, most, *(rng.randrange(most) for _ in range(20))):
            payload = rng.randbytes(size)
            number = card.queues.send(_NOP, payload, 1.0)
            while True:
                card.wait_value(card.queues.available, lambda n: n > 0, "an answer", "one")
                answer = card.queues.receive()
                assert answer is not None
                if answer.function == _NOP:
                    break
                events.serve(card, answer, card.cores)
            assert answer == Message(_NOP, number, NOT_SUPPORTED, payload)
        close_card(card)
        assert not sim.debug.violations


def why_refused(chip: str, name: str, change: Callable[[Any], Any]) -> GpuError:
    """How a boot ends in which what a function of `boot` gives is changed."""
    make = getattr(boot, name)
    with machine(chip) as sim, pytest.MonkeyPatch.context() as patch:
        patch.setattr(boot, name, lambda *given: change(make(*given)))
        card = take(sim)
        with pytest.raises(GpuError) as caught:
            for _ in boot.boot(card):
                pass
        close_card(card)
    return caught.value


@pytest.mark.parametrize("chip", WITH_FSP)
def test_what_fsp_refuses_is_told_by_its_code(chip: str) -> None:
    """A signature that is another's."""
    error = why_refused(chip, "parse_fmc", lambda fmc: replace(fmc, signature=fmc.signature[::-1]))
    assert isinstance(error, FirmwareError)
    assert "task 0x0 says error 0xa1 (invalid data)" in error.message


@pytest.mark.parametrize("chip", WITH_FSP)
def test_what_the_fmc_refuses_is_told_by_its_code(chip: str) -> None:
    """A bootloader that is another's: the FMC leaves its code in the mailbox."""
    error = why_refused(
        chip, "parse_bootloader", lambda code: replace(code, image=code.image[::-1])
    )
    assert isinstance(error, BootError) and error.last == FMC_ERROR
    assert error.register == "GSP.FALCON_MAILBOX0"


def boots(chip: str, seed: int) -> set[int]:
    """A boot to its end and back: what the fuses were that it met."""
    with machine(chip, seed=seed) as sim:
        card = take(sim)
        for _ in boot.boot(card):
            pass
        boot.leave(card)
        card.done.remove("init")
        close_card(card)
        assert not sim.debug.violations
        regs = sim.gpus[0].chip.regs
        versions = {regs.value(f"NV_FUSE_OPT_FPF_SEC2_UCODE{n}_VERSION") for n in (3, 4)}
        return versions | {regs.value("NV_FUSE_OPT_FPF_GSP_UCODE9_VERSION")}


@pytest.mark.parametrize("chip", WITH_FALCONS[:1])
def test_signatures_are_chosen_by_the_fuses(chip: str) -> None:
    """Two versions of them at least."""
    assert len(boots(chip, 1) | boots(chip, 2)) > 1


@pytest.mark.parametrize("chip", WITH_FALCONS[:1])
def test_both_ways_to_start_a_falcon_are_met(chip: str) -> None:
    """By CPUCTL and by its alias, as each reset has it."""
    for seed in (4, 5):
        boots(chip, seed)


@pytest.mark.parametrize("chip", WITH_FALCONS[1:])
def test_memory_is_scrubbed_where_it_was_not(chip: str) -> None:
    """And left alone where it was."""
    before = set()
    for seed in (1, 2, 3, 4):
        with machine(chip, seed=seed) as sim:
            regs, name = sim.gpus[0].chip.regs, "NV_PGC6_BSI_VPR_SECURE_SCRATCH_15"
            if (was := regs.value(name)) in before:
                continue
            before.add(was)
            card = take(sim)
            for _ in boot.boot(card):
                pass
            assert regs.value(name) >> 29 == 3
            close_card(card)
            assert not sim.debug.violations
    assert len(before) == 2


def with_meta(chip: str, **more: int) -> GpuError:
    """How a boot ends in which WPR meta has other values, by so much."""

    def change(meta: Any) -> Any:
        for name, value in more.items():
            setattr(meta, name, getattr(meta, name) + value)
        return meta

    return why_refused(chip, "make_wpr_meta", change)


@pytest.mark.parametrize("chip", WITH_FALCONS)
def test_what_booter_refuses_is_told_by_its_code(chip: str) -> None:
    """A heap that reaches into the image: SEC2's mailbox says so."""
    error = with_meta(chip, gspFwHeapSize=1 << 20)
    assert isinstance(error, BootError) and error.last == BOOTER_ERROR
    assert error.register == "SEC2.FALCON_MAILBOX0"


@pytest.mark.parametrize("chip", WITH_FALCONS)
def test_what_fwsec_refuses_is_told_by_its_code(chip: str) -> None:
    """FRTS at no place for it: a scratch register says so."""
    error = with_meta(chip, frtsOffset=0x1000)
    assert isinstance(error, BootError) and error.last == FRTS_ERROR << 16
    assert error.register == "VBIOS_SCRATCH[14]"


@pytest.mark.parametrize("chip", CHIPS)
def test_a_card_that_was_just_plugged_in_is_waited_for(chip: str) -> None:
    """FSP, or the card's own firmware, is at work for half a second yet."""
    with machine(chip, settle_ns=500_000_000) as sim:
        card = take(sim)
        is_ready = {done.name: sim.gpus[0].starter.is_ready for done in boot.boot(card)}
        assert list(is_ready) == NAMES
        assert not is_ready["reset"] and is_ready["ready"]
        close_card(card)
        assert not sim.debug.violations


def test_firmware_that_is_changed_is_refused_by_the_driver_or_by_fsp() -> None:
    """Each file with a byte changed: a typed error that names what."""
    for name in ("gsp", "fmc", "bootloader"):
        with machine("gh100") as sim:
            good = load_of(sim)

            def load(
                wanted: Wanted, name: str = name, good: Callable[[Wanted], bytes] = good
            ) -> bytes:
                data = bytearray(good(wanted))
                if f"/{name}-" in wanted.name:
                    data[len(data) // 2] ^= 1
                return bytes(data)

            card = take_card(world_of(sim), 0, load)
            with pytest.raises((FirmwareError, FormatError, DeviceError)):
                for _ in boot.boot(card):
                    pass
            close_card(card)


def test_cards_are_counted_by_place() -> None:
    """Two of them, and no third."""
    with machine("gh100") as sim, pytest.raises(InvalidIndex, match="NV:1 by PCI"):
        take_card(world_of(sim), 1, load_of(sim))


def test_gpu_boot_walks_to_the_end_or_to_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    """As for AMD's cards."""
    with own_machines(), Context(SIM="gh100"):
        assert main(["boot", "PCI+NV"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines] == NAMES
        assert lines[0].endswith("GH100") and lines[1].endswith("cold")
        assert main(["boot", "PCI+NV", "--until", "memory", "--trace"]) == 0
        out = capsys.readouterr().out
        assert "PMC_BOOT_42 -> 0x180" in out and "memory" in out and "protect" not in out
