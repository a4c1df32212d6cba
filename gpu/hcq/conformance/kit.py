"""What the checks share: the target, and small helpers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpu.core.errors import GpuError, InvalidIndex, Unsupported
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.commands import Copy
from gpu.hcq.device import HCQDevice
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram

Ints = npt.NDArray[np.int32]
WORDS = 64
"""Elements of most buffers here."""


class ConformanceError(GpuError, AssertionError):
    """A device does not behave as all devices do; says what was seen and what was expected."""


class Target(Protocol):
    """Opens devices of one kind, and loads the programs of the suite into them."""

    def open(self, *, near_wrap: bool = False, small: bool = False) -> HCQDevice:
        """A new device. With ``near_wrap`` its timelines begin ten values before they wrap.

        With ``small`` rings, staging and memory are as small as they can be.
        """

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        """One of the programs, for a grid and block of one, on 32-bit integers.

        ``add(out, a, b; u32 n)``: n sums. ``fill(out; i32 value, u32 n)``: n times a value.
        """

    def resources(self) -> tuple[int, ...]:
        """How much of the system this process holds, such as open files and mappings."""


Check = Callable[[Target], None]


def expect(condition: bool, message: str) -> None:
    """Raise `ConformanceError` unless a condition holds."""
    if not condition:
        raise ConformanceError(message)


def expect_equal(found: npt.NDArray[Any], wanted: npt.NDArray[Any], what: str) -> None:
    """Raise `ConformanceError` with the first difference of two arrays."""
    different = np.flatnonzero(found != wanted)
    if len(different):
        at = different[0]
        raise ConformanceError(
            f"{what}: {len(different)} of {len(wanted)} are wrong, the first at {at}:"
            f" {found[at]} instead of {wanted[at]}"
        )


def expect_raises(kind: type[Exception], what: str, action: Callable[[], object]) -> Exception:
    """The error that ``action`` raises; `ConformanceError` if it does not, or another one."""
    try:
        action()
    except kind as error:
        return error
    except GpuError as error:
        found = f"{type(error).__name__}: {error}"
        raise ConformanceError(f"{what}: {kind.__name__} expected, not {found}") from error
    raise ConformanceError(f"{what}: {kind.__name__} expected, nothing was raised")


def numbers(seed: int, count: int = WORDS) -> Ints:
    """Random 32-bit integers, small enough to be added up."""
    return np.random.default_rng(seed).integers(-1000, 1000, count).astype(np.int32)


def upload(device: HCQDevice, values: Ints, kind: MemoryKind = MemoryKind.VRAM) -> HCQBuffer:
    """A new buffer with some values."""
    buffer = device.allocator.alloc(values.nbytes, kind)
    device.allocator.copy_in(buffer, values.tobytes())
    return buffer


def download(device: HCQDevice, buffer: HCQBuffer) -> Ints:
    """The values in a buffer once all before is done."""
    return np.frombuffer(device.allocator.copy_out(buffer), np.int32)


def place(device: HCQDevice, kind: str, index: int = 0) -> tuple[str, int]:
    """A queue by kind and index, or the first compute queue where a device has no such."""
    has = index < device.port.queue_counts.get(kind, 0)
    return (kind, index) if has else ("compute", 0)


def copies(device: HCQDevice, kind: str, index: int) -> bool:
    """Whether there is such a queue and it copies words; one that computes need not."""
    try:
        device.channel(kind, index).port.encoder.encode([Copy(0, 1 << 16, 4)])
    except (InvalidIndex, Unsupported):
        return False
    return True


def queues_that_copy(device: HCQDevice, *others: tuple[str, int]) -> list[tuple[str, int]]:
    """The first copy queue, if there is one, and those of the others that copy too."""
    known = (*(other for other in others if copies(device, *other)), place(device, "copy"))
    return list(dict.fromkeys(known))


def system(device: HCQDevice, values: Ints) -> HCQBuffer:
    """A new buffer with some values in memory that the host reads without the device."""
    return upload(device, values, MemoryKind.SYSTEM)


def peek(buffer: HCQBuffer) -> Ints:
    """The values in system memory as they are now."""
    window = buffer.window
    assert window is not None
    return np.frombuffer(window.load(0, buffer.size), np.int32)
