"""The metadata of a code object: what its kernels are called and which arguments they take.

A note in MessagePack. Source: "Code Object V5 Metadata" of LLVM's "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.core.bits import align_up
from gpu.core.errors import FormatError, Unsupported
from gpu.drivers.am.code.msgpack import Value, unpack
from gpu.drivers.am.target import Version, parse_gfx_name

_NOTE: Final = struct.Struct("<III")  # Elf64_Nhdr: bytes of name, bytes of content, type
_NOTE_ALIGN: Final = 4
_OWNER: Final = b"AMDGPU\0"
_METADATA: Final = 32  # NT_AMDGPU_METADATA
_TARGET: Final = re.compile(r"amdgcn-amd-amdhsa-(?:unknown)?-(gfx[0-9]+[0-9a-f]{2})(?::.*)?")
_VERSIONS: Final = ((1, 1), (1, 2), (1, 3))  # of code objects 4, 5, 6
_WHAT: Final = "metadata of the code object"
MAX_KERNARG: Final = 1 << 16
"""Bytes of arguments: more than any compiler emits."""
EXPLICIT: Final = ("by_value", "global_buffer")
"""Arguments that a launch gives."""


class KernelArgument(NamedTuple):
    """Where an argument is, in bytes from the first one on, and what it is (``value_kind``)."""

    name: str
    offset: int
    size: int
    kind: str


class KernelMetadata(NamedTuple):
    """What the metadata tells of a kernel.

    Attributes:
        name: of the function; ``symbol`` is that of its descriptor.
        arguments: all, the hidden ones too, by offset.
        kernarg_size: bytes of all arguments; ``kernarg_align`` is the alignment of their address.
        max_workgroup: how many work-items a group has at most.
        required_workgroup: the only size of groups that it was made for, where there is one.
    """

    name: str
    symbol: str
    arguments: tuple[KernelArgument, ...]
    kernarg_size: int
    kernarg_align: int
    group_size: int
    private_size: int
    wavefront_size: int
    max_workgroup: int
    required_workgroup: tuple[int, int, int] | None
    uses_dynamic_stack: bool


class Metadata(NamedTuple):
    """The metadata of a code object; ``target`` is the whole name of what it is for."""

    target: str
    version: Version
    kernels: tuple[KernelMetadata, ...]


def parse_target(name: str) -> Version:
    """The version in a target's name: amdgcn-amd-amdhsa--gfx90a:xnack- is (9, 0, 10)."""
    match = _TARGET.fullmatch(name)
    if match is None:
        raise FormatError(f"target {name!r} of a code object: amdgcn-amd-amdhsa--gfx... is wanted")
    return parse_gfx_name(match.group(1))


def find_note(sections: Iterator[bytes]) -> bytes:
    """The metadata among the contents of note sections. Raises FormatError unless it is one."""
    found = [
        content
        for section in sections
        for owner, kind, content in _notes(section)
        if (owner, kind) == (_OWNER, _METADATA)
    ]
    if len(found) != 1:
        raise FormatError(f"{len(found)} notes of metadata in a code object: one is wanted")
    return found[0]


def _notes(section: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at < len(section):
        if len(section) - at < _NOTE.size:
            raise FormatError(f"note at {at:#x} of its section: its header is cut off")
        name_size, size, kind = _NOTE.unpack_from(section, at)
        name = at + _NOTE.size
        content = name + align_up(name_size, _NOTE_ALIGN)
        if content + size > len(section):
            raise FormatError(f"note at {at:#x} of its section: {size} bytes do not fit in it")
        yield section[name : name + name_size], kind, section[content : content + size]
        at = align_up(content + size, _NOTE_ALIGN)


def parse_metadata(note: bytes) -> Metadata:
    """Reads the note. Raises FormatError for what is malformed, Unsupported for other versions."""
    root = _Map(unpack(note, _WHAT), _WHAT)
    version = tuple(root.numbers("amdhsa.version"))
    if version not in _VERSIONS:
        raise Unsupported(f"{_WHAT} has version {version}: those of code objects 4 to 6 are read")
    target = root.text("amdhsa.target")
    kernels = tuple(_kernel(_Map(kernel, _WHAT)) for kernel in root.items("amdhsa.kernels"))
    return Metadata(target, parse_target(target), kernels)


def _kernel(found: _Map) -> KernelMetadata:
    found = found.named(f"{_WHAT}, kernel {found.text('.name')!r}")
    wanted = found.numbers(".reqd_workgroup_size") if ".reqd_workgroup_size" in found else None
    if wanted is not None and len(wanted) != 3:
        raise found.error(".reqd_workgroup_size", wanted, "three numbers")
    size = found.number(".kernarg_segment_size")
    if size > MAX_KERNARG:
        raise found.error(".kernarg_segment_size", size, f"at most {MAX_KERNARG}")
    arguments = found.items(".args") if ".args" in found else []
    return KernelMetadata(
        name=found.text(".name"),
        symbol=found.text(".symbol"),
        arguments=_arguments(found, arguments, size),
        kernarg_size=size,
        kernarg_align=found.number(".kernarg_segment_align"),
        group_size=found.number(".group_segment_fixed_size"),
        private_size=found.number(".private_segment_fixed_size"),
        wavefront_size=found.number(".wavefront_size"),
        max_workgroup=found.number(".max_flat_workgroup_size"),
        required_workgroup=None if wanted is None else (wanted[0], wanted[1], wanted[2]),
        uses_dynamic_stack=found.flag(".uses_dynamic_stack"),
    )


def _arguments(kernel: _Map, items: list[Value], size: int) -> tuple[KernelArgument, ...]:
    """In order of their offsets. Raises FormatError where they overlap or do not fit."""
    found = []
    for number, item in enumerate(items):
        one = _Map(item, f"{kernel.what}, argument {number}")
        name = one.text(".name") if ".name" in one else ""
        place = one.number(".offset"), one.number(".size")
        found.append(KernelArgument(name, *place, one.text(".value_kind")))
    found.sort(key=lambda argument: argument.offset)
    end = 0
    for argument in found:
        if argument.offset < end or argument.offset + argument.size > size or not argument.size:
            raise kernel.error(
                ".args",
                f"{argument.kind} at {argument.offset}, {argument.size} bytes",
                f"at {end} or behind, up to {size}",
            )
        end = argument.offset + argument.size
    return tuple(found)


class _Map:
    """A map of the metadata; what it gives is checked for its type."""

    def __init__(self, value: Value, what: str):
        self.what = what
        if not isinstance(value, dict):
            raise FormatError(f"{what}: a map is wanted, not {type(value).__name__}")
        self._value = value

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def named(self, what: str) -> _Map:
        """The same under another name."""
        return _Map(self._value, what)

    def error(self, key: str, value: object, wanted: str) -> FormatError:
        return FormatError(f"{self.what}: {key} is {value!r}, wanted: {wanted}")

    def text(self, key: str) -> str:
        value = self._value.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, value, "text")
        return value

    def number(self, key: str) -> int:
        return self._number(key, self._value.get(key))

    def numbers(self, key: str) -> list[int]:
        return [self._number(key, item) for item in self.items(key)]

    def items(self, key: str) -> list[Value]:
        value = self._value.get(key)
        if not isinstance(value, list):
            raise self.error(key, value, "a list")
        return value

    def flag(self, key: str) -> bool:
        value = self._value.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def _number(self, key: str, value: Value) -> int:
        if type(value) is not int or not 0 <= value < 1 << 32:
            raise self.error(key, value, "a number of 32 bits")
        return value
