"""The native functions every instruction set uses, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from gpu.sim.isa import access, atomics, control, frames, lanes, scheduler, search, tally
from gpu.sim.isa.frames import Builder, Operation
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.native import Library, Make
from gpu.sim.isa.values import Emitter

Builders = Mapping[str, Builder]

_CONTROL: Final = "control"
_SEARCH: Final = "search"
_RESOLVES: Final = ("resolve_vector", "resolve_based")
_SEARCHING: Final = (*_RESOLVES, *atomics.SCALAR_LOADS)
"""What calls the functions of `gpu/sim/isa/search.py`."""


class Engine(Library):
    """Native code for the operations of an instruction set.

    Each operation is compiled when it is needed; those of the engine itself, and those that look
    for addresses, together.

    Attributes:
        operations: those that only compute, by name.
    """

    def __init__(
        self,
        name: str,
        tables: Mapping[str, Mapping[str, Operation]],
        builders: Mapping[str, Builders],
        wave: WaveLayout,
    ):
        """`tables` and `builders` are groups by name: semantics, and functions on rows by hand.

        `wave` says how many lanes waves have.
        """
        self.wave = wave
        self.operations: dict[str, Operation] = {}
        modules: dict[str, Make] = {
            _CONTROL: partial(control.control_module, wave),
            _SEARCH: partial(_search_module, wave),
            scheduler.NAME: scheduler.module,
            **tally.modules(wave),
        }
        for rows in (access.BUILDERS, lanes.BUILDERS, *builders.values()):
            modules |= {f: partial(_built, f, build, wave.lanes, wave) for f, build in rows.items()}
        modules |= {f: partial(_built, f, build, 1, wave) for f, build in atomics.BUILDERS.items()}
        for operations in tables.values():
            self.operations |= operations
            modules |= {o.name: partial(_computing, o, wave) for o in operations.values()}
        super().__init__(name, modules, {_CONTROL: control.NAMES, _SEARCH: _SEARCHING})


def _emitted(build: Builder, lanes: int, wave: WaveLayout) -> Emitter:
    emitter = Emitter(lanes, wave)
    build(emitter)
    return emitter


def _built(function: str, build: Builder, lanes: int, wave: WaveLayout) -> str:
    """The module of a function that is written by hand."""
    return frames.module([(function, _emitted(build, lanes, wave))])


def _computing(operation: Operation, wave: WaveLayout) -> str:
    """The module of an operation that only computes."""
    return frames.module([(operation.name, frames.emit(operation, wave))])


def _search_module(wave: WaveLayout) -> str:
    vector = [(f, _emitted(access.BUILDERS[f], wave.lanes, wave)) for f in _RESOLVES]
    scalar = [(f, _emitted(build, 1, wave)) for f, build in atomics.SCALAR_LOADS.items()]
    return search.search_module(wave) + frames.module([*vector, *scalar])
