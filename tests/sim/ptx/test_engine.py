"""The native functions of PTX, when several threads need one first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from gpu.sim.isa.native import Library

THREADS = 4


def test_threads_that_need_a_function_first_make_it_once() -> None:
    engine, together, made = Library("ptx", {}, {}), threading.Barrier(THREADS), []

    def text() -> str:
        made.append(threading.get_ident())
        threading.Event().wait(0.05)  # in which the other threads ask for it
        return "define void @idle() { ret void }"

    def find(_: int) -> int:
        together.wait()
        return engine.address("idle", text)

    with ThreadPoolExecutor(THREADS) as pool:
        addresses = set(pool.map(find, range(THREADS)))
    assert len(made) == len(addresses) == 1
