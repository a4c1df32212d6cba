"""The steps that a GPU may not survive: the last ones."""

from __future__ import annotations

from typing import Final

from tools.hw_acceptance.model import Step

GROUP: Final = "suites"

FAULTS: Final = (
    Step(
        "killed",
        "a process that is killed at any moment leaves a GPU that the next one opens",
        GROUP,
        "tools.hw_acceptance.faults.killing:kill",
        40.0,
        needs=("11 kernels",),
        late=True,
        hardware=True,  # a model dies with its process
    ),
    Step(
        "conformance of faults",
        "a bad address is a fault of one device, and others go on",
        GROUP,
        "tools.hw_acceptance.suites.conformance:faults",
        30.0,
        needs=("11 kernels", "12 copies"),
        late=True,
    ),
    Step(
        "faults",
        "a fault is told with its kernel, and the same process goes on",
        GROUP,
        "tools.hw_acceptance.faults.provoke:provoke",
        60.0,
        needs=("11 kernels", "12 copies"),
        late=True,
    ),
)
