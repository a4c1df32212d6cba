"""What Debian's package of NVIDIA's open kernel modules says, of numbers and layouts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpu.core.elf import ElfObject, parse_object

from .. import records
from ..clang import STUBS
from ..macros import Macros
from ..recipe import AutogenError, Package
from .dwarf import Places, layouts

_ROOT: Final = "modules/nvidia-open-kernel"
_TAR: Final = "usr/src/nvidia-open-kernel.tar.xz"


def _package(version: str, sha256: str, suite: str) -> Package:
    return Package(
        "nvidia-open-kernel-source", version, sha256, _ROOT, _TAR, suite, component="contrib"
    )


PACKAGES: Final = {
    535: _package(
        "535.261.03-1",
        "ee35aa18179ff6406186b3b0744138f5d66084dbca61170599d911a5d8a0c117",
        "bookworm",
    ),
    550: _package(
        "550.163.01-2",
        "8726fc25ee050f530e569b32cb4634d1f75585a11b5481de3dfd82b72abb0505",
        "trixie",
    ),
}
"""By branch of the driver."""

RM: Final = "nvidia/nv-kernel.o_binary"
WANTED: Final = ("common/inc/", "nvidia-uvm/", RM)
"""What is unpacked: headers, and RM with its debugging information."""

_STATUS: Final = re.compile(r"NV_STATUS_CODE\((NV_\w+),\s*(0x[0-9A-Fa-f]+)")
_DEFINE: Final = re.compile(r"^#define\s+(NV[0-9A-F]{4})_(\w+)\s+(.*?)\s*(?:/\*.*)?$", re.MULTILINE)
_NUMBER: Final = re.compile(r"\(?(0x[0-9A-Fa-f]+|\d+)[uU]?\)?")
_BITS: Final = re.compile(r"(\d+):(\d+)")
_HEADERS: Final = ("uvm_ioctl.h", "uvm_linux_ioctl.h", "nv-ioctl.h", "nvgputypes.h")
_CLASSES: Final = "g_RsResourceDescList"
_METHODS: Final = "__nvoc_exported_method_def_"
_PARENTS: Final = "ParentList"


@dataclass
class Facts:
    """What a package says. Whatever it does not say is not here.

    Attributes:
        numbers: macros and status codes of its headers.
        structs: size in bytes, and members with those of inner structures.
        classes: number of each class that RM makes objects of.
        controls: (function that answers it, bytes of its argument) by number of the command.
        methods: by class header, as NVC86F, the addresses of methods, and (lowest bit, width) of
            their fields.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    structs: dict[str, tuple[int, Places]] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    controls: dict[int, tuple[str, int]] = field(default_factory=dict)
    methods: dict[str, dict[str, int | tuple[int, int]]] = field(default_factory=dict)


def read(folder: Path, structs: Collection[str], numbers: Collection[str]) -> Facts:
    """The facts of an unpacked package; of structures and numbers those that are named.

    Raises:
        AutogenError: the package is not as it was.
    """
    facts = Facts()
    headers = {path.name: path.read_text() for path in sorted(folder.rglob("*.h"))}
    facts.numbers |= _numbers(headers, numbers)
    facts.numbers |= {n: int(v, 16) for n, v in _STATUS.findall(headers["nvstatuscodes.h"])}
    facts.methods = dict(_methods(headers))
    own = ("RS_RESOURCE_DESC", "NVOC_EXPORTED_METHOD_DEF")
    facts.structs = layouts(folder / RM, {*structs, *own}) | _of_headers(folder, structs)
    rm = _Tables(parse_object((folder / RM).read_bytes()), facts.structs)
    facts.classes, facts.controls = rm.classes(), rm.controls()
    return facts


def _numbers(headers: dict[str, str], names: Collection[str]) -> dict[str, int]:
    macros = Macros(headers.values(), {}, {})
    values = {name: macros.value(name) for name in macros.constants() if name in names}
    return {name: value for name, value in values.items() if value is not None}


def _methods(headers: dict[str, str]) -> Iterator[tuple[str, dict[str, int | tuple[int, int]]]]:
    for name, text in headers.items():
        if re.fullmatch(r"cl[0-9a-f]{4}\.h", name):
            prefix, found = f"NV{name[2:6].upper()}", {}
            for own, key, value in _DEFINE.findall(text):
                bits, number = _BITS.fullmatch(value), _NUMBER.fullmatch(value)
                if own == prefix and bits:
                    high, low = int(bits[1]), int(bits[2])
                    found[key] = (low, high - low + 1)
                elif own == prefix and number:
                    found[key] = int(number[1], 0)
            yield prefix, found


def _of_headers(folder: Path, names: Collection[str]) -> dict[str, tuple[int, Places]]:
    """Of the structures in the headers, which RM has no part in."""
    stubs = folder / "stubs"
    for name, text in STUBS.items():
        (stubs / name).parent.mkdir(parents=True, exist_ok=True)
        (stubs / name).write_text(text)
    main = folder / "all.h"
    main.write_text("".join(f'#include "{name}"\n' for name in _HEADERS))
    includes = [f"-I{path}" for path in (stubs, folder / "common/inc", folder / "nvidia-uvm")]
    flags = ["-x", "c", "-nostdinc", "-target", "x86_64-linux-gnu", *includes]
    return {
        name: (kind.get_size(), list(_places(kind, 0, "")))
        for name, kind in records.records(main, flags).items()
        if name in names
    }


def _places(kind: object, at: int, path: str) -> Iterator[tuple[str, int, int]]:
    for one in records.members(kind):
        start = at + one.start // 8
        yield path + one.name, start, one.width // 8
        if records.is_record(one.type):
            yield from _places(one.type, start, f"{path}{one.name}.")


class _Tables:
    """RM's tables in its compiled half: what it makes objects of, and what it answers."""

    def __init__(self, rm: ElfObject, structs: dict[str, tuple[int, Places]]) -> None:
        self._rm = rm
        self._structs = structs
        self._named = {(one.section, one.value): one.name for one in rm.symbols if one.size}
        self._targets = {(one.section, one.offset): one for one in rm.relocations}

    def classes(self) -> dict[str, int]:
        """Numbers by name, which is that of the class's list of parents."""
        kind = "RS_RESOURCE_DESC"
        return {
            name.removesuffix(_PARENTS): self._value(entry, kind, "externalClassId")
            for entry, name in self._entries(_CLASSES, kind, "pParentList")
            if name.endswith(_PARENTS)
        }

    def controls(self) -> dict[int, tuple[str, int]]:
        """Function and bytes of the argument by number of the command."""
        kind = "NVOC_EXPORTED_METHOD_DEF"
        return {
            self._value(entry, kind, "methodId"): (name, self._value(entry, kind, "paramSize"))
            for entry, name in self._entries(_METHODS, kind, "pFunc")
        }

    def _entries(self, symbol: str, kind: str, pointer: str) -> Iterator[tuple[bytes, str]]:
        """The entries of tables of that name, each with the name of what a member points to."""
        size, offset = self._structs[kind][0], self._place(kind, pointer)[0]
        tables = [t for t in self._rm.symbols if t.name.startswith(symbol) and t.size]
        if not tables:
            raise AutogenError(f"RM has no table {symbol}: it is not made as it used to be")
        for table in tables:
            content = self._rm.sections[table.section].content
            for at in range(table.value, table.value + table.size, size):
                yield content[at : at + size], self._target(table.section, at + offset)

    def _target(self, section: int, at: int) -> str:
        relocation = self._targets.get((section, at))
        if relocation is None:
            return ""
        symbol = self._rm.symbols[relocation.symbol]
        place = (symbol.section, symbol.value + relocation.addend)
        return symbol.name if symbol.size else self._named.get(place, "")

    def _value(self, entry: bytes, kind: str, member: str) -> int:
        at, size = self._place(kind, member)
        return int.from_bytes(entry[at : at + size], "little")

    def _place(self, kind: str, member: str) -> tuple[int, int]:
        return next((at, size) for path, at, size in self._structs[kind][1] if path == member)
