"""What machine this is, for AMD's driver, and what of it a program could use. Opens no device."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from gpu import __version__
from gpu.backends.amd import find as amd
from gpu.cli.doctor import Finding, examine
from gpu.compiler.toolchain.llvm import llvmlite_version
from gpu.core.errors import TransportError, Unsupported
from gpu.core.files import read_bytes
from gpu.runtime.default import Found
from gpu.transport.files import Files, RealFiles
from gpu.transport.machine import container
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.environment import describe_machine, installed, nodes, parameters, read
from tools.hw_acceptance.scrub import ROOT
from tools.hw_acceptance.steplog import StepFailed

_PACKAGES: Final = ("numpy", "cffi", "llvmlite", "ml_dtypes", "torch", "pytest", "pytest-xdist")
_FILES: Final = (
    *("/sys/module/amdgpu/version", "/sys/module/amdgpu/srcversion"),
    *("/sys/kernel/security/lockdown", "/sys/kernel/mm/transparent_hugepage/enabled"),
)
# Of a GPU's PCI device: what it is, how it is connected, how its memory is seen.
_CARD: Final = (
    *("vendor", "device", "revision", "subsystem_vendor", "subsystem_device", "vbios_version"),
    *("current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "resource"),
    *("mem_info_vram_total", "mem_info_vis_vram_total", "mem_info_vram_used", "mem_info_gtt_total"),
    *("power_dpm_force_performance_level", "boot_vga", "numa_node"),
)


def describe(context: Context) -> None:
    """Tells all of it; what cannot be read is told as that."""
    log = context.log
    describe_machine(log, _PACKAGES)
    log.fact("driver", f"amdgpu of Linux {platform.release()}")
    log.fact("nodes", nodes(Path("/dev"), ("kfd", "dri/render*")))
    log.fact("files", {name: read(name) for name in _FILES})
    log.fact("module parameters", parameters(Path("/sys/module"), ("amdgpu", "iommu")))
    log.fact("gpus", dict(_cards(Path("/sys/class/drm"))))


def doctor(context: Context) -> None:
    """What `gpu doctor` says of AMD's GPUs here, and of compilers; opens nothing.

    Raises StepFailed, with what to do, where none can be used.
    """
    system = _Looked(context) if context.simulation is not None else RealFiles()
    context.log.fact("container", container(system))
    looks = list(amd.looks(system))
    context.log.fact("looks", [str(look) for look in looks])
    try:
        context.log.fact("llvmlite", llvmlite_version())
    except Unsupported as missing:
        context.log.fact("llvmlite", missing.message)
    report = examine(system, lambda name: Finding("found", f"{name} was not opened"))
    context.log.dump("doctor.json", json.dumps(asdict(report), indent=1))
    if not any(look.found is Found.USABLE for look in looks):
        raise StepFailed("; ".join(str(look) for look in looks))


def describe_tree() -> dict[str, Any]:
    """What is run: versions, and a hash of the sources."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "gpu").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + read_bytes(path))
    found = {"gpu": __version__, "llvmlite": installed("llvmlite"), "sources": digest.hexdigest()}
    return {**found, "machine": platform.machine()}


class _Looked:
    """A model's files, all of which may be opened."""

    def __init__(self, context: Context):
        self._files: Files = context.world.os

    def read_file(self, path: str) -> bytes:
        """See `Files.read_file`."""
        return self._files.read_file(path)

    def list_dir(self, path: str) -> list[str]:
        """See `Files.list_dir`; a model has no folders but those of its driver."""
        try:
            return self._files.list_dir(path)
        except TransportError:
            return []

    def exists(self, path: str) -> bool:
        """See `Files.exists`."""
        return self._files.exists(path)

    def why_denied(self, path: str) -> str:
        """See `Looking.why_denied`."""
        return ""


def _cards(root: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Of AMD's GPUs: files of the PCI device, and versions of firmware. No serial numbers."""
    for folder in sorted(root.glob("renderD*/device")):
        if read(str(folder / "vendor")).strip() != "0x1002":
            continue
        files = {name: folder / name for name in _CARD}
        files |= {path.name: path for path in sorted(folder.glob("fw_version/*"))}
        yield folder.parent.name, {name: read(str(path)).strip() for name, path in files.items()}
