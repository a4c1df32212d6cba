"""The native functions of PTX, made when a program first needs them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from gpu.core.once import once
from gpu.sim.isa import scheduler
from gpu.sim.isa.native import Library
from gpu.sim.isa.ptx import flow
from gpu.sim.isa.ptx.resolve import RESOLVE

Make = Callable[[], str]
_CONTROL: Final = "ptx_control"
_RESOLVE: Final = "resolve_lanes"


class PtxEngine:
    """Functions by name. Whoever asks for one brings what makes the text of its module."""

    def __init__(self) -> None:
        self._library = Library(
            "ptx",
            {
                _CONTROL: flow.control_module,
                _RESOLVE: lambda: RESOLVE,
                scheduler.NAME: scheduler.module,
            },
        )
        self._addresses = {name: self._library.address(_CONTROL, name) for name in flow.NAMES}
        for name in (_RESOLVE, scheduler.NAME):
            self._addresses[name] = self._library.address(name, name)
        self._making = Lock()

    def address(self, name: str, make: Make | None = None) -> int:
        """The address of a function, which `make` writes where nobody has needed it before."""
        found = self._addresses.get(name)
        if found is None:
            assert make is not None, name
            with self._making:
                if name not in self._addresses:  # another thread may have needed it meanwhile
                    self._library.define(name, make)
                    self._addresses[name] = self._library.address(name, name)
                found = self._addresses[name]
        return found

    @property
    def known(self) -> frozenset[str]:
        """Names of the functions that have been needed so far."""
        return frozenset(self._addresses)


@once
def shared_engine() -> PtxEngine:
    """The engine that all machines of this process share."""
    return PtxEngine()
