"""A served machine: another connection is a process of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu.core.window import MemoryWindow
from gpu.sim.kgsl.world import KgslWorld
from gpu.sim.process import SimProcess
from gpu.sim.remote import RemoteWorld
from gpu.sim.server import serve
from sim.kgsl.raw_kgsl import CPU_MAP, PAGE, RawKgsl, halves, operation

HINT = 150 << 30  # which this process, in the place of another, has free


@pytest.mark.parametrize("flags", [0, CPU_MAP])
def test_a_served_machine(world: KgslWorld, user: RawKgsl, tmp_path: Path, flags: int) -> None:
    mine = user.alloc(PAGE)
    with serve(world, str(tmp_path / "socket")):
        remote = RemoteWorld(str(tmp_path / "socket"))
        process: Any = SimpleNamespace(os=remote.os, world=world)
        other = RawKgsl(cast(SimProcess, process))
        item = other.alloc(PAGE, flags, mapped=False)
        item.mapped = other.map(item.id, PAGE, at=HINT if flags else 0)
        item.address = other.info(item.id)[0]
        assert item.address == (item.mapped if flags else mine.address)
        other.run(operation("MEM_WRITE", *halves(item.address), 5))
        assert MemoryWindow(item.mapped, PAGE).read(0, 4) == 5 and mine.host.read(0, 4) == 0
        other.free(item)
        remote.close()
    assert user.run(operation("NOP")) == 1 and not world.debug.violations
