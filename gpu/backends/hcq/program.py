"""Kernels as programs of a device with command queues."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from gpu.hcq.graph import GraphLaunch
from gpu.hcq.profile import Profiler
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import Symbol
from gpu.runtime.device import LaunchData
from gpu.runtime.program import LaunchSize, Program


class QueueProgram(Program):
    """A kernel in the GPU's memory.

    Attributes:
        name: of its function.
        loaded: it, for the command queues.
        grid, block: groups of a launch, and threads of each.
    """

    def __init__(self, device: HCQDevice, loaded: HCQProgram, data: LaunchData):
        """`data` says `groups`, `block`, and bytes of `workspace` behind the other buffers.

        Raises OutOfMemory.
        """
        self.name = loaded.name
        self._device = device
        self.loaded = loaded
        self.grid, self.block = (data["groups"], 1, 1), (data["block"], 1, 1)
        size = data["workspace"]
        self._workspace = (device.allocator.alloc(size),) if size else ()

    @property
    def origin(self) -> object:
        """As `Program.origin`; the command queues have it for their reports."""
        return self.loaded.origin

    @origin.setter
    def origin(self, origin: object) -> None:
        self.loaded.origin = origin

    def __call__(
        self, *bufs: HCQBuffer, vals: Sequence[int] = (), wait: bool = False
    ) -> float | None:
        """Launches it behind all that was launched before; `wait` as in `Program`."""
        buffers = (*bufs, *self._workspace)
        return self.loaded(*buffers, vals=vals, grid=self.grid, block=self.block, wait=wait)

    @property
    def launch_size(self) -> LaunchSize:
        """As `Program.launch_size`."""
        return LaunchSize(self.grid, self.block)

    def launch_timed(
        self, profiler: Profiler, bufs: Sequence[HCQBuffer], vals: Sequence[int], key: object
    ) -> None:
        """Launches it as `__call__` does, between two timestamps."""
        args = self.loaded.arguments(*bufs, *self._workspace, vals=vals)
        launch = self.loaded.launch(args, self.grid, self.block)
        profiler.submit(self.name, self._device.channel("compute"), [launch], key)

    def graph_item(self, bufs: Sequence[HCQBuffer], vals: Sequence[Symbol]) -> GraphLaunch:
        """A launch of it for a graph, which keeps its workspace from being used again."""
        buffers = (*bufs, *self._workspace)
        return GraphLaunch(self.loaded, buffers, tuple(vals), self.grid, self.block)
