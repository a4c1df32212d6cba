"""`gpu smi`: GPUs, their memory, clocks and temperatures, and who uses them.

What the kernel does not tell is a dash; nothing is opened, so that looking disturbs nobody.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from gpu.cli.info import byte_size
from gpu.transport.files import Files, RealFiles
from gpu.transport.usage import Usage, usages

SCHEMA: Final = 1
"""Version of the JSON form: a key is never renamed or removed without a new number."""

_NONE: Final = "no GPU of AMD or NVIDIA is on the bus; `gpu doctor` tells what each device lacks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu smi`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs to read")


def run(arguments: argparse.Namespace) -> int:
    """Prints what there is."""
    print(as_json(RealFiles()) if arguments.json else as_text(RealFiles()))
    return 0


def as_json(system: Files) -> str:
    """The GPUs of a machine as JSON, its keys those of `Usage`; null is what is not known."""
    return json.dumps({"schema": SCHEMA, "gpus": [asdict(u) for u in usages(system)]}, indent=2)


def as_text(system: Files) -> str:
    """The GPUs of a machine for people."""
    found = usages(system)
    return "\n".join(line for usage in found for line in _lines(usage)) if found else _NONE


def _lines(usage: Usage) -> Iterator[str]:
    yield f"{usage.address}  {usage.name}  ({usage.vendor}, driver {usage.driver or 'none'})"
    memory = f"{_bytes(usage.memory_used)} of {_bytes(usage.memory)}"
    rows = {
        "memory": memory if usage.memory is not None else "-",
        "busy": _with(usage.busy, " %"),
        "clocks": f"{_with(usage.shader_mhz, ' MHz')}, memory {_with(usage.memory_mhz, ' MHz')}",
        "temperature": _with(usage.celsius, " °C"),
        "power": _with(usage.watts, " W"),
    }
    for name, text in rows.items():
        yield f"  {name:<12} {text}"
    for user in usage.users:
        yield f"  used by      {user.pid} {user.name}, {_bytes(user.memory)}"
    if not usage.users:
        yield "  used by      nobody that this user may look into"


def _with(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g}{unit}"


def _bytes(value: int | None) -> str:
    return "-" if value is None else byte_size(value)
