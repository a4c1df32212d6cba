"""Where the functions of Objective-C and Metal come from: macOS, or a model of it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

from gpu.backends.metal.objc import ObjC
from gpu.backends.metal.simulated import compile_msl
from gpu.core.config import config
from gpu.core.errors import DeviceError

if TYPE_CHECKING:
    from gpu.sim.metal.library import MetalLibrary

# Without CoreGraphics a program that has no window gets no default device ("Getting the Default
# GPU", Apple).
_LIBRARIES: Final = (
    "/usr/lib/libobjc.A.dylib",
    "/System/Library/Frameworks/Foundation.framework/Foundation",
    "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics",
    "/System/Library/Frameworks/Metal.framework/Metal",
)
_models: list[MetalLibrary] = []
NO_MACOS: Final = "Metal is a part of macOS, which this is not"


@cache
def open_objc(simulated: str) -> ObjC:
    """The runtime of this Mac, or of a model with the GPUs that `simulated` names.

    Raises DeviceError where there is none, ConfigError for a GPU that there is no model of.
    """
    if not simulated:
        return ObjC(_system())
    from gpu.sim.metal.library import MetalLibrary

    model = MetalLibrary(simulated, config.SIM_SEED, compile=compile_msl)
    _models.append(model)  # whoever holds an address may call it until the process ends
    return ObjC(model.address)


def simulated_libraries() -> tuple[MetalLibrary, ...]:
    """The models that this process has opened, oldest first."""
    return tuple(_models)


def _system() -> Callable[[str], int]:
    """Addresses of the system's functions by their names."""
    if sys.platform != "darwin":
        raise DeviceError(f"{NO_MACOS} ({sys.platform})")
    try:
        loaded = [ctypes.CDLL(path) for path in _LIBRARIES]
    except OSError as error:
        raise DeviceError(f"Metal cannot be loaded: {error}") from error

    def address(name: str) -> int:
        for library in loaded:
            function = getattr(library, name, None)
            if function is not None:
                return ctypes.cast(function, ctypes.c_void_p).value or 0
        raise DeviceError(f"this macOS has no {name}: it is too old, macOS 13 is the oldest tried")

    return address
