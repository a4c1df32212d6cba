"""The launches of a fault with the names of their kernels, and what they were given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpu.drivers.am.code.metadata import EXPLICIT
from gpu.drivers.am.encode.dispatch import LoadedKernel, place_of_kernarg
from gpu.drivers.am.fault.inflight import Read, SentLaunch
from gpu.drivers.fault_report import Suspect

_POINTER: Final = 8


def suspects(
    kernels: Iterable[LoadedKernel], launches: Sequence[SentLaunch], read: Read
) -> list[Suspect]:
    """Launches with what is known of them; ``read`` sees the memory that arguments are in."""
    by_place = {place: each for each in kernels for place in (each.code, each.descriptor)}
    return [_suspect(by_place.get(launch.program), launch, read) for launch in launches]


def _suspect(kernel: LoadedKernel | None, launch: SentLaunch, read: Read) -> Suspect:
    if kernel is None:
        return Suspect(f"a kernel at {launch.program:#x}")
    metadata = kernel.kernel.metadata
    at = launch.kernarg or _kernarg(kernel, launch.user)
    data = read(at, metadata.kernarg_size) if at else None
    return Suspect(metadata.name, tuple(_pointers(kernel, data)) if data is not None else ())


def _kernarg(kernel: LoadedKernel, user: Sequence[int]) -> int:
    """Where arguments are, as user SGPRs tell it; 0 where they do not."""
    place = place_of_kernarg(kernel)
    if place is None or place + 2 > len(user):
        return 0
    return user[place + 1] << 32 | user[place]


def _pointers(kernel: LoadedKernel, data: bytes) -> Iterator[tuple[int, int]]:
    """Arguments that may be addresses, with their numbers."""
    explicit = [each for each in kernel.kernel.metadata.arguments if each.kind in EXPLICIT]
    for number, argument in enumerate(explicit):
        if argument.size == _POINTER:
            value = data[argument.offset : argument.offset + _POINTER]
            yield number, int.from_bytes(value, "little")
