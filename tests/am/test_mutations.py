"""Mistakes that were put in are found by the conformance suite or by the checks of this driver."""

from __future__ import annotations

import pytest

from am import checks, test_recovery
from am.kfd_target import KfdTarget
from am.mutations import MUTATIONS
from bounded import bounded
from gpu.core.errors import GpuError
from gpu.hcq import conformance
from simulated import own_machines

LIMIT = 3.0  # seconds of the processor: a check that hangs has found its mistake
RECOVERY = {
    name[5:]: getattr(test_recovery, name) for name in dir(test_recovery) if "test_" in name
}
CHECKS = conformance.CHECKS | checks.CHECKS | RECOVERY


# What a mistake does in a finalizer is no concern of this process.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    mutation.apply(monkeypatch)
    found: list[str] = []
    try:
        with own_machines(), bounded(LIMIT):
            target = KfdTarget(1, "gfx1100", mutation.compute, "oldest")
            target.repeats = 60
            CHECKS[mutation.found_by](target)
            found = target.complaints()
    except (GpuError, AssertionError, OSError, KeyError, pytest.fail.Exception):
        return
    assert found, f"{name} was not found by {mutation.found_by}"
