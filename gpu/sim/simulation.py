"""What all parts of one model share: its time, its chance, what is recorded and counted."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import ClassVar

from gpu.sim.clock import VirtualClock
from gpu.sim.counts import Counts
from gpu.sim.faults import ERRNOS, Faults, Given
from gpu.sim.record import DebugChannel


class Simulation:
    """One run of a model.

    Attributes:
        clock: virtual time.
        debug: what was seen that no driver is told.
        rng: all that is left to chance, from the seed.
        faults: those that it shows on purpose.
        counts: how much was done.
        vendor, calls, answers, lacks: as of `Faults`, for machines of this kind.
    """

    vendor: ClassVar[str] = ""
    calls: ClassVar[Collection[str]] = ()
    answers: ClassVar[Collection[str]] = ERRNOS
    lacks: ClassVar[Collection[str]] = ()

    def __init__(self, seed: int, faults: Given = ()):
        """Raises ConfigError for faults that there are not."""
        self.clock = VirtualClock()
        self.debug = DebugChannel(self.clock)
        self.rng = random.Random(seed)
        self.faults = Faults(
            self.rng,
            faults,
            vendor=self.vendor,
            calls=self.calls,
            answers=self.answers,
            lacks=self.lacks,
        )
        self.counts = Counts()
