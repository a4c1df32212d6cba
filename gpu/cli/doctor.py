"""`gpu doctor`: what each device and interface has, or what is missing and how to get it.

Nothing is guessed twice: what a GPU's kernel driver lacks is said by `gpu.transport.missing`, as in
the drivers' own errors, and what a compiler or library lacks by the error of whoever needs it.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

from gpu import __version__
from gpu.backends.amd import find as amd
from gpu.backends.amd import find_pci, find_usb
from gpu.backends.cuda import find as cuda
from gpu.backends.metal import find as metal
from gpu.backends.nv import find as nv
from gpu.backends.nv import find_pci as nv_pci
from gpu.backends.qcom import find as qcom
from gpu.cli.info import hanging
from gpu.compiler.toolchain.clang import find_clang
from gpu.compiler.toolchain.comgr import find_comgr
from gpu.compiler.toolchain.llvm import llvmlite_version
from gpu.compiler.toolchain.mesalib import find_mesa
from gpu.compiler.toolchain.nvlibs import find_library
from gpu.core.config import config
from gpu.core.devspec import DEVICES, device_name
from gpu.core.errors import GpuError
from gpu.runtime.default import Found, Look, default_choice
from gpu.runtime.device import BACKENDS, Device
from gpu.transport.files import Looking, RealFiles
from gpu.transport.machine import container, iommu_groups
from gpu.transport.pci.claim import NO_IOMMU
from gpu.transport.pci.survey import survey

SCHEMA: Final = 1
"""Version of the JSON form: a key is never renamed or removed without a new number."""

_GPUS: Final[dict[str, tuple[str, Callable[[Looking], Iterator[Look]]]]] = {
    "AMD": ("KFD", amd.looks),
    "NV": ("NVK", nv.looks),
    "CUDA": ("", cuda.looks),
    "QCOM": ("KGSL", qcom.looks),
    "METAL": ("", metal.looks),
}
"""By device type: the interface that there is, empty where there is no other, and what looks at a
machine for it."""
_PROBED: Final[dict[str, tuple[Callable[[Looking], Iterator[Look]], Callable[[int], str]]]] = {
    "PCI+AMD": (find_pci.looks, find_pci.probe),
    "PCI+NV": (nv_pci.looks, nv_pci.probe),
    "USB+AMD": (find_usb.looks, find_usb.probe),
}
"""Devices that are not opened, as that takes long and changes them: what looks for them, and what
finds out about one by its place."""


@dataclass(frozen=True)
class Finding:
    """What was found out about something.

    Attributes:
        status: ``found``, ``missing``, or ``planned`` for what this version does not have yet.
        told: what it is, or what is wrong.
        fix: what to do; empty where `told` says it, or there is nothing to be done.
    """

    status: str
    told: str
    fix: str = ""


@dataclass(frozen=True)
class Interface:
    """A way to a device, as in ``KFD+AMD``; `name` is empty where a device has one only."""

    device: str
    name: str
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        return f"{self.name}+{self.device}" if self.name else self.device


@dataclass(frozen=True)
class Report:
    """All that `gpu doctor` tells."""

    schema: int
    version: str
    python: str
    system: str
    machine: tuple[Finding, ...]
    default: Finding
    interfaces: tuple[Interface, ...]
    compilers: dict[str, Finding]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu doctor`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs to read")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report. Raises ConfigError for a setting that is not understood."""
    report = examine(RealFiles(), opened)
    print(json.dumps(asdict(report), indent=2) if arguments.json else as_text(report))
    return 0


def examine(system: Looking, opens: Callable[[str], Finding]) -> Report:
    """Looks at a machine; `opens` tries a device of this one. Raises ConfigError."""
    return Report(
        schema=SCHEMA,
        version=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()} {platform.release()}",
        machine=tuple(_machine(system)),
        default=_default(),
        interfaces=tuple(_interfaces(system, opens)),
        compilers={name: _attempt(look) for name, look in _COMPILERS.items()},
    )


def opened(name: str) -> Finding:
    """Opens a device and tells what it computes with, or why it cannot be opened."""

    def describe() -> str:
        kind, _, index = name.partition(":")
        if kind in _PROBED:
            return _PROBED[kind][1](int(index or 0))
        about = Device[name].describe()
        return ", ".join(about[key] for key in ("renderer", "target") if about[key])

    return _attempt(describe)


def _attempt(look: Callable[[], str]) -> Finding:
    try:
        return Finding("found", look())
    except GpuError as error:
        return Finding("missing", " ".join(error.message.split()))


def _default() -> Finding:
    def choose() -> str:
        choice = default_choice()
        return f"{choice.device}, as {choice.reason}"

    return _attempt(choose)


def _machine(system: Looking) -> Iterator[Finding]:
    if config.SIM:
        yield Finding("found", f"SIM={config.SIM}: GPUs are simulated, and none of this machine's")
    kind = container(system)
    if kind:
        yield Finding("found", f"this is a container ({kind}): it sees the nodes it was given")
    groups = iommu_groups(system)
    if groups:
        yield Finding("found", f"the IOMMU is on, with {groups} groups of devices")
    elif groups == 0:
        yield Finding(
            "missing",
            "the IOMMU is off, which drivers over PCI need; kernel drivers do without",
            NO_IOMMU.fix,
        )
    for seen in survey(system):
        yield Finding("found", f"PCI {seen}", seen.fix)


def _interfaces(system: Looking, opens: Callable[[str], Finding]) -> Iterator[Interface]:
    for device, kind in DEVICES.items():
        if device not in BACKENDS:
            yield Interface(device, "", (Finding("planned", "not supported by this version"),))
        elif device not in _GPUS:
            yield Interface(device, "", (opens(device),))
        else:
            name, looks = _GPUS[device]
            yield Interface(device, name, tuple(_gpus(device, looks, system, opens)))
            for other in kind.interfaces:
                whole = f"{other}+{device}"
                if whole in _PROBED:
                    found = _gpus(whole, _PROBED[whole][0], system, opens)
                    yield Interface(device, other, tuple(found))


def _gpus(
    device: str,
    looks: Callable[[Looking], Iterator[Look]],
    system: Looking,
    opens: Callable[[str], Finding],
) -> Iterator[Finding]:
    """Each GPU that is there, which is opened unless something is missing; or why there is none."""
    if config.SIM:
        yield opens(device)
        return
    try:
        for look in looks(system):
            if look.found is not Found.USABLE:
                yield Finding("missing", look.told, look.fix)
                continue
            name = device_name(device, look.which)
            tried = opens(name)
            told = f"DEV={name}: {look.told}: {tried.told}"
            yield Finding(tried.status, told, tried.fix)
    except GpuError as error:  # what describes the GPUs cannot be read
        yield Finding("missing", " ".join(error.message.split()))


def _of_nvidia(name: str) -> str:
    library = find_library(name)
    return " ".join(str(one) for one in (library.path, library.version) if one)


_COMPILERS: Final[dict[str, Callable[[], str]]] = {
    "LLVM": lambda: f"llvmlite {llvmlite_version()}",
    "clang": lambda: str(find_clang()),
    "nvrtc": lambda: _of_nvidia("nvrtc"),
    "nvJitLink": lambda: _of_nvidia("nvJitLink"),
    "NAK": lambda: str(find_mesa().path),
    "comgr": find_comgr,
}
"""For CPU, AMD and CUDA:PTX; CPU:CLANG; NV and CUDA; NV:PTX; NV:NAK and QCOM; AMD:HIP."""


def as_text(report: Report) -> str:
    """The report for people."""
    lines = [f"gpu {report.version} on Python {report.python}, {report.system}", ""]
    lines += ["Devices", *_lines("default", report.default)]
    for interface in report.interfaces:
        for number, finding in enumerate(interface.findings):
            lines += _lines(str(interface) if not number else "", finding)
    lines += ["", "Compilers"]
    for name, finding in report.compilers.items():
        lines += _lines(name, finding)
    if report.machine:
        lines += ["", "Machine"]
        for finding in report.machine:
            lines += _lines("", finding)
    return "\n".join(lines)


def _lines(name: str, finding: Finding) -> list[str]:
    told = hanging(f"  {name:<21} {finding.status:<8} ", finding.told)
    fix = hanging(f"{'':32} -> ", finding.fix) if finding.fix else []
    return told + fix
