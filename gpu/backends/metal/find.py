"""Looking for a GPU of Metal's. Asking for the default one is all there is: no file tells of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

from gpu.backends.metal.gpus import find_gpu, gpu_info
from gpu.backends.metal.library import NO_MACOS, open_objc
from gpu.core.errors import DeviceError, Unsupported
from gpu.runtime.default import Found, Look
from gpu.transport.files import Looking


def look() -> Look:
    """Whether this machine is a Mac with a GPU that there is code for."""
    if sys.platform != "darwin":
        return Look(Found.NOTHING, NO_MACOS)
    try:
        objc = open_objc("")
        info = gpu_info(objc, find_gpu(objc, 0))
    except Unsupported as error:
        return Look(Found.UNUSABLE, error.message)
    except DeviceError as error:
        return Look(Found.NOTHING, error.message)
    return Look(Found.USABLE, f"Metal finds {info.name}, of the family {info.family}")


def looks(system: Looking) -> Iterator[Look]:
    """What there is to say of the default GPU; files tell nothing of it."""
    del system
    yield look()


def models() -> Collection[str]:
    """The GPUs that `SIM` may name for it."""
    from gpu.sim.metal.chips import CHIPS

    return CHIPS
