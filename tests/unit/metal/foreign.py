"""Another library of the process on Metal, such as torch on MPS: its arrays and its capsules."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu import Context, Device
from gpu.backends.metal.library import simulated_libraries
from libcuda.foreign import DELETER, Legacy, Managed, _new, tell
from sim.metal.raw_metal import SHARED, RawMetal
from simulated import SIMULATED, keeping_rules

METAL = 8


class Dtype:
    """A torch.dtype, as it is printed."""

    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


class Foreign:
    """An array in a buffer of the library's own, at an offset, as views are.

    Attributes:
        raw: how it uses Metal.
        buffer: the MTLBuffer.
        given_back: how many of its capsules were.
        asked: with what `__dlpack__` was called.
    """

    def __init__(
        self, raw: RawMetal, values: npt.NDArray[Any], offset: int = 0, options: int = SHARED
    ):
        self.raw, self.offset, self.device = raw, offset, (METAL, 0)
        self.shape, self.strides, self._kind = values.shape, None, values.dtype
        self.buffer = raw.buffer(offset + max(values.nbytes, 1), options)
        self.given_back = 0
        self.asked: list[dict[str, Any]] = []
        self._kept: list[Any] = []
        if options == SHARED:
            self.now()[:] = values.reshape(-1)

    @property
    def dtype(self) -> Dtype:
        return Dtype(self._kind.name)

    @property
    def contents(self) -> int:
        """Where the host finds its elements."""
        return int(self.raw.send(self.buffer, "contents")) + self.offset

    def data_ptr(self) -> int:
        """As torch has it on MPS: the buffer, and for views what is no object."""
        return self.buffer + self.offset

    def now(self) -> npt.NDArray[Any]:
        """What its memory holds, in place."""
        return self.raw.floats(self.buffer, np.uint8)[self.offset :].view(self._kind)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> object:
        self.asked.append(options)
        return self.capsule()

    def capsule(self, versioned: bool = True) -> object:
        """A capsule over it, of either kind."""
        managed: Any = Managed(1, 0) if versioned else Legacy()
        tell(managed.tensor, self, self.buffer, self._kind.name)
        managed.deleter = DELETER(self._give_back)
        self._kept.append((managed, managed.deleter))
        name = b"dltensor_versioned" if versioned else b"dltensor"
        return _new(ctypes.addressof(managed), name, None)

    def _give_back(self, _: int) -> None:
        self.given_back += 1

    def free(self) -> None:
        """Releases the buffer."""
        self.raw.release(self.buffer)


@contextmanager
def sharing(gpu: str = "METAL") -> Iterator[RawMetal]:
    """Another user of the model that the device METAL is on, who breaks no rule either."""
    with Context(DEV=gpu, SIM=SIMULATED["METAL"]), keeping_rules("METAL"):
        theirs = Device[gpu].context.device.id  # type: ignore[attr-defined]
        (library,) = (
            each
            for each in simulated_libraries()
            if theirs in (device.address for device in each.devices)
        )
        raw = RawMetal(library.address)
        with raw.pool():
            raw.device, raw.queue = theirs, raw.send(theirs, "newCommandQueue")
            yield raw
