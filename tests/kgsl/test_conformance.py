"""The GPU behind a simulated KGSL passes the conformance suite, but for what takes peers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from bounded import bounded
from gpu.hcq.conformance import CHECKS, peers
from gpu.sim.worlds import MODELS, simulate
from kgsl.target import KgslTarget

NAMES = [name for name, check in CHECKS.items() if check not in peers.CHECKS]
WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("a630 of 2025", {"seed": 1, "coherence": "check"}),
    ("a660 with 4.19", {"seed": 2, "chip": "a660", "kernel": "4.19", "coherence": "oldest"}),
    ("a630 with 4.9", {"seed": 3, "kernel": "4.9", "coherence": "oldest"}),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world[0])
def test_kgsl(name: str, world: tuple[str, dict[str, Any]], need: Callable[[str], None]) -> None:
    if not any(model.device == "QCOM" for model in MODELS):
        pytest.skip("there is no model of KGSL in this version")
    need("tinymesa")
    if name == "interrupts":
        gc.collect()  # a finalizer of what other tests left would swallow the one interrupt
    options = dict(world[1])
    if name == "faults":
        options["page_faults"] = "halt"
    target = KgslTarget(type(simulate("a630", "QCOM").machine)(**options))
    with bounded(30):
        CHECKS[name](target)
    assert target.complaints() == []
    target.close()
