"""Reading what the vendor's library did: objects followed to addresses, rings to descriptors."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu.autogen.nv import alloc, rm, uvm
from gpu.core import hostmem
from gpu.drivers.nv.encode.qmd import ConstantBuffer, Launch, build_qmd
from tools.hw_acceptance.dumping import banks, find_qmd
from tools.hw_acceptance.ioctls import describe_ioctl
from tools.hw_acceptance.vendor.memory import ChannelDumper, readable
from tools.hw_acceptance.vendor.recording import LiveRecording, Recording
from tools.hw_acceptance.vendor.tensormaps import TensorMap, sweep

CTL, UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
RING, USERD, PUSH, QMD, BANK = 0x2_0000_0000, 0x2_0001_0000, 0x2_0002_0000, 0x2_0003_0000, 0x20400
CHANNEL = 0x5C000013


def _hex(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "kept": len(data), "hex": data.rstrip(b"\0").hex()}


def _ioctl(path: str, request: int, argument: bytes, params: bytes = b"") -> dict[str, Any]:
    line: dict[str, Any] = {"call": "ioctl", "path": path, "request": request, "errno": 0, "fd": 5}
    line |= {"before": _hex(argument), "after": _hex(argument)}
    return line | ({"params_after": _hex(params)} if params else {})


def _alloc(parent: int, handle: int, class_id: int, params: ctypes.Structure | None) -> Any:
    call = rm.NVOS64_PARAMETERS(1, parent, handle, class_id)
    return _ioctl(CTL, 0xC030462B, bytes(call), bytes(params) if params is not None else b"")


def _mapped(memory: int, device: int, host: int, size: int, fd: int) -> Iterator[dict[str, Any]]:
    """An object that is mapped for the GPU and, at another address, for the host."""
    call = rm.nv_ioctl_nvos33_parameters_with_fd(fd=fd)
    call.params = rm.NVOS33_PARAMETERS(hClient=1, hMemory=memory, length=size)
    yield _ioctl(CTL, 0xC038464E, bytes(call))
    yield {"call": "mmap", "fd": fd, "path": CTL, "size": size, "result": host, "errno": 0}
    external = uvm.UVM_MAP_EXTERNAL_ALLOCATION_PARAMS(base=device, length=size, hMemory=memory)
    yield _ioctl(UVM, uvm.UVM_MAP_EXTERNAL_ALLOCATION, bytes(external))


@pytest.fixture
def pages() -> Iterator[int]:
    address = hostmem.map_anonymous(1 << 20)
    yield address
    hostmem.unmap(address, 1 << 20)


def _recording(pages: int) -> Recording:
    """A channel whose ring holds one entry: a pushbuffer that launches a descriptor."""
    memory = (ctypes.c_char * (1 << 20)).from_address(pages)
    bank = RING + BANK
    launch = Launch(
        *(RING + 0x40000, (5, 6, 7), (32, 2, 1), 24, 0x90),
        constants=(ConstantBuffer(0, bank, 0x220),),
    )
    qmd = build_qmd(4, 90, launch).data
    words = [0x2001_2000, 0xCBC0, 0x2001_20AD, QMD >> 8, 0x2001_20B0, 10]
    struct.pack_into("<6I", memory, PUSH - RING, *words)
    struct.pack_into("<Q", memory, 0, PUSH | len(words) << 42)
    struct.pack_into("<I", memory, USERD - RING + 0x8C, 1)
    struct.pack_into("384s", memory, QMD - RING, qmd)
    struct.pack_into("<Q", memory, BANK + 0x210, 0x1122334455667788)
    params = alloc.NV_CHANNEL_ALLOC_PARAMS(gpFifoOffset=RING, gpFifoEntries=1024)
    params.hUserdMemory[0], params.userdOffset[0] = 0x77, USERD - RING
    recording = Recording()
    for line in (
        *_mapped(0x77, RING, pages, 1 << 20, fd=9),
        _alloc(3, CHANNEL, 0xC86F, params),
        _alloc(CHANNEL, 0x5C000014, 0xCBC0, None),
    ):
        recording.add(line)
    return recording


def test_channels_are_followed_to_descriptors_and_constants(pages: int) -> None:
    recording = _recording(pages)
    assert recording.host_address(RING + 0x100, 16) == pages + 0x100
    assert recording.host_address(RING + (1 << 20) - 8, 16) is None
    assert recording.statuses == {"NV_OK": 4}
    dumper = ChannelDumper()
    text = "\n".join(dumper.describe(recording))
    assert "channel 0x5c000013 of class 0xc86f, engines 0xcbc0" in text
    assert "put is 1, 1 entries are new" in text
    assert "SET_OBJECT(NVCLASS=0xcbc0" in text and "SEND_PCAS_A(" in text
    assert "launch descriptor version 4" in text and "GRID_WIDTH = 0x5" in text
    assert f"constant bank 0: 544 bytes at {RING + BANK:#x}" in text
    assert "55667788 11223344" in text
    assert "0 entries are new" in "\n".join(dumper.describe(recording))


def test_memory_that_was_unmapped_since_is_not_touched(pages: int) -> None:
    recording = _recording(pages)
    nowhere = (0x10000, 0x1000, 0x77, USERD - RING)
    recording.host_maps[:] = [(pages, USERD - RING, 0x77, 0), nowhere]
    assert "cannot see its pointers" in "\n".join(ChannelDumper().describe(recording))
    recording.host_maps[:] = [(0x10000, 1 << 20, 0x77, 0)]
    assert "cannot see its ring" in "\n".join(ChannelDumper().describe(recording))


def test_a_recording_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ioctls.jsonl"
    live = LiveRecording(path)
    assert live.update() == Recording()
    first, second = (json.dumps(_alloc(CHANNEL, 2, number, None)) for number in (0xCBC0, 0xC8B5))
    path.write_text(first + "\n" + second[:20])
    assert live.update().engines == {CHANNEL: [0xCBC0]}
    path.write_text(first + "\n" + second + "\n")
    assert live.update().engines == {CHANNEL: [0xCBC0, 0xC8B5]}
    assert live.update().statuses == {"NV_OK": 2}


def test_banks_of_a_descriptor_have_their_addresses(pages: int) -> None:
    recording = _recording(pages)

    def read(address: int, size: int, /) -> bytes | None:
        place = recording.host_address(address, size)
        return None if place is None else ctypes.string_at(place, size)

    found = find_qmd(read, QMD)
    assert found is not None and banks(found) == {0: (RING + BANK, 0x220)}
    assert find_qmd(read, PUSH) is None and find_qmd(read, 0x10) is None


def test_only_what_may_be_read_is_read() -> None:
    maps = (
        "1000-3000 r--p 00000000 00:00 0\n"
        "3000-4000 rw-s 00000000 00:05 9 /dev/nvidiactl\n"
        "5000-6000 ---p 00000000 00:00 0\n"
        "7000-8000 rw-s 00000000 00:05 9 /dev/nvidia-uvm\n"
    )
    assert readable(maps, 0x1800, 0x2000) and readable(maps, 0x3FF8, 8)
    assert not readable(maps, 0x3FF8, 16), "it ends in a gap"
    assert not readable(maps, 0x5000, 8), "nobody may read it"
    assert not readable(maps, 0x7000, 8), "UVM would move pages"
    assert not readable(maps, 0x9000, 8)


@pytest.mark.parametrize(
    ("path", "request_", "argument", "name", "status"),
    [
        (CTL, 0xC020462A, bytes(28) + b"\x1f\0\0\0", "RM_CONTROL", "NV_ERR_INVALID_ARGUMENT"),
        (CTL, 0xC0104629, bytes(12) + b"\x31\0\0\0", "RM_FREE", "NV_ERR_INVALID_OBJECT"),
        (CTL, 0xC0284658, bytes(40), "UNMAP_MEMORY_DMA", "NV_OK"),
        (CTL, 0xC90046C8, bytes(2304), "CARD_INFO", ""),
        (CTL, 0xC00446D6, bytes(4), "SYS_PARAMS", ""),
        (CTL, 0xC0044699, bytes(4), "escape 0x99", ""),
        (UVM, 75, bytes(4) + b"\x06\0\1\0", "UVM_MM_INITIALIZE", "NV_WARN_NOTHING_TO_DO"),
        (UVM, 34, bytes(8) + b"\x03\0\0\0" + bytes(4), "UVM_FREE", "NV_ERR_BUSY_RETRY"),
        (UVM, 999, bytes(512), "UVM ioctl 0x3e7", ""),
    ],
)
def test_ioctls_have_names_and_statuses(
    path: str, request_: int, argument: bytes, name: str, status: str
) -> None:
    found = describe_ioctl(path, request_, argument)
    assert found.name.startswith(name) and found.status_name == status


def test_allocs_are_named_with_their_class() -> None:
    for form, request in ((rm.NVOS64_PARAMETERS, 0xC030462B), (rm.NVOS21_PARAMETERS, 0xC020462B)):
        call = form(hClass=0xCBC0, status=0x22)
        found = describe_ioctl(CTL, request, bytes(call))
        assert found.name == "RM_ALLOC HOPPER_COMPUTE_A (0xcbc0)"
        assert found.status_name == "NV_ERR_INVALID_CLASS"


def test_the_sweep_varies_every_argument() -> None:
    maps = list(sweep())
    plain = TensorMap()
    assert maps[0] == plain and len(maps) > 200
    for name in TensorMap.__dataclass_fields__:
        assert len({getattr(each, name) for each in maps}) > 1, name
    assert all(len(each.strides) == len(each.sizes) - 1 for each in maps)
    assert all(len(each.box) == len(each.steps) == len(each.sizes) for each in maps)
