"""Kernels whose KGSL is modelled: what differs between them.

"4.9" and "4.19" are the drivers inside of those kernels of Qualcomm's (msm-4.9 is SDM845's), "2025"
is the module of qualcomm-linux/kgsl.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from gpu.autogen import kgsl
from gpu.core.errors import ConfigError

GIB: Final = 1 << 30


class Release(NamedTuple):
    """A kernel's KGSL.

    Attributes:
        svm: addresses that CPU and GPU share (kgsl_iommu.h, KGSL_IOMMU_SVM_BASE64 and _END64).
        va: addresses that the kernel chooses (KGSL_IOMMU_VA_BASE64 and _END64).
        queue: commands that a context queues before the next one blocks (adreno_dispatch.c: the
            module keeps one of 50 places for what it takes back).
        context_flags, memory_flags: those that are known; others are dropped without a word.
        coherent_if_cached: whether IOCOHERENT is dropped where the memory is not cached.
        names_gpu: whether DEVICE_INFO has the number of the GPU.
        exact_sizes: whether the size of every property must be the right one.
        no_property: the answer to a property that there is not.
        absent: calls that there are not.
    """

    name: str
    svm: range
    va: range
    queue: int
    context_flags: int
    memory_flags: int
    coherent_if_cached: bool
    names_gpu: bool
    exact_sizes: bool
    no_property: int
    absent: frozenset[str]


_CONTEXT: Final = (
    kgsl.KGSL_CONTEXT_PREAMBLE
    | kgsl.KGSL_CONTEXT_NO_GMEM_ALLOC
    | kgsl.KGSL_CONTEXT_PER_CONTEXT_TS
    | kgsl.KGSL_CONTEXT_USER_GENERATED_TS
    | kgsl.KGSL_CONTEXT_NO_FAULT_TOLERANCE
    | kgsl.KGSL_CONTEXT_INVALIDATE_ON_FAULT
    | kgsl.KGSL_CONTEXT_CTX_SWITCH
    | kgsl.KGSL_CONTEXT_PRIORITY_MASK
    | kgsl.KGSL_CONTEXT_TYPE_MASK
    | kgsl.KGSL_CONTEXT_PWR_CONSTRAINT
    | kgsl.KGSL_CONTEXT_IFH_NOP
    | kgsl.KGSL_CONTEXT_SECURE
    | kgsl.KGSL_CONTEXT_PREEMPT_STYLE_MASK
    | kgsl.KGSL_CONTEXT_NO_SNAPSHOT
)
_NEW_CONTEXT: Final = kgsl.KGSL_CONTEXT_LPAC | kgsl.KGSL_CONTEXT_FAULT_INFO
_MEMORY: Final = (
    kgsl.KGSL_MEMFLAGS_GPUREADONLY
    | kgsl.KGSL_CACHEMODE_MASK
    | kgsl.KGSL_MEMTYPE_MASK
    | kgsl.KGSL_MEMALIGN_MASK
    | kgsl.KGSL_MEMFLAGS_USE_CPU_MAP
    | kgsl.KGSL_MEMFLAGS_SECURE
    | kgsl.KGSL_MEMFLAGS_FORCE_32BIT
)
_COHERENT: Final = kgsl.KGSL_MEMFLAGS_IOCOHERENT
_NEW_CALLS: Final = frozenset(
    {
        "GET_FAULT_REPORT",
        *(f"TIMELINE_{what}" for what in ("CREATE", "WAIT", "QUERY", "SIGNAL", "FENCE_GET")),
        "TIMELINE_DESTROY",
    }
)
RELEASES: Final = {
    release.name: release
    for release in (
        Release(
            "4.9",
            range(28 * GIB, 32 * GIB),
            range(20 * GIB, 24 * GIB),
            50,
            _CONTEXT,
            _MEMORY,
            coherent_if_cached=False,
            names_gpu=True,
            exact_sizes=True,
            no_property=errno.EINVAL,
            absent=_NEW_CALLS,
        ),
        Release(
            "4.19",
            range(4 * GIB, 256 * GIB),
            range(256 * GIB, 512 * GIB),
            50,
            _CONTEXT,
            _MEMORY | _COHERENT | kgsl.KGSL_MEMFLAGS_GUARD_PAGE,
            coherent_if_cached=False,
            names_gpu=True,
            exact_sizes=True,
            no_property=errno.EINVAL,
            absent=_NEW_CALLS,
        ),
        Release(
            "2025",
            range(64 * GIB, 256 * GIB),
            range(256 * GIB, 512 * GIB),
            49,
            _CONTEXT | _NEW_CONTEXT,
            _MEMORY | _COHERENT | kgsl.KGSL_MEMFLAGS_GUARD_PAGE,
            coherent_if_cached=True,
            names_gpu=False,
            exact_sizes=False,
            no_property=errno.ENODEV,
            absent=frozenset(),
        ),
    )
}
"""By name."""


def find_release(name: str) -> Release:
    """The kernel of a name. Raises ConfigError."""
    if name not in RELEASES:
        raise ConfigError(f"there is no model of KGSL in {name!r}, but in {', '.join(RELEASES)}")
    return RELEASES[name]
