"""The suite of devices with command queues on the GPU, check by check."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from gpu.hcq.conformance import CHECKS
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.suites.opens import target_for
from tools.hw_acceptance.suites.supervise import run_checks, supervise

_LIMIT: Final = 20.0  # seconds a check; the longest takes one on hardware
_SIMULATED: Final = 120.0
_LATE: Final = ("faults",)


def conformance(context: Context) -> None:
    """All checks of `gpu.hcq.conformance` but that of faults, a line for each.

    Raises StepFailed.
    """
    _supervise(context, [name for name in CHECKS if name not in _LATE])


def faults(context: Context) -> None:
    """The checks that provoke faults. Raises StepFailed."""
    _supervise(context, _LATE)


def _supervise(context: Context, names: Sequence[str]) -> None:
    limit = _SIMULATED if context.simulation is not None else _LIMIT
    supervise(context, f"{__name__}:run_part", names, limit)


def run_part(context: Context) -> None:
    """Those that the option names, in this process."""
    target = target_for(context)
    run_checks(context, {name: partial(check, target) for name, check in CHECKS.items()})
