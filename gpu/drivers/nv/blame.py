"""Whose fault it was, in words: kernels under way, and their arguments near the address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpu.core.bits import align_down
from gpu.drivers.nv.faults import FaultDetails
from gpu.drivers.nv.inflight import SentLaunch
from gpu.drivers.nv.launch import LoadedKernel
from gpu.drivers.nv.memory import Extent

_MOST_NAMED: Final = 3
_POINTER: Final = 8
_PAGE: Final = 4096  # the MMU tells addresses of faults without the bits within
_NEAR: Final = 1 << 16  # bytes behind a pointer that leads to no buffer


def blame(
    kernels: Iterable[LoadedKernel],
    launches: Sequence[SentLaunch],
    details: FaultDetails | None,
    extent: Extent | None,
) -> str:
    """What is known of the kernels of a fault; empty where that is nothing.

    ``launches`` are those under way, ``extent`` is the allocation next to the address.
    """
    known = list(kernels)
    told = list(_stops(known, details))
    address = details.address if details is not None else None
    named = [_launch(known, launch, address, extent) for launch in launches]
    suspects = [text for text, is_suspect in named if is_suspect] or [text for text, _ in named]
    if suspects:
        more = len(suspects) - _MOST_NAMED
        end = f" and {more} more" if more > 0 else ""
        told.append(f"under way, the oldest first: {', '.join(suspects[:_MOST_NAMED])}{end}")
    return "; ".join(told)


def _stops(kernels: Sequence[LoadedKernel], details: FaultDetails | None) -> Iterator[str]:
    """Where SMs stopped, each place once."""
    for pc in dict.fromkeys(error.pc for error in (details.sms if details is not None else ())):
        kernel = _kernel_at(kernels, pc)
        if kernel is not None:
            yield f"{pc:#x} is {pc - _start(kernel):#x} into {kernel.kernel.name}"


def _launch(
    kernels: Sequence[LoadedKernel],
    launch: SentLaunch,
    address: int | None,
    extent: Extent | None,
) -> tuple[str, bool]:
    """A launch in words, and whether an argument leads to the address."""
    kernel = _kernel_at(kernels, launch.program)
    if kernel is None:
        return f"a kernel at {launch.program:#x}", False
    name = kernel.kernel.name
    if address is None:
        return name, False
    leading = [
        (abs(address - align_down(pointer, _PAGE)), number, pointer)
        for number, pointer in _pointers(kernel, launch.bank0)
        if (extent is not None and pointer in extent)
        or 0 <= address - align_down(pointer, _PAGE) < _NEAR
    ]
    if not leading:
        return name, False
    _, number, pointer = min(leading)
    return f"{name} (argument {number} is {pointer:#x})", True


def _pointers(kernel: LoadedKernel, bank0: bytes) -> Iterator[tuple[int, int]]:
    """Arguments that may be addresses, with their numbers."""
    base = kernel.kernel.parameter_base
    for parameter in kernel.kernel.parameters:
        data = bank0[base + parameter.offset :][: parameter.size]
        if len(data) == _POINTER:
            yield parameter.ordinal, int.from_bytes(data, "little")


def _kernel_at(kernels: Iterable[LoadedKernel], pc: int) -> LoadedKernel | None:
    for kernel in kernels:
        if _start(kernel) <= pc < _start(kernel) + kernel.kernel.size:
            return kernel
    return None


def _start(kernel: LoadedKernel) -> int:
    return kernel.image + kernel.kernel.offset
