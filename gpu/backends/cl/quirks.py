"""What implementations do differently, in one table; and the settings they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpu.backends.cl.platforms import DeviceInfo


@dataclass(frozen=True)
class Quirks:
    """Where an implementation needs something of its own.

    Attributes:
        platform: text in the platform's name.
        variables: of the environment, which the implementation reads, with the values they are
            given unless the user has set them.
        bundle: kernels that are compiled as one program.
        features: of the target, that no property tells: `clang` for a compiler with clang's
            built-in functions for shuffles and for stores past the caches.
    """

    platform: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    bundle: int = 1
    features: tuple[str, ...] = ()


TABLE: Final = (
    Quirks(
        platform="Portable Computing Language",
        # PoCL compiles a kernel once more for the sizes of its first launch ("Known environment
        # variables" of its manual). These kernels have fixed groups, so that nothing is gained.
        variables={"POCL_WORK_GROUP_SPECIALIZATION": "0"},
        # Reading its built-in functions takes longer than compiling a kernel does.
        bundle=8,
        features=("clang",),
    ),
)
"""Rows by platform."""


def quirks_of(info: DeviceInfo) -> Quirks:
    """The row of a device; one without peculiarities where there is none."""
    for row in TABLE:
        if row.platform in info.platform.name:
            return row
    return Quirks()
