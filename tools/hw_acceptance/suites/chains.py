"""Launches of one submission that start each other: order, visibility, the signal at the end."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.hcq.symbol import Symbol
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.suites.target import FolderTarget

_REPLAYS: Final = 20
_LENGTH: Final = 64  # launches of a chain, each of which needs what the one before wrote


def chains(context: Context) -> None:
    """A graph whose launches depend on one another, replayed with other values.

    What the last one writes is there when the signal behind the chain comes. Raises StepFailed.
    """
    target = FolderTarget(context)
    with target.open() as device:
        chaining = device.target.chained
        context.log.fact("action", chaining.name if chaining is not None else "none")
        add, fill = (target.program(device, name) for name in ("add", "fill"))
        total, one = upload(device, numbers(0) * 0), upload(device, numbers(0) * 0)
        device.synchronize()
        value = Symbol("value")
        sums = [GraphLaunch(add, (total, total, one), (WORDS,))] * _LENGTH
        graph = HCQGraph(device, [GraphLaunch(fill, (one,), (value, WORDS)), *sums])
        wanted, began = 0, time.perf_counter()
        for replay in range(_REPLAYS):
            device.wait(graph(values={value: replay}))
            wanted += replay * _LENGTH
            found = download(device, total)
            same = bool((found == np.int32(wanted)).all())
            context.log.check(f"replay {replay}", same, f"{found[:4].tolist()}, wanted {wanted}")
        seconds = (time.perf_counter() - began) / _REPLAYS
        context.log.fact("seconds of a replay, with the copy of its result", seconds)
        graph.close()
