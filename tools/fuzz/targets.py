"""What is fuzzed: a name, what reads an input, and whether inputs are texts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from gpu.compiler.toolchain.amdgcn_link import link
from gpu.core.elf import parse_executable, parse_object, parse_shared
from gpu.core.errors import GpuError, TransportError
from gpu.drivers.am.code.object import read_code_object
from gpu.drivers.am.decode.aql import decode_aql
from gpu.drivers.am.decode.descriptor import decode_code_object
from gpu.drivers.am.decode.pm4 import decode_pm4
from gpu.drivers.am.decode.sdma import decode_sdma
from gpu.drivers.am.kfd.cwsr import context_save
from gpu.drivers.am.kfd.topology import read_gpus, target_of
from gpu.drivers.am.target import Version, generation_of
from tools.fuzz import nvidia

_CHIPS: Final[tuple[Version, ...]] = ((9, 4, 2), (10, 3, 0), (11, 0, 0), (12, 0, 1))
_ENGINES: Final[tuple[Version, ...]] = ((4, 4, 2), (5, 2, 0), (6, 0, 0), (7, 0, 1))


@dataclass(frozen=True)
class Target:
    """Readers of the same bytes from outside. What each refuses it refuses by a `GpuError`."""

    name: str
    readers: tuple[Callable[[bytes], object], ...]
    text: bool = False
    prepare: Callable[[], object] = lambda: None
    """What takes time or memory once."""


def _code_object(data: bytes) -> None:
    for kernel in read_code_object(data).kernels.values():
        repr(kernel)


def _pm4(data: bytes) -> None:
    list(map(str, decode_pm4(data, generation_of(_one_of(_CHIPS, data)))))


def _aql(data: bytes) -> None:
    list(map(str, decode_aql(data, generation_of(_one_of(_CHIPS, data)))))


def _sdma(data: bytes) -> None:
    list(map(str, decode_sdma(data, _one_of(_ENGINES, data))))


def _one_of(versions: tuple[Version, ...], data: bytes) -> Version:
    """One for each input, always the same, as all would take so many times as long."""
    return versions[zlib.crc32(data) % len(versions)]


class _Files:
    """A machine's files, one of which is another."""

    def __init__(self, files: Mapping[str, bytes], path: str, data: bytes):
        self._files, self._path, self._data = files, path, data

    def read_file(self, path: str) -> bytes:
        """See `gpu.transport.files.Files`."""
        if path == self._path:
            return self._data
        if path not in self._files:
            raise TransportError(f"reading {path}: it is not there", 2)
        return self._files[path]

    def list_dir(self, path: str) -> list[str]:
        """See `gpu.transport.files.Files`."""
        start = path.rstrip("/") + "/"
        return sorted({p[len(start) :].split("/")[0] for p in self._files if p.startswith(start)})

    def exists(self, path: str) -> bool:
        """See `gpu.transport.files.Files`."""
        return path in self._files or bool(self.list_dir(path))


@cache
def sysfs_files() -> Mapping[str, bytes]:
    """The files of a model with a discrete and an integrated GPU, as KFD and amdgpu have them."""
    from gpu.sim.amd.kfd.world import KfdWorld

    world = KfdWorld(chip=("gfx1100", "gfx1103"))
    found: dict[str, bytes] = {}
    waiting = ["/sys/devices/virtual/kfd", "/sys/class/drm"]
    while waiting:
        folder = waiting.pop()
        for name in world.os.list_dir(folder):
            path = f"{folder}/{name}"
            try:
                found[path] = world.os.read_file(path)
            except GpuError:  # a folder
                waiting.append(path)
    world.close()
    return found


def _sysfs(data: bytes) -> None:
    """The first line names a file, the rest is what it holds."""
    path, _, content = data.partition(b"\n")
    system = _Files(sysfs_files(), path.decode("latin-1"), content)
    for gpu in read_gpus(system):
        str(gpu)
        target_of(system, gpu)
        context_save(gpu)


TARGETS: Final = {
    target.name: target
    for target in (
        Target("elf", (parse_object, parse_executable, parse_shared, link)),
        Target("code-object", (_code_object, decode_code_object)),
        Target("pm4", (_pm4,)),
        Target("aql", (_aql,)),
        Target("sdma", (_sdma,)),
        Target("sysfs", (_sysfs,), text=True, prepare=sysfs_files),
        Target("nv-vbios", (nvidia.read_rom,)),
        Target("nv-firmware", (nvidia.read_bootloader, nvidia.read_falcon)),
        Target("nv-elf", (nvidia.read_gsp, nvidia.read_fmc)),
        Target("nv-queue", (nvidia.read_queue, nvidia.read_summed_queue)),
        Target("nv-event", (nvidia.read_program, nvidia.read_error)),
    )
}
"""By name, as the command takes it."""
