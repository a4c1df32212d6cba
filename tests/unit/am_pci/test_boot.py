"""Steps of a boot: their graph, walking it, bounds, and what errors say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu.core.errors import DeviceError, HwTimeout, InvalidValue
from gpu.core.wait import Waiter
from gpu.drivers.am.pci.steps import STEPS
from gpu.drivers.boot import BootError, BootTimeout, Done, Step, check_steps, walk


class Clock:
    """Time that passes when it is told to."""

    spin_ns = 0

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def idle(self, timeout_ns: int) -> None:
        self.now += timeout_ns


class Booted:
    """What is booted: it keeps what was done."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.waiter: Waiter = self.clock
        self.accesses = 0
        self.done: list[str] = []
        self.deadlines: list[tuple[str, int]] = []

    def begin(self, step: str, deadline_ns: int) -> None:
        self.deadlines.append((step, deadline_ns))


def step(
    name: str,
    needs: tuple[str, ...] = (),
    promises: tuple[str, ...] = (),
    run: Callable[[Booted], None] = lambda booted: None,
) -> Step[Booted]:
    return Step(name, f"does {name}", needs, promises, 1.0, run)


def test_the_steps_of_a_card_follow_each_other() -> None:
    check_steps(STEPS)
    names = [each.name for each in STEPS]
    assert names[:6] == ["claim", "discovery", "state", "reset", "soc", "gmc"]
    assert names[6:] == ["ih", "psp", "smu", "gfx", "sdma", "clocks"]
    assert all(each.about and each.promises and each.seconds <= 30 for each in STEPS)


@pytest.mark.parametrize("name", [each.name for each in STEPS if each.needs])
def test_no_step_can_be_left_out_before_it(name: str) -> None:
    """Of what a step needs nothing is promised twice: without the step that does, it is missing."""
    wanted = next(each for each in STEPS if each.name == name)
    for word in wanted.needs:
        rest = [
            replace(each, promises=tuple(p for p in each.promises if p != word)) for each in STEPS
        ]
        with pytest.raises(InvalidValue, match=word):
            check_steps(rest)


def test_wrong_graphs() -> None:
    with pytest.raises(InvalidValue, match="b needs x"):
        check_steps([step("b", needs=("x",)), step("a", promises=("x",))])
    with pytest.raises(InvalidValue, match="twice"):
        check_steps([step("a"), step("a")])
    with pytest.raises(InvalidValue, match="no time"):
        check_steps([replace(step("a"), seconds=0)])


def test_walking() -> None:
    booted, order = Booted(), list[str]()

    def run(name: str) -> Callable[[Booted], None]:
        def act(chip: Booted) -> None:
            order.append(name)
            chip.accesses += 3
            chip.clock.now += 250_000_000

        return act

    steps = [step(name, run=run(name)) for name in "abc"]
    assert list(walk(booted, steps, until="b")) == [Done("a", 0.25, 3), Done("b", 0.25, 3)]
    assert order == ["a", "b"] == booted.done
    assert booted.deadlines == [("a", 1_000_000_000), ("b", 1_250_000_000)]
    walked = walk(booted, steps)
    next(walked)
    assert order == ["a", "b", "a"]  # one for each that is taken
    with pytest.raises(InvalidValue, match=r"'d'.*a, b, c"):
        next(walk(booted, steps, until="d"))


def test_errors_name_the_step() -> None:
    def fail(chip: Booted) -> None:
        raise DeviceError("it broke")

    def boot_error(chip: Booted) -> None:
        raise BootError("a", "GC.CP_STAT", 5, "0x0", "because")

    def dawdle(chip: Booted) -> None:
        chip.clock.now += 3_000_000_000

    with pytest.raises(DeviceError, match=r"it broke; in boot step a \(does a\)"):
        list(walk(Booted(), [step("a", run=fail)]))
    with pytest.raises(BootError) as caught:
        list(walk(Booted(), [step("a", run=boot_error)]))
    error = caught.value
    assert (error.step, error.register, error.last, error.wanted) == ("a", "GC.CP_STAT", 5, "0x0")
    assert "during a: GC.CP_STAT is 0x5, wanted 0x0; because" in str(error)
    booted = Booted()
    with pytest.raises(BootTimeout, match="wanted 1 s") as late:
        list(walk(booted, [step("a", run=dawdle)]))
    assert booted.done == [] and isinstance(late.value, HwTimeout)


def test_timeouts_are_both() -> None:
    error = BootTimeout("psp", "MP0.X", 7, "bit 31", 2.5, "nothing runs")
    assert isinstance(error, BootError) and isinstance(error, HwTimeout)
    assert (error.step, error.register, error.last, error.wanted) == ("psp", "MP0.X", 7, "bit 31")
    assert (error.seconds, error.reason) == (2.5, "nothing runs")
    assert "psp" in error.what and "2.5 s" in str(error)
