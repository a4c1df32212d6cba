"""`gpu decode`: what the bytes of a command queue, or of a kernel's descriptor, mean."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Final

from gpu.core.errors import InvalidValue, TransportError
from gpu.core.files import read_bytes

_NVIDIAS: Final = ("nv", "nv-cot", "nv-element", "nv-vbios", "nv-wpr")
KINDS: Final = ("a6xx", "aql", "descriptor", *_NVIDIAS, "pm4", "sdma")
_HEX: Final = re.compile(rb"[0-9a-fA-FxX\s,_:]*")
_WIDTHS: Final = (2, 4, 8, 16)  # digits of a number: 1, 2, 4, 8 bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("file", help="a file, or - for what comes in")
    parser.add_argument(
        "--kind",
        choices=KINDS,
        help="what it is; a trace and a linked code object tell by themselves",
    )
    parser.add_argument("--chip", default="gfx1100", help="AMD: the chip (gfx1100)")
    parser.add_argument("--compute", type=_class, help="NVIDIA: class bound for compute")
    parser.add_argument("--copy", type=_class, help="NVIDIA: class bound for copies")
    parser.epilog = (
        "Text is hexadecimal numbers as memory dumps have them: two digits are a byte, four, eight"
        " or sixteen a little-endian number, more than that bytes in order."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each word or field."""
    from gpu.cli.decoders import decode  # whose tables take a while to import

    for line in decode(_from_text(_read(arguments.file)), arguments):
        print(line)
    return 0


def _class(text: str) -> int:
    return int(text, 0)


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return read_bytes(name)
    except OSError as error:
        raise TransportError(f"reading {name}: {error.strerror}", error.errno) from error


def _from_text(data: bytes) -> bytes:
    """Bytes of what is perhaps hexadecimal text. Raises InvalidValue for text that is not whole."""
    if not data.strip() or not _HEX.fullmatch(data):
        return data
    out = bytearray()
    for token in re.split(rb"[\s,_:]+", data.strip()):
        digits = token[2:] if token[:2].lower() == b"0x" else token
        if b"x" in digits.lower() or len(digits) % 2:
            raise InvalidValue(f"{token.decode()!r} in hexadecimal text: digits come in pairs")
        number = bytes.fromhex(digits.decode())
        out += number[::-1] if len(digits) in _WIDTHS else number
    return bytes(out)
