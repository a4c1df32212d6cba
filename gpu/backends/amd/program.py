"""Kernels as programs of a device with command queues."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.core.errors import InvalidValue
from gpu.drivers.am.device import KfdDevice
from gpu.drivers.am.kernarg import argument_layout
from gpu.drivers.am.kernel_object import read_code_object
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.graph import GraphLaunch
from gpu.hcq.symbol import Symbol
from gpu.runtime.device import LaunchData
from gpu.runtime.program import Program


class AMDProgram(Program):
    """A kernel in the GPU's memory.

    Attributes:
        name: of its function.
        loaded: it, for the command queues.
        grid, block: workgroups of a launch, and work-items of each.
    """

    def __init__(self, device: KfdDevice, name: str, lib: bytes, data: LaunchData):
        """`lib` is a code object; `data` says `groups`, `block` and `workspace`.

        Raises InvalidValue where it has no kernel of that name, and what reading and loading raise.
        """
        self.name = name
        code = read_code_object(lib)
        if name not in code.kernels:
            raise InvalidValue(f"the code object has no kernel {name}, but {list(code.kernels)}")
        found = argument_layout(code.kernels[name].metadata)
        layout = ArgumentLayout(found.pointers, "q" * len(found.scalars))
        self.loaded = device.load(code, name, layout)
        self.grid, self.block = (data["groups"], 1, 1), (data["block"], 1, 1)
        size = data["workspace"]
        self._workspace = (device.allocator.alloc(size),) if size else ()

    def __call__(
        self, *bufs: HCQBuffer, vals: Sequence[int] = (), wait: bool = False
    ) -> float | None:
        """Launches it behind all that was launched before; `wait` as in `Program`."""
        buffers = (*bufs, *self._workspace)
        return self.loaded(*buffers, vals=vals, grid=self.grid, block=self.block, wait=wait)

    def graph_item(self, bufs: Sequence[HCQBuffer], vals: Sequence[Symbol]) -> GraphLaunch:
        """A launch of it for a graph, which keeps its workspace from being used again."""
        buffers = (*bufs, *self._workspace)
        return GraphLaunch(self.loaded, buffers, tuple(vals), self.grid, self.block)
