"""The table of ladders: what of a run is a vendor's, and no more than that.

Whoever runs steps, stops them, writes reports or makes documents is the same for all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu.backends.amd import find as amd
from gpu.core.errors import InvalidValue
from gpu.runtime.default import Found
from gpu.sim.worlds import find_model, parse_setting
from tools.hw_acceptance.amd.plan import LAST as AMD_LAST
from tools.hw_acceptance.amd.plan import STEPS as AMD_STEPS
from tools.hw_acceptance.model import Step
from tools.hw_acceptance.plan import LAST, STEPS


@dataclass(frozen=True)
class Ladder:
    """A vendor's part.

    Attributes:
        name: as ``--vendor`` takes it.
        device: as `DEV` names it.
        setting: of the variants of its open questions.
        steps, last: of `plan`.
        target: ``module:class`` of what opens its devices (`suites.target.Opens`).
        simulation: ``module:function`` of chips and the prepared folder, to a `Simulation`.
        why_none: why there is no such GPU here, or nothing, given the node of NVIDIA's driver.
        kept_open: which nodes are held open for a run.
        prepared: whether a run takes a folder along that `prepare` has made.
    """

    name: str
    device: str
    setting: str
    steps: tuple[Step, ...]
    last: tuple[Step, ...]
    target: str
    simulation: str
    why_none: Callable[[Path], str]
    kept_open: str = ""
    prepared: bool = False

    @property
    def chips(self) -> tuple[str, ...]:
        """What ``--sim`` may name."""
        return find_model(self.device).chips


def _no_nvidia(control: Path) -> str:
    return "" if control.exists() else f"there is no NVIDIA GPU here: {control} does not exist."


def _no_amd(_: Path) -> str:
    """Of a GPU that this user may not open the first step tells what to do."""
    look = amd.look()
    return f"there is no AMD GPU here: {look}." if look.found is Found.NOTHING else ""


LADDERS: Final = {
    ladder.name: ladder
    for ladder in (
        Ladder(
            *("nvidia", "NV", "NV_VARIANTS", STEPS, LAST),
            target="tools.hw_acceptance.suites.target:FolderTarget",
            simulation="tools.hw_acceptance.simulation:simulate",
            why_none=_no_nvidia,
            kept_open="nvidia[0-9]*",
            prepared=True,
        ),
        Ladder(
            *("amd", "AMD", "AM_VARIANTS", AMD_STEPS, AMD_LAST),
            target="tools.hw_acceptance.amd.target:AmTarget",
            simulation="tools.hw_acceptance.amd.simulation:simulate",
            why_none=_no_amd,
        ),
    )
}


def named(place: str) -> Callable[..., Any]:
    """What ``module:name`` names."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def choose_ladder(vendor: str, sim: str, control: Path) -> tuple[Ladder | None, list[str]]:
    """The ladder that is asked for, or else that of the machine's first GPU.

    ``control`` is the node by which NVIDIA's driver is known. Returns None where there is no GPU,
    with why there is none of each vendor asked for. ``sim`` is as `SIM` has it. Raises InvalidValue
    for a chip of no model, ConfigError for a fault that there is not.
    """
    wanted = [LADDERS[vendor]] if vendor else list(LADDERS.values())
    if sim:
        for ladder in wanted:
            if set(parse_setting(sim)[0]) <= set(ladder.chips):
                return ladder, []
        known = ", ".join(chip for ladder in wanted for chip in ladder.chips)
        raise InvalidValue(f"--sim {sim}: there are models of {known}")
    reasons = []
    for ladder in wanted:
        reason = ladder.why_none(control)
        if not reason:
            return ladder, []
        reasons.append(reason)
    return None, reasons
