"""How long a launch of a kernel takes, without what launching it costs the host.

Where a device replays many launches in one call, a sample is as many of a kernel as take
`SHORTEST`; elsewhere it is one launch, timed by the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from gpu.runtime.device import Compiled
from gpu.runtime.recipe import Launch

SHORTEST: Final = 1e-3  # seconds that a sample of replayed launches takes
_MOST_LAUNCHES: Final = 4096  # in a sample


def best_seconds(
    step: Launch, device: Compiled, memories: Sequence[Any], vals: Sequence[int], samples: int
) -> float:
    """Seconds that a launch takes in the best of some samples."""
    if device.graph is None:
        taken = [vals[i] for i in step.vals]
        used = [memories[i] for i in step.slots]
        return min(step.program(*used, vals=taken, wait=True) or 0.0 for _ in range(1 + samples))
    count, seconds = 1, 0.0
    while True:
        replay = device.graph([(step.program, step.slots, step.vals)] * count, len(memories))
        run = partial(_seconds, device, partial(replay, memories, vals))
        run()  # a graph's first call may find out how to run it
        seconds = run()
        if seconds >= SHORTEST or count == _MOST_LAUNCHES:
            return min([seconds, *(run() for _ in range(samples - 1))]) / count
        count = min(_MOST_LAUNCHES, max(2 * count, int(1.2 * count * SHORTEST / seconds)))


def _seconds(device: Compiled, call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    device.synchronize()
    return time.perf_counter() - started
