"""RM without device files: a session, handles and bytes, as messages bring them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from gpu.sim.nv.rm.control import control
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.state import Caller, Place
from gpu.sim.nv.rm.status import RmError, Status
from gpu.sim.nv.world import NvSimWorld
from sim.nv.raw_nv import pack


class Session:
    """A client with a device, made by messages."""

    def __init__(self, world: NvSimWorld):
        self.rm = world.rm
        self.caller = Caller(self, 77)
        self.client, _ = self.rm.allocate(self.caller, Place(0, 0, 0), 0x41)
        self.device = self.alloc(self.client, 0x80, bytes(56))[0]
        self.subdevice = self.alloc(self.device, 0x2080)[0]

    def alloc(self, parent: int, number: int, data: bytes | None = None) -> tuple[int, bytes]:
        place = Place(self.client, parent, 0)
        handle, answer = self.rm.allocate(self.caller, place, number, data)
        return handle, answer or b""

    def ask(self, target: int, number: int, data: bytes) -> bytes:
        return control(self.rm, self.caller, self.client, target, number, data, {})

    def memory(self, size: int) -> tuple[int, bytes]:
        params = pack(128, ("I", 0, 0x1234), ("Q", 64, size))
        return self.alloc(self.device, 0x40, bytes(params))


def refusal(act: Callable[[], object]) -> Status:
    with pytest.raises(RmError) as caught:
        act()
    return caught.value.status


def test_objects_and_commands_by_bytes(world: NvSimWorld) -> None:
    before = world.usage()
    session = Session(world)
    handle, answer = session.memory(3 << 20)
    assert struct.unpack_from("<Q", answer, 64)[0] == 4 << 20 == world.usage().vram
    assert session.ask(session.client, 0x201, bytes(128))[:8] == b"\0\1\0\0\xff\xff\xff\xff"
    session.rm.free(session.caller, session.client, handle)
    assert world.usage().vram == 0 and world.usage().objects == 3
    session.rm.end_session(session)
    assert world.usage() == before and not world.debug.violations


def test_sessions_have_their_own_clients(world: NvSimWorld) -> None:
    first, second = Session(world), Session(world)
    stranger = Place(first.client, first.client, 0)
    assert refusal(lambda: second.rm.allocate(second.caller, stranger, 0x80, bytes(56))) == (
        Status.INVALID_CLIENT
    )
    first.rm.end_session(first)
    assert second.ask(second.subdevice, 0x2080122A, bytes(24))


def test_bytes_have_the_size_of_their_structure(world: NvSimWorld) -> None:
    session = Session(world)
    wrong = refusal(lambda: session.ask(session.subdevice, 0x2080014A, bytes(264)))
    assert wrong == Status.INVALID_ARGUMENT
    # A command whose parameters have a pointer does nothing where nobody follows it.
    infos = bytes(pack(32, ("I", 0, 1), ("Q", 8, 0x1000)))
    refused = refusal(lambda: session.ask(session.subdevice, 0x20801201, infos))
    assert refused == Status.INVALID_ARGUMENT


def test_events_go_where_a_session_wants_them(world: NvSimWorld) -> None:
    session = Session(world)
    queue: list[Record] = []
    session.rm.add_os_event(session.client, 5, queue)
    params = pack(24, ("I", 4, session.subdevice), ("I", 8, 0x79), ("I", 12, 12), ("Q", 16, 5))
    handle, _ = session.alloc(session.subdevice, 0x79, bytes(params))
    world.gpus[0].signal(1)
    assert [(event["hObject"], event["NotifyIndex"]) for event in queue] == [(handle, 12)]
    session.rm.end_session(session)
    world.gpus[0].signal(1)
    assert len(queue) == 1
