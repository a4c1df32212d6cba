"""Sessions that are recorded on one model and replayed on another."""

from __future__ import annotations

import dataclasses
import io
import struct
from pathlib import Path

import pytest

from gpu.core.trace import Recorder, read_trace
from gpu.core.traceevent import Event, Ioctl, Memory
from gpu.sim.nv.replay import replay
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.traced import TracedOs
from sim.nv.methods import release
from sim.nv.numbers import INVALID_ARGUMENT, OK
from sim.nv.raw_nv import RawNv


def record(path: Path, chip: str = "gh100") -> list[Event]:
    """A session of a world whose handles and ids are unlike those of a fresh one."""
    world = NvSimWorld(seed=1, chip=chip)
    RawNv(world.new_process())
    world.gpus[0].gpu_id, world.gpus[0].uuid = 0xABC00, bytes(range(16))
    text = io.StringIO()
    user = RawNv(world.process, through=TracedOs(world.os, Recorder(text)))
    user.escape(200, bytearray(32 * 72))
    buffer = user.buffer(64 << 10, local=True)
    assert user.free_range(buffer.va, 4096) != OK
    assert user.register_channel(0x77, 0, 0) != OK
    assert user.control(user.subdevice, 0x2080014A, bytearray(8)) == INVALID_ARGUMENT
    assert user.unmap_raw(user.usermode, 1) != OK
    user.ring.submit(*release(buffer.va, 1))
    world.run_until_idle()
    assert user.free(user.last_group) == OK
    user.os.close(user.uvm)
    user.os.close(user.ctl)
    world.close()
    path.write_text(text.getvalue())
    return read_trace(path)


@pytest.mark.parametrize("chip", ["ga102", "gh100"])
def test_a_session_replays(tmp_path: Path, chip: str) -> None:
    events = record(tmp_path / "session.trace", chip)
    assert len(events) > 50
    world = NvSimWorld(seed=99, chip=chip)
    assert replay(events, world) == []
    assert world.usage().clients == 0
    world.close()


def test_another_chip_answers_otherwise(tmp_path: Path) -> None:
    world = NvSimWorld(chip="gb202")
    differences = replay(record(tmp_path / "session.trace"), world)
    assert "NVOS64" in differences[0].call and differences[0].recorded == "status 0x0"
    assert {d.model for d in differences} >= {"status 0x56"}
    world.close()


def test_a_changed_status_is_found(tmp_path: Path) -> None:
    events = record(tmp_path / "session.trace")
    frees = [i for i, e in enumerate(events) if isinstance(e, Ioctl) and e.request & 0xFF == 0x29]
    at = frees[0]
    event = events[at]
    assert isinstance(event, Ioctl)
    after = bytearray(event.memory[0].after)
    struct.pack_into("<I", after, 12, 0x33)
    memory = Memory((), event.memory[0].before, bytes(after))
    events[at] = dataclasses.replace(event, memory=(memory,))
    world = NvSimWorld()
    (found,) = replay(events, world)
    assert (found.place, found.recorded, found.model) == (at, "status 0x33", "status 0x0")
    world.close()
