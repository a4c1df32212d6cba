"""All steps of a run, in their order.

A landing that has more to prove adds its steps here, or a module with a tuple of them; nothing is
listed that does not exist. A group's files make one archive, so there are at most six groups.
"""

from __future__ import annotations

from typing import Final

from tools.hw_acceptance.bench.plan import BENCHMARKS
from tools.hw_acceptance.faults.plan import FAULTS
from tools.hw_acceptance.ladder.plan import LADDER
from tools.hw_acceptance.model import Step
from tools.hw_acceptance.suites.plan import SUITES

HEALTH: Final = "tools.hw_acceptance.vendor.health:check"

STEPS: Final = (
    Step(
        "environment",
        "what machine this is",
        "vendor",
        "tools.hw_acceptance.environment:describe",
        30,
        always=True,
    ),
    Step(
        "health before",
        "the vendor's stack computes",
        "vendor",
        HEALTH,
        60,
        always=True,
        guards=True,
        hardware=True,
    ),
    Step(
        "vendor reference",
        "what libcuda asks of the kernel and submits for known work",
        "vendor",
        "tools.hw_acceptance.vendor.reference:record",
        150,
        preload=True,
        hardware=True,
    ),
    *LADDER,
    *SUITES,
    *BENCHMARKS,
    *FAULTS,
)
LAST: Final = (
    Step(
        "health after",
        "the vendor's stack still computes",
        "vendor",
        HEALTH,
        60,
        always=True,
        guards=True,
        hardware=True,
    ),
)
"""What is run whatever else is left out, also after a stop."""
