"""What waits in contexts' queues and in rings: commands, markers, points to wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu.autogen import kgsl
from gpu.sim.kgsl.chip.processor import Buffer
from gpu.sim.kgsl.chip.tables import PageTables
from gpu.sim.kgsl.driver.contexts import Context, Queued
from gpu.sim.kgsl.driver.objects import MemObject

POLICY: frozenset[str] = frozenset({"replay", "skip", "throttle"})
"""What a command does when it faults, by default (adreno.c: REPLAY, SKIPCMD, THROTTLE)."""


class SyncPoints(Queued):
    """Points that what stands behind them waits for."""

    def __init__(self, points: Sequence[Callable[[], bool]]):
        self._points = points

    @property
    def is_met(self) -> bool:
        """Whether all of them were reached."""
        return all(point() for point in self._points)


class Marker(Queued):
    """A timestamp without commands: it ends when the one before it has."""

    def __init__(self, timestamp: int, after: int):
        self.timestamp = timestamp
        self.after = after
        self.is_forced = False  # a command was queued behind it


class Submission(Queued):
    """A command in a queue or a ring; see `gpu.sim.kgsl.chip.gpu.Command`.

    Attributes:
        context_of: whose it is.
        policy: what is left to try when it faults.
        is_skipped: whether its buffers are left out.
        was_recovered: whether it got by through the policy.
    """

    def __init__(
        self,
        context: Context,
        timestamp: int,
        buffers: Sequence[Buffer],
        objects: Sequence[MemObject],
        over: Callable[[Submission], None],
    ):
        """`over` is told when it has ended."""
        self.context_of = context
        self.timestamp = timestamp
        self.is_skipped = bool(context.flags & kgsl.KGSL_CONTEXT_IFH_NOP)
        self.was_recovered = context.skips_next
        self.policy = _policy(context)
        context.skips_next = False
        self._buffers = buffers
        self._objects = objects
        self._over = over
        for item in objects:
            item.users += 1

    @property
    def name(self) -> str:
        """What records call it."""
        return f"command {self.timestamp} of {self.context_of}"

    @property
    def context(self) -> int:
        """Whose it is, by number."""
        return self.context_of.id

    @property
    def space(self) -> PageTables:
        """What its addresses lead to."""
        return self.context_of.owner.space.tables

    @property
    def buffers(self) -> Sequence[Buffer]:
        """Its indirect buffers."""
        return () if self.is_skipped else self._buffers

    def started(self) -> None:
        """The ring's packets before its buffers."""
        self.context_of.consumed = self.timestamp

    def ended(self) -> None:
        """The ring's packets behind them."""
        self.dropped()
        self._over(self)

    def dropped(self) -> None:
        """It holds no object any more."""
        for item in self._objects:
            item.users -= 1
        self._objects = ()


def _policy(context: Context) -> set[str]:
    """adreno_dispatch.c, `_set_ft_policy`."""
    if not context.is_tolerant:
        return {"disable"}
    if context.flags & kgsl.KGSL_CONTEXT_INVALIDATE_ON_FAULT:
        return {"replay"}
    return set(POLICY)
