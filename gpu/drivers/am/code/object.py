"""Reading AMD code objects: linked ELF files with code, descriptors of kernels, and metadata.

Whatever a file says is checked before it is used: one that is malformed is a FormatError, one that
this driver cannot run Unsupported. Source: "Code Object" of LLVM's "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpu.core.bits import align_up
from gpu.core.elf import (
    EM_AMDGPU,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_TLS,
    SHN_UNDEF,
    SHT_NOBITS,
    SHT_NOTE,
    ElfObject,
    Section,
    parse_shared,
)
from gpu.core.errors import FormatError, InvalidValue, Unsupported
from gpu.drivers.am.code.descriptor import (
    DESCRIPTOR_ALIGN,
    DESCRIPTOR_SIZE,
    ENTRY_ALIGN,
    KernelDescriptor,
    parse_descriptor,
)
from gpu.drivers.am.code.metadata import KernelMetadata, find_note, parse_metadata
from gpu.drivers.am.target import Version, dotted, generation_of

_ABI: Final = 64  # ELFOSABI_AMDGPU_HSA
_ABI_VERSIONS: Final = (2, 3, 4)  # code objects 4, 5, 6
_RELATIVE64: Final = 13  # R_AMDGPU_RELATIVE64: the address of the image plus a number
_NONE: Final = 0
IMAGE_ALIGN: Final = 4096
PREFETCH_PADDING: Final = 256
"""Bytes behind the image that must be readable: instructions are fetched ahead."""
_MAX_IMAGE: Final = 256 << 20
_ADDRESS: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a code object.

    Attributes:
        metadata: its name and arguments.
        descriptor: what the hardware has to give it.
        descriptor_offset, entry_offset: where both begin in the image.
    """

    metadata: KernelMetadata
    descriptor: KernelDescriptor
    descriptor_offset: int
    entry_offset: int

    @property
    def name(self) -> str:
        """Of its function."""
        return self.metadata.name


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A code object, ready to be placed in memory.

    Attributes:
        target: the name of what it was compiled for; ``version`` is the graphics core's.
        kernels: by name.
        size: bytes of the image, with what may be fetched behind it.
    """

    target: str
    version: Version
    kernels: Mapping[str, Kernel]
    size: int
    _image: bytes
    _relocations: tuple[tuple[int, int], ...]

    def image(self, address: int) -> bytes:
        """The bytes to store at a GPU address, a multiple of 4096; ``size`` of them."""
        if address % IMAGE_ALIGN or address < 0:
            raise InvalidValue(f"image at {address:#x}: give a multiple of {IMAGE_ALIGN}")
        image = bytearray(self._image)
        for offset, addend in self._relocations:
            _ADDRESS.pack_into(image, offset, (address + addend) & 0xFFFF_FFFF_FFFF_FFFF)
        return bytes(image)


def read_code_object(data: bytes) -> CodeObject:
    """Reads a linked code object. Raises FormatError and Unsupported, which say what is wrong."""
    elf = parse_shared(data)
    if (elf.machine, elf.abi) != (EM_AMDGPU, _ABI):
        raise FormatError(
            f"ELF file for machine {elf.machine} and system {elf.abi}: code objects are for"
            f" {EM_AMDGPU} and {_ABI}"
        )
    if elf.abi_version not in _ABI_VERSIONS:
        raise Unsupported(f"ELF version {elf.abi_version} of a code object: 4 to 6 are read")
    notes = (section.content for section in elf.sections if section.type == SHT_NOTE)
    metadata = parse_metadata(find_note(notes))
    generation_of(metadata.version)
    image = _load(elf.sections)
    symbols = _symbols(elf)
    code = [s for s in _loaded(elf.sections) if s.flags & SHF_EXECINSTR]
    kernels = {
        kernel.name: _kernel(kernel, symbols, image, code, metadata.version)
        for kernel in metadata.kernels
    }
    if len(kernels) != len(metadata.kernels):
        raise FormatError("two kernels of a code object have the same name")
    relocations = _relocations(elf, len(image))
    return CodeObject(
        metadata.target, metadata.version, kernels, len(image), bytes(image), relocations
    )


def _loaded(sections: list[Section]) -> list[Section]:
    return [section for section in sections if section.flags & SHF_ALLOC]


def _load(sections: list[Section]) -> bytearray:
    """The image: all sections where they belong. Raises FormatError where they overlap."""
    loaded = sorted(_loaded(sections), key=lambda section: section.address)
    end = 0
    for section in loaded:
        if section.flags & SHF_TLS:
            raise Unsupported(f"section {section.name} is of thread-local memory")
        if section.address < end and section.size:
            raise FormatError(f"section {section.name} at {section.address:#x} overlaps another")
        if section.address + section.size > _MAX_IMAGE:
            raise FormatError(
                f"section {section.name} ends at {section.address + section.size:#x}; images have"
                f" at most {_MAX_IMAGE} bytes"
            )
        end = max(end, section.address + section.size)
    image = bytearray(align_up(end, PREFETCH_PADDING) + PREFETCH_PADDING)
    for section in loaded:
        if section.type != SHT_NOBITS:
            image[section.address : section.address + section.size] = section.content
    return image


def _symbols(elf: ElfObject) -> dict[str, int]:
    return {s.name: s.value for s in elf.symbols if s.section != SHN_UNDEF and s.name}


def _kernel(
    metadata: KernelMetadata,
    symbols: Mapping[str, int],
    image: bytearray,
    code: list[Section],
    version: Version,
) -> Kernel:
    where = symbols.get(metadata.symbol)
    if where is None:
        raise FormatError(f"kernel {metadata.name} has no symbol {metadata.symbol}")
    if where % DESCRIPTOR_ALIGN or where + DESCRIPTOR_SIZE > len(image):
        raise FormatError(f"descriptor {metadata.symbol} at {where:#x} is outside or not aligned")
    descriptor = parse_descriptor(bytes(image[where : where + DESCRIPTOR_SIZE]), version)
    entry = where + descriptor.entry
    if entry % ENTRY_ALIGN or not any(s.address <= entry < s.address + s.size for s in code):
        raise FormatError(
            f"kernel {metadata.name} begins at {entry:#x}: a multiple of {ENTRY_ALIGN} in a section"
            " of code is wanted"
        )
    _check_agreement(metadata, descriptor)
    if descriptor.wave32 and not generation_of(version).has_wave32:
        raise FormatError(f"kernel {metadata.name} has waves of 32 lanes, {dotted(version)} of 64")
    return Kernel(metadata, descriptor, where, entry)


def _check_agreement(metadata: KernelMetadata, descriptor: KernelDescriptor) -> None:
    """Raises FormatError where metadata and descriptor contradict each other."""
    pairs = (
        ("bytes of LDS", metadata.group_size, descriptor.group_size),
        ("bytes of scratch memory", metadata.private_size, descriptor.private_size),
        ("bytes of arguments", metadata.kernarg_size, descriptor.kernarg_size),
        ("lanes of a wave", metadata.wavefront_size, 32 if descriptor.wave32 else 64),
    )
    for what, told, has in pairs:
        if told != has and (has or what != "bytes of arguments"):  # 0: it does not tell
            raise FormatError(
                f"kernel {metadata.name}: its metadata tells {told} {what}, its descriptor {has}"
            )


def _relocations(elf: ElfObject, size: int) -> tuple[tuple[int, int], ...]:
    found = []
    for relocation in elf.relocations:
        if relocation.type == _NONE:
            continue
        if relocation.type != _RELATIVE64:
            raise Unsupported(
                f"relocation of type {relocation.type} at {relocation.offset:#x}: a linked code"
                f" object has those of type {_RELATIVE64} only"
            )
        if relocation.offset + _ADDRESS.size > size:
            raise FormatError(f"relocation at {relocation.offset:#x} of an image of {size} bytes")
        found.append((relocation.offset, relocation.addend))
    return tuple(found)
