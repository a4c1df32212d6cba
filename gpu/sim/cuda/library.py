"""The library as a client finds it: addresses of C functions by their exported names."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from gpu.core.errors import DeviceError
from gpu.sim.cuda import calls
from gpu.sim.cuda.calls.mapping import Physical
from gpu.sim.cuda.context import Context
from gpu.sim.cuda.driver import Driver
from gpu.sim.cuda.entry import EXPORTS, TYPES, Export
from gpu.sim.cuda.graphs import ExecGraph, Graph
from gpu.sim.nv.chip.chips import find_chip

assert calls.ALL  # importing it fills EXPORTS
VERSION: Final = 13000
_loaded: list[Library] = []


class RuleBroken(DeviceError):
    """A client did what libcuda leaves undefined, or left something behind."""


class Library:
    """One loaded libcuda.

    Attributes:
        functions: exported name -> address of a C function with the types of cuda.h.
        driver: what answers them.
    """

    def __init__(self, chips: str, seed: int, version: int, recovers: bool):
        names = [name.strip().lower() for name in chips.split(",")]
        self.driver = Driver([find_chip(name) for name in names], seed, version, recovers)
        self._kept: list[Any] = []
        self.functions: dict[str, int] = {}
        for export in EXPORTS.values():
            self._add(export.symbol, export, False)
            if export.twin:
                self._add(f"{export.symbol}_{export.twin}", export, True)
        self.driver.functions = self.functions

    @property
    def violations(self) -> list[str]:
        """What the client did that has no defined result, each with the values."""
        return self.driver.simulation.debug.violations

    @property
    def faults(self) -> list[str]:
        """What work has failed with, each with the place."""
        return self.driver.simulation.debug.faults

    def reseed(self, seed: int) -> None:
        """What is left to chance from now on is drawn from this seed, as after `load` with it."""
        with self.driver.lock:
            self.driver.rng.seed(seed)
            self.driver.work.draw()

    def left(self) -> list[str]:
        """What was made and is still there."""
        graphs = [*self.driver.handles.of(Graph), *self.driver.handles.of(ExecGraph)]
        found = [line for context in self.driver.all_contexts() for line in _left_in(context)]
        held = [*self.driver.handles.of(Physical)]
        for what, count in (
            ("graphs", len(graphs)),
            ("handles of cuMemCreate", len(held)),
            ("reserved ranges of addresses", len(self.driver.memory.reserved)),
        ):
            found += [f"{count} {what}"] if count else []
        return found

    def check(self, leaks: bool = True) -> None:
        """Raises RuleBroken for violations, and for what was left behind where `leaks` is set."""
        found = self.violations + (self.left() if leaks else [])
        if found:
            raise RuleBroken("; ".join(found))

    def close(self) -> None:
        """Ends all contexts and frees their memory; as when the process ends, nothing waits."""
        for context in tuple(self.driver.all_contexts()):
            self.driver.destroy(context)
            context.device.primary, context.device.retained = None, 0

    def _add(self, symbol: str, export: Export, per_thread: bool) -> None:
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *(TYPES[each] for each in export.signature))
        function = prototype(self.driver.bind(export, per_thread))
        self._kept.append(function)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        self.functions[symbol] = address


def _left_in(context: Context) -> list[str]:
    """What a context still holds."""
    where = f"context {context.number} of device {context.device.index}"
    kind = "primary" if context.is_primary else "made by cuCtxCreate"
    found = [f"{where}, {kind}, is still there"]
    for allocation in sorted(context.allocations, key=lambda each: each.start):
        if allocation.kind != "module":
            found.append(
                f"{where}: {allocation.size} bytes of {allocation.kind} memory at"
                f" {allocation.start:#x}"
            )
    if context.owned:
        found.append(f"{where}: {len(context.owned)} streams, events, modules or functions")
    return found


def load(chips: str, *, seed: int = 0, version: int = VERSION, recovers: bool = False) -> Library:
    """A libcuda of its own, on GPUs of these chips, separated by commas. Raises Unsupported.

    Args:
        chips: of `gpu/sim/nv/chip/chips.py:CHIPS`, in any case.
        seed: decides the order of work that nothing orders, and contents of new memory.
        version: of CUDA, as 13000 for 13.0.
        recovers: whether a device works again after a fault and a reset of its primary context.
            The reference says that a process which met one must be restarted.
    """
    library = Library(chips, seed, version, recovers)
    _loaded.append(library)
    # Whoever holds an address may call it until the process ends, from finalizers too that Python
    # calls when it has let go of all modules. So nothing frees this.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
    return library


def functions(chips: str, *, seed: int = 0) -> dict[str, int]:
    """The functions of a new `load`; its `Library` is the last of `drivers`. Raises Unsupported."""
    return dict(load(chips, seed=seed).functions)


def drivers() -> tuple[Library, ...]:
    """All that this process has loaded, oldest first."""
    return tuple(_loaded)
