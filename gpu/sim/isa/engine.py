"""The native functions every instruction set uses, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from gpu.sim.isa import access, atomics, control, frames, lanes, layout, search
from gpu.sim.isa.frames import Operation
from gpu.sim.isa.native import Library
from gpu.sim.isa.values import Emitter

Builders = Mapping[str, Callable[[Emitter], None]]

_CONTROL: Final = "control"
_MEMORY: Final = "memory"
_LANES: Final = "lanes"


def _built(builders: Builders, lane_count: int) -> list[tuple[str, Emitter]]:
    functions = []
    for name, build in builders.items():
        emitter = Emitter(lane_count)
        build(emitter)
        functions.append((name, emitter))
    return functions


def _memory_module() -> str:
    functions = _built(access.BUILDERS, layout.LANES) + _built(atomics.BUILDERS, 1)
    return search.SEARCH + frames.module(functions)


def _row_module(builders: Builders) -> str:
    return frames.module(_built(builders, layout.LANES))


class Engine:
    """Native code for the operations of an instruction set.

    A group of them is compiled when one of its operations is needed.
    """

    def __init__(
        self,
        name: str,
        tables: Mapping[str, Mapping[str, Operation]],
        builders: Mapping[str, Builders],
    ):
        """`tables` and `builders` are groups by name: semantics, and functions on rows by hand."""
        self.operations: dict[str, Operation] = {}
        memory = (*access.BUILDERS, *atomics.BUILDERS)
        self._group_of: dict[str, str] = dict.fromkeys(memory, _MEMORY)
        self._group_of |= dict.fromkeys(control.NAMES, _CONTROL)
        groups: dict[str, Callable[[], str]] = {
            _CONTROL: control.control_module,
            _MEMORY: _memory_module,
        }
        for group, table in {_LANES: lanes.BUILDERS, **builders}.items():
            self._group_of |= dict.fromkeys(table, group)
            groups[group] = partial(_row_module, table)
        for group, operations in tables.items():
            self.operations |= operations
            self._group_of |= dict.fromkeys((o.name for o in operations.values()), group)
            groups[group] = partial(_table_module, operations)
        self._library = Library(name, groups)
        self._addresses: dict[str, int] = {}

    def address(self, function: str) -> int:
        """The address of a native function. Raises KeyError for a name that is none."""
        address = self._addresses.get(function)
        if address is None:
            address = self._library.address(self._group_of[function], function)
            self._addresses[function] = address
        return address

    def __contains__(self, function: str) -> bool:
        return function in self._group_of


def _table_module(table: Mapping[str, Operation]) -> str:
    unique = {operation.name: operation for operation in table.values()}
    return frames.module([(name, frames.emit(operation)) for name, operation in unique.items()])
