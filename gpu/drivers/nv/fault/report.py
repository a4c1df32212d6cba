"""Whose fault it was, in words: kernels under way, and their arguments near the address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpu.drivers.fault_report import Suspect, under_way
from gpu.drivers.nv.encode.launch import LoadedKernel
from gpu.drivers.nv.fault.inflight import SentLaunch
from gpu.drivers.nv.fault.sm_errors import FaultDetails
from gpu.drivers.nv.memory import Extent

_POINTER: Final = 8


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
    suspects = [_suspect(known, launch) for launch in launches]
    told.append(under_way(suspects, address, lambda at: extent is not None and at in extent))
    return "; ".join(filter(None, told))


def _stops(kernels: Sequence[LoadedKernel], details: FaultDetails | None) -> Iterator[str]:
    """Where SMs stopped, each place once."""
    for pc in dict.fromkeys(error.pc for error in (details.sms if details is not None else ())):
        kernel = _kernel_at(kernels, pc)
        if kernel is not None:
            yield f"{pc:#x} is {pc - _start(kernel):#x} into {kernel.kernel.name}"


def _suspect(kernels: Sequence[LoadedKernel], launch: SentLaunch) -> Suspect:
    kernel = _kernel_at(kernels, launch.program)
    if kernel is None:
        return Suspect(f"a kernel at {launch.program:#x}")
    return Suspect(kernel.kernel.name, tuple(_pointers(kernel, launch.bank0)))


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
