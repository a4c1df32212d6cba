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
from gpu.sim.machine import Machine, machines
from simulated import SIMULATED

SEED: Final = 0x5EED
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGVTALRM)
_PATIENCE_S: Final = 2.0  # for a thread that was told to end
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)


def _variables() -> dict[str, str]:
    return {n: text for n, text in os.environ.items() if not n.startswith("PYTEST_")}


def _settings() -> dict[str, Any]:
    tables = (config.SETTINGS, config.ALIASES)
    return {name: s.from_environment() for table in tables for name, s in table.items()}


def _known() -> list[str]:
    """Kinds of devices that there are, but for those that `gpu export` adds at its first use."""
    return [kind for kind in (*DEVICES, *BACKENDS) if not kind.startswith("WEBPAGE")]


def _threads() -> set[threading.Thread]:
    """Those that run, but for servants of what is shared: a server's, that of tqdm."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _goes_on(thread: threading.Thread) -> bool:
    thread.join(_PATIENCE_S)
    return thread.is_alive()


def _kinds() -> set[str]:
    """The kinds of devices that are open, each on one machine, where machines are simulated.

    What is simulated of CUDA and of Metal is a library, which is no machine.
    """
    kinds = set(SIMULATED) - {"CUDA", "METAL"}
    return {name.partition(":")[0] for name in Device._open} & kinds


KEPT: Final[Mapping[str, Callable[[], Any]]] = {
    "the environment": _variables,
    "settings": _settings,
    "settings of a Context": lambda: sorted(config._overrides.get().items()),
    "the current folder": os.getcwd,
    "kinds of devices": _known,
    "signal handlers": lambda: [signal.getsignal(number) for number in _SIGNALS],
    "timers": lambda: [signal.getitimer(timer) for timer in _TIMERS],
    "tracers": lambda: (sys.gettrace(), sys.getprofile()),
    "garbage collection": lambda: (gc.isenabled(), gc.get_threshold()),
    "limits of Python": lambda: (sys.getrecursionlimit(), sys.getswitchinterval()),
    "numpy's errors": lambda: sorted(np.geterr().items()),
    "Tensor.training": lambda: Tensor.training,
}
"""What must not change, by the name that failures give it. Dictionaries may get new entries: the
variables that libraries set for themselves when they are loaded.
"""


def _change(found: Any, left: Any) -> str:
    """What is not as it was, in words; empty where all is."""
    if isinstance(found, dict):
        others = [name for name, value in found.items() if left.get(name) != value]
        return ", ".join(f"{name}={found[name]} -> {left.get(name)}" for name in others)
    return "" if left == found else f"{found} -> {left}"


def _surplus(worlds: set[Machine], kinds: set[str]) -> str:
    """Which simulated machines there are beside these and those of kinds other than these."""
    if set(machines()) - worlds:
        gc.collect()  # whether garbage was collected by now is chance
    gpus = sorted(len(machine.gpus) for machine in set(machines()) - worlds)
    expected = sorted(len(SIMULATED[kind].split(",")) for kind in _kinds() - kinds)
    if not gpus or gpus == expected or config.SETTINGS["SIM"].from_environment():
        return ""  # where SIM is set, devices are on the machine that it names
    return f"simulated machines of {gpus} GPUs, expected are those of {expected}"


@contextmanager
def isolated(where: str) -> Iterator[None]:
    """Fails the test or file `where` if it leaves other than it found it anything of `KEPT`.

    And if it leaves threads, or simulated machines but for those of the devices that it opened.
    """
    found = {name: read() for name, read in KEPT.items()}
    threads, worlds, kinds = _threads(), set(machines()), _kinds()
    yield
    left = {name: read() for name, read in KEPT.items()}
    changed = [f"{n}: {told}" for n in KEPT if (told := _change(found[n], left[n]))]
    if added := [thread for thread in _threads() - threads if _goes_on(thread)]:
        changed.append(f"threads run: {added}")
    if surplus := _surplus(worlds, kinds):
        changed.append(surplus)
    if changed:
        pytest.fail(f"{where} leaves something to others: {'; '.join(changed)}", pytrace=False)
