"""Command packets: PM4 from nvd.h and soc15d.h, the copy engine's from ``*_sdma_pkt_open.h``."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from .recipe import AutogenError, Patterns
from .registers import Field
from .registers import field as field_of_mask

_DEFINE: Final = re.compile(
    r"^#[ \t]*define[ \t]+(\w+)(\(x\))?[ \t]+(.*?)[ \t]*(?:/\*.*)?$", re.MULTILINE
)
_OPCODE: Final = re.compile(r"0x[0-9A-F]{2}")
_FIELD: Final = re.compile(r"\(\(x\) << (\d+)\)")
_VALUE: Final = re.compile(r"\((0x\d+|\d+) << (\d+)\)|(0x[0-9a-f]+|\d+)")
_FIRST_PACKET: Final = "PACKET3_NOP"


@dataclass(frozen=True)
class Pm4Packet:
    """A packet's opcode; the lowest bit of each field; flags and other numbers that belong to it.

    The headers do not say how wide a field is, nor in which dword it lies where there are several.
    """

    opcode: int
    fields: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)


def parse_pm4(text: str) -> dict[str, Pm4Packet]:
    """Packets by name; whatever is defined after an opcode belongs to it.

    Names of fields and values lose the packet's name in front.
    """
    packets: dict[str, Pm4Packet] = {}
    for name, called, body in _DEFINE.findall(text[text.index(_FIRST_PACKET) - len("#define ") :]):
        opcode = _OPCODE.fullmatch(body)
        if opcode and name.startswith("PACKET3_"):
            packet = name.removeprefix("PACKET3_")
            packets[packet] = Pm4Packet(int(body, 16))
            continue
        short = name.removeprefix("PACKET3_").removeprefix(f"{packet}_")
        shift, value = _FIELD.fullmatch(body), _VALUE.fullmatch(body)
        if called and shift:
            packets[packet].fields[short] = int(shift[1])
        elif value and not called:
            number = int(value[3], 0) if value[3] else int(value[1], 0) << int(value[2])
            packets[packet].values[short] = number
        else:
            raise AutogenError(f"{name} is neither opcode, field nor value: {body}")
    return packets


def parse_enumeration(text: str, name: str) -> dict[str, int]:
    """The names and numbers of ``typedef enum NAME { A = 1, ... } NAME;``."""
    found = re.search(rf"typedef enum {name} \{{(.*?)\}} {name};", text, re.DOTALL)
    if not found:
        raise AutogenError(f"there is no enumeration {name}")
    return {key: int(value, 0) for key, value in re.findall(r"(\w+)\s*=\s*(\w+)", found[1])}


_HEADING: Final = re.compile(
    r"\*\* Definitions for SDMA_PKT_(?P<packet>\w+) packet"
    r"|/\*define for (?P<word>\w+) word\*/"
    r"|^#define (?P<define>\w+)_(?P<part>offset|mask|shift)[ ]+(?P<value>\w+)$",
    re.MULTILINE,
)
_SDMA_NUMBER: Final = re.compile(r"^#define (SDMA_(?:OP|SUBOP)_\w+)  (\d+)$", re.MULTILINE)
_GCR: Final = re.compile(
    r"^#define SDMA_GCR_(\w+?)(?:\(x\)\s+\(\(\(x\) & (0x\w+)\) << (\d+)\)|\s+\(1 << (\d+)\))$",
    re.MULTILINE,
)

SdmaField = tuple[int, int, int]  # dword in the packet, lowest bit, width


def parse_sdma(text: str, names: Patterns) -> dict[str, dict[str, SdmaField]]:
    """Packets that match: ``WORD.field`` -> (dword, lowest bit, width)."""
    parts: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    packet = word = ""
    for found in _HEADING.finditer(text):
        if found["packet"]:
            packet = found["packet"]
        elif found["word"]:
            word = found["word"]
        elif packet in names:
            prefix = f"SDMA_PKT_{packet}_{word}_"
            if found["define"].startswith(prefix):
                key = f"{word}.{found['define'].removeprefix(prefix)}"
                parts[packet][key][found["part"]] = int(found["value"], 0)
    return {
        name: {
            key: (one["offset"], *field_of_mask(key, one["shift"], one["mask"] << one["shift"]))
            for key, one in fields.items()
        }
        for name, fields in parts.items()
    }


def parse_sdma_numbers(text: str) -> dict[str, int]:
    """Opcodes and sub-opcodes: ``SDMA_OP_...`` and ``SDMA_SUBOP_...``."""
    return {name: int(value) for name, value in _SDMA_NUMBER.findall(text)}


def parse_sdma_gcr(text: str) -> dict[str, Field]:
    """Bits of the cache control in a GCR_REQ packet: (lowest bit, width)."""
    return {
        name: (int(shift), int(mask, 16).bit_length()) if mask else (int(bit), 1)
        for name, mask, shift, bit in _GCR.findall(text)
    }
