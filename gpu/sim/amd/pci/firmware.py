"""Made-up firmware with the headers of real files, and what the security processor checks of it.

File headers: amdgpu_ucode.h of Linux 6.12. Headers of what is signed, found in the files of
Debian's firmware-amd-graphics 20230210-5 for gfx1100 (M): the magic ``$PS1`` at 0x10 (keys have
none), bytes that are signed at 0x14, 1 at 0x30 for a signature, what it is at 0x58 (16 bits), the
version at 0x60, all bytes at 0x6c: signed ones and twice 256 for this header and the signature.
What those of gfx12 say at 0x58 is taken to be the same (U).

A made-up signature is a mark and a CRC of what it signs, so that stale or torn bytes are found.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpu.core.files import atomic_write
from gpu.sim.amd.pci.boards import Board, find_board

_HEADER: Final = 256
_SIGNATURE: Final = 256
_MARK: Final = b"MADEUP01"
_COMMON: Final = struct.Struct("<IIHHHHIIII")
_PAYLOAD: Final = 256  # where the payload begins in all files seen

SYS, SOS, KDB, TOC, SPL = 0x0A, 0x09, 0x4F, 0x200E, 0x56
KINDS: Final[Mapping[int, int]] = {  # by psp_gfx_fw_type
    18: 0x1001,
    71: 0x203E,
    72: 0x203F,
    68: 0x203B,
    69: 0x203C,
    87: 0x2044,
    90: 0x2045,
    91: 0x2045,
    88: 0x2046,
    92: 0x2047,
    93: 0x2047,
    89: 0x2048,
    94: 0x2049,
    95: 0x2049,
    96: 0x2049,
    97: 0x2049,
    8: 0x2009,
    20: 0x200B,
    21: 0x200C,
    26: 0x2016,
    48: 0x2017,
    25: 0x200F,
    7: 0x200A,
}
"""What a signed part says that it is, for each type of GFX_CMD_ID_LOAD_IP_FW."""


def signed(kind: int, size: int, version: int, seed: str) -> bytes:
    """A signed part with so many bytes of content."""
    content = hashlib.shake_128(f"{seed} {kind:#x}".encode()).digest(size)
    head = bytearray(_HEADER)
    head[0x10:0x14] = bytes(4) if kind == KDB else b"$PS1"
    struct.pack_into("<I", head, 0x14, size)
    struct.pack_into("<I", head, 0x30, 1)
    struct.pack_into("<I", head, 0x58, 0x81010000 | kind)
    struct.pack_into("<I", head, 0x60, version)
    struct.pack_into("<I", head, 0x6C, size + _HEADER + _SIGNATURE)
    body = bytes(head) + content
    return body + (_MARK + struct.pack("<I", zlib.crc32(body))).ljust(_SIGNATURE, b"\0")


def why_refused(data: bytes, kind: int | None) -> str:
    """Why the security processor does not take what begins with these bytes; empty if it does.

    `kind` is what it must be; None where nobody knows.
    """
    if len(data) < _HEADER + _SIGNATURE:
        return f"{len(data):#x} bytes are too few for a header and a signature"
    found = int.from_bytes(data[0x58:0x5A], "little")
    size, whole = struct.unpack_from("<I", data, 0x14)[0], struct.unpack_from("<I", data, 0x6C)[0]
    if data[0x10:0x14] != b"$PS1" and found != KDB:
        return f"there is no $PS1 at 0x10, but {data[0x10:0x14].hex()}"
    if struct.unpack_from("<I", data, 0x30)[0] != 1:
        return "it is not signed"
    if whole < size + _HEADER + _SIGNATURE or whole > len(data):
        return f"its header tells {size:#x} signed of {whole:#x} bytes; {len(data):#x} are there"
    if kind is not None and found != kind:
        return f"it is of kind {found:#x}, not {kind:#x}"
    end = size + _HEADER
    mark = data[end : end + len(_MARK)]
    if mark == _MARK and zlib.crc32(data[:end]) != struct.unpack_from("<I", data, end + 8)[0]:
        return "the signature is of other bytes"
    return ""


def make_images(board: Board) -> dict[str, bytes]:
    """All files that a driver of a card may ask for, by their names."""
    gc, sdma = _name("gc", board.chip.gc), _name("sdma", board.chip.sdma)
    mp, smu = _name("psp", board.block("MP0").version), _name("smu", board.block("MP1").version)
    files = {
        f"{mp}_sos": _sos(mp),
        f"{smu}": _smu(smu),
        f"{sdma}": _sdma(sdma, board.is_gfx12),
        f"{gc}_imu": _imu(gc),
        f"{gc}_rlc": _rlc(gc),
        f"{gc}_toc": _file((1, 0), b"", signed(TOC, 0x700, 12, gc)),
    }
    for name, kind, start in (("pfp", 0x2044, 0), ("me", 0x2046, 0), ("mec", 0x2048, 0)):
        files[f"{gc}_{name}"] = _cp(f"{gc} {name}", kind, start + 0x3000)
    return {f"amdgpu/{name}.bin": data for name, data in files.items()}


def write_images(folder: Path, chip: str) -> dict[str, str]:
    """Writes the files of a chip below `folder`; the SHA-256 of each by its name."""
    hashes = {}
    for name, data in make_images(find_board(chip)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data)
        hashes[name] = hashlib.sha256(data).hexdigest()
    return hashes


def _name(block: str, version: tuple[int, int, int]) -> str:
    return f"{block}_{'_'.join(map(str, version))}"


def _file(version: tuple[int, int], fields: bytes, payload: bytes, ucode: int = 0) -> bytes:
    """A file; offsets among its fields count from its start, and the payload is at 256."""
    size, header = _PAYLOAD + len(payload), _COMMON.size + len(fields)
    crc = zlib.crc32(payload)
    head = _COMMON.pack(
        *(size, header, *version, 11, 0, 0x10001, ucode or len(payload), _PAYLOAD, crc)
    )
    return (head + fields).ljust(_PAYLOAD, b"\0") + payload


def _sos(seed: str) -> bytes:
    """`psp_firmware_header_v2_0`; the types are those of `psp_fw_type`."""
    parts = [(2, SYS, 0x2000), (1, SOS, 0x3000), (4, TOC, 0x700), (3, KDB, 0x1500), (5, SPL, 0xA0)]
    parts += [(7, 0x57, 0x400), (8, 0x58, 0x400), (9, 0x59, 0x400), (10, 0x5A, 0x400)]
    fields, payload = [struct.pack("<I", len(parts))], bytearray()
    for kind, what, size in parts:
        data = signed(what, size, 0x310025, seed)
        fields.append(struct.pack("<4I", kind, 0x310025, len(payload), len(data)))
        payload += data
    return _file((2, 0), b"".join(fields), bytes(payload))


def _smu(seed: str) -> bytes:
    """`smc_firmware_header_v2_1`, with no tables of power play."""
    return _file((2, 1), struct.pack("<3I", 0x20000, 0, 0), signed(0x1001, 0x1800, 0x4E4B00, seed))


def _sdma(seed: str, is_new: bool) -> bytes:
    """`sdma_firmware_header_v2_0` with two threads, or `v3_0` with one."""
    first = signed(0x203E, 0x1000, 0x10, seed)
    if is_new:
        return _file((3, 0), struct.pack("<3I", 1, _PAYLOAD, len(first)), first)
    second = signed(0x203F, 0x1000, 0x10, seed)
    numbers = (0x3C, len(first), 0x400, 0x80, _PAYLOAD + len(first), len(second), 0x400, 0)
    return _file((2, 0), struct.pack("<8I", *numbers), first + second)


def _imu(seed: str) -> bytes:
    """`imu_firmware_header_v1_0`: instructions and data."""
    first, second = signed(0x203B, 0x800, 1, seed), signed(0x203C, 0x800, 1, seed)
    numbers = (len(first), 0, len(second), len(first))
    return _file((1, 0), struct.pack("<4I", *numbers), first + second)


def _cp(seed: str, kind: int, start: int) -> bytes:
    """`gfx_firmware_header_v2_0`: code, and a stack that each pipe gets a copy of."""
    code, stack = signed(kind, 0x1800, 0x5CE, seed), signed(kind + 1, 0x400, 0x5CE, seed)
    data = stack.ljust(0x1000, b"\0")
    numbers = (0x1D, len(code), _PAYLOAD, len(data), _PAYLOAD + len(code), start, 0x70000)
    return _file((2, 0), struct.pack("<7I", *numbers), code + data)


def _rlc(seed: str) -> bytes:
    """`rlc_firmware_header_v2_3`."""
    kinds = (0x2009, 0x200B, 0x200C, 0x2016, 0x2017, 0x200F, 0x200A)
    payload, places = bytearray(), []
    for kind in kinds:
        data = signed(kind, 0x600, 0x6E, seed)
        places.append((len(data), _PAYLOAD + len(payload)))
        payload += data
    ucode, gpm, srm, iram, dram, rlcp, rlcv = places
    v2_0 = (1, *(0,) * 17)
    v2_1 = (0, 0, 0, 0, 0, 0, 0, *gpm, 0, 0, *srm)
    v2_2, v2_3 = (*iram, *dram), (0x19, 1, *rlcp, 0x22, 1, *rlcv)
    fields = (*v2_0, *v2_1, *v2_2, *v2_3)
    return _file((2, 3), struct.pack(f"<{len(fields)}I", *fields), bytes(payload), ucode[0])
