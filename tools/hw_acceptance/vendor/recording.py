"""What the recorder wrote: ioctls in words, channels, and which memory lies where.

The vendor's library need not map memory at the GPU's address for the host, so addresses are
followed through the objects that were mapped at both.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from gpu.autogen.nv import alloc, rm, uvm
from gpu.core.files import read_bytes
from gpu.transport import nvidia as nodes
from tools.hw_acceptance.ioctls import describe_ioctl

_CHANNEL_KIND: Final = 0x6F  # the low byte of channel classes
_COMPUTE_KIND: Final = 0xC0
_COPY_KIND: Final = 0xB5
_FIRST_CLASS: Final = 0xA000  # of engines since Kepler; lower ones are other things
S = TypeVar("S", bound=ctypes.Structure)


@dataclass(frozen=True)
class VendorChannel:
    """A channel that was allocated; ``userd`` is the memory object of its pointers, and where."""

    handle: int
    class_id: int
    ring: int
    entries: int
    userd: tuple[int, int]


@dataclass
class Recording:
    """What a recording tells.

    Attributes:
        channels: by handle.
        engines: compute and copy classes, by the handle of their channel.
        device_maps: where objects are for the GPU: address, size, object, offset in it.
        host_maps: likewise for the host.
        statuses: how often each was answered, by name.
    """

    channels: dict[int, VendorChannel] = field(default_factory=dict)
    engines: dict[int, list[int]] = field(default_factory=dict)
    device_maps: list[tuple[int, int, int, int]] = field(default_factory=list)
    host_maps: list[tuple[int, int, int, int]] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    _pending: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def host_address(self, address: int, size: int) -> int | None:
        """Where the host sees what the GPU has at an address, through the object behind it."""
        for base, length, memory, offset in self.device_maps:
            if base <= address and address + size <= base + length:
                return self.host_address_of(memory, address - base + offset, size)
        return None

    def host_address_of(self, memory: int, offset: int, size: int) -> int | None:
        """Where the host sees part of an object."""
        for base, length, mapped, start in self.host_maps:
            if mapped == memory and start <= offset and offset + size <= start + length:
                return base + offset - start
        return None

    def add(self, line: dict[str, Any]) -> None:
        """Takes in one line of the recorder."""
        if line["call"] == "mmap" and not line["errno"]:
            self._mapped(line)
        elif line["call"] == "ioctl" and not line["errno"]:
            self._answered(line)

    def _mapped(self, line: dict[str, Any]) -> None:
        pending = self._pending.pop(line["fd"], None)
        if pending is not None:
            memory, offset, _ = pending
            self.host_maps.append((line["result"], line["size"], memory, offset))

    def _answered(self, line: dict[str, Any]) -> None:
        argument = blob(line["after"])
        described = describe_ioctl(line["path"], line["request"], argument)
        if described.status is not None:
            name = described.status_name
            self.statuses[name] = self.statuses.get(name, 0) + 1
        if described.status:
            return
        if line["path"] == nodes.UVM:
            if line["request"] == uvm.UVM_MAP_EXTERNAL_ALLOCATION:
                self._mapped_to_device(argument)
            return
        number = line["request"] & 0xFF
        if number == rm.NV_ESC_RM_MAP_MEMORY:
            call = parse(rm.nv_ioctl_nvos33_parameters_with_fd, argument)
            params = call.params
            self._pending[call.fd] = (params.hMemory, params.offset, params.length)
        elif number == rm.NV_ESC_RM_ALLOC:
            self._allocated(argument, blob(line["params_after"]) if "params_after" in line else b"")

    def _mapped_to_device(self, argument: bytes) -> None:
        call = parse(uvm.UVM_MAP_EXTERNAL_ALLOCATION_PARAMS, argument)
        self.device_maps.append((call.base, call.length, call.hMemory, call.offset))

    def _allocated(self, argument: bytes, params: bytes) -> None:
        call = parse(rm.NVOS64_PARAMETERS, argument)
        kind = call.hClass & 0xFF if call.hClass >= _FIRST_CLASS else None
        if kind == _CHANNEL_KIND:
            given = parse(alloc.NV_CHANNEL_ALLOC_PARAMS, params)
            place = (given.hUserdMemory[0], given.userdOffset[0])
            self.channels[call.hObjectNew] = VendorChannel(
                call.hObjectNew, call.hClass, given.gpFifoOffset, given.gpFifoEntries, place
            )
        elif kind in (_COMPUTE_KIND, _COPY_KIND):
            self.engines.setdefault(call.hObjectParent, []).append(call.hClass)


class LiveRecording:
    """A recording that is still being written."""

    def __init__(self, path: Path):
        self._path = path
        self._position = 0
        self._recording = Recording()

    def update(self) -> Recording:
        """The recording with all that was written up to now."""
        if self._path.exists():
            with open(self._path, "rb") as file:
                file.seek(self._position)
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._position += len(whole) + 1
                for line in whole.split(b"\n"):
                    self._recording.add(json.loads(line))
        return self._recording


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines that the recorder has written so far; none if there is no file."""
    if not path.exists():
        return
    *whole, _cut = read_bytes(path).split(b"\n")
    for line in whole:
        yield json.loads(line)


def write_calls(lines: Iterable[dict[str, Any]], target: Path) -> None:
    """Writes a line a call, for people."""
    with open(target, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(_in_words(line) + "\n")


def _in_words(line: dict[str, Any]) -> str:
    at = f"{line['at_ns'] / 1e9:.6f}"
    if line["call"] == "mark":
        return f"{at} == {line['text']}"
    if line["call"] == "mmap":
        place = f"{line['result']:#x}, {line['size']:#x} bytes, fd {line['fd']} {line['path']}"
        return f"{at} mmap {place}" + (f" errno {line['errno']}" if line["errno"] else "")
    described = describe_ioctl(line["path"], line["request"], blob(line["after"]))
    error = f" errno {line['errno']}" if line["errno"] else ""
    name = f"fd {line['fd']} {line['path']} {described.name}"
    return f"{at} {name}: {described.status_name}{error} in {line['took_ns'] / 1e3:.1f} us"


def blob(content: dict[str, Any]) -> bytes:
    """Recorded bytes: what could be read, its trailing zeros put back."""
    kept = bytes.fromhex(content["hex"])
    return kept.ljust(content["kept"], b"\0").ljust(content["size"], b"\0")


def parse(struct: type[S], data: bytes) -> S:
    """A struct from bytes that may be shorter or longer."""
    return struct.from_buffer_copy(data.ljust(ctypes.sizeof(struct), b"\0"))
