"""The WEBGPU device: any GPU that Dawn reaches, by way of WGSL.

`DEV=WEBGPU` opens the adapter that the setting WEBGPU_ADAPTER asks for. A device that is lost, as
after a crash of its driver, raises DeviceLost once; the next use opens it again, with empty memory.
"""

from __future__ import annotations

import threading
from typing import Final

from gpu.backends.webgpu.commands import Commands
from gpu.backends.webgpu.connection import Connection
from gpu.backends.webgpu.library import Library, find_library
from gpu.backends.webgpu.memory import WebGPUAllocator
from gpu.backends.webgpu.program import WebGPUProgram, shader_module
from gpu.compiler.render.wgsl.renderer import WGSLLimits, WGSLRenderer
from gpu.compiler.toolchain.base import Compiler
from gpu.core.config import config
from gpu.core.devspec import DeviceSpec
from gpu.core.errors import Unsupported
from gpu.core.log import get_logger
from gpu.runtime.device import Compiled, LaunchData

log = get_logger(__name__)


class Link:
    """The way to the device: a connection, and another one after that was lost."""

    def __init__(self, library: Library, preference: str):
        self._library, self._preference = library, preference
        self._commands = Commands(Connection(library, preference))
        self._told = False
        self._lock = threading.RLock()

    @property
    def commands(self) -> Commands:
        """Those of the device as it is now. Raises DeviceLost once after a loss, DeviceError."""
        commands = self._commands
        return self._after_a_loss() if commands.connection.lost else commands

    def _after_a_loss(self) -> Commands:
        """Tells of the loss, or opens the device again: once, however many threads need it."""
        with self._lock:
            lost = self._commands.connection.lost
            if lost and not self._told:
                self._told = True
                self._commands.connection.check("using the device")
            if lost:
                log.warning("WebGPU: opening the device again after it was lost: %s", lost)
                self._commands = Commands(Connection(self._library, self._preference))
                self._told = False
            return self._commands

    @property
    def connection(self) -> Connection:
        """That of the device as it is now."""
        return self.commands.connection


class WebGPUCompiler(Compiler):
    """Checks WGSL; the binary is the source, which only the driver compiles further."""

    def __init__(self, link: Link):
        # Sources depend on the adapter's limits, which the target does not tell.
        super().__init__(key=f"wgsl-1|{link.connection.name}", namespace="wgsl")
        self._link = link

    def compile(self, source: str) -> bytes:
        """The source as bytes. Raises CompileError with the line that Dawn refuses."""
        connection = self._link.connection
        module = shader_module(connection, source)
        connection.drop(connection.library.ShaderModuleRelease, module)
        return source.encode()

    def disassemble(self, lib: bytes) -> str:
        """The WGSL: what the driver makes of it, it does not tell."""
        return lib.decode()


class WebGPU(Compiled):
    """An open WEBGPU device.

    Attributes:
        link: to Dawn.
    """

    def __init__(self, name: str, link: Link):
        self.link = link
        super().__init__(
            name, WebGPUAllocator(self._commands), _renderer(link), WebGPUCompiler(link), self._load
        )

    def _commands(self) -> Commands:
        return self.link.commands

    def _load(self, name: str, lib: bytes, data: LaunchData) -> WebGPUProgram:
        return WebGPUProgram(name, lib, data, self._commands)

    def synchronize(self) -> None:
        """Waits until everything launched so far is done. Raises what went wrong meanwhile."""
        self._commands().synchronize()

    def describe(self) -> dict[str, str]:
        """What `gpu info` prints: the adapter stands for the target."""
        connection = self.link.connection
        return super().describe() | {"target": f"{connection.name}, {connection.kind}"}


# What adapters do not do as WebGPU says: part of the name -> rounds of loops after which an
# invocation stops. (LP_MAX_TGSI_LOOP_ITERATIONS in src/gallium/auxiliary/gallivm/lp_bld_limits.h
# of Mesa 22.3, less some for the loops with which Dawn fills workgroup memory with zeros.)
LOOP_ROUNDS: Final = {"llvmpipe": 65535 - 512}

# Adapters that load a vector of four words from a texture in 22 ns for 8 invocations, and each word
# from a buffer in 57 ns: lavapipe goes through the invocations of a load from a buffer in a loop
# that keeps the vector in memory. (emit_load_mem in src/gallium/auxiliary/gallivm/lp_bld_nir_soa.c
# of Mesa 22.3; measured.)
QUADS: Final = ("llvmpipe",)


# Of which adapters it is known that each subgroup of a workgroup along x has the next invocations.
# WGSL leaves open which ones it has (https://www.w3.org/TR/WGSL/ "subgroup_invocation_id").
SUBGROUPS_IN_ORDER: Final = ("llvmpipe",)


def _renderer(link: Link) -> WGSLRenderer:
    connection = link.connection
    limits = WGSLLimits(
        connection.limits.maxStorageBuffersPerShaderStage,
        connection.limits.maxComputeWorkgroupsPerDimension,
        connection.limits.maxComputeInvocationsPerWorkgroup,
        connection.limits.maxComputeWorkgroupStorageSize,
        next((rounds for name, rounds in LOOP_ROUNDS.items() if name in connection.name), 0),
        connection.is_cpu,
        any(name in connection.name for name in QUADS),
        connection.subgroup if any(name in connection.name for name in SUBGROUPS_IN_ORDER) else 0,
    )
    features = ",".join(sorted(connection.features))
    return WGSLRenderer(limits, "shader-f16" in connection.features, features)


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The WEBGPU device called `name`; those with other indices are more devices on one adapter.

    Raises Unsupported where Dawn's library is missing or `spec` asks for what there is not, and
    DeviceError where there is no adapter.
    """
    if spec.arch is not None:
        raise Unsupported(f"WEBGPU has no architectures to choose, got {spec.arch}; leave it out")
    return WebGPU(name, Link(Library(find_library()), config.WEBGPU_ADAPTER))
