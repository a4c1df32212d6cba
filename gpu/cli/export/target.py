"""What a page is compiled for: any browser with WebGPU, not the machine that exports it.

Kernels keep to the limits that every WebGPU device has, so that one folder runs everywhere, and
neither Dawn nor a GPU is needed to make it. The two devices here compile; they have no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from gpu.compiler.render.wgsl.renderer import WGSLLimits, WGSLRenderer
from gpu.compiler.toolchain.base import Compiler
from gpu.core.devspec import DeviceSpec
from gpu.core.errors import Unsupported
from gpu.runtime.allocator import Allocator
from gpu.runtime.device import BACKENDS, Compiled, register

F16: Final = "shader-f16"
"""The feature of WebGPU by which kernels compute on float16 natively."""

# The device's name, and the features that a browser must have for what it compiles.
_FEATURES: Final = {"WEBPAGE": (), "WEBPAGE_F16": (F16,)}


def page_device(has_f16: bool) -> str:
    """The name of the device to compile a page for; the runtime knows it from then on."""
    for name in _FEATURES:
        if name not in BACKENDS:
            register(name, _open_device)
    return "WEBPAGE_F16" if has_f16 else "WEBPAGE"


def features_of(device: str) -> tuple[str, ...]:
    """WebGPU's features that kernels for this device need."""
    return _FEATURES[device]


def _only_in_a_browser() -> NoReturn:
    raise Unsupported("what is compiled for a page runs in a browser only; compute on 'CPU'")


class _NoMemory(Allocator[NoReturn]):
    """Every use is Unsupported."""

    def _alloc(self, nbytes: int) -> NoReturn:
        _only_in_a_browser()

    def _free(self, memory: NoReturn, nbytes: int) -> None:
        _only_in_a_browser()

    def copy_in(self, memory: NoReturn, data: memoryview) -> None:
        """Raises Unsupported."""
        _only_in_a_browser()

    def copy_out(self, data: memoryview, memory: NoReturn) -> None:
        """Raises Unsupported."""
        _only_in_a_browser()


class _Source(Compiler):
    """Keeps the source: browsers compile it."""

    def compile(self, source: str) -> bytes:
        """The source as bytes."""
        return source.encode()

    def disassemble(self, lib: bytes) -> str:
        """The source."""
        return lib.decode()


def _load(name: str, lib: bytes, data: Mapping[str, int]) -> NoReturn:
    del name, lib, data
    _only_in_a_browser()


def _open_device(name: str, spec: DeviceSpec) -> Compiled:
    del spec
    features = features_of(name)
    renderer = WGSLRenderer(WGSLLimits(), F16 in features, ",".join(features))
    memory: Allocator[Any] = _NoMemory()
    return Compiled(name, memory, renderer, _Source(f"page|{name}", "page"), _load)
