"""Sums of addresses and indices, on rows."""

from __future__ import annotations

from functools import partial

from gpu.sim.isa import frames
from gpu.sim.isa.ir3.wave import Ir3Wave
from gpu.sim.isa.native import Make
from gpu.sim.isa.values import Emitter


def indexing(shift: int, further: int, size: int, wave: Ir3Wave) -> tuple[str, Make]:
    """`d = a + (((b << shift) + further) << size)`, of which `a` and `d` have 64 bits."""
    function = f"ir3_index_{shift}_{further}_{size}"

    def build(e: Emitter) -> None:
        index = (frames.read(e, "b", "i32").shl(shift) + further).to("i64").shl(size)
        frames.write(e, "d", "i64", frames.read(e, "a", "i64") + index)
        frames.next_record(e)

    return function, partial(_module, function, build, wave)


def _module(function: str, build: object, wave: Ir3Wave) -> str:
    e = Emitter(wave.lanes, wave)
    assert callable(build)
    build(e)
    return frames.module([(function, e)])
