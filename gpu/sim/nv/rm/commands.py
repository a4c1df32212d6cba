"""What a command of RM_CONTROL is made of; `gpu.sim.nv.rm.control` has most of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.rm.classes import Kind
from gpu.sim.nv.rm.layout import Layout, Record
from gpu.sim.nv.rm.objects import Resource
from gpu.sim.nv.rm.state import RmState

Lists = Mapping[str, bytearray]
_NONE: Final[Mapping[str, Callable[[Record], int]]] = {}


class Call(NamedTuple):
    """What a handler is given; `lists` is what pointers among the parameters lead to."""

    rm: RmState
    target: Resource
    params: Record
    lists: Lists

    @property
    def gpu(self) -> NvGpu:
        """The GPU of the object."""
        return self.target.gpu


class Command(NamedTuple):
    """A command.

    Attributes:
        kinds: objects that have it.
        layout, handler: its parameters, and what answers it.
        lists: bytes behind each pointer among the parameters (embedded_param_copy.c).
    """

    kinds: tuple[Kind, ...]
    layout: Layout
    handler: Callable[[Call], None]
    lists: Mapping[str, Callable[[Record], int]] = _NONE
