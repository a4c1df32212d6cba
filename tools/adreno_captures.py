"""Real command streams of Adreno 6xx GPUs, decoded and compared with Mesa's own decoder.

`python -m tools.adreno_captures [--debs FOLDER]` takes the captures and the logs that Mesa's tests
have of them out of its source package. Every packet must have a header with the right parity, and
every register that a log names must have that name here. They witness packets and the names of
registers: none of these captures launches a compute shader. The exit status is 1 where something
differs.
"""

from __future__ import annotations

import argparse
import gzip
import re
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gpu.drivers.kgsl.decode import register_name
from gpu.drivers.kgsl.pm4 import REGISTER_WRITE, Header
from tools.autogen.debian import Archive, extract
from tools.autogen.recipes import MESA

_FOLDER: Final = ".gitlab-ci"
CAPTURES: Final = {
    "fd-clouds": "a630",
    "shadow": "a630",
    "dEQP-VK.draw.indirect_draw.indexed.indirect_draw_count.triangle_list": "a640",
}
"""Captures of this generation, and the GPU that each was made on."""
_GPU_ADDRESS, _COMMANDS, _CONTENTS = 3, 6, 12  # kinds of sections (Mesa, `redump.h`)
_INDIRECT_BUFFER: Final = 0x3F
_SET_DRAW_STATE: Final = 0x43
_WRITTEN: Final = re.compile(r"write (\w+(?:\[0x[0-9a-f]+\])?(?:\.\w+)*) \(([0-9a-f]+)\)")


class Findings(NamedTuple):
    """What a capture holds.

    Attributes:
        packets: how many there are.
        unknown: words where a header should be, and is not.
        registers: offsets of those that are written.
    """

    packets: int
    unknown: int
    registers: frozenset[int]


def main() -> int:
    """Compares all captures; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--debs", type=Path, help="an existing folder for the source package")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        traces = {name: f"{_FOLDER}/traces/{name}.rd.gz" for name in CAPTURES}
        logs = {name: f"{_FOLDER}/reference/{name}.log" for name in CAPTURES}
        package = Archive(options.debs or folder).fetch(MESA)
        extract(package, MESA, [*traces.values(), *logs.values()], folder)
        for name, gpu in CAPTURES.items():
            found = read_capture(gzip.decompress((folder / traces[name]).read_bytes()))
            named = names_in(folder.joinpath(logs[name]).read_text())
            others = {at: text for at, text in named.items() if register_name(at) != text}
            wrong += found.unknown + len(others)
            print(
                f"{gpu} {name}: {found.packets:,} packets, {found.unknown} not known;"
                f" {len(found.registers)} registers, {len(named)} named by Mesa's log,"
                f" {len(others)} of them otherwise here {sorted(others.values())}"
            )
    return int(wrong > 0)


def names_in(log: str) -> dict[int, str]:
    """Registers that a log of Mesa's decoder names, by offset; one without a name is left out."""
    found = {}
    for name, offset in _WRITTEN.findall(log):
        if not name.startswith("0x"):
            found[int(offset, 16)] = re.sub(
                r"\[(0x[0-9a-f]+)\]", lambda m: f"[{int(m[1], 16)}]", name
            )
    return found


def read_capture(data: bytes) -> Findings:
    """Walks through all command streams of a capture, and through what they call."""
    memory: dict[int, bytes] = {}
    address = packets = unknown = 0
    registers: set[int] = set()
    for kind, content in _sections(data):
        if kind == _GPU_ADDRESS:
            address = _address(content)
        elif kind == _CONTENTS:
            memory[address] = content
        elif kind == _COMMANDS:
            (words,) = struct.unpack_from("<I", content, 4)
            for header, body in _packets(memory, _address(content), words):
                packets += 1
                if header is None:
                    unknown += 1
                elif header.type == REGISTER_WRITE:
                    registers.update(range(header.number, header.number + len(body)))
    return Findings(packets, unknown, frozenset(registers))


def _sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        at += 8
        if kind != 0xFFFFFFFF:  # which begins a section, with as much in the place of a size
            yield kind, data[at : at + size]
            at += size


def _address(content: bytes) -> int:
    """Low half, size, and high half, where there is one."""
    low, _, *high = struct.unpack_from(f"<{min(len(content) // 4, 3)}I", content)
    return low | (high[0] << 32 if high else 0)


def _packets(
    memory: Mapping[int, bytes], address: int, count: int
) -> Iterator[tuple[Header | None, tuple[int, ...]]]:
    """Packets of a stream and of those that it calls; None for a word that is no header."""
    words = _words(memory, address, count)
    at = 0
    while at < len(words):
        header = Header.parse(words[at])
        body = words[at + 1 : at + 1 + (header.words if header else 0)]
        yield header, body
        at += 1 + len(body)
        if header is None or header.type == REGISTER_WRITE:
            continue
        if header.number == _INDIRECT_BUFFER:
            yield from _packets(memory, body[0] | body[1] << 32, body[2])
        elif header.number == _SET_DRAW_STATE:
            for group in range(0, len(body), 3):
                size, low, high = body[group : group + 3]
                yield from _packets(memory, low | high << 32, size & 0xFFFF)


def _words(memory: Mapping[int, bytes], address: int, count: int) -> tuple[int, ...]:
    """Words at an address; none where the capture lacks them."""
    for start, content in memory.items():
        if start <= address and address + 4 * count <= start + len(content):
            return struct.unpack_from(f"<{count}I", content, address - start)
    return ()


if __name__ == "__main__":
    sys.exit(main())
