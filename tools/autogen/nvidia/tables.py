"""What our tables for NVIDIA say, found by looking through all their modules."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import gpu.autogen.nv
import gpu.drivers.nv
import gpu.sim.nv
from gpu.autogen.nv import gsp, status, ucode
from gpu.drivers.nv.encode.methods.method import MethodSet
from gpu.drivers.nv.nvk.branch import BRANCHES
from gpu.sim.nv.rm.branches import find_branch
from gpu.sim.nv.rm.layout import Layout

Places = dict[str, tuple[int, int]]
"""Offset and size in bytes of members, those of inner structures as ``outer.inner``."""

_NAMES: Final = (
    *("NV", "UVM_", "FERMI_", "KEPLER_", "GT200_"),
    *("TURING_", "AMPERE_", "ADA_", "HOPPER_", "BLACKWELL_"),
)
_OLDER: Final = ("_535", "535")  # ends the name of a structure as older branches have it


_NOT_RMS: Final = (gsp.__name__, ucode.__name__)
"""Modules whose structures no package has: of firmware 570.144, and as files have them."""

_CALLED: Final = {"NV_CHANNELGPFIFO_ALLOCATION_PARAMETERS": "NV_CHANNEL_ALLOC_PARAMS"}
"""Structures that C has a second name for."""


@dataclasses.dataclass(frozen=True)
class Struct:
    """A structure of ours: under the name that C has for it, as one branch of the driver takes it.

    `grows` is whether it may be longer than that branch's: RM_ALLOC reads as much as it knows.
    """

    where: str
    name: str
    size: int
    places: Places
    grows: bool = False


def numbers() -> dict[str, int]:
    """Numbers that have a name of C's: those of autogen/nv, and what the driver adds."""
    found = {name: number for number, name in status.NAMES.items()}
    for module in _modules(gpu.autogen.nv, gpu.drivers.nv):
        for name, value in vars(module).items():
            if type(value) is int and name.startswith(_NAMES):
                found[name] = value
    return found


def structs(branch: int) -> Iterator[Struct]:
    """The driver's structures, and the model's, as they are on a branch."""
    row = BRANCHES[branch]
    used = [getattr(row, one.name) for one in dataclasses.fields(row)]
    for module in _modules(gpu.autogen.nv, gpu.drivers.nv):
        if module.__name__ in _NOT_RMS:
            continue
        for name, kind in vars(module).items():
            if not isinstance(kind, type) or not issubclass(kind, ctypes.Structure):
                continue
            newer = name.removesuffix(_OLDER[0]).removesuffix(_OLDER[1])
            several = newer != name or any(newer + end in vars(module) for end in _OLDER)
            if kind.__module__ != module.__name__ or (several and kind not in used):
                continue
            places = dict(_places(kind, 0, ""))
            grows = module is gpu.autogen.nv.alloc
            where = module.__name__
            yield Struct(where, _c_name(vars(module)[newer]), ctypes.sizeof(kind), places, grows)
    rules = find_branch(branch)
    for module in _modules(gpu.sim.nv):
        for one in vars(module).values():
            if isinstance(one, Layout):
                there = rules.layout(one)
                name = _CALLED.get(one.name, one.name)
                yield Struct(module.__name__, name, there.size, dict(there.fields))


def method_sets() -> dict[int, MethodSet]:
    """The driver's methods by number of the class; 0 is the host's, which all channels have."""
    from gpu.drivers.nv.encode.methods.compute import COMPUTE_CLASSES
    from gpu.drivers.nv.encode.methods.copy import COPY_CLASSES
    from gpu.drivers.nv.encode.methods.host import HOST

    return {0: HOST, **COMPUTE_CLASSES, **COPY_CLASSES}


def _modules(*packages: ModuleType) -> list[ModuleType]:
    found = []
    for package in packages:
        for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            found.append(importlib.import_module(one.name))
    return found


def _c_name(kind: type[ctypes.Structure]) -> str:
    """A structure's name in C: its own, or else what its docstring begins with."""
    if kind.__name__.startswith((*_NAMES, "nv_", "Nv", "Uvm")):
        return kind.__name__
    return (kind.__doc__ or "").partition(" ")[0].strip(",:.")


def _places(kind: type[ctypes.Structure], at: int, path: str) -> Iterator[tuple[str, Any]]:
    for name, member, *_ in kind._fields_:
        place = getattr(kind, name)
        yield path + name, (at + place.offset, place.size)
        if issubclass(member, ctypes.Structure):
            yield from _places(member, at + place.offset, f"{path}{name}.")
