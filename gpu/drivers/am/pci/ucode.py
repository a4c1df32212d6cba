"""Firmware files of AMD's: which pieces of a file go where.

A file is hostile until its hash is known, and damaged files are parsed too: every length and offset
of a header is checked before it is used, and what does not fit is a FormatError with the field.
What the security processor thinks of the pieces, which are signed, is not known here.

Sources: amdgpu_ucode.h, amdgpu_ucode.c (amdgpu_ucode_init_single_fw), amdgpu_rlc.c, amdgpu_psp.c of
Linux 6.12.117.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from gpu.autogen.amd import amdgpu_ucode as layout
from gpu.autogen.amd import psp_gfx_if as psp
from gpu.core.errors import FormatError

H = TypeVar("H", bound=ctypes.Structure)
_COMMON: Final = ctypes.sizeof(layout.common_firmware_header)
_MOST_PARTS: Final = 64  # of a file for the security processor
# fields of an RLC's header: their name before _size_bytes and _offset_bytes, and the piece's type
_RLC_LISTS: Final = (
    ("save_restore_list_cntl", psp.GFX_FW_TYPE_RLC_RESTORE_LIST_SRM_CNTL),
    ("save_restore_list_gpm", psp.GFX_FW_TYPE_RLC_RESTORE_LIST_GPM_MEM),
    ("save_restore_list_srm", psp.GFX_FW_TYPE_RLC_RESTORE_LIST_SRM_MEM),
)
_RLC_RAM: Final = (
    ("rlc_iram_ucode", psp.GFX_FW_TYPE_RLC_IRAM),
    ("rlc_dram_ucode", psp.GFX_FW_TYPE_RLC_DRAM_BOOT),
)
_RLC_CORES: Final = (
    ("rlcp_ucode", psp.GFX_FW_TYPE_RLC_P),
    ("rlcv_ucode", psp.GFX_FW_TYPE_RLC_V),
)
_RLC_HEADERS: Final = {
    1: layout.rlc_firmware_header_v2_1,
    2: layout.rlc_firmware_header_v2_2,
    3: layout.rlc_firmware_header_v2_3,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a file, and what it is: a GFX_FW_TYPE_* of the security processor's commands."""

    type: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CoreImage:
    """Firmware of a part of the command processor: code, data of a thread, where it starts."""

    code: bytes
    stack: bytes
    start: int


@dataclass(frozen=True, slots=True)
class SecureImage:
    """Components of the security processor by PSP_FW_TYPE_PSP_*, in the order of the file."""

    parts: dict[int, bytes]


class _File:
    """A file with a common header that says as many bytes as there are."""

    def __init__(self, name: str, data: bytes):
        self.name = name
        self._data = data
        self.common = self.header(layout.common_firmware_header)
        if self.common.size_bytes != len(data):
            raise FormatError(
                f"{name}: its header says {self.common.size_bytes} bytes, it has {len(data)}"
            )
        self.version = (self.common.header_version_major, self.common.header_version_minor)

    def header(self, kind: type[H]) -> H:
        """The header as one of a kind."""
        return kind.from_buffer_copy(self.piece(0, ctypes.sizeof(kind), kind.__name__))

    def piece(self, start: int, size: int, what: str) -> bytes:
        """Some bytes of the file."""
        if start + size > len(self._data):
            raise FormatError(
                f"{self.name}: {what} of {size} bytes at {start:#x} is beyond its end at"
                f" {len(self._data):#x}"
            )
        return self._data[start : start + size]

    def code(self, start: int, size: int, what: str) -> bytes:
        """Bytes that are loaded: they are behind the header, and not none."""
        if start < _COMMON or not size:
            raise FormatError(f"{self.name}: {what} of {size} bytes at {start:#x}")
        return self.piece(start, size, what)

    @property
    def start(self) -> int:
        """Where what is loaded begins."""
        return int(self.common.ucode_array_offset_bytes)

    def unknown(self) -> FormatError:
        """The error for a version of the header that is not known."""
        major, minor = self.version
        return FormatError(f"{self.name}: a header of version {major}.{minor} is not known")


def parse_secure(name: str, data: bytes) -> SecureImage:
    """``psp_*_sos.bin``: what the security processor's boot loader and its system are given."""
    file = _File(name, data)
    first: ctypes.Structure
    if file.version == (2, 0):
        header = file.header(layout.psp_firmware_header_v2_0)
        count, first = header.psp_fw_bin_count, header
    elif file.version == (2, 1):
        newer = file.header(layout.psp_firmware_header_v2_1)
        count, first = newer.psp_aux_fw_bin_index, newer  # those behind are for other boards
        if count > newer.psp_fw_bin_count:
            raise FormatError(f"{name}: component {count} is the first of others, of fewer")
    else:
        raise file.unknown()
    if not 0 < count <= _MOST_PARTS:
        raise FormatError(f"{name}: {count} components, of 1 to {_MOST_PARTS}")
    parts: dict[int, bytes] = {}
    at = ctypes.sizeof(first)
    for number in range(count):
        raw = file.piece(at, ctypes.sizeof(layout.psp_fw_bin_desc), f"component {number}")
        at += len(raw)
        one = layout.psp_fw_bin_desc.from_buffer_copy(raw)
        parts[one.fw_type] = file.code(
            file.start + one.offset_bytes, one.size_bytes, f"component {number}"
        )
    return SecureImage(parts)


def parse_core(name: str, data: bytes) -> CoreImage:
    """``gc_*_{mec,pfp,me}.bin``: a part of the command processor (RS64)."""
    file = _File(name, data)
    if file.version != (2, 0):
        raise file.unknown()
    header = file.header(layout.gfx_firmware_header_v2_0)
    return CoreImage(
        file.code(file.start, header.ucode_size_bytes, "code"),
        file.code(header.data_offset_bytes, header.data_size_bytes, "data"),
        header.ucode_start_addr_hi << 32 | header.ucode_start_addr_lo,
    )


def parse_rlc(name: str, data: bytes) -> list[Part]:
    """``gc_*_rlc.bin``: the controller that loads the rest; its main part is the last."""
    file = _File(name, data)
    major, minor = file.version
    kind = _RLC_HEADERS.get(minor)
    if major != 2 or kind is None:
        raise file.unknown()
    header = file.header(kind)
    wanted = [*_RLC_LISTS, *(_RLC_RAM if minor >= 2 else ()), *(_RLC_CORES if minor == 3 else ())]
    parts = list(_rlc_parts(file, header, wanted))
    size = file.common.ucode_size_bytes
    return [*parts, Part(psp.GFX_FW_TYPE_RLC_G, file.code(file.start, size, "code"))]


def _rlc_parts(
    file: _File, header: ctypes.Structure, wanted: list[tuple[str, int]]
) -> Iterator[Part]:
    values: dict[str, int] = {}
    _flatten(header, values)
    for name, kind in wanted:
        size = values[f"{name}_size_bytes"]
        if size:
            yield Part(kind, file.code(values[f"{name}_offset_bytes"], size, name))


def _flatten(header: ctypes.Structure, values: dict[str, int]) -> None:
    """Fields of a header and of those that it begins with."""
    for field in header._fields_:
        value = getattr(header, field[0])
        if isinstance(value, ctypes.Structure):
            _flatten(value, values)
        else:
            values[field[0]] = value


def parse_imu(name: str, data: bytes) -> list[Part]:
    """``gc_*_imu.bin``: the unit that powers the core up, its instructions and its data."""
    file = _File(name, data)
    if file.version != (1, 0):
        raise file.unknown()
    header = file.header(layout.imu_firmware_header_v1_0)
    code = header.imu_iram_ucode_size_bytes
    return [
        Part(psp.GFX_FW_TYPE_IMU_I, file.code(file.start, code, "instructions")),
        Part(
            psp.GFX_FW_TYPE_IMU_D,
            file.code(file.start + code, header.imu_dram_ucode_size_bytes, "data"),
        ),
    ]


def parse_sdma(name: str, data: bytes) -> list[Part]:
    """``sdma_*.bin``: the copy engines; two threads up to SDMA 6, one from 7 on."""
    file = _File(name, data)
    if file.version == (2, 0):
        header = file.header(layout.sdma_firmware_header_v2_0)
        context = file.code(file.start, header.ctx_ucode_size_bytes, "code of thread 0")
        control = file.code(
            header.ctl_ucode_offset, header.ctl_ucode_size_bytes, "code of thread 1"
        )
        return [
            Part(psp.GFX_FW_TYPE_SDMA_UCODE_TH0, context),
            Part(psp.GFX_FW_TYPE_SDMA_UCODE_TH1, control),
        ]
    if file.version == (3, 0):
        newer = file.header(layout.sdma_firmware_header_v3_0)
        code = file.code(file.start, newer.ucode_size_bytes, "code")
        return [Part(psp.GFX_FW_TYPE_SDMA_UCODE_TH0, code)]
    raise file.unknown()


def parse_smu(name: str, data: bytes) -> Part:
    """``smu_*.bin``: power management."""
    file = _File(name, data)
    if file.version not in ((1, 0), (2, 0), (2, 1)):
        raise file.unknown()
    code = file.code(file.start, file.common.ucode_size_bytes, "code")
    return Part(psp.GFX_FW_TYPE_SMU, code)
