"""Packets of the copy engine (SDMA), by version.

Source: the kernel's sdma packet headers (autogen/amd/sdma_packets_v*.py): which bits of which word
a field is. Versions 6 and 7 share one; limits of a copy are those of sdma_v4_4_2.c, sdma_v5_0.c,
sdma_v5_2.c, sdma_v6_0.c and sdma_v7_0.c. Which versions there are: `amdgpu_discovery.c`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from gpu.autogen.amd import sdma_packets_v4, sdma_packets_v5, sdma_packets_v6
from gpu.core.errors import Unsupported
from gpu.core.register import register_from_table
from gpu.core.regs import Register
from gpu.drivers.am.target import Version, dotted

_FIELD_NAMES: Final = {"value": "value_"}  # registers have an attribute of that name
# Which packets an engine of a version takes, and beside which graphics cores there is one.
_MODULES: Final = {
    (4, 4): sdma_packets_v4,  # GFX90A, GFX940, GFX950
    (5, 0): sdma_packets_v5,  # GFX10.1
    (5, 2): sdma_packets_v5,  # GFX10.3
    (6, 0): sdma_packets_v6,  # GFX11.0
    (6, 1): sdma_packets_v6,  # GFX11.5
    (7, 0): sdma_packets_v6,  # GFX12.0
}
_Table = Mapping[str, Mapping[str, tuple[int, int, int]]]


class SdmaPacket(NamedTuple):
    """A kind of packet: operation, sub-operation, and its words, the header included.

    Of the last word there may be more where ``repeats`` says so.
    """

    name: str
    op: int
    sub_op: int
    words: tuple[type[Register], ...]
    repeats: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SdmaVersion:
    """What a version of the engine knows.

    Attributes:
        packets: by name; ``by_operation`` by operation and sub-operation.
        max_copy: bytes of one linear copy.
        max_fill: bytes of one constant fill.
        has_gcr: it can be told to write back and drop caches.
    """

    name: str
    packets: Mapping[str, SdmaPacket]
    by_operation: Mapping[tuple[int, int], SdmaPacket]
    max_copy: int
    max_fill: int
    has_gcr: bool


# Our name -> that of the operation, of the sub-operation, and whether its last word repeats. What
# is not here is not known to the decoder either.
_KINDS: Final[dict[str, tuple[str, str | None, bool]]] = {
    "NOP": ("NOP", None, True),
    "COPY_LINEAR": ("COPY", "COPY_LINEAR", False),
    "WRITE_UNTILED": ("WRITE", "WRITE_LINEAR", True),
    "INDIRECT": ("INDIRECT", None, False),
    "FENCE": ("FENCE", None, False),
    "TRAP": ("TRAP", None, False),
    "POLL_REGMEM": ("POLL_REGMEM", None, False),
    "ATOMIC": ("ATOMIC", None, False),
    "CONSTANT_FILL": ("CONST_FILL", None, False),
    "TIMESTAMP_SET": ("TIMESTAMP", "TIMESTAMP_SET", False),
    "TIMESTAMP_GET": ("TIMESTAMP", "TIMESTAMP_GET", False),
    "TIMESTAMP_GET_GLOBAL": ("TIMESTAMP", "TIMESTAMP_GET_GLOBAL", False),
    "SRBM_WRITE": ("SRBM_WRITE", None, False),
    "COND_EXE": ("COND_EXE", None, False),
    "GCR_REQ": ("GCR_REQ", None, False),
}


def _words(fields: Mapping[str, tuple[int, int, int]]) -> tuple[type[Register], ...]:
    """A class for each word. Fields are ``WORD.field``; a word is named by the first of them."""
    count = 1 + max(word for word, _, _ in fields.values())
    named: list[list[tuple[str, int, int]]] = [[] for _ in range(count)]
    names = [""] * count
    for name, (word, lowest, width) in fields.items():
        title, _, field = name.partition(".")
        names[word] = title
        named[word].append((_FIELD_NAMES.get(field, field), lowest, width))
    return tuple(register_from_table(name, bits) for name, bits in zip(names, named, strict=True))


def _kinds(table: _Table, constants: Mapping[str, int]) -> dict[str, SdmaPacket]:
    found = {}
    for name, (operation, sub_operation, repeats) in _KINDS.items():
        op = constants.get(f"SDMA_OP_{operation}")
        sub_op = 0 if sub_operation is None else constants.get(f"SDMA_SUBOP_{sub_operation}")
        if op is not None and sub_op is not None and name in table:
            found[name] = SdmaPacket(name, op, sub_op, _words(table[name]), repeats)
    return found


@cache
def sdma_version(version: Version) -> SdmaVersion:
    """What an engine knows. Raises Unsupported for one that is not in the table."""
    module = _MODULES.get(version[:2])
    if module is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in _MODULES)
        raise Unsupported(f"copy engine {dotted(version)}: known are {known}")
    constants = {name: n for name, n in vars(module).items() if isinstance(n, int)}
    packets = _kinds(module.PACKETS, constants)
    by_operation = {(packet.op, packet.sub_op): packet for packet in packets.values()}
    return SdmaVersion(
        name=f"SDMA {dotted(version)}",
        packets=packets,
        by_operation=by_operation,
        # Version 5.0 copies less than its field could say.
        max_copy=1 << 30 if version >= (5, 2, 0) else 1 << 22,
        max_fill=1 << 22,
        has_gcr="GCR_REQ" in packets,
    )
