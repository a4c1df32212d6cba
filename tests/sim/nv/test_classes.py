"""Legal parents and parameters of every class, against the table of resource_list.h written anew.

Branch 580.142 of open-gpu-kernel-modules, src/nvidia/src/kernel/rmapi/resource_list.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gpu.sim.nv.rm.classes import RULES
from gpu.sim.nv.world import NvSimWorld
from sim.nv.numbers import (
    DEBUGGER,
    INVALID_ADDRESS,
    INVALID_ARGUMENT,
    INVALID_PARENT,
    NOT_SUPPORTED,
    OK,
)
from sim.nv.raw_nv import RawNv, pack


@dataclass(frozen=True)
class Entry:
    """Legal parents; bytes of the parameters, 0 for a class without; whether they may be NULL."""

    parents: tuple[str, ...]
    size: int
    optional: bool = False


_CHANNEL = Entry(("device", "group"), 368)
_COMPUTE = Entry(("channel",), 16, optional=True)
_COPY = Entry(("channel",), 8, optional=True)
_USERMODE = Entry(("subdevice",), 2, optional=True)
_OLD_USERMODE = Entry(("subdevice",), 0, optional=True)
_EVENT = Entry((), 24)
TABLE = {
    0x80: Entry(("client",), 56, optional=True),
    0x2080: Entry(("device",), 4, optional=True),
    0x3E: Entry(("device",), 128),
    0x40: Entry(("device", "subdevice"), 128),
    0x70: Entry(("device",), 24),
    0x71: Entry(("device",), 40),
    0x90F1: Entry(("device", "subdevice"), 56),
    0xA06C: Entry(("device",), 20),
    0x9067: Entry(("group",), 12),
    0x83DE: Entry(("device",), 12),
    **dict.fromkeys((0x5, 0x78, 0x79, 0x7E), _EVENT),
    **dict.fromkeys((0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F), _CHANNEL),
    **dict.fromkeys((0xC3C0, 0xC5C0, 0xC6C0, 0xC7C0, 0xC9C0, 0xCBC0, 0xCDC0, 0xCEC0), _COMPUTE),
    **dict.fromkeys((0xC3B5, 0xC5B5, 0xC6B5, 0xC7B5, 0xC8B5, 0xC9B5, 0xCAB5), _COPY),
    **dict.fromkeys((0xC661, 0xC761), _USERMODE),
    **dict.fromkeys((0xC361, 0xC461, 0xC561), _OLD_USERMODE),
}
ROOTS = {0x0, 0x1, 0x41}


class Tree:
    """One object of each kind."""

    def __init__(self) -> None:
        self.world = NvSimWorld(seed=3)
        self.user = user = RawNv(self.world.process)
        memory = user.alloc(0x40, user.memory_params(4096, True), parent=user.device)
        self.parents = {
            "client": user.client,
            "device": user.device,
            "subdevice": user.subdevice,
            "vaspace": user.vaspace,
            "group": user.last_group,
            "share": user.last_share,
            "channel": user.ring.handle,
            "compute": user.objects["compute"],
            "copy": user.objects["copy"],
            "usermode": user.usermode,
            "memory": memory,
        }

    def status(self, number: int, parent: str, params: bytearray | None) -> int:
        return self.user.try_alloc(number, params, parent=self.parents[parent])[0]


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    made = Tree()
    yield made
    made.world.close()


def test_the_table_is_whole() -> None:
    assert TABLE.keys() | ROOTS == RULES.keys()


@pytest.mark.parametrize("number", TABLE, ids=hex)
def test_parents(tree: Tree, number: int) -> None:
    """A wrong parent is found before all that is asked of the parameters."""
    entry = TABLE[number]
    before = tree.world.usage()
    for kind in tree.parents:
        params = bytearray(entry.size) if entry.size else None
        if params and number == DEBUGGER:  # what it looks at is asked for with the same status
            params[8:12] = tree.parents["device"].to_bytes(4, "little")
        found = tree.status(number, kind, params)
        if entry.parents and kind not in entry.parents:
            assert found == INVALID_PARENT, kind
        else:
            assert found != INVALID_PARENT, kind
    if not entry.optional:
        assert tree.world.usage().channels == before.channels


@pytest.mark.parametrize("number", TABLE, ids=hex)
def test_parameters(tree: Tree, number: int) -> None:
    """NULL where they are required, some where there are none, and what cannot be read."""
    entry = TABLE[number]
    parent = entry.parents[0] if entry.parents else "subdevice"
    if not entry.optional:
        assert tree.status(number, parent, None) == INVALID_ARGUMENT
    if not entry.size:
        assert tree.status(number, parent, bytearray(8)) == INVALID_ARGUMENT
        return
    user = tree.user
    data = pack(48, ("I", 0, user.client), ("I", 4, tree.parents[parent]), ("I", 12, number))
    data[16:24] = (0x1000).to_bytes(8, "little")
    user.escape(0x2B, data)
    assert int.from_bytes(data[40:44], "little") == INVALID_ADDRESS


@pytest.mark.parametrize("number", [n for n in TABLE if TABLE[n].optional], ids=hex)
def test_parameters_that_may_be_missing(tree: Tree, number: int) -> None:
    entry = TABLE[number]
    status, handle = tree.user.try_alloc(number, parent=tree.parents[entry.parents[0]])
    if number == 0x80:  # resservResourceFactory needs deviceId
        assert status == INVALID_ARGUMENT
    elif number == 0x2080:
        assert status == 0x1A  # the device has its subdevice already
    else:
        has = number in (0xCBC0, 0xC8B5, 0xC661, 0xC361, 0xC461, 0xC561)
        assert status == (OK if has else NOT_SUPPORTED)
        assert not has or tree.user.free(handle) == OK
