"""Faults that a world injects on purpose, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong; each number is a probability from 0 to 1, drawn when it could happen.

    Attributes:
        lost_completion: an end-of-pipe write or a copy engine's fence does not arrive, nor its
            interrupt.
        lost_interrupt: data arrives, the interrupt does not.
        delayed_doorbell: a ring is noticed only after `delay_ns` of virtual time.
        delay_ns: how long that is.
        stuck_wait_resets: removing a queue that stands at an unmet wait hangs the scheduler, and
            the kernel resets the GPU (hcq.md, "Preemption": it may).
        unplug_after: the device disappears after so many ioctls of all processes; 0 is never.
    """

    lost_completion: float = 0.0
    lost_interrupt: float = 0.0
    delayed_doorbell: float = 0.0
    delay_ns: int = 5_000_000
    stuck_wait_resets: bool = True
    unplug_after: int = 0
