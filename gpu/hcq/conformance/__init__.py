"""How every device with command queues behaves, as checks that anyone can run.

`CHECKS` maps names to functions of a `Target`, which opens devices of one kind. Each opens what it
needs, and raises `ConformanceError` for what is wrong::

    for name, check in CHECKS.items():
        check(target)
"""

from __future__ import annotations

from typing import Final

from gpu.hcq.conformance import bound, commands, life, memory, peers
from gpu.hcq.conformance.kit import Check, ConformanceError, Target

CHECKS: Final[dict[str, Check]] = {
    check.__name__: check
    for module in (commands, memory, peers, bound, life)
    for check in module.CHECKS
}

__all__ = ["CHECKS", "Check", "ConformanceError", "Target"]
