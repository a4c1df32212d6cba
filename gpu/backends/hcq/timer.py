"""Kernels and copies timed by the GPU's clock, which queues write before and after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu.backends.hcq.program import QueueProgram
from gpu.core.config import config
from gpu.hcq.allocator import Stamps
from gpu.hcq.channel import Channel
from gpu.hcq.counting import Counting
from gpu.hcq.device import HCQDevice
from gpu.hcq.profile import Profiler
from gpu.runtime.program import Program
from gpu.runtime.timeline import recording, span
from gpu.runtime.timer import Copied, Timed, Timer


class QueueTimer(Timer):
    """A device's profiler, which copies tell as well from now on, while something is recorded."""

    counts_events = True

    def __init__(self, name: str, device: HCQDevice):
        """`name` is what tensors call the device. Raises as `HCQDevice.counting`."""
        self._name = name
        self._profiler = Profiler(device, counting=_counting(device))
        device.allocator.stamps = self._stamps
        device.waiting = lambda what: span(f"wait for {what}", "wait")

    def _stamps(self, channel: Channel, nbytes: int) -> Stamps:
        found = recording()
        if found is None:
            return Stamps()
        return self._profiler.stamps("copy", channel, Copied(found, self._name, nbytes))

    def launch(
        self, program: Program, memories: Sequence[Any], vals: Sequence[int], key: object
    ) -> None:
        """As `Timer.launch`."""
        assert isinstance(program, QueueProgram)
        program.launch_timed(self._profiler, memories, vals, key)

    @property
    def pending(self) -> int:
        """As `Timer.pending`."""
        return self._profiler.pending

    def collect(self, wait: bool) -> list[Timed]:
        """As `Timer.collect`."""
        return [
            Timed(r.key, r.name, r.queue, r.start_ns, r.end_ns, r.seconds, r.error_ns, r.counts)
            for r in self._profiler.collect(wait)
        ]


def _counting(device: HCQDevice) -> Counting | None:
    return device.counting(config.GPU_COUNTERS) if config.GPU_COUNTERS else None
