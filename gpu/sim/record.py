"""The debug channel: what a model saw that no driver may rely on to be told.

Drivers see what the real interface gives: an errno, an event, a queue that stands still. The exact
reason is recorded here, for tests and people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu.sim.clock import VirtualClock

Kind = Literal["violation", "fault", "note"]


@dataclass(frozen=True, slots=True)
class Record:
    """One thing seen.

    Attributes:
        kind: "violation": the driver broke a rule; "fault": hardware would have reported one;
            "note": legal, but worth knowing, such as a refused call.
        what: the thing, the value and what was expected.
        time_ns: on the model's clock.
    """

    kind: Kind
    what: str
    time_ns: int


class DebugChannel:
    """All records of a world, oldest first."""

    def __init__(self, clock: VirtualClock):
        self._clock = clock
        self.records: list[Record] = []

    def violation(self, what: str) -> None:
        """Records that a rule was broken."""
        self.records.append(Record("violation", what, self._clock.now_ns))

    def fault(self, what: str) -> None:
        """Records a fault that hardware reports."""
        self.records.append(Record("fault", what, self._clock.now_ns))

    def note(self, what: str) -> None:
        """Records something legal that explains what comes."""
        self.records.append(Record("note", what, self._clock.now_ns))

    @property
    def violations(self) -> list[str]:
        """What was done that may not be done."""
        return [record.what for record in self.records if record.kind == "violation"]

    @property
    def faults(self) -> list[str]:
        """What hardware reported."""
        return [record.what for record in self.records if record.kind == "fault"]
