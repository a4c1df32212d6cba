"""Whose fault it was, in words: kernels under way, and their arguments near the address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpu.drivers.fault_report import Read, SentLaunch, Suspect, under_way
from gpu.drivers.nv.encode.launch import LoadedKernel
from gpu.drivers.nv.fault.sm_errors import FaultDetails
from gpu.drivers.nv.memory import Extent


def blame(
    kernels: Iterable[LoadedKernel],
    launches: Sequence[SentLaunch],
    read: Read,
    details: FaultDetails | None = None,
    extent: Extent | None = None,
) -> str:
    """What is known of the kernels of a fault; empty where that is nothing.

    ``launches`` are those under way, ``read`` sees the memory that their arguments are in,
    ``extent`` is the allocation next to the address.
    """
    known = list(kernels)
    told = list(_stops(known, details))
    address = details.address if details is not None else None
    who = suspects(known, launches, read)
    told.append(under_way(who, address, lambda at: extent is not None and at in extent))
    return "; ".join(filter(None, told))


def suspects(
    kernels: Iterable[LoadedKernel], launches: Sequence[SentLaunch], read: Read
) -> list[Suspect]:
    """Launches with what is known of them; ``read`` sees the memory that arguments are in."""
    known = list(kernels)
    return [_suspect(known, launch, read) for launch in launches]


def _stops(kernels: Sequence[LoadedKernel], details: FaultDetails | None) -> Iterator[str]:
    """Where SMs stopped, each place once."""
    for pc in dict.fromkeys(error.pc for error in (details.sms if details is not None else ())):
        kernel = _kernel_at(kernels, pc)
        if kernel is not None:
            yield f"{pc:#x} is {pc - _start(kernel):#x} into {kernel.kernel.name}"


def _suspect(kernels: Sequence[LoadedKernel], launch: SentLaunch, read: Read) -> Suspect:
    loaded = _kernel_at(kernels, launch.program)
    if loaded is None:
        return Suspect(f"a kernel at {launch.program:#x}")
    kernel = loaded.kernel
    places = ((each.ordinal, each.offset, each.size) for each in kernel.parameters)
    start = launch.arguments + kernel.parameter_base if launch.arguments else 0
    code = _start(loaded), kernel.size
    return launch.suspect(kernel.name, code, start, places, read)


def _kernel_at(kernels: Iterable[LoadedKernel], pc: int) -> LoadedKernel | None:
    for kernel in kernels:
        if _start(kernel) <= pc < _start(kernel) + kernel.kernel.size:
            return kernel
    return None


def _start(kernel: LoadedKernel) -> int:
    return kernel.image + kernel.kernel.offset
