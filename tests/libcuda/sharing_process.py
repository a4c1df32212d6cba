"""Another process on the simulated libcuda, which opens what it is sent, or shares."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np

CHIPS = "gh100,gh100"


def values(size: int = 3000) -> np.ndarray:
    return np.random.default_rng(5).integers(-99, 99, size).astype(np.int32)


def serve(pipe: Connection) -> None:
    from gpu import Context, Tensor, share

    with Context(DEV="CUDA", SIM=CHIPS):
        kept: list[Any] = []
        for told, given in iter(pipe.recv, None):
            if told == "share":
                kept.append(share(Tensor(values()) + 0, by=given))
                pipe.send(kept[-1])
            elif told == "work":
                pipe.send("begun")
                x = Tensor(values())
                while True:  # until this process is killed
                    kept.append(share(x, by=given))
                    x = (x + 1).realize()
                    kept.pop().close()
            elif told == "free":
                kept.clear()
                x = Tensor([1]).realize()  # what has ended is given back when something is done
                pipe.send(x.tolist())
            else:
                try:
                    x = given.open(told)
                    pipe.send(((x * 2).numpy(), x.numpy(), x.device))
                except Exception as error:
                    pipe.send(error)


@contextmanager
def another() -> Iterator[Any]:
    """`ask(what, value)` gives its answer; `process` is it."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()

    def ask(*what: Any) -> Any:
        ours.send(what)
        return ours.recv()

    yield SimpleNamespace(ask=ask, process=process)
    if process.is_alive():
        ours.send(None)
    process.join(30)
