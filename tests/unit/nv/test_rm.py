"""The object tree over a port that only notes what it is asked."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import pytest

from gpu.autogen.nv.alloc import NV2080_ALLOC_PARAMETERS, NV_CTXSHARE_ALLOCATION_PARAMETERS
from gpu.core.errors import DeviceLost, InvalidValue, OutOfMemory, RmError
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.nvk.kernel import KernelPort
from gpu.drivers.nv.rm.object import Allocated, RmClient, RmObject, RmPort
from gpu.drivers.nv.rm.status import Call, CallLog
from gpu.transport.os import Ref

ROOT, DEVICE, SUBDEVICE, GROUP, SHARE = 0x41, 0x80, 0x2080, 0xA06C, 0x9067


class FakePort:
    """Notes calls; answers with `status` for the calls named in `bad`."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.bad: dict[tuple[str, int], int] = {}

    def alloc(
        self,
        client: int,
        parent: int,
        handle: int,
        class_id: int,
        params: ctypes.Structure | None,
    ) -> Allocated:
        self.calls.append(("alloc", client, parent, handle, class_id))
        if isinstance(params, NV_CTXSHARE_ALLOCATION_PARAMETERS):
            params.subctxId = 7
        status = self.bad.get(("alloc", class_id), 0)
        return Allocated(status, 0xC1D0 if class_id == ROOT else handle)

    def free(self, client: int, parent: int, handle: int) -> int:
        self.calls.append(("free", client, parent, handle))
        return self.bad.get(("free", handle), 0)

    def control(
        self,
        client: int,
        handle: int,
        command: int,
        params: ctypes.Structure,
        refs: Sequence[Ref] = (),
    ) -> int:
        self.calls.append(("control", client, handle, command, ctypes.sizeof(params)))
        return self.bad.get(("control", command), 0)


@pytest.fixture
def port() -> FakePort:
    return FakePort()


def _client(port: FakePort) -> RmClient:
    rm_port: RmPort = port
    return RmClient(rm_port, CallLog())


def test_protocols_are_those_of_the_kernel_port() -> None:
    port: type[RmPort] = KernelPort
    assert port


def test_a_root_takes_the_handle_that_rm_gives(port: FakePort) -> None:
    client = _client(port)
    assert client.handle == 0xC1D0
    assert port.calls == [("alloc", 0, 0, 0, ROOT)]
    client.free()
    assert port.calls[-1] == ("free", 0xC1D0, 0, 0xC1D0)


def test_children_are_freed_before_parents_and_the_youngest_first(port: FakePort) -> None:
    client = _client(port)
    device = client.alloc(DEVICE, name="device")
    subdevice = device.alloc(SUBDEVICE, NV2080_ALLOC_PARAMETERS(), name="subdevice")
    group = device.alloc(GROUP, name="group")
    share = group.alloc(SHARE, name="share")
    assert client.children == (device,) and device.children == (subdevice, group)
    handles = [each.handle for each in (device, subdevice, group, share)]
    assert len(set(handles)) == 4 and all(0 < handle < 1 << 32 for handle in handles)
    port.calls.clear()
    client.free()
    assert port.calls == [
        ("free", 0xC1D0, group.handle, share.handle),
        ("free", 0xC1D0, device.handle, group.handle),
        ("free", 0xC1D0, device.handle, subdevice.handle),
        ("free", 0xC1D0, 0xC1D0, device.handle),
        ("free", 0xC1D0, 0, 0xC1D0),
    ]
    client.free()
    assert len(port.calls) == 5


def test_an_object_is_freed_at_the_end_of_its_block(port: FakePort) -> None:
    client = _client(port)
    with client.alloc(DEVICE, name="device") as device:
        assert device.alive
    assert not device.alive and client.children == ()
    with pytest.raises(InvalidValue, match=r"client/device .*was freed and is used again"):
        device.alloc(SUBDEVICE, name="subdevice")
    with pytest.raises(InvalidValue, match="was freed"):
        device.control(0x800201, NV2080_ALLOC_PARAMETERS())


def test_answers_come_back_in_the_parameters(port: FakePort) -> None:
    params = NV_CTXSHARE_ALLOCATION_PARAMETERS(flags=1)
    _client(port).alloc(SHARE, params, name="share")
    assert (params.subctxId, params.flags) == (7, 1)


def test_a_handle_may_be_chosen(port: FakePort) -> None:
    client = _client(port)
    assert client.alloc(DEVICE, name="device", handle=0xFFFFFFFF).handle == 0xFFFFFFFF
    with pytest.raises(InvalidValue, match="handle 0x100000000"):
        client.alloc(DEVICE, name="device", handle=1 << 32)


def test_a_refused_alloc_is_named_and_owned_by_nobody(port: FakePort) -> None:
    port.bad["alloc", SUBDEVICE] = 0x36
    client = _client(port)
    device = client.alloc(DEVICE, name="device")
    with pytest.raises(RmError) as caught:
        device.alloc(SUBDEVICE, name="subdevice")
    assert (caught.value.status, caught.value.name) == (0x36, "NV_ERR_INVALID_OBJECT_PARENT")
    text = str(caught.value)
    assert "alloc NV20_SUBDEVICE_0 (0x2080) of client/device/subdevice" in text
    assert device.children == ()


def test_a_refused_control_is_named(port: FakePort) -> None:
    port.bad["control", 0x2080014A] = 0x3A
    client = _client(port)
    with pytest.raises(RmError, match=r"GPU_GET_GID_INFO \(0x2080014a\) of client \[NV01_ROOT"):
        client.control(0x2080014A, NV2080_ALLOC_PARAMETERS())
    assert port.calls[-1] == ("control", 0xC1D0, 0xC1D0, 0x2080014A, 4)


def test_one_failing_free_does_not_keep_the_others(port: FakePort) -> None:
    client = _client(port)
    device = client.alloc(DEVICE, name="device")
    children = [device.alloc(GROUP, name=f"group {i}") for i in range(3)]
    port.bad["free", children[2].handle] = 0x17
    port.bad["free", children[0].handle] = 0x40
    with pytest.raises(RmError, match=r"group 2.*NV_ERR_IN_USE") as caught:
        client.free()
    assert "NV_ERR_INVALID_STATE" in caught.value.__notes__[0]
    assert [call[3] for call in port.calls if call[0] == "free"] == [
        *(child.handle for child in reversed(children)),
        device.handle,
        client.handle,
    ]


def test_a_client_that_is_refused_raises(port: FakePort) -> None:
    port.bad["alloc", ROOT] = 0x1B
    with pytest.raises(RmError, match="NV_ERR_INSUFFICIENT_PERMISSIONS"):
        _client(port)


@pytest.mark.parametrize(
    ("status", "error"), [(0x51, OutOfMemory), (0x0F, DeviceLost), (0x62, DeviceLost), (3, RmError)]
)
def test_statuses_are_typed(status: int, error: type[Exception]) -> None:
    heard: list[Call] = []
    log = CallLog()
    log.listener = heard.append
    with pytest.raises(error, match=f"{status:#x}"):
        log.check("alloc", "thing", status)
    log.check("alloc", "thing", 0)
    log.check("alloc", "thing", status, accept=(status,))
    assert [call.status for call in heard] == [status, 0, status]


def test_a_forked_child_frees_nothing(port: FakePort) -> None:
    client = _client(port)
    device: RmObject = client.alloc(DEVICE, name="device")
    child = os.fork()
    if child == 0:
        count = len(port.calls)
        try:
            device.alloc(SUBDEVICE, name="subdevice")
        except DeviceLost:
            client.free()
            os._exit(0 if len(port.calls) == count else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_undo_keeps_the_first_error_and_runs_everything() -> None:
    ran: list[int] = []

    def act(number: int, fails: bool) -> None:
        ran.append(number)
        if fails:
            raise InvalidValue(f"action {number}")

    with pytest.raises(OutOfMemory, match="the cause") as caught, Undo() as undo:
        for number in range(3):
            undo.add(act, number, number != 1)
        raise OutOfMemory("the cause")
    assert ran == [2, 1, 0]
    assert [note.rpartition(": ")[2] for note in caught.value.__notes__] == ["action 2", "action 0"]
    with Undo() as undo:
        undo.add(act, 9, True)
        kept = undo.take()
    assert ran == [2, 1, 0]
    with pytest.raises(InvalidValue, match="action 9"):
        kept.close()
    kept.close()
    assert ran == [2, 1, 0, 9]


def test_undo_runs_everything_when_an_error_is_not_ours() -> None:
    ran: list[int] = []

    def act(number: int, error: BaseException) -> None:
        ran.append(number)
        raise error

    undo = Undo()
    for number, error in enumerate((InvalidValue("first"), KeyError("k"), InvalidValue("last"))):
        undo.add(act, number, error)
    with pytest.raises(KeyError, match="k") as caught:
        undo.close()
    assert ran == [2, 1, 0]
    assert caught.value.__notes__ == ["and then: last", "and then: first"]
    undo.add(act, 3, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as interrupted, undo:
        raise OutOfMemory("the cause")
    assert ran[3:] == [3] and isinstance(interrupted.value.__context__, OutOfMemory)
