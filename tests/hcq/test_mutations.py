"""Every check of the conformance suite can fail: mistakes that were put in are found."""

from __future__ import annotations

import pytest

from bounded import bounded
from gpu.core.errors import GpuError
from gpu.hcq.conformance import CHECKS
from hcq.host_target import HostTarget
from hcq.mutations import MUTATIONS

# Orders of execution, and widths of signals; some mistakes show in some of them only.
WORLDS = [(seed, bits) for seed in range(4) for bits in (32, 64)]


LIMIT = 3.0  # seconds of the processor: a check that hangs has found its mistake


# What a mistake does in a finalizer is no concern of this process.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    check = CHECKS[mutation.found_by]
    mutation.apply(monkeypatch)
    try:
        for seed, bits in WORLDS:
            with bounded(LIMIT):
                check(HostTarget(seed, bits))
    except (GpuError, AssertionError, OSError, KeyError):
        return
    pytest.fail(f"{name} was not found by {mutation.found_by}")


def test_every_check_finds_something() -> None:
    idle = {"launches", "bound_copies", "mapped_host_memory", "threads", "collections", "profiles"}
    assert set(CHECKS) - {mutation.found_by for mutation in MUTATIONS.values()} == idle
