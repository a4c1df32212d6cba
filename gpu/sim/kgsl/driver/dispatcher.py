"""The dispatcher: feeds rings from the queues of contexts, and recovers the GPU from faults.

adreno_dispatch.c of qualcomm-linux/kgsl. Those of 4.9 and 4.19 do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from gpu.autogen import kgsl
from gpu.sim.kgsl.chip.errors import CpError
from gpu.sim.kgsl.chip.gpu import AdrenoGpu, Command, Ring
from gpu.sim.kgsl.chip.processor import OtherFault
from gpu.sim.kgsl.driver.commands import Marker, Submission, SyncPoints
from gpu.sim.kgsl.driver.contexts import Context, FaultRecord
from gpu.sim.kgsl.driver.objects import KgslProcess, MemObject
from gpu.sim.simulation import Simulation
from gpu.sim.translate import PageFault

MS: Final = 1_000_000
_INFLIGHT: Final = 15  # commands in a ring (_dispatcher_q_inflight_hi)
_TIMEOUT_NS: Final = 2_000 * MS  # adreno_drawobj_timeout
_THROTTLE_NS: Final = 3_000 * MS
_THROTTLE_FAULTS: Final = 3
_RESET_NS: Final = 50 * MS
Cause = Literal["page fault", "hard", "timeout", "detach", "other"]


class Dispatcher:
    """The dispatcher of one GPU.

    Attributes:
        contexts: all there are, by id.
        resets: how often the GPU was reset.
        times_out: whether a command that takes 2 s is given up (ft_long_ib_detect).
        page_faults_halt: whether a page fault stops the GPU (ft_pagefault_policy).
    """

    def __init__(self, gpu: AdrenoGpu, release: Callable[[KgslProcess, MemObject], None]):
        """`release` gives an object back that waited for a timestamp."""
        self._gpu = gpu
        self._release = release
        self._sim: Simulation = gpu.sim
        self.contexts: dict[int, Context] = {}
        self.resets = 0
        self.times_out = True
        self.page_faults_halt = False
        self._expires: dict[Ring, int] = {}
        gpu.kernel = self

    # Feeding rings.

    def ring_of(self, context: Context) -> Ring:
        """`dispatch_get_rb`: four priorities share a ring."""
        rings = self._gpu.rings
        return rings[min(context.priority // len(rings), len(rings) - 1)]

    def pump(self) -> None:
        """Sends what contexts have queued, as far as rings take it, and points are met."""
        for context in sorted(self.contexts.values(), key=_priority_of):
            ring = self.ring_of(context)
            while context.queue and len(ring.commands) < _INFLIGHT:
                if not self._send(context, ring):
                    break
            self._free(context)

    def _send(self, context: Context, ring: Ring) -> bool:
        first = context.queue[0]
        if isinstance(first, SyncPoints) and not first.is_met:
            return False
        if isinstance(first, Marker):
            if not first.is_forced and not context.has_retired(first.after):
                return False
            if context.has_retired(first.after):
                context.consumed = context.retired = context.noticed = first.timestamp
            else:
                self._put(ring, Submission(context, first.timestamp, (), (), self.over))
        elif isinstance(first, Submission):
            self._put(ring, first)
        context.queue.popleft()
        return True

    def _put(self, ring: Ring, command: Submission) -> None:
        if not ring.commands:
            self._expires[ring] = self._sim.clock.now_ns + _TIMEOUT_NS
        ring.commands.append(command)

    def over(self, command: Submission) -> None:
        """A command has ended: its timestamp, and the interrupt that tells of it."""
        context = command.context_of
        if self._sim.faults.due("stuck-fence"):
            self._sim.debug.note(f"{command.name}: its timestamp was lost")
            return
        context.retired = command.timestamp
        if command.was_recovered:
            context.has_recovered = True
        self._expires[self.ring_of(context)] = self._sim.clock.now_ns + _TIMEOUT_NS
        if self._sim.faults.due("lost-interrupt"):
            self._sim.debug.note(f"{command.name}: its interrupt was lost")
        else:
            self.interrupt()

    def interrupt(self) -> None:
        """The kernel looks at all timestamps."""
        for context in self.contexts.values():
            context.noticed = context.retired
        self.pump()

    def _free(self, context: Context) -> None:
        done = [item for at, item in context.frees if context.has_retired(at)]
        if done:
            context.frees = [(at, i) for at, i in context.frees if not context.has_retired(at)]
        for item in done:
            self._release(context.owner, item)

    # Time.

    @property
    def due_ns(self) -> int | None:
        """When a command is given up that runs too long."""
        times = [at for ring, at in self._expires.items() if self._may_expire(ring)]
        return min(times) if times else None

    def _may_expire(self, ring: Ring) -> bool:
        command = ring.current
        if not self.times_out or not isinstance(command, Submission):
            return False
        return command.context_of.is_tolerant

    def tick(self) -> None:
        """Time has passed."""
        for ring, at in list(self._expires.items()):
            if self._may_expire(ring) and self._sim.clock.now_ns >= at:
                assert ring.current is not None
                self._sim.debug.fault(f"{ring.current.name} has run for 2 s")
                self._recover(ring, "timeout")

    # Faults.

    def page_fault(self, fault: PageFault) -> bool:
        """The SMMU tells of a fault; whether the GPU halts (`kgsl_iommu_fault_handler`)."""
        command = self._gpu.active.current
        if isinstance(command, Submission):
            self._sim.debug.fault(f"{command.name}: {fault}")
            self._record(command.context_of, fault)
        return self.page_faults_halt

    def _record(self, context: Context, fault: PageFault) -> None:
        """`kgsl_iommu_add_fault_info`."""
        if not context.flags & kgsl.KGSL_CONTEXT_FAULT_INFO or context.is_bad:
            return
        kind = (
            kgsl.KGSL_PAGEFAULT_TYPE_PERMISSION
            if fault.present
            else kgsl.KGSL_PAGEFAULT_TYPE_TRANSLATION
        )
        kind |= kgsl.KGSL_PAGEFAULT_TYPE_WRITE if fault.write else kgsl.KGSL_PAGEFAULT_TYPE_READ
        context.add_fault(FaultRecord(fault.address, kind, self._sim.clock.now_ns))

    def faulted(self, ring: Ring, fault: Exception) -> None:
        """The GPU stands."""
        if isinstance(fault, OtherFault):
            self._recover(ring, "other")
        elif isinstance(fault, PageFault):
            if isinstance(ring.current, Submission):
                ring.current.context_of.has_page_fault = True
            self._recover(ring, "page fault")
        else:
            assert isinstance(fault, CpError), fault
            self._recover(ring, "hard")

    def _recover(self, hung: Ring, cause: Cause) -> None:
        """`dispatcher_do_fault`: resets the GPU, decides about what hung, runs all else again."""
        self.resets += 1
        self._sim.clock.advance(_RESET_NS)
        left = {ring: ring.reset() for ring in self._gpu.rings}
        self._expires.clear()
        commands = left[hung]
        if commands and cause != "other":
            first = commands[0]
            assert isinstance(first, Submission)
            self._decide(first, cause, commands)
        elif cause == "other":
            for context in self.contexts.values():
                context.reset_status = kgsl.KGSL_CTX_STAT_INNOCENT_CONTEXT_RESET_EXT
        for ring in [hung, *(r for r in self._gpu.rings if r is not hung)]:
            for command in left[ring]:
                assert isinstance(command, Submission)
                if command.context_of.is_bad:
                    command.dropped()
                else:
                    self._put(ring, command)
        self.interrupt()

    def _decide(self, command: Submission, cause: Cause, left: list[Command]) -> None:
        """`process_cmdobj_fault`: what the command's policy has, or the end of its context."""
        context, policy = command.context_of, command.policy
        context.total_faults += 1
        context.last_faulted = command.timestamp
        if "throttle" in policy and self._faults_too_often(context):
            policy.clear()
        if "disable" in policy or context.is_detached or cause in ("timeout", "detach"):
            policy.clear()
        if cause == "hard" or context.has_page_fault:
            policy.discard("replay")
            context.has_page_fault = False
        if "replay" in policy:
            policy.discard("replay")
            command.was_recovered = True
            return
        if "skip" in policy:
            policy.discard("skip")
            command.is_skipped = True
            following = [c for c in left[1:] if isinstance(c, Submission)]
            following = [c for c in following if c.context_of is context]
            if following:
                following[0].was_recovered = True
            else:
                context.skips_next = True
            return
        self.give_up(context)

    def _faults_too_often(self, context: Context) -> bool:
        now = self._sim.clock.now_ns
        context.fault_times = [at for at in context.fault_times if now - at <= _THROTTLE_NS]
        context.fault_times.append(now)
        return len(context.fault_times) > _THROTTLE_FAULTS

    def give_up(self, context: Context) -> None:
        """`adreno_drawctxt_set_guilty`."""
        context.reset_status = kgsl.KGSL_CTX_STAT_GUILTY_CONTEXT_RESET_EXT
        self._sim.debug.note(f"{context} is invalid from now on")
        for item in context.invalidate():
            item.dropped()

    def holds(self, context: Context) -> bool:
        """Whether a ring has a command of a context."""
        ring = self.ring_of(context)
        return any(command.context == context.id for command in ring.commands)

    def detach_timed_out(self, context: Context) -> None:
        """The commands of a context that is destroyed did not end in 30 s."""
        self._recover(self.ring_of(context), "detach")


def _priority_of(context: Context) -> tuple[int, int]:
    return context.priority, context.id
