"""What RM tells of the card: GET_GSP_STATIC_INFO.

`GspStaticConfigInfo` of gsp_static_config.h; offsets by a compiler on tag 570.144. What is not
filled in is 0. Handles, addresses of page directories and the identity are made up.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from gpu.sim.nv.pci.silicon import Silicon
from gpu.sim.nv.pci.wprmeta import Booted

STATIC_INFO_BYTES: Final = 1656
INTERNAL: Final = (0xC1E00004, 0xCAF00000, 0xCAF00001)
"""RM's own client, device and subdevice."""
_GID, _REGIONS, _LENGTH, _NAME, _SHORT, _WIDE = 24, 344, 1224, 1260, 1324, 1388
_PDBS, _HANDLES, _LAYOUT = 1536, 1600, 1640
_BINARY_GID: Final = 2
_REGION: Final = struct.Struct("<QQQI4B16x")
_NAME_BYTES: Final = 64


def make_static_info(chip: Silicon, booted: Booted) -> bytes:
    """All of it, for a card that RM runs on."""
    info, size, name = bytearray(STATIC_INFO_BYTES), chip.vram.size, chip.board.chip.board
    reserved = booted.non_wpr_heap.start
    identity = hashlib.sha256(f"{name} of a model".encode()).digest()[:16]
    struct.pack_into("<III16s", info, _GID, 0, _BINARY_GID, 16, identity)
    struct.pack_into("<Q", info, _REGIONS, 2)
    _REGION.pack_into(info, _REGIONS + 8, 0, reserved - 1, 0, 10, 1, 1, 0, 0)
    own = (reserved, size - 1, size - reserved, 0, 0, 0, 1, 0)
    _REGION.pack_into(info, _REGIONS + 8 + _REGION.size, *own)
    struct.pack_into("<Q", info, _LENGTH, size)
    text = name.encode()[: _NAME_BYTES - 1]
    info[_NAME : _NAME + len(text)] = info[_SHORT : _SHORT + len(text)] = text
    info[_WIDE : _WIDE + 2 * len(text)] = name[: len(text)].encode("utf-16-le")
    struct.pack_into("<QQ", info, _PDBS, reserved, reserved + 0x1000)
    struct.pack_into("<III", info, _HANDLES, *INTERNAL)
    struct.pack_into("<QQ", info, _LAYOUT, reserved, booted.frts.start)
    return bytes(info)
