"""Saves that are killed at each call of the system that they make: ``killed.py FOLDER``.

Prints how many there are. After each the last checkpoint that was whole is loaded.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from gpu import Tensor, distributed

FOLDER = sys.argv[1]
CALLS = ("mkdir", "makedirs", "open", "fsync", "replace", "rename", "unlink", "rmdir", "close")
state = {"x": Tensor([0.0, 0.0]).contiguous().realize()}
distributed.save(FOLDER, state, 0).wait()
last = 0


def kills(number: int, at: int, counted: list[int]) -> None:
    """Has the process killed at one of its calls, or counts them."""

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            counted[0] += 1
            if counted[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return run

    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))
    state["x"].assign(Tensor([float(number)] * 2)).realize()
    distributed.save(FOLDER, state, number).wait()


for at in itertools.count(1):
    child = os.fork()
    if not child:
        kills(at, at, [0])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = distributed.load(FOLDER, state)
    assert found in (last, at) and state["x"].tolist() == [float(found)] * 2, (at, last, found)
    last = found
    if not status:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
assert last == at and len(distributed.checkpoints(FOLDER)) == 2
assert len(os.listdir(FOLDER)) <= 3, os.listdir(FOLDER)  # one that is going may be left
distributed.save(FOLDER, state, at + 1).wait()
assert len(os.listdir(FOLDER)) == 2, os.listdir(FOLDER)
print(at - 1)
