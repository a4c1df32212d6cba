"""Faults by name: what their texts mean, when they come, and what is refused."""

from __future__ import annotations

import errno
import random

import pytest

from gpu.autogen import kfd
from gpu.core.errors import ConfigError, TransportError
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.faults import FAULTS, Fault, Faults
from gpu.sim.nv.world import NvSimWorld
from gpu.sim.worlds import parse_setting, simulate
from sim.raw_kfd import RawKfd, fails


def times(text: str, about: str = "", count: int = 200, seed: int = 0) -> list[int]:
    """At which of so many times a fault comes, the first being 1."""
    faults = Faults(random.Random(seed), [text], calls=["GET_VERSION"])
    name = Fault.parse(text).name
    return [n for n in range(1, count + 1) if faults.due(name, about=about)]


def test_when() -> None:
    assert times("hang") == times("hang@1") == [1]
    assert times("hang:hard@7") == [7]
    assert times("hang@198+") == [198, 199, 200]
    assert times("hang@100%") == list(range(1, 201))
    drawn = times("hang@30%", count=2000)
    assert 500 < len(drawn) < 700 and drawn == times("hang@30%", count=2000)
    assert drawn != times("hang@30%", count=2000, seed=1)


def test_what_is_counted() -> None:
    """Only what the fault is about, from when it was told of, and each fault by itself."""
    assert times("short-read:topology", "/sys/topology/1") == [1]
    assert times("short-read:topology", "/proc/devices") == []
    assert times("no-memory:vram@2", "vram") == [2] and times("no-memory:vram", "gtt") == []
    assert times("ioctl:GET_VERSION:EIO@3", "GET_VERSION") == [3]
    faults = Faults(random.Random(0), ["hang@2", "ecc@2"])
    both = ("hang", "ecc")
    assert faults.due(*both) is None
    faults.add("ecc")
    assert [fault.name for fault in (faults.due(*both), faults.due(*both)) if fault] == ["hang"]
    assert faults.due("reset") is None and faults.due(*both) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hung", f"no fault 'hung'.*{', '.join(sorted(FAULTS))}"),
        ("", "no fault ''"),
        ("hang:soft", "'soft' is no detail.*hang:hard"),
        ("page-fault", "'' is no detail.*page-fault:read, page-fault:write, page-fault:exec"),
        ("ecc:x", "'x' is no detail of it; there are ecc alone"),
        ("xid:many", "no detail"),
        ("ioctl:CREATE_QUEUE", "no detail.*CALL:ANSWER"),
        *[
            (f"hang@{when}", "no time; give N")
            for when in ("0", "", "-1", "x", "2-", "101%", "1%+")
        ],
    ],
)
def test_what_is_no_fault(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"fault={text}.*{why}"):
        Fault.parse(text)


def test_what_a_machine_cannot_show() -> None:
    with pytest.raises(ConfigError, match="only NV has it, this is AMD"):
        KfdWorld(faults=["xid:13"])
    with pytest.raises(ConfigError, match=r"'MAKE_TEA' is no call here.*CREATE_QUEUE"):
        KfdWorld(faults=["ioctl:MAKE_TEA:EIO"])
    with pytest.raises(ConfigError, match=r"'ETEA' is no answer here.*ENOMEM"):
        KfdWorld(faults=["ioctl:CREATE_QUEUE:ETEA"])
    with pytest.raises(ConfigError, match="is no answer"):
        KfdWorld(faults=["ioctl:CREATE_QUEUE:NO_MEMORY"])
    NvSimWorld(faults=["ioctl:RM_ALLOC:NO_MEMORY", "ioctl:UVM_FREE:EIO", "xid:13"]).close()


def test_the_setting() -> None:
    chips, faults = parse_setting("GFX1100, gfx1030 ,fault=hang@2, fault=ioctl:CREATE_QUEUE:EIO")
    assert chips == ["gfx1100", "gfx1030"]
    assert faults == [Fault("hang", "", 2, 2), Fault("ioctl", "CREATE_QUEUE:EIO")]
    machine = simulate("gfx1100,fault=remove@3", "AMD").machine
    user = RawKfd(machine.process)
    user.call("get_version")
    machine.close()
    for setting, why in {
        "fault=hang": "no chip is named",
        "gfx1100,faults=hang": "'faults=hang' is not understood",
        "gfx1100,fault=hung": "no fault 'hung'",
        "gfx1100,fault=xid:13": "SIM=gfx1100,fault=xid:13: fault=xid: only NV has it",
    }.items():
        with pytest.raises(ConfigError, match=why):
            simulate(setting, "AMD")


def test_calls_that_are_refused_are_not_made() -> None:
    world = KfdWorld()
    user = RawKfd(world.process)
    world.faults.add("ioctl:CREATE_EVENT:ENOSPC@2")
    first = user.event(kfd.KFD_IOC_EVENT_MEMORY).event_id
    with fails(errno.ENOSPC):
        user.event(kfd.KFD_IOC_EVENT_MEMORY)
    assert user.event(kfd.KFD_IOC_EVENT_MEMORY).event_id == first + 1
    world.close()


def test_short_reads() -> None:
    world = KfdWorld()
    path = "/sys/devices/virtual/kfd/kfd/topology/nodes/1/properties"
    whole = world.os.read_file(path)
    world.faults.add("short-read:nodes/1")
    assert world.os.read_file("/sys/devices/virtual/kfd/kfd/topology/nodes/0/properties")
    assert world.os.read_file(path) == whole[: len(whole) // 2]
    assert world.os.read_file(path) == whole
    with pytest.raises(TransportError):
        world.os.read_file("/no/such/file")
    world.close()
