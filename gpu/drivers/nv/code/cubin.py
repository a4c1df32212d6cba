"""Cubins: the kernels that ptxas made for one architecture, and what launching them needs.

A cubin is an ELF executable. Its sections are named after kernels: .text.K, .nv.constantN.K,
.nv.shared.K, .nv.info.K. Nobody documents them; what is said here was found in what nvcc 12.4 and
13.0 make for sm_80 to sm_120. What is not known is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpu.core.bits import align_up
from gpu.core.elf import (
    EM_CUDA,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHN_LORESERVE,
    SHT_LOPROC,
    SHT_NOBITS,
    ElfObject,
    Section,
    parse_executable,
)
from gpu.core.errors import FormatError, InvalidIndex, InvalidValue, Unsupported
from gpu.drivers.nv.code import info
from gpu.drivers.nv.code.image import Image, lay_out, link_image
from gpu.drivers.nv.code.info import Attribute, Parameter, Record
from gpu.drivers.nv.encode.cbank0 import bank_layout
from gpu.drivers.nv.encode.qmd import CONSTANT_BANKS, MAX_CONSTANT
from gpu.drivers.nv.encode.sm_limits import MAX_BARRIERS, MAX_REGISTERS, RESERVED_SHARED

_FATBIN: Final = b"\x50\xed\x55\xba"
_ABI_OLD: Final = 0x33  # CUDA 12 and before
_ABI_NEW: Final = 0x41
_STT_OBJECT: Final = 1
_STT_FUNC: Final = 2
_CONSTANT: Final = re.compile(r"\.nv\.constant(\d{1,4})(?:\.(.+))?")
_BARRIERS_AT: Final = 20  # in the flags of .text, up to CUDA 12
_RESERVED_IN_SECTION: Final = 90  # from this architecture on .nv.shared.K has the reserved bytes
_IGNORED: Final = (".nv.merc.", ".nv.capmerc", ".nv.shared.", ".nv.local.", ".nv_debug.")
_UNKNOWN_STACK: Final = 0xFFFF_FFFF
_SYSTEM_STACK: Final = 0x240
_LOCAL_ROUND: Final = 32


@dataclass(frozen=True, slots=True)
class Bank:
    """A constant bank beside bank 0: its offset in the image, and its bytes."""

    number: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as compiled.

    Attributes:
        name: its symbol.
        offset: of its code in the image.
        size: bytes of its code.
        registers: of a thread.
        barriers: named ones that it uses.
        stack: bytes of a thread; None where it recurses, so that no compiler could know.
        shared: bytes of a block, those reserved for the system included.
        parameters: where each is; `parameter_base` is the offset of the first in bank 0.
        parameter_size: bytes of all.
        banks: those beside bank 0.
        max_threads: of a block, where it was compiled for so many.
        required_block: where it was compiled for one size of block.
        cluster: where it was compiled for clusters.
        bare: whether it comes without a cubin, see `gpu/drivers/nv/code/sass.py`.
    """

    name: str
    offset: int
    size: int
    registers: int
    barriers: int
    stack: int | None
    shared: int
    parameters: tuple[Parameter, ...]
    parameter_base: int
    parameter_size: int
    banks: tuple[Bank, ...]
    max_threads: int | None
    required_block: tuple[int, int, int] | None
    cluster: tuple[int, int, int] | None
    bare: bool = False

    def local_size(self, stack: int = 0) -> int:
        """Bytes of local memory of a thread; 0 where it needs none.

        ``stack`` is what recursion and indirect calls may need. Raises InvalidValue where the
        kernel recurses and it is 0.
        """
        if self.stack is None and not stack:
            raise InvalidValue(f"{self.name} recurses: tell how many bytes of stack a thread gets")
        needed = max(self.stack or 0, stack)
        systems = 0 if self.bare else _SYSTEM_STACK
        return align_up(needed + systems, _LOCAL_ROUND) if needed else 0


class Cubin:
    """A cubin that was read: its architecture, its kernels, and the image for memory.

    ``sm`` is 90 for sm_90.
    """

    def __init__(self, data: bytes):
        """Raises FormatError for a malformed file, Unsupported for what is not known here."""
        if data.startswith(_FATBIN):
            raise FormatError("this is a fat binary: compile with -cubin for one architecture")
        self._elf: ElfObject = parse_executable(data)
        self.sm = _architecture(self._elf)
        layout = bank_layout(self.sm)
        self._sections = _unique(self._elf)
        self.image: Image = _lay_out(self._elf)
        self._constants = self._by_owner()
        module = self._records(".nv.info")
        self._registers = info.by_symbol(module, Attribute.REGCOUNT)
        self._stacks = info.by_symbol(module, Attribute.MIN_STACK_SIZE)
        self._base = layout.parameters
        self.kernels: Mapping[str, Kernel] = self._read_kernels()

    @cached_property
    def variables(self) -> Mapping[str, int]:
        """Offsets in the image of variables and banks, by symbol."""
        return {
            symbol.name: self.image.offsets[symbol.section] + symbol.value
            for symbol in self._elf.symbols
            if symbol.section in self.image.offsets and symbol.type == _STT_OBJECT
        }

    @property
    def size(self) -> int:
        """Bytes of memory that its image takes."""
        return self.image.size

    def kernel(self, name: str) -> Kernel:
        """A kernel by name. Raises InvalidIndex, which lists those there are."""
        if name not in self.kernels:
            raise InvalidIndex(f"no kernel {name!r}; there are {', '.join(self.kernels) or 'none'}")
        return self.kernels[name]

    def link(self, address: int, symbols: Mapping[str, int] | None = None) -> bytes:
        """The image for memory at ``address``; raises as `link_image` does.

        It is ``image.data_size`` bytes; what follows up to ``image.size`` must be mapped, and zero.
        """
        return link_image(self._elf, self.image, address, symbols)

    def _by_owner(self) -> defaultdict[str, list[tuple[int, Section]]]:
        """Loaded constant banks with their numbers, by kernel; those of the module under ""."""
        found: defaultdict[str, list[tuple[int, Section]]] = defaultdict(list)
        for section in self._elf.sections:
            match = _CONSTANT.fullmatch(section.name)
            if match is not None and section.index in self.image.offsets:
                found[match[2] or ""].append((int(match[1]), section))
        return found

    def _read_kernels(self) -> dict[str, Kernel]:
        kernels = {}
        for index, symbol in enumerate(self._elf.symbols):
            bank0 = self._sections.get(f".nv.constant0.{symbol.name}")
            if symbol.type == _STT_FUNC and bank0 is not None and symbol.section < SHN_LORESERVE:
                if symbol.name in kernels:
                    raise FormatError(f"two functions are called {symbol.name}")
                kernels[symbol.name] = self._read_kernel(index, bank0)
        return kernels

    def _read_kernel(self, index: int, bank0: Section) -> Kernel:
        symbol = self._elf.symbols[index]
        text = self._elf.sections[symbol.section]
        name = symbol.name
        if text.name != f".text.{name}" or text.index not in self.image.offsets or symbol.value:
            raise FormatError(f"kernel {name} is at {symbol.value:#x} of section {text.name!r}")
        records = list(self._records(f".nv.info.{name}"))
        missing = [
            what
            for what, known in (("REGCOUNT", self._registers), ("MIN_STACK_SIZE", self._stacks))
            if index not in known
        ]
        if missing:
            raise FormatError(f".nv.info has no {' and no '.join(missing)} of {name}")
        parameters = info.read_parameters(records)
        size = self._parameter_size(name, records, parameters, bank0)
        kernel = Kernel(
            name=name,
            offset=self.image.offsets[text.index],
            size=text.size,
            registers=self._registers[index],
            barriers=_barriers(text, records),
            stack=None if self._stacks[index] == _UNKNOWN_STACK else self._stacks[index],
            shared=self._shared(name, text),
            parameters=parameters,
            parameter_base=self._base,
            parameter_size=size,
            banks=self._banks(name, text),
            max_threads=_product(info.find(records, Attribute.MAX_THREADS)),
            required_block=_triple(info.find(records, Attribute.REQNTID)),
            cluster=_triple(info.find(records, Attribute.CTA_PER_CLUSTER)),
        )
        _check(kernel)
        return kernel

    def _records(self, name: str) -> list[Record]:
        section = self._sections.get(name)
        return [] if section is None else list(info.read_records(name, section.content))

    def _parameter_size(
        self,
        name: str,
        records: list[Record],
        parameters: tuple[Parameter, ...],
        bank0: Section,
    ) -> int:
        """Checks where parameters are, and gives how many bytes they have."""
        size = 0
        record = info.find(records, Attribute.PARAM_CBANK)
        if record is not None:
            _, place = record.words(2)
            base, size = place & 0xFFFF, place >> 16
            if base != self._base:
                raise Unsupported(
                    f"parameters of {name} begin at {base:#x} of bank 0; for sm_{self.sm} only"
                    f" {self._base:#x} is known"
                )
        ends = [parameter.offset + parameter.size for parameter in parameters]
        if max(ends, default=0) > size or bank0.size < self._base + size:
            raise FormatError(
                f"parameters of {name} begin at {self._base:#x} of {bank0.size:#x} bytes of bank 0:"
                f" {size:#x} bytes, of which the last is said to end at {max(ends, default=0):#x}"
            )
        return size

    def _shared(self, name: str, text: Section) -> int:
        section = self._of_kernel(f".nv.shared.{name}", text)
        own = 0 if section is None else section.size
        if self.sm >= _RESERVED_IN_SECTION:
            return max(own, RESERVED_SHARED)
        return own + RESERVED_SHARED

    def _banks(self, name: str, text: Section) -> tuple[Bank, ...]:
        """The module's banks and the kernel's own."""
        banks: dict[int, Bank] = {}
        own = self._constants[name]
        for _, section in own:
            self._of_kernel(section.name, text)
        for number, section in (*self._constants[""], *own):
            known = 0 < number < CONSTANT_BANKS and number not in banks
            if not known or section.size > MAX_CONSTANT:
                raise FormatError(
                    f"{section.name} of {section.size:#x} bytes: beside bank 0 a kernel has each of"
                    f" 1 to {CONSTANT_BANKS - 1} once, of {MAX_CONSTANT:#x} bytes at most"
                )
            if section.size:
                banks[number] = Bank(number, self.image.offsets[section.index], section.size)
        return tuple(banks[number] for number in sorted(banks))

    def _of_kernel(self, name: str, text: Section) -> Section | None:
        section = self._sections.get(name)
        if section is not None and section.info != text.index:
            raise FormatError(f"{name} belongs to section {section.info}, not to {text.name}")
        return section


def _architecture(elf: ElfObject) -> int:
    if elf.machine != EM_CUDA:
        raise FormatError(f"ELF machine {elf.machine}: cubins have {EM_CUDA}")
    if elf.abi == _ABI_NEW:
        return elf.flags >> 8 & 0xFF
    if elf.abi == _ABI_OLD:
        return elf.flags & 0xFF
    raise Unsupported(f"cubins with ELF ABI {elf.abi:#x}: {_ABI_OLD:#x} and {_ABI_NEW:#x} are read")


def _unique(elf: ElfObject) -> dict[str, Section]:
    """Sections by name, those that are looked up by it. Raises FormatError for two of one name."""
    sections: dict[str, Section] = {}
    for section in elf.sections:
        if section.name.startswith((".nv.constant", ".nv.shared.", ".nv.info", ".text.")):
            if section.name in sections:
                raise FormatError(f"two sections are called {section.name}")
            sections[section.name] = section
    return sections


def _lay_out(elf: ElfObject) -> Image:
    """Sorts sections into data, code and zeros."""
    data, code, zeros = [], [], []
    for section in elf.sections:
        name = section.name
        if not section.flags & SHF_ALLOC or name.startswith((*_IGNORED, ".nv.constant0.")):
            continue
        if name.startswith(".text.") and section.flags & SHF_EXECINSTR:
            code.append(section)
        elif name == ".nv.global":
            zeros.append(section)
        elif name == ".nv.global.init" or _CONSTANT.fullmatch(name):
            data.append(section)
        else:
            raise Unsupported(f"section {section.index}, {name!r}, is to be loaded, but not known")
    for section in (*data, *code):
        if section.type == SHT_NOBITS or section.type >= SHT_LOPROC:
            raise FormatError(f"section {section.name} is of type {section.type:#x}: it has bytes")
    if any(section.type != SHT_NOBITS for section in zeros):
        raise FormatError(".nv.global has bytes: what has any is in .nv.global.init")
    return lay_out(data, code, zeros)


def _barriers(text: Section, records: list[Record]) -> int:
    record = info.find(records, Attribute.NUM_BARRIERS)
    return record.value if record is not None else text.flags >> _BARRIERS_AT & 0x7F


def _triple(record: Record | None) -> tuple[int, int, int] | None:
    if record is None:
        return None
    x, y, z = record.words(3)
    return x, y, z


def _product(record: Record | None) -> int | None:
    sizes = _triple(record)
    return None if sizes is None else sizes[0] * sizes[1] * sizes[2]


def _check(kernel: Kernel) -> None:
    for what, value, most in (
        ("registers", kernel.registers, MAX_REGISTERS),
        ("barriers", kernel.barriers, MAX_BARRIERS),
    ):
        if value > most:
            raise FormatError(f"{kernel.name} has {value} {what}: at most {most} can be")
