"""Open questions of KFD: off by default, forced by `open_kfd` or the setting AM_VARIANTS."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from am.kernels import LAYOUTS, WRITTEN, code_object
from gpu import Context
from gpu.autogen import kfd
from gpu.backends.amd.device import open_device
from gpu.core.devspec import parse_device_spec
from gpu.core.errors import ConfigError, DeviceError, InvalidValue, TransportError, Unsupported
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.encode.dispatch import dispatch_state
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.kfd.memory import Use
from gpu.drivers.am.kfd.port import open_kfd
from gpu.drivers.am.kfd.process import session_of
from gpu.hcq.ports import MemoryKind
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.transport.os import Argument
from gpu.transport.world import World
from simulated import own_machines

TOLD = {"runtime": "told"}


@pytest.fixture
def sim() -> Iterator[KfdWorld]:
    sim = KfdWorld(seed=7, chip=("gfx1100", "gfx1100"))
    yield sim
    sim.close()


@pytest.fixture
def modes(sim: KfdWorld, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What RUNTIME_ENABLE was called with."""
    found: list[int] = []
    ioctl = type(sim.os).ioctl

    def noted(self: object, fd: int, request: int, args: Argument, refs: object = ()) -> int:
        if request == kfd.AMDKFD_IOC_RUNTIME_ENABLE:
            assert isinstance(args, kfd.kfd_ioctl_runtime_enable_args)
            found.append(args.mode_mask)
        return ioctl(self, fd, request, args, refs)  # type: ignore[arg-type]

    monkeypatch.setattr(type(sim.os), "ioctl", noted)
    return found


def test_no_runtime_unless_asked(sim: KfdWorld, modes: list[int]) -> None:
    """It is never ended either, which would be the end of another runtime of the process."""
    world = World(sim.os, sim.waiter)
    session_of(sim.os).kfd.enable_runtime()  # as other code of the process does
    with open_kfd(world) as device:
        device.queue().memory_barrier().submit(device)
    assert modes == [kfd.KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK]


def test_a_process_tells_once(sim: KfdWorld, modes: list[int]) -> None:
    world = World(sim.os, sim.waiter)
    with open_kfd(world, 0, force=TOLD), open_kfd(world, 1, force=TOLD):
        pass
    with open_kfd(world, 0, force=TOLD):
        pass
    assert modes == [kfd.KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK]


def test_others_have_told(sim: KfdWorld) -> None:
    world = World(sim.os, sim.waiter)
    session_of(sim.os).kfd.enable_runtime()
    with pytest.raises(DeviceError, match=r"has told KFD of a runtime, such as ROCm's"):
        open_kfd(world, force=TOLD)
    open_kfd(world).close()


def test_queues_are_there_before(sim: KfdWorld) -> None:
    world = World(sim.os, sim.waiter)
    with open_kfd(world), pytest.raises(DeviceError, match="or has queues already"):
        open_kfd(world, 1, force=TOLD)
    open_kfd(world, 1, force=TOLD).close()


def test_other_errors_stay(sim: KfdWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(sim.os)

    def broken(*_: object) -> None:
        raise TransportError("RUNTIME_ENABLE: EIO", errno.EIO)

    monkeypatch.setattr(session.kfd, "_call", broken)
    with pytest.raises(TransportError, match="EIO"):
        session.enable_runtime()


def test_kernels_without_it() -> None:
    sim = KfdWorld(seed=7, interface=13)
    with pytest.raises(
        Unsupported, match=r"interface 1\.13 has no RUNTIME_ENABLE: 1\.14 is needed"
    ):
        open_kfd(World(sim.os, sim.waiter), force=TOLD)
    open_kfd(World(sim.os, sim.waiter)).close()
    sim.close()


def test_unknown_variants(sim: KfdWorld) -> None:
    with pytest.raises(InvalidValue, match=r"no variant 'yes' of 'runtime'.*untold, told"):
        open_kfd(World(sim.os, sim.waiter), force={"runtime": "yes"})


def test_the_setting(sim: KfdWorld, modes: list[int]) -> None:
    for text, expected in (("", []), ("runtime=told", [1])):
        with own_machines(), Context(SIM="gfx1100", AM_VARIANTS=text):
            open_device("AMD", parse_device_spec("AMD")).queues.close()  # type: ignore[attr-defined]
        assert modes == expected
    wrong = Context(SIM="gfx1100", AM_VARIANTS="runtme=told")
    with own_machines(), wrong, pytest.raises(ConfigError, match=r"AM_VARIANTS=.*mean runtime"):
        open_device("AMD", parse_device_spec("AMD"))


def opened(sim: KfdWorld, **force: str) -> AmDevice:
    return open_kfd(World(sim.os, sim.waiter), force={k.replace("_", " "): force[k] for k in force})


def test_large_pages(sim: KfdWorld) -> None:
    """Without the alignment one of a few buffers lies at another place; with it none does."""
    for variant, wanted in (("aligned", {0}), ("unaligned", {0, 1})):
        device = opened(sim, large_pages=variant)
        with device:
            held = [device.port.memory.hold((2 << 20) + 4096, Use.DATA) for _ in range(8)]
            assert {bool(each.address % (2 << 20)) for each in held} <= wanted
            is_aligned = not any(each.address % (2 << 20) for each in held)
            assert is_aligned == (variant == "aligned")


@pytest.mark.parametrize(
    ("variant", "visible", "flushes"),
    [
        *(("when needed", False, False), ("when needed", True, True)),
        *(("always", False, True), ("never", True, False)),
    ],
)
def test_hdp_flush(sim: KfdWorld, variant: str, visible: bool, flushes: bool) -> None:
    device = opened(sim, hdp_flush=variant)
    with device:
        if visible:
            held = device.allocator.alloc(4096, MemoryKind.VISIBLE)
        device.queue().memory_barrier().submit(device)
        device.synchronize()
        assert (device.port.hdp._window is not None) == flushes
        if visible:
            held.free()


def test_priv(sim: KfdWorld) -> None:
    for variant, priv in (("set", 1), ("unset", 0)):
        device = opened(sim, priv=variant)
        with device:
            code = code_object("fill", device.target.version)
            fill = device.load(code, "fill", LAYOUTS["fill"], written=WRITTEN)
            state = dispatch_state(device.target, fill.info)
            register = packets_of(device.target.generation).registers["COMPUTE_PGM_RSRC1"]
            assert register.parse(state.rsrc1)["PRIV"] == priv
