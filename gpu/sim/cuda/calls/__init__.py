"""The exported functions, by what they are about; importing this registers all of them."""

from __future__ import annotations

from typing import Final

from gpu.sim.cuda.calls import (
    contexts,
    copying,
    devices,
    events,
    graphs,
    launches,
    linking,
    mapping,
    modules,
    processes,
    reserving,
    streaming,
)

ALL: Final = (
    *(contexts, copying, devices, events, graphs, launches, linking, mapping, modules),
    *(processes, reserving, streaming),
)
