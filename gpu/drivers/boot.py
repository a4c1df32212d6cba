"""Booting as named steps: each says what it needs, what it promises, and how long it may take.

A step runs when all that it needs was promised by steps before it. Its waits end when its time is
over, and its errors name it. The list can be shown, walked up to a step, and walked one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from gpu.core.errors import DeviceError, GpuError, HwTimeout, InvalidValue
from gpu.core.log import get_logger
from gpu.core.wait import Waiter

_log = get_logger(__name__)
_NANO: Final = 1_000_000_000


class Booting(Protocol):
    """What is booted, as far as walking its steps needs it.

    Attributes:
        waiter: its clock.
        accesses: of its registers, so far.
        done: names of steps that were walked.
    """

    waiter: Waiter
    accesses: int
    done: list[str]

    def begin(self, step: str, deadline_ns: int) -> None:
        """A step begins, which has until then."""


C = TypeVar("C", bound=Booting)


@dataclass(frozen=True, slots=True)
class Step(Generic[C]):
    """One step.

    Attributes:
        name: as `gpu boot --until` takes it.
        about: what it does.
        needs: what must hold before it, each a word that a step before promised.
        promises: what holds after it.
        seconds: how long it may take on the chip's clock.
        run: does it.
    """

    name: str
    about: str
    needs: tuple[str, ...]
    promises: tuple[str, ...]
    seconds: float
    run: Callable[[C], None]


class BootError(DeviceError):
    """A card did not come up, or stopped to answer: which register holds what, and was to hold.

    Attributes:
        step: of the boot, or what else was done.
        register: as in ``MP0.MP0_SMN_C2PMSG_35``, or another thing that was looked at.
        last: the last value that was read.
        wanted: what it should have been, in words.
    """

    last: int | None

    def __init__(self, step: str, register: str, last: int, wanted: str, more: str = ""):
        told = f"during {step}: {register} is {last:#x}, wanted {wanted}"
        DeviceError.__init__(self, "; ".join(filter(None, (told, more))))
        self.step = step
        self.register = register
        self.last = last
        self.wanted = wanted


class BootTimeout(BootError, HwTimeout):
    """As `BootError`, of a register that did not get there in the time that its step has."""

    def __init__(
        self, step: str, register: str, last: int, wanted: str, seconds: float, reason: str = ""
    ):
        after = f"after {seconds:g} s"
        BootError.__init__(
            self, step, register, last, wanted, "; ".join(filter(None, (after, reason)))
        )
        self.what = f"{step}: {register}"
        self.seconds = seconds
        self.reason = reason


def check_steps(steps: Sequence[Step[C]]) -> None:
    """Raises InvalidValue for a step that needs what none before it promises, or a name twice."""
    promised: set[str] = set()
    names: set[str] = set()
    for step in steps:
        missing = [word for word in step.needs if word not in promised]
        if missing:
            raise InvalidValue(
                f"boot step {step.name} needs {', '.join(missing)}: none before it promises that"
            )
        if step.name in names:
            raise InvalidValue(f"boot step {step.name} is there twice")
        if step.seconds <= 0:
            raise InvalidValue(f"boot step {step.name}: {step.seconds} s are no time")
        names.add(step.name)
        promised.update(step.promises)


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was walked: how long it took on the chip's clock, and how many accesses."""

    name: str
    seconds: float
    accesses: int


def walk(chip: C, steps: Sequence[Step[C]], until: str | None = None) -> Iterator[Done]:
    """Runs steps, one for each item taken; ``until`` names the last.

    Raises InvalidValue for a name that is no step's, and what the steps raise, with their name.
    """
    check_steps(steps)
    names = [step.name for step in steps]
    if until is not None and until not in names:
        raise InvalidValue(f"no boot step {until!r}; there are {', '.join(names)}")
    for step in steps:
        yield _run(chip, step)
        if step.name == until:
            return


def _run(chip: C, step: Step[C]) -> Done:
    started, accesses = chip.waiter.now_ns(), chip.accesses
    chip.begin(step.name, started + round(step.seconds * _NANO))
    try:
        step.run(chip)
    except BootError:
        raise
    except GpuError as error:
        error.add(f"in boot step {step.name} ({step.about})")
        raise
    took = (chip.waiter.now_ns() - started) / _NANO
    if took > step.seconds:
        raise BootTimeout(step.name, "the clock", round(took * 1000), f"{step.seconds:g} s", took)
    chip.done.append(step.name)
    _log.info("boot step %s: %g ms, %d accesses", step.name, took * 1000, chip.accesses - accesses)
    return Done(step.name, took, chip.accesses - accesses)
