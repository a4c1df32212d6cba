"""How busy GPUs are and who uses them, as far as kernels tell without a device being opened.

AMD: attributes of amdgpu's PCI devices (amdgpu_pm.c, amdgpu_vram_mgr.c, Documentation/gpu/amdgpu),
its sensors (hwmon), and what each open file of it says of itself (Documentation/gpu/drm-usage-stats
of Linux 6.12). NVIDIA: the texts of its driver (nv-procfs.c of open-gpu-kernel-modules); that keeps
memory, clocks and temperatures for callers of its own interface.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gpu.transport import nvidia
from gpu.transport.files import Files
from gpu.transport.machine import AMD, NVIDIA, PciGpu, names_in, number_in, pci_gpus, text_in

_DEVICES: Final = "/sys/bus/pci/devices"
_PROC: Final = "/proc"
_NVIDIA_GPUS: Final = "/proc/driver/nvidia/gpus"
_CURRENT: Final = re.compile(r"(\d+)\s*mhz\s*\*", re.IGNORECASE)
_VERSION: Final = re.compile(r"\s(\d{3}\.\d+(?:\.\d+)?)\s")
_KIB: Final = re.compile(r"(\d+)\s*(KiB|MiB|)")
_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}


@dataclass(frozen=True, slots=True)
class User:
    """A process with a GPU open: bytes of the GPU's memory, None where the kernel does not tell."""

    pid: int
    name: str
    memory: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """What the kernel tells of a GPU; None stands for what it does not.

    Attributes:
        address: on the PCI bus.
        vendor: AMD or NVIDIA.
        name: of the product, else its PCI numbers.
        driver: the kernel driver that has it, with its version where that is told.
        memory, memory_used: bytes of its own memory.
        busy: percent of the time.
        shader_mhz, memory_mhz: clocks.
        celsius: the hottest sensor.
        watts: drawn now, or on average.
        users: processes that have it open, of those that this user may look into.
    """

    address: str
    vendor: str
    name: str
    driver: str
    memory: int | None = None
    memory_used: int | None = None
    busy: int | None = None
    shader_mhz: int | None = None
    memory_mhz: int | None = None
    celsius: float | None = None
    watts: float | None = None
    users: tuple[User, ...] = field(default=())


def usages(system: Files) -> list[Usage]:
    """All GPUs of AMD's and NVIDIA's on the bus, in the order of their addresses."""
    found = [_amd(system, gpu) for gpu in pci_gpus(system, AMD) or []]
    found += [_nvidia(system, gpu) for gpu in pci_gpus(system, NVIDIA) or []]
    return sorted(found, key=lambda one: one.address)


def users_of(system: Files, address: str) -> list[User]:
    """Processes that have a GPU open, of those that this user may look into."""
    told = dict(_pairs(text_in(system, f"{_NVIDIA_GPUS}/{address}/information") or ""))
    minor = told.get("Device Minor", "")
    found = list(_drm_users(system, address))
    if minor.isdigit():
        found += _mapping_users(system, nvidia.card(int(minor)))
    return found


def _amd(system: Files, gpu: PciGpu) -> Usage:
    folder = f"{_DEVICES}/{gpu.address}"
    return Usage(
        gpu.address,
        "AMD",
        text_in(system, f"{folder}/product_name") or str(gpu),
        gpu.driver,
        memory=number_in(system, f"{folder}/mem_info_vram_total"),
        memory_used=number_in(system, f"{folder}/mem_info_vram_used"),
        busy=number_in(system, f"{folder}/gpu_busy_percent"),
        shader_mhz=_current(system, f"{folder}/pp_dpm_sclk"),
        memory_mhz=_current(system, f"{folder}/pp_dpm_mclk"),
        celsius=_hottest(system, folder),
        watts=_watts(system, folder),
        users=tuple(_drm_users(system, gpu.address)),
    )


def _current(system: Files, path: str) -> int | None:
    """The clock that a list of them marks with a star, as in ``1: 1500Mhz *``."""
    marked = _CURRENT.search(text_in(system, path) or "")
    return int(marked[1]) if marked else None


def _sensors(system: Files, folder: str) -> Iterator[str]:
    for name in names_in(system, f"{folder}/hwmon") or []:
        yield f"{folder}/hwmon/{name}"


def _hottest(system: Files, folder: str) -> float | None:
    values = [
        number_in(system, f"{sensor}/{name}")
        for sensor in _sensors(system, folder)
        for name in names_in(system, sensor) or []
        if re.fullmatch(r"temp\d+_input", name)
    ]
    degrees = [value / 1000 for value in values if value is not None]
    return max(degrees, default=None)


def _watts(system: Files, folder: str) -> float | None:
    for sensor in _sensors(system, folder):
        for name in ("power1_average", "power1_input"):
            microwatts = number_in(system, f"{sensor}/{name}")
            if microwatts is not None:
                return microwatts / 1e6
    return None


def _drm_users(system: Files, address: str) -> Iterator[User]:
    """Processes with a file of a GPU's driver; files that share a client count once."""
    for pid in _processes(system):
        clients: dict[str, int | None] = {}
        folder = f"{_PROC}/{pid}/fdinfo"
        for fd in names_in(system, folder) or []:
            told = dict(_pairs(text_in(system, f"{folder}/{fd}") or ""))
            if told.get("drm-pdev") == address:
                memory = told.get("drm-memory-vram") or told.get("drm-total-vram")
                clients[told.get("drm-client-id", fd)] = _bytes(memory)
        if clients:
            known = [value for value in clients.values() if value is not None]
            yield User(pid, _name(system, pid), sum(known) if known else None)


def _nvidia(system: Files, gpu: PciGpu) -> Usage:
    told = dict(_pairs(text_in(system, f"{_NVIDIA_GPUS}/{gpu.address}/information") or ""))
    minor = told.get("Device Minor", "")
    version = _VERSION.search(text_in(system, nvidia.VERSION) or "")
    return Usage(
        gpu.address,
        "NVIDIA",
        told.get("Model") or str(gpu),
        f"{gpu.driver} {version[1]}" if version and gpu.driver == "nvidia" else gpu.driver,
        users=tuple(_mapping_users(system, nvidia.card(int(minor)))) if minor.isdigit() else (),
    )


def _mapping_users(system: Files, node: str) -> Iterator[User]:
    """Processes that have mapped a node, as all do that launch work."""
    for pid in _processes(system):
        maps = text_in(system, f"{_PROC}/{pid}/maps") or ""
        if any(line.endswith(f" {node}") for line in maps.splitlines()):
            yield User(pid, _name(system, pid), None)


def _processes(system: Files) -> list[int]:
    return sorted(int(name) for name in names_in(system, _PROC) or [] if name.isdigit())


def _name(system: Files, pid: int) -> str:
    return text_in(system, f"{_PROC}/{pid}/comm") or "?"


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            yield key.strip(), value.strip()


def _bytes(text: str | None) -> int | None:
    """A size such as ``12 KiB``."""
    number = _KIB.fullmatch(text or "")
    return int(number[1]) * _UNITS[number[2]] if number else None
