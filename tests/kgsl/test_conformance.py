"""The GPU behind a simulated KGSL passes the conformance suite, but for what takes peers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from bounded import bounded
from gpu.core.errors import Unsupported
from gpu.hcq.conformance import CHECKS, peers
from kgsl.target import KgslTarget

NAMES = [name for name, check in CHECKS.items() if check not in peers.CHECKS]
LONG = {
    *("rings_wrap", "arguments_live_long_enough", "the_host_may_go_on", "graphs", "copies"),
    *("staging_goes_round", "timelines_wrap", "collections", "threads"),
}
WORLDS: dict[str, dict[str, Any]] = {
    "a630": {"seed": 1, "coherence": "oldest"},
    "a660 with 4.19": {"seed": 2, "chip": "a660", "kernel": "4.19", "coherence": "check"},
    "a618 with 4.9": {"seed": 3, "chip": "a618", "kernel": "4.9", "coherence": "oldest"},
    "a690 without caches": {"seed": 4, "chip": "a690", "coherence": "none"},
}


@pytest.mark.parametrize(
    ("name", "world"),
    [
        pytest.param(
            name,
            world,
            marks=[
                *([pytest.mark.slow] if world != "a630" or name in LONG else []),
                *([pytest.mark.sampled(25)] if world != "a630" else []),
            ],
            id=f"{name}-{world}",
        )
        for world in WORLDS
        for name in NAMES
    ],
)
def test_kgsl(name: str, world: str, need: Callable[[str], None]) -> None:
    need("tinymesa")
    if name == "interrupts":
        gc.collect()  # a finalizer of what other tests left would swallow the one interrupt
    halts = {"page_faults": "halt"} if name == "faults" else {}
    target = KgslTarget(**WORLDS[world], **halts)
    coherent = WORLDS[world].get("kernel") != "4.9"  # it has no such flag
    with (
        bounded(30),
        nullcontext()
        if coherent or name != "mapped_host_memory"
        else pytest.raises(Unsupported, match="IOCOHERENT"),
    ):
        CHECKS[name](target)
    assert target.complaints() == []
    target.close()
