"""What a model does it does whole, as kernels and hardware: Ctrl-C comes before or after."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

_RETRY_S: Final = 0.001


class Undisturbed:
    """Blocks that Python's handler of SIGINT does not interrupt: it is called at their end.

    Blocks may stand in each other. Python calls handlers in the main thread alone, and so others
    need none of this.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._came = False
        self._handler: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        # The collector may run a finalizer at any call here, which goes through a block of its own:
        # that one has to find the depth above 0, or it would take `_note` for the handler.
        try:
            self._depth += 1
            if self._depth == 1:
                self._handler = signal.getsignal(signal.SIGINT)
                if self._handler is not None:  # else not Python's: nothing could be put back
                    signal.signal(signal.SIGINT, self._note)
        except BaseException:
            self._depth -= 1
            raise

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is not threading.main_thread() or not self._depth:
            return
        try:
            if self._depth == 1 and self._handler is not None:
                signal.signal(signal.SIGINT, self._handler)
        finally:
            self._depth -= 1
        if not self._depth and self._came:
            self._came = False
            self.send()

    def send(self) -> None:
        """Has the handler called that was put off."""
        signal.raise_signal(signal.SIGINT)

    def let_through(self) -> None:
        """Calls the handler within a block, where all may end as it stands."""
        if self._came and callable(self._handler):
            self._came = False
            self._handler(signal.SIGINT, None)

    def _note(self, _: int, __: FrameType | None) -> None:
        self._came = True


class Whole(Undisturbed):
    """A call of a library in Python is whole: Ctrl-C comes behind it, as behind one of a C library.

    What a handler raised in here, ctypes would print and forget. So a thread sends it again as soon
    as the main thread is in no call.
    """

    def __init__(self, module: str):
        """`module` is the name of the one whose functions answer the calls."""
        super().__init__()
        self._module = module

    def send(self) -> None:
        """Sends SIGINT later."""
        threading.Thread(target=self._send_outside, daemon=True).start()

    def _send_outside(self) -> None:
        main = threading.main_thread().ident
        while main is not None and self._is_here(sys._current_frames().get(main)):
            time.sleep(_RETRY_S)
        signal.raise_signal(signal.SIGINT)

    def _is_here(self, frame: FrameType | None) -> bool:
        """Whether a thread runs the module, or is called by it."""
        while frame is not None:
            if frame.f_globals.get("__name__") == self._module:
                return True
            frame = frame.f_back
        return False
