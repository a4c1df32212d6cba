"""The bytes of the UVM calls, compared with recordings written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu.core.errors import InvalidValue, RmError
from gpu.drivers.nv.nvk.branch import BRANCHES
from gpu.drivers.nv.nvk.kernel import KernelPort
from gpu.drivers.nv.nvk.uvm import Uvm
from gpu.drivers.nv.rm.object import RmClient, RmObject
from gpu.drivers.nv.rm.status import CallLog
from gpu.transport.replay import ReplayOs
from unit.nv.golden import CLIENT, CTL_FD, UVM_FD, call, image, replay
from unit.nv.test_kernel import ROOT_CALL

UUID = bytes(range(16, 32))
BASE, SIZE = 0x10_0000_0000, 0x20_0000
Field = tuple[int, str, object]


def _uvm(
    request: int, size: int, status_at: int, *fields: Field, status: int = 0, fd: int = UVM_FD
) -> tuple[ReplayOs, Uvm, RmObject]:
    event = call(fd, request, image(size, *fields), ((status_at, "I", status),))
    os = replay(ROOT_CALL, event)
    client = RmClient(KernelPort(os, CTL_FD), CallLog())
    child = client.adopt(0xC86F, 0x77, name="child")
    return os, Uvm(os, UVM_FD, CTL_FD, client, client.log), child


Act = Callable[[Uvm, RmObject], None]
OF_580, OF_590, OF_535 = BRANCHES[580], BRANCHES[590], BRANCHES[535]
# Request, size, where the status is, the fields sent, and the call that sends them.
CALLS: list[tuple[int, int, int, tuple[Field, ...], Act]] = [
    (0x30000001, 16, 8, ((0, "Q", 1),), lambda uvm, _: uvm.initialize()),
    (
        *(37, 40, 36, ((0, "16s", UUID), (24, "i", -1))),
        lambda uvm, _: uvm.register_gpu(UUID),
    ),
    (38, 20, 16, ((0, "16s", UUID),), lambda uvm, _: uvm.unregister_gpu(UUID)),
    (
        *(25, 32, 28),
        ((0, "16s", UUID), (16, "i", CTL_FD), (20, "I", CLIENT), (24, "I", 0x77)),
        lambda uvm, child: uvm.register_vaspace(UUID, child),
    ),
    (26, 20, 16, ((0, "16s", UUID),), lambda uvm, _: uvm.unregister_vaspace(UUID)),
    (
        *(27, 56, 48),
        (
            *((0, "16s", UUID), (16, "i", CTL_FD), (20, "I", CLIENT), (24, "I", 0x77)),
            *((32, "Q", BASE), (40, "Q", SIZE)),
        ),
        lambda uvm, child: uvm.register_channel(UUID, child, BASE, SIZE),
    ),
    (
        *(28, 28, 24, ((0, "16s", UUID), (16, "I", CLIENT), (20, "I", 0x77))),
        lambda uvm, child: uvm.unregister_channel(OF_580, UUID, child),
    ),
    (
        *(28, 12, 8, ((0, "I", CLIENT), (4, "I", 0x77))),
        lambda uvm, child: uvm.unregister_channel(OF_590, UUID, child),
    ),
    (
        *(73, 24, 16, ((0, "Q", BASE), (8, "Q", SIZE))),
        lambda uvm, _: uvm.create_range(BASE, SIZE),
    ),
    (
        *(33, 9264, 9260),
        (
            *((0, "Q", BASE), (8, "Q", SIZE), (24, "16s", UUID), (40, "I", 1)),
            *((9240, "Q", 1), (9248, "i", CTL_FD), (9252, "I", CLIENT), (9256, "I", 0x77)),
        ),
        lambda uvm, child: uvm.map_memory(OF_580, UUID, child, BASE, SIZE),
    ),
    (
        *(33, 1200, 1196),
        (
            *((0, "Q", BASE), (8, "Q", SIZE), (24, "16s", UUID), (40, "I", 1)),
            *((1176, "Q", 1), (1184, "i", CTL_FD), (1188, "I", CLIENT), (1192, "I", 0x77)),
        ),
        lambda uvm, child: uvm.map_memory(OF_535, UUID, child, BASE, SIZE),
    ),
    (
        *(34, 24, 16, ((0, "Q", BASE), (8, "Q", SIZE))),
        lambda uvm, _: uvm.free_range(OF_580, BASE, SIZE),
    ),
    (34, 16, 8, ((0, "Q", BASE),), lambda uvm, _: uvm.free_range(OF_590, BASE, SIZE)),
]
NAMED = pytest.mark.parametrize(
    ("request_number", "size", "status_at", "fields", "act"),
    CALLS,
    ids=[f"{row[0]:#x}-{row[1]}" for row in CALLS],
)


@NAMED
def test_bytes(
    request_number: int, size: int, status_at: int, fields: tuple[Field, ...], act: Act
) -> None:
    os, uvm, child = _uvm(request_number, size, status_at, *fields)
    act(uvm, child)
    os.finish()


@NAMED
def test_a_bad_status_is_named(
    request_number: int, size: int, status_at: int, fields: tuple[Field, ...], act: Act
) -> None:
    _, uvm, child = _uvm(request_number, size, status_at, *fields, status=0x5D)
    with pytest.raises(RmError, match=r"^UVM_\w+ of .*NV_ERR_PAGE_TABLE_NOT_AVAIL"):
        act(uvm, child)


@pytest.mark.parametrize("status", [0, 0x10006, 0x56])
def test_kernels_that_need_no_second_file_say_so(status: int) -> None:
    os, uvm, _ = _uvm(75, 8, 4, (0, "i", UVM_FD), status=status, fd=99)
    uvm.keep_memory(99)
    os.finish()


def test_another_answer_to_the_second_file_is_an_error() -> None:
    _, uvm, _ = _uvm(75, 8, 4, (0, "i", UVM_FD), status=0x40, fd=99)
    with pytest.raises(RmError, match=r"UVM_MM_INITIALIZE.*NV_ERR_INVALID_STATE"):
        uvm.keep_memory(99)


@pytest.mark.parametrize(("base", "size"), [(0, SIZE), (BASE + 1, SIZE), (BASE, 0), (BASE, 100)])
def test_ranges_are_whole_pages(base: int, size: int) -> None:
    _, uvm, child = _uvm(73, 24, 16)
    with pytest.raises(InvalidValue, match="positive multiples of 0x1000"):
        uvm.create_range(base, size)
    with pytest.raises(InvalidValue, match="positive multiples of 0x1000"):
        uvm.map_memory(OF_580, UUID, child, base, size)
    with pytest.raises(InvalidValue, match="positive multiples of 0x1000"):
        uvm.register_channel(UUID, child, base, size)


def test_channel_windows_lie_where_channels_reach() -> None:
    _, uvm, child = _uvm(73, 24, 16)
    with pytest.raises(InvalidValue, match="must lie below 0x10000000000"):
        uvm.register_channel(UUID, child, 1 << 40, SIZE)


def test_a_uuid_has_sixteen_bytes() -> None:
    _, uvm, _ = _uvm(73, 24, 16)
    with pytest.raises(InvalidValue, match="15 bytes for the UUID"):
        uvm.register_gpu(UUID[:15])
