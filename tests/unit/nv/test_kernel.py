"""The bytes of the escapes, compared with a recording written by hand."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.autogen.nv import alloc, control
from gpu.core import hostmem
from gpu.core.errors import DeviceError, InvalidValue, RmError, TransportError
from gpu.core.trace import Recorder, read_trace
from gpu.core.traceevent import Event, Exists, Failure, Ioctl, Open, shown_path
from gpu.core.wait import HostWaiter
from gpu.drivers.nv.nvk.gpu import open_gpu
from gpu.drivers.nv.nvk.kernel import Card, CardPort, KernelPort
from gpu.drivers.nv.rm.object import RmClient, RmObject
from gpu.drivers.nv.rm.status import CallLog
from gpu.hcq.ports import MemoryKind
from gpu.transport.machine import CONTAINERS
from gpu.transport.os import Ref
from gpu.transport.replay import ReplayOs
from gpu.transport.traced import TracedOs
from gpu.transport.world import World
from unit.nv.fake_kernel import FakeKernel
from unit.nv.golden import (
    CARD,
    CARD_FD,
    CLIENT,
    CTL,
    CTL_FD,
    RDWR,
    call,
    closed,
    image,
    mapped,
    opened,
    replay,
    unmapped,
)

PAGE = hostmem.page_size
MAPPING = 0x7123_4567_8000

ROOT_CALL = call(
    CTL_FD,
    0xC030462B,
    image(48, (12, "I", 0x41)),
    ((8, "I", CLIENT),),
)


def _free_call(parent: int, handle: int, status: int = 0) -> Event:
    before = image(16, (0, "I", CLIENT), (4, "I", parent), (8, "I", handle))
    return call(CTL_FD, 0xC0104629, before, ((12, "I", status),))


def _tree(*events: Event) -> tuple[ReplayOs, RmClient]:
    os = replay(ROOT_CALL, *events)
    return os, RmClient(KernelPort(os, CTL_FD), CallLog())


def test_a_root_is_allocated_without_parameters_and_freed() -> None:
    os, client = _tree(_free_call(0, CLIENT))
    assert client.handle == CLIENT
    client.free()
    os.finish()


def _device_call(request: int, size: int, status_at: int, status: int = 0) -> Event:
    params = image(512, (0, "I", 5), (4, "I", CLIENT))
    before = image(
        size,
        (0, "I", CLIENT),
        (4, "I", CLIENT),
        (8, "I", 0x67700001),
        (12, "I", 0x80),
    )
    return call(CTL_FD, request, before, ((status_at, "I", status),), ((16,), params, params))


DEVICE = alloc.NV0080_ALLOC_PARAMETERS


def test_an_alloc_sends_512_zero_filled_bytes_and_no_size() -> None:
    os, client = _tree(_device_call(0xC030462B, 48, 40))
    client.alloc(0x80, DEVICE(deviceId=5, hClientShare=CLIENT), name="device")
    os.finish()


def test_answers_within_alloc_parameters_come_back() -> None:
    sent = image(512, (0, "I", 0x55), (4, "I", 1))
    answered = image(512, (0, "I", 0x55), (4, "I", 1), (8, "I", 3))
    before = image(
        *(48, (0, "I", CLIENT), (4, "I", CLIENT), (8, "I", 0x67700001)),
        (12, "I", 0x9067),
    )
    os, client = _tree(call(CTL_FD, 0xC030462B, before, (), ((16,), sent, answered)))
    params = alloc.NV_CTXSHARE_ALLOCATION_PARAMETERS(hVASpace=0x55, flags=1)
    client.alloc(0x9067, params, name="context share")
    assert (params.subctxId, params.hVASpace) == (3, 0x55)
    os.finish()


def test_the_older_alloc_struct_by_choice() -> None:
    os, client = _tree(_device_call(0xC020462B, 32, 28))
    assert isinstance(client.port, KernelPort)
    with client.port.using("NVOS21"):
        client.alloc(0x80, DEVICE(deviceId=5, hClientShare=CLIENT), name="device")
    assert client.port.alloc_form == "NVOS64"
    os.finish()


def test_a_bad_status_inside_the_struct_is_an_error() -> None:
    _, client = _tree(_device_call(0xC030462B, 48, 40, status=0x26))
    with pytest.raises(RmError, match="NV_ERR_INVALID_DEVICE") as caught:
        client.alloc(0x80, DEVICE(deviceId=5, hClientShare=CLIENT), name="device")
    assert caught.value.status == 0x26


def test_parameters_larger_than_the_buffer_are_refused() -> None:
    _, client = _tree()

    class Large(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_uint8 * 513)]

    with pytest.raises(InvalidValue, match="513 bytes of parameters for class 0x80"):
        client.alloc(0x80, Large(), name="device")


def test_a_control_sends_the_exact_size() -> None:
    before = image(32, (0, "I", CLIENT), (4, "I", CLIENT), (8, "I", 0x205), (24, "I", 32))
    asked = image(32, (0, "I", 0xF00))
    answered = image(32, (0, "I", 0xF00), (8, "I", 3), (24, "I", 1))
    os, client = _tree(call(CTL_FD, 0xC020462A, before, (), ((16,), asked, answered)))
    params = client.control(0x205, control.NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS(gpuId=0xF00))
    assert (params.deviceInstance, params.gpuInstance) == (3, 1)
    os.finish()


def test_a_control_with_a_list_describes_both_pointers() -> None:
    before = image(32, (0, "I", CLIENT), (4, "I", CLIENT), (8, "I", 0x800201), (24, "I", 16))
    found = struct.pack("<2I", 0xCBC0, 0xC86F)
    event = call(
        *(CTL_FD, 0xC020462A, before, ()),
        ((16,), image(16, (0, "I", 2)), image(16, (0, "I", 2))),
        ((16, 8), bytes(8), found),
    )
    os, client = _tree(event)
    classes = (ctypes.c_uint32 * 2)()
    params = control.NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS(
        numClasses=2, classList=ctypes.addressof(classes)
    )
    client.control(0x800201, params, (Ref(8, item_size=4),))
    assert list(classes) == [0xCBC0, 0xC86F]
    os.finish()


def test_cards_are_listed() -> None:
    entry = image(
        72,
        *((0, "B", 1), (4, "I", 1), (8, "B", 0x3B), (9, "B", 2), (10, "B", 0)),
        *((12, "H", 0x10DE), (14, "H", 0x2335), (16, "I", 0x3B00), (56, "I", 4)),
    )
    answer = bytes(72) + entry + bytes(72 * 30)
    event = call(CTL_FD, 0xC90046C8, bytes(2304), ((0, "2304s", answer),))
    os = replay(event)
    (card,) = KernelPort(os, CTL_FD).cards()
    assert card == Card(0x3B00, 4, "0001:3b:02.0", "10de:2335")
    assert str(card) == "GPU 0001:3b:02.0 (10de:2335) at /dev/nvidia4"
    os.finish()


# Mappings.


def _register(fd: int) -> Ioctl:
    return call(fd, 0xC00446C9, image(4, (0, "i", CTL_FD)))


def _map_call(fd: int, memory: int, size: int, status: int = 0) -> Event:
    before = image(
        56,
        *((0, "I", CLIENT), (4, "I", 0x10), (8, "I", memory), (24, "Q", size), (48, "i", fd)),
    )
    return call(CTL_FD, 0xC038464E, before, ((32, "Q", 0xABC000), (40, "I", status)))


def _unmap_call(memory: int, status: int = 0) -> Event:
    before = image(32, (0, "I", CLIENT), (4, "I", 0x10), (8, "I", memory), (16, "Q", 0xABC000))
    return call(CTL_FD, 0xC020464F, before, ((24, "I", status),))


OPEN_CARD = (opened(CARD, CARD_FD), _register(CARD_FD))


def _card(*events: Event) -> tuple[ReplayOs, CardPort, RmObject, RmObject]:
    os = replay(ROOT_CALL, *OPEN_CARD, *events)
    client = RmClient(KernelPort(os, CTL_FD), CallLog())
    device = client.adopt(0x80, 0x10, name="device")
    memory = device.adopt(0x40, 0x20, name="memory")
    return os, CardPort(os, CTL_FD, 0, client.log), device, memory


def test_card_memory_is_mapped_through_a_fresh_registered_file() -> None:
    os, card, device, memory = _card(
        *(opened(CARD, 60), _register(60), _map_call(60, 0x20, PAGE)),
        *(mapped(60, CARD, PAGE, MAPPING), closed(60, CARD)),
        *(unmapped(MAPPING, PAGE), _unmap_call(0x20), closed(CARD_FD, CARD)),
    )
    mapping = card.map(device, memory, PAGE, on_card=True)
    mapping.window.store(PAGE - 4, b"last")  # elsewhere than recorded, if that place is taken
    assert mapping.window.load(PAGE - 4, 4) == b"last" and mapping.window.size == PAGE
    card.unmap(mapping)
    card.close()
    os.finish()


def test_system_memory_is_mapped_through_a_control_file() -> None:
    os, card, device, memory = _card(
        *(opened(CTL, 61), _map_call(61, 0x20, PAGE), mapped(61, CTL, PAGE, MAPPING)),
        *(closed(61, CTL), unmapped(MAPPING, PAGE), _unmap_call(0x20)),
    )
    card.unmap(card.map(device, memory, PAGE, on_card=False))
    os.finish()


def test_a_refused_mapping_closes_its_file() -> None:
    os, card, device, memory = _card(
        *(opened(CARD, 60), _register(60), _map_call(60, 0x20, PAGE, 0x40), closed(60, CARD)),
    )
    with pytest.raises(RmError, match=r"map 0x1000 bytes of client/device/memory"):
        card.map(device, memory, PAGE, on_card=True)
    os.finish()


def test_a_failed_unmap_is_told() -> None:
    os, card, device, memory = _card(
        *(opened(CTL, 61), _map_call(61, 0x20, PAGE), mapped(61, CTL, PAGE, MAPPING)),
        *(closed(61, CTL), unmapped(MAPPING, PAGE), _unmap_call(0x20, 0x1E)),
    )
    mapping = card.map(device, memory, PAGE, on_card=False)
    with pytest.raises(RmError, match="NV_ERR_INVALID_ADDRESS"):
        card.unmap(mapping)
    os.finish()


@pytest.mark.parametrize(("size", "address"), [(0, 0), (100, 0), (PAGE, 8), (-PAGE, 0)])
def test_mappings_are_whole_pages(size: int, address: int) -> None:
    os, card, device, memory = _card()
    with pytest.raises(InvalidValue, match="positive multiple of 0x1000"):
        card.map(device, memory, size, on_card=True, address=address)
    os.finish()


def test_host_memory_is_described_on_the_card_file() -> None:
    before = image(
        56,
        *((0, "I", CLIENT), (4, "I", 0x10), (8, "I", 0x67700001), (12, "I", 0x71)),
        *((16, "I", 0x40001010), (24, "Q", 0x7000_0000), (32, "Q", 2 * PAGE - 1), (48, "i", -1)),
    )
    os, card, device, _ = _card(call(CARD_FD, 0xC0384627, before), _free_call(0x10, 0x67700001))
    found = card.describe_host_memory(device, 0x7000_0000, 2 * PAGE, name="mine")
    assert found in device.children
    found.free()
    os.finish()


def test_a_card_that_cannot_be_registered_is_closed() -> None:
    failing = replace(_register(CARD_FD), result=-1, failure=Failure(22))
    os = replay(opened(CARD, CARD_FD), failing, closed(CARD_FD, CARD))
    with pytest.raises(TransportError) as caught:
        CardPort(os, CTL_FD, 0, CallLog())
    assert caught.value.errno == 22
    os.finish()


def test_a_missing_node_says_what_to_load() -> None:
    unseen = [Exists(shown_path(path), False) for path in ("/sys/bus/pci/devices", *CONTAINERS)]
    os = replay(Open(CARD, RDWR, -1, Failure(2)), *unseen)
    with pytest.raises(DeviceError, match=r"/dev/nvidia0 is not there.*modprobe nvidia`"):
        CardPort(os, CTL_FD, 0, CallLog())


# Whole sessions.


def test_a_recorded_session_replays_without_the_kernel(tmp_path: Path) -> None:
    """Every pointer is described: the replay follows the same blocks and finds them equal."""

    def session(world: World) -> tuple[object, ...]:
        with open_gpu(world) as gpu:
            memory = gpu.alloc(70_000, MemoryKind.VISIBLE)
            assert memory.window is not None
            memory.window.write(0, 8, 42)
            tokens = [queue.token for queue in gpu.channels]
            return gpu.uuid, gpu.units, gpu.classes, memory.address, tokens

    path, kernel = tmp_path / "session.trace", FakeKernel()
    with Recorder(path) as recorder:
        first = session(World(TracedOs(kernel, recorder), HostWaiter()))
    assert kernel.held() == {}
    replayed = ReplayOs(read_trace(path))
    assert session(World(replayed, HostWaiter())) == first
    replayed.finish()


@given(st.integers(0, 2**32 - 1), st.binary(min_size=100, max_size=100))
def test_alloc_parameters_arrive_unchanged(handle: int, name: bytes) -> None:
    """Whatever the fields hold, the kernel sees them at the struct's offsets."""
    seen: list[bytes] = []

    class Os(FakeKernel):
        def ioctl(self, fd: int, request: int, argument: object, refs: object = ()) -> int:
            assert isinstance(argument, ctypes.Structure)
            pointer = struct.unpack_from("<Q", bytes(argument), 16)[0]
            seen.append(ctypes.string_at(pointer, 512))
            return 0

    params = alloc.NV0000_ALLOC_PARAMETERS(hClient=handle, pOsPidInfo=handle << 20)
    params.processName[:] = list(name)
    KernelPort(Os(), 1).alloc(1, 1, 2, 0x41, params)
    assert seen == [image(512, (0, "I", handle), (8, "100s", name), (112, "Q", handle << 20))]


def test_the_golden_requests_are_compared() -> None:
    """A recording with one other byte is noticed, so the tests above can fail."""
    (argument,) = ROOT_CALL.memory
    before = argument.before[:12] + b"\x42" + argument.before[13:]
    changed = replace(ROOT_CALL, memory=(replace(argument, before=before),))
    with pytest.raises(TransportError, match="offset 0xc"):
        RmClient(KernelPort(replay(changed), CTL_FD), CallLog())
