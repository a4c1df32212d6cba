"""What all parts of one model share: its time, its chance, what is recorded and counted."""

from __future__ import annotations

import random

from gpu.sim.clock import VirtualClock
from gpu.sim.counts import Counts
from gpu.sim.faults import FaultPlan
from gpu.sim.record import DebugChannel


class Simulation:
    """One run of a model.

    Attributes:
        clock: virtual time.
        debug: what was seen that no driver is told.
        rng: all that is left to chance, from the seed.
        plan: faults to inject.
        counts: how much was done.
    """

    def __init__(self, seed: int, plan: FaultPlan):
        self.clock = VirtualClock()
        self.debug = DebugChannel(self.clock)
        self.rng = random.Random(seed)
        self.plan = plan
        self.counts = Counts()
