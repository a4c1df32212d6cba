"""The inside of a child process: one trial of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu.core.errors import DeviceLost, GpuError
from gpu.transport.world import World, real_world
from tools.hw_acceptance.ladders import LADDERS, named
from tools.hw_acceptance.model import Outcome
from tools.hw_acceptance.simulation import Simulation
from tools.hw_acceptance.steplog import StepLog, Unavailable
from tools.hw_acceptance.tracing import traced_world


@dataclass(frozen=True)
class Context:
    """What a step is given.

    Attributes:
        world: what it opens devices through; every call of it is recorded.
        log: what it tells goes there.
        folder: the prepared folder.
        force: variants that the driver's opening is to take.
        options: likewise for what it submits, by name.
        simulation: what `world` is, where it is not this machine.
        limit: seconds after which the process is killed.
        ladder: whose it is, as `ladders` names it.
    """

    world: World
    log: StepLog
    folder: Path
    force: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    simulation: Simulation | None = None
    limit: float = math.inf
    ladder: str = "nvidia"

    @property
    def chip(self) -> str:
        """What is simulated; empty on a machine with a GPU."""
        return self.simulation.chip if self.simulation is not None else ""


def run_step(run: Callable[[Context], None], context: Context) -> Outcome:
    """Runs a step and tells its end. Errors that are no `GpuError` are bugs, and leave."""
    try:
        run(context)
        context.log.finish()
    except Unavailable as error:
        outcome, reason = Outcome.UNAVAILABLE, error.message
    except GpuError as error:
        if isinstance(error, DeviceLost):
            context.log.lost(error.message)
        notes = getattr(error, "__notes__", ())
        outcome, reason = Outcome.FAIL, "; ".join([f"{type(error).__name__}: {error}", *notes])
    else:
        outcome, reason = Outcome.PASS, ""
    context.log.end(outcome, reason)
    return outcome


def run_child(
    run: str,
    work: Path,
    folder: Path,
    force: Mapping[str, str],
    options: Mapping[str, str],
    chip: str = "",
    limit: float = math.inf,
    ladder: str = "nvidia",
) -> int:
    """The whole life of a child: runs the function named ``module:function``; 0 if it ended.

    ``work`` is an empty folder for what it writes; a ``chip`` is simulated, ``limit`` in seconds,
    ``ladder`` as in `Context`.
    """
    function: Callable[[Context], None] = named(run)
    log = StepLog(work)
    simulate = named(LADDERS[ladder].simulation)
    simulation: Simulation | None = simulate(chip, folder) if chip else None
    under = simulation.world if simulation is not None else real_world()
    world, recorder = traced_world(under.os, under.waiter, work)
    try:
        run_step(function, Context(world, log, folder, force, options, simulation, limit, ladder))
    finally:
        recorder.close()
        log.close()
    return 0
