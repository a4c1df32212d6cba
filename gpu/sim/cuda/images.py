"""What a program gives to cuModuleLoadData: PTX, or a cubin and the PTX it was made of.

NVIDIA's machine code is not public. Whoever compiles a cubin tells `learn` which PTX it stands for.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpu.core.elf import EM_CUDA, HEADER, IDENT, PROGRAM, SECTION, parse_executable
from gpu.core.errors import FormatError
from gpu.sim.cuda.codes import (
    INVALID_IMAGE,
    INVALID_PTX,
    INVALID_VALUE,
    NO_BINARY_FOR_GPU,
    NOT_SUPPORTED,
    UNSUPPORTED_PTX_VERSION,
    CudaError,
)

_ELF: Final = IDENT[:4]
_FATBIN: Final = (0xBA55ED50).to_bytes(4, "little")  # of __fatBinC_Wrapper's data
_NOBITS: Final = 8
_ABI_OF_CUDA_13: Final = 8  # from it on the architecture is in bits 15:8 of the flags
_REGISTERS: Final = 0x2F04  # EIATTR_REGCOUNT with its format, EIFMT_SVAL
_VERSION: Final = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.M)
_TARGET: Final = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)", re.M)
_ENTRY: Final = re.compile(r"\.entry\s+([\w$]+)\s*(?:\([^)]*\))?([^{;]*)[{;]")
_DIRECTIVE: Final = re.compile(r"\.(reqntid|maxntid|maxnreg|minnctapersm)\s+([\d,\s]+)")
_learned: dict[bytes, str] = {}


def learn(cubin: bytes, ptx: str) -> None:
    """A cubin was made from some PTX; all simulated drivers of this process know it then.

    Raises FormatError for what is no cubin.
    """
    size = _elf_size(cubin)
    if size is None or size > len(cubin):
        raise FormatError(f"{len(cubin)} bytes that begin with {cubin[:4]!r} are no whole cubin")
    _learned[hashlib.sha256(cubin[:size]).digest()] = ptx


@dataclass(frozen=True)
class Image:
    """A module before it is loaded.

    Attributes:
        ptx: its text.
        version, binary: as CU_FUNC_ATTRIBUTE_PTX_VERSION and BINARY_VERSION tell them.
        compiled: whether it came as machine code.
        limits: kernel -> performance directive -> its numbers.
        registers: kernel -> registers of a thread, where machine code tells them.
    """

    ptx: str
    version: int
    binary: int
    compiled: bool
    limits: dict[str, dict[str, tuple[int, ...]]]
    registers: dict[str, int] = field(default_factory=dict)


def read_image(pointer: int, capability: tuple[int, int], driver: int) -> Image:
    """The image at an address of the process, for a device and a version of CUDA.

    Raises CudaError for one that is malformed, or not for them; its text is what the log says.
    """
    if not pointer:
        raise CudaError(INVALID_VALUE, "the image is NULL")
    head = ctypes.string_at(pointer, 1)
    if head == _ELF[:1] and ctypes.string_at(pointer, 4) == _ELF:
        return _cubin(pointer, capability)
    if head == _FATBIN[:1] and ctypes.string_at(pointer, 4) == _FATBIN:
        raise CudaError(NOT_SUPPORTED, "fat binaries are not modelled: give a cubin or PTX")
    text = ctypes.string_at(pointer).decode(errors="replace")
    return _ptx(text, capability, driver)


def _ptx(text: str, capability: tuple[int, int], driver: int) -> Image:
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None:
        raise CudaError(INVALID_PTX, "ptxas fatal   : Missing .version directive at start of file")
    if target is None:
        raise CudaError(INVALID_PTX, "ptxas fatal   : Missing .target directive")
    number = (int(version[1]), int(version[2]))
    newest = newest_ptx(driver)
    if number > newest:
        raise CudaError(
            UNSUPPORTED_PTX_VERSION,
            f"ptxas fatal   : Unsupported .version {number[0]}.{number[1]}; current version is"
            f" '{newest[0]}.{newest[1]}'",
        )
    wanted = divmod(int(target[1]), 10)
    exact = target[2] == "a" and wanted != capability
    if wanted > capability or exact:
        raise CudaError(
            INVALID_PTX,
            f"ptxas fatal   : SM version specified by .target sm_{target[1]}{target[2]} is not"
            f" that of the device, sm_{capability[0]}{capability[1]}",
        )
    binary = 10 * capability[0] + capability[1]
    return Image(text, 10 * wanted[0] + wanted[1], binary, False, _limits(text))


def newest_ptx(driver: int) -> tuple[int, int]:
    """The newest version of PTX that a driver takes ("PTX ISA", Release Notes).

    CUDA 12.0 has 8.0, each minor version one more up to 8.8 of 12.9, where 12.6 and 12.7 are
    8.5 and 8.6; CUDA 13.0 has 9.0.
    """
    major, minor = driver // 1000, driver % 1000 // 10
    if major == 12:
        return 8, minor if minor < 6 else minor - 1
    return major - 4, minor


def _limits(text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
    return {
        name: {
            kind: tuple(int(n) for n in numbers.replace(",", " ").split())
            for kind, numbers in _DIRECTIVE.findall(directives)
        }
        for name, directives in _ENTRY.findall(plain)
    }


def _cubin(pointer: int, capability: tuple[int, int]) -> Image:
    size = _elf_size_at(pointer)
    if size is None:
        raise CudaError(INVALID_IMAGE, "no ELF file of 64 bits, little-endian")
    data = ctypes.string_at(pointer, size)
    try:
        parsed = parse_executable(data)
    except FormatError as error:
        raise CudaError(INVALID_IMAGE, error.message) from error
    if parsed.machine != EM_CUDA:
        raise CudaError(INVALID_IMAGE, f"ELF machine {parsed.machine}; a cubin's is {EM_CUDA}")
    shift = 8 if parsed.abi_version >= _ABI_OF_CUDA_13 else 0
    built = divmod(parsed.flags >> shift & 0xFF, 10)
    if built[0] != capability[0] or built[1] > capability[1]:
        raise CudaError(
            NO_BINARY_FOR_GPU,
            f"a cubin of sm_{built[0]}{built[1]} on a device of sm_{capability[0]}{capability[1]}",
        )
    ptx = _learned.get(hashlib.sha256(data).digest())
    if ptx is None:
        raise CudaError(
            NOT_SUPPORTED, "nobody told gpu.sim.cuda.learn which PTX this cubin was made of"
        )
    names = [symbol.name for symbol in parsed.symbols]
    registers = {}
    for section in parsed.sections:
        if section.name == ".nv.info":
            for symbol, count in _register_counts(section.content):
                if symbol < len(names):
                    registers[names[symbol]] = count
    target = _TARGET.search(ptx)
    version = int(target[1]) if target else 0
    return Image(ptx, version, 10 * built[0] + built[1], True, _limits(ptx), registers)


def _register_counts(info: bytes) -> list[tuple[int, int]]:
    """(symbol, registers) of each function."""
    found, at = [], 0
    while at + 4 <= len(info):
        kind, value = struct.unpack_from("<HH", info, at)
        at += 4
        if kind & 0xFF != 4:  # the value is in the entry itself
            continue
        if kind == _REGISTERS and value >= 8 and at + 8 <= len(info):
            found.append(struct.unpack_from("<II", info, at))
        at += value
    return found


def _elf_size_at(pointer: int) -> int | None:
    return _elf_extent(lambda at, count: ctypes.string_at(pointer + at, count))


def _elf_size(data: bytes) -> int | None:
    if len(data) < HEADER.size or not data.startswith(_ELF):
        return None
    return _elf_extent(lambda at, count: data[at : at + count].ljust(count, b"\0"))


def _elf_extent(read: Callable[[int, int], bytes]) -> int | None:
    """Where an ELF file ends, by its tables: an image comes without its size."""
    header = HEADER.unpack(read(0, HEADER.size))
    if not header[0].startswith(IDENT) or header[11] != SECTION.size:
        return None
    programs, sections, count = header[5], header[6], header[12]
    end = max(HEADER.size, sections + count * SECTION.size, programs + header[10] * PROGRAM.size)
    for number in range(count):
        row = SECTION.unpack(read(sections + number * SECTION.size, SECTION.size))
        if number and row[1] != _NOBITS:
            end = max(end, row[4] + row[5])
    return int(end)
