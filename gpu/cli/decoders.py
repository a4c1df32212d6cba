"""The decoders of `gpu decode`, by the kind of what they read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpu.cli.decode import KINDS
from gpu.core.errors import InvalidValue
from gpu.core.trace import is_trace, parse_trace
from gpu.drivers.am.decode.aql import decode_aql
from gpu.drivers.am.decode.descriptor import decode_code_object, decode_descriptor
from gpu.drivers.am.decode.pm4 import decode_pm4
from gpu.drivers.am.decode.sdma import decode_sdma
from gpu.drivers.am.target import Version, generation_of, parse_gfx_name
from gpu.drivers.kgsl.decode import decode_a6xx
from gpu.drivers.nv.fault.pushbuf_text import bound_classes, decode_pushbuffer
from gpu.drivers.nv.pci.decode import decode_cot, decode_elements, decode_meta, decode_vbios
from gpu.transport.tracetext import format_event

# Copy engine of a chip, by the major version of its graphics core: chips pair them so.
_SDMA: Final[dict[int, Version]] = {9: (4, 4, 2), 10: (5, 2, 0), 11: (6, 0, 0), 12: (7, 0, 0)}
_ELF: Final = b"\x7fELF"


def decode(data: bytes, arguments: argparse.Namespace) -> Iterable[object]:
    """What the command prints. Raises InvalidValue where it has to be told what the bytes are."""
    kind = arguments.kind
    if is_trace(data):
        events = enumerate(parse_trace(arguments.file, data))
        return [f"{number:5}  {format_event(event)}" for number, event in events]
    if data.startswith(_ELF) and kind in (None, "descriptor"):
        return decode_code_object(data)
    if kind is None:
        raise InvalidValue(
            f"{arguments.file} is no trace and no code object: give --kind, one of"
            f" {', '.join(KINDS)}"
        )
    return _DECODERS[kind](data, arguments)


def _chip(arguments: argparse.Namespace) -> Version:
    version = parse_gfx_name(arguments.chip)
    generation_of(version)
    return version


def _pm4(data: bytes, arguments: argparse.Namespace) -> Sequence[object]:
    return decode_pm4(data, generation_of(_chip(arguments)))


def _sdma(data: bytes, arguments: argparse.Namespace) -> Sequence[object]:
    return decode_sdma(data, _SDMA[_chip(arguments)[0]])


def _aql(data: bytes, arguments: argparse.Namespace) -> Sequence[object]:
    return decode_aql(data, generation_of(_chip(arguments)))


def _descriptor(data: bytes, arguments: argparse.Namespace) -> Sequence[object]:
    return decode_descriptor(data, _chip(arguments))


def _nv(data: bytes, arguments: argparse.Namespace) -> Sequence[object]:
    return decode_pushbuffer(data, bound_classes(arguments.compute, arguments.copy))


def _a6xx(data: bytes, _: argparse.Namespace) -> Sequence[object]:
    return decode_a6xx(data)


_DECODERS: Final[dict[str, Callable[[bytes, argparse.Namespace], Sequence[object]]]] = {
    "a6xx": _a6xx,
    "aql": _aql,
    "descriptor": _descriptor,
    "nv": _nv,
    "nv-cot": lambda data, _: decode_cot(data),
    "nv-element": lambda data, _: decode_elements(data),
    "nv-vbios": lambda data, _: decode_vbios(data),
    "nv-wpr": lambda data, _: decode_meta(data),
    "pm4": _pm4,
    "sdma": _sdma,
}
