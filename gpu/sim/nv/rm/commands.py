"""What a command of RM_CONTROL is made of; `gpu.sim.nv.rm.control` has most of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gpu.sim.kernel import CallerMemory
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.rm.classes import Kind
from gpu.sim.nv.rm.layout import Layout, Record
from gpu.sim.nv.rm.objects import Resource

if TYPE_CHECKING:
    from gpu.sim.nv.rm.manager import ResourceManager


class Call(NamedTuple):
    """What a handler is given; `user` is the memory of the process that calls."""

    rm: ResourceManager
    target: Resource
    params: Record
    user: CallerMemory

    @property
    def gpu(self) -> NvGpu:
        """The GPU of the object."""
        return self.target.gpu


class Command(NamedTuple):
    """A command: objects that have it, its parameters, and what answers it."""

    kinds: tuple[Kind, ...]
    layout: Layout
    handler: Callable[[Call], None]
