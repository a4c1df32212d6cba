"""The native functions of PTX, made when a program first needs them."""

from __future__ import annotations

from typing import Final

from gpu.core.once import once
from gpu.sim.isa import scheduler
from gpu.sim.isa.native import Library
from gpu.sim.isa.ptx import flow
from gpu.sim.isa.ptx.resolve import RESOLVE

_CONTROL: Final = "ptx_control"


@once
def shared_engine() -> Library:
    """The engine that all machines of this process share.

    Whoever asks it for a function that it has not brings what makes the text of its module.
    """
    modules = {
        _CONTROL: flow.control_module,
        "resolve_lanes": lambda: RESOLVE,
        scheduler.NAME: scheduler.module,
    }
    return Library("ptx", modules, {_CONTROL: flow.NAMES})
