"""Ctrl-C put off where what is half done cannot be left so.

As while memory that was changed in place has no tensor yet that says so, or while what a kernel
driver gave is noted down nowhere.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def put_off(at_once: bool = True) -> Iterator[Callable[[], None]]:
    """A Ctrl-C that comes while the body runs is delivered when it has ended.

    With `at_once` False one is delivered as ever until the body calls what it is given. Python
    delivers it to the main thread alone: elsewhere there is nothing to do.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: None
        return
    came: list[FrameType | None] = []

    def begin() -> None:
        signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))

    try:
        if at_once:
            begin()
        yield begin
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, came[0])
