"""The launches of a fault with the names of their kernels, and what they were given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu.drivers.am.code.metadata import EXPLICIT
from gpu.drivers.am.encode.dispatch import LoadedKernel, place_of_kernarg
from gpu.drivers.fault_report import Read, SentLaunch, Suspect


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
    explicit = [each for each in metadata.arguments if each.kind in EXPLICIT]
    places = ((number, each.offset, each.size) for number, each in enumerate(explicit))
    start = launch.arguments or _kernarg(kernel, launch.user)
    return launch.suspect(metadata.name, (kernel.code, 0), start, places, read)


def _kernarg(kernel: LoadedKernel, user: Sequence[int]) -> int:
    """Where arguments are, as user SGPRs tell it; 0 where they do not."""
    place = place_of_kernarg(kernel)
    if place is None or place + 2 > len(user):
        return 0
    return user[place + 1] << 32 | user[place]
