"""What all tests of a process share, and a check that each leaves it as it was.

A test that changes it makes others pass or fail by whether they run after it in the same process.
Open devices are legitimately shared, and so are the machines of `simulated.SIMULATED`, the caches
and the counters: who counts those counts what is added.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor
from gpu.core import config
from gpu.core.devspec import DEVICES
from gpu.runtime.device import BACKENDS, Device
from gpu.sim.machine import machines
from simulated import SIMULATED

SEED: Final = 0x5EED
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGVTALRM)
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)


def _variables() -> dict[str, str]:
    """The environment, but for what pytest tells and what PoCL is told when its device opens."""
    told = ("PYTEST_", "POCL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(told)}


def _settings() -> dict[str, Any]:
    tables = (config.SETTINGS, config.ALIASES)
    return {name: s.from_environment() for table in tables for name, s in table.items()}


def _threads() -> set[threading.Thread]:
    """Those that run, but for the one of tqdm, which starts it with the first bar and keeps it."""
    return {thread for thread in threading.enumerate() if thread.name != "tqdm_monitor"}


def _kinds() -> set[str]:
    """The kinds of devices that are open, each on one machine, where machines are simulated."""
    return {name.partition(":")[0] for name in Device._open} & set(SIMULATED)


KEPT: Final[Mapping[str, Callable[[], Any]]] = {
    "the environment": _variables,
    "settings": _settings,
    "settings of a Context": lambda: dict(config._overrides.get()),
    "the current folder": os.getcwd,
    "kinds of devices": lambda: (list(DEVICES), list(BACKENDS)),
    "signal handlers": lambda: [signal.getsignal(number) for number in _SIGNALS],
    "timers": lambda: [signal.getitimer(timer) for timer in _TIMERS],
    "tracers": lambda: (sys.gettrace(), sys.getprofile()),
    "garbage collection": lambda: (gc.isenabled(), gc.get_threshold()),
    "limits of Python": lambda: (sys.getrecursionlimit(), sys.getswitchinterval()),
    "numpy's errors": np.geterr,
    "Tensor.training": lambda: Tensor.training,
}
"""What must not change, by the name that failures give it."""


def _expected(kinds: set[str]) -> list[int]:
    """How many GPUs the machines have that these kinds of devices are on."""
    asked = config.SETTINGS["SIM"].from_environment()
    return sorted(len((asked or SIMULATED[kind]).split(",")) for kind in kinds)


@contextmanager
def isolated(where: str) -> Iterator[None]:
    """Fails the test or file `where` if it leaves other than it found it anything of `KEPT`.

    And if it leaves threads, or simulated machines but for those of the devices that it opened.
    """
    found = {name: read() for name, read in KEPT.items()}
    threads, worlds, kinds = _threads(), set(machines()), _kinds()
    yield
    left = {name: read() for name, read in KEPT.items()}
    changed = [f"{n}: {found[n]} -> {left[n]}" for n in KEPT if left[n] != found[n]]
    if added := _threads() - threads:
        changed.append(f"threads run: {added}")
    gpus = sorted(len(machine.gpus) for machine in set(machines()) - worlds)
    expected = _expected(_kinds() - kinds)
    if gpus and gpus != expected:
        changed.append(f"simulated machines of {gpus} GPUs, expected are those of {expected}")
    if changed:
        pytest.fail(f"{where} leaves something to others: {'; '.join(changed)}", pytrace=False)
