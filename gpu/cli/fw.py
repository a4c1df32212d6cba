"""`gpu fw`: which firmware drivers may ask for, where it is, whether it is one that is known."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gpu.core import firmware
from gpu.core.errors import InvalidValue
from gpu.core.firmware import Wanted
from gpu.drivers.am.firmware import WANTED as AMD
from gpu.drivers.nv.firmware import WANTED as NVIDIA

WANTED: Final[tuple[Wanted, ...]] = (*AMD, *NVIDIA)
"""What all drivers may ask for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu fw`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="all that is known by hash, and where it is looked for")
    check = actions.add_parser("check", help="whether it is there; 1 is the exit code if not")
    check.add_argument("name", nargs="*", help="files, or how their names begin; else all")
    add = actions.add_parser("add", help="firmware of a Debian package, for this user")
    add.add_argument("package", type=Path, help="FILE.deb")
    trust = actions.add_parser("trust", help="take a file of this name though its hash is unknown")
    trust.add_argument("name", help="as in amdgpu/psp_13_0_0_sos.bin")


def run(arguments: argparse.Namespace) -> int:
    """Does what the action says. Raises FirmwareError, FormatError, Unsupported, InvalidValue."""
    if arguments.action == "list":
        for wanted in WANTED:
            print(f"{wanted.name}  {len(wanted.hashes)} known, in {wanted.package}")
        print("looked for in " + ", ".join(map(str, firmware.folders())))
    elif arguments.action == "check":
        return _check(_chosen(arguments.name))
    elif arguments.action == "add":
        for name in firmware.add(arguments.package):
            print(name)
    else:
        known = {wanted.name: wanted for wanted in WANTED}
        name = arguments.name
        found = firmware.trust(known.get(name, Wanted(name, (), "its package")))
        print(f"{found.path}: SHA-256 {found.sha256} is trusted from now on")
    return 0


def _chosen(names: list[str]) -> list[Wanted]:
    chosen = [w for w in WANTED if not names or any(w.name.startswith(name) for name in names)]
    for name in names:
        if not any(wanted.name.startswith(name) for wanted in chosen):
            raise InvalidValue(f"no firmware {name}: `gpu fw list` shows what is known")
    return chosen


def _check(chosen: list[Wanted]) -> int:
    missing = 0
    for wanted in chosen:
        found = list(firmware.look(wanted))
        usable = next((each for each in found if not each.why_not), None)
        missing += usable is None
        if usable is not None:
            print(f"{wanted.name}  found: {usable.path}")
        elif not found:
            print(f"{wanted.name}  missing: install {wanted.package}")
        for each in found if usable is None else ():
            print(f"{wanted.name}  not usable: {each.path}: {each.why_not}")
    return int(missing > 0)
