"""Driver branches: which struct each one takes where they differ.

A branch is the first part of a driver version, 580 of 580.142. Sizes were measured by compiling
the headers of each branch named here; what lies between was never looked at and is refused.
Structs of RM_ALLOC need no switch: they only grew at their end.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import control, uvm
from gpu.core.errors import DeviceError, Unsupported
from gpu.drivers.nv.nvk.peercalls import P2pCaps, P2pCaps535

Params = type[ctypes.Structure]


@dataclass(frozen=True, slots=True)
class Branch:
    """The structs of one driver branch, by the call that takes them."""

    number: int
    schedule: Params
    map_external: Params
    uvm_free: Params
    unregister_channel: Params
    p2p_caps: Params


def _branch(number: int) -> Branch:
    return Branch(
        number,
        schedule=(
            control.NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS
            if number >= 575
            else control.NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS_535
        ),
        map_external=(
            uvm.UVM_MAP_EXTERNAL_ALLOCATION_PARAMS
            if number >= 550
            else uvm.UVM_MAP_EXTERNAL_ALLOCATION_PARAMS_535
        ),
        uvm_free=uvm.UVM_FREE_PARAMS if number >= 590 else uvm.UVM_FREE_PARAMS_535,
        unregister_channel=(
            uvm.UVM_UNREGISTER_CHANNEL_PARAMS
            if number >= 590
            else uvm.UVM_UNREGISTER_CHANNEL_PARAMS_535
        ),
        p2p_caps=P2pCaps if number >= 550 else P2pCaps535,
    )


BRANCHES: Final[dict[int, Branch]] = {
    number: _branch(number) for number in (535, 545, 550, 555, 560, 565, 570, 575, 580, 590, 595)
}


def branch_of(version: str) -> Branch:
    """The branch of a version such as ``580.142``.

    Raises DeviceError for a text that is none, Unsupported for a branch that was never measured.
    """
    match = re.fullmatch(r"(\d{3})\.\d+(\.\d+)?", version)
    if match is None:
        raise DeviceError(f"{version!r} is no version of the nvidia driver, such as 580.142")
    number = int(match[1])
    if number not in BRANCHES:
        known = ", ".join(str(each) for each in BRANCHES)
        raise Unsupported(
            f"nvidia driver {version} is of branch {number}, whose structs are not known here"
            f" (known: {known}): install a driver of one of these, or compare its headers and add"
            f" a row to {__name__}"
        )
    return BRANCHES[number]


def version_in(text: str) -> str:
    """The version in the first line of the driver's version file.

    It reads ``NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build``.
    Raises DeviceError where there is none.
    """
    line = text.partition("\n")[0]
    match = re.search(r"\s(\d{3}\.\d+(?:\.\d+)?)\s", line + " ")
    if match is None:
        raise DeviceError(f"no version in the nvidia driver's version file: {line!r}")
    return match[1]
