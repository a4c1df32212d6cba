"""A long opening as named steps: listed, reported with the calls of each, stopped after any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpu.core.errors import GpuError, InvalidValue
from gpu.core.log import get_logger
from gpu.drivers.nv.rm.status import Call, CallLog

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an opening: its name, and what it does in a few words."""

    name: str
    about: str


@dataclass(slots=True)
class StepReport:
    """What a step did: its calls that have a status, in order, and why it failed if it did."""

    step: Step
    calls: list[Call] = field(default_factory=list)
    error: str | None = None

    def __str__(self) -> str:
        end = "" if self.error is None else f" FAILED: {self.error}"
        return "\n".join([f"{self.step.name}{end}", *(f"    {call}" for call in self.calls)])


class Stopped(Exception):
    """Ends an opening after the step it was asked to stop after; not an error."""


class Trail:
    """Walks a list of steps, in its order.

    ``stop_after`` names the last step to take. Raises InvalidValue for a name that is no step's.
    """

    def __init__(self, steps: Sequence[Step], log: CallLog, stop_after: str | None = None):
        names = [step.name for step in steps]
        if stop_after is not None and stop_after not in names:
            raise InvalidValue(
                f"no step {stop_after!r} to stop after; there are {', '.join(names)}"
            )
        self._steps = steps
        self.log = log
        self._stop_after = stop_after
        self.reports: list[StepReport] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """The block is the next step. An error leaves with a note of the step it happened in."""
        step = self._steps[len(self.reports)]
        assert step.name == name, f"step {name!r} is taken where {step.name!r} is next"
        report = StepReport(step)
        self.reports.append(report)
        self.log.listener = report.calls.append
        try:
            yield
        except GpuError as error:
            report.error = error.message
            number = f"step {len(self.reports)} of {len(self._steps)}"
            error.add_note(f"while opening an NVIDIA GPU, {number}, {name}: {step.about}")
            raise
        finally:
            self.log.listener = None
        _log.info("%s", report)
        if name == self._stop_after:
            raise Stopped(name)
