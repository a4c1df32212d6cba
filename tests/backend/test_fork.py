"""A process that forks after it has opened a device: no hang, no wrong numbers, on either side."""

from __future__ import annotations

import os
import signal
import time

import pytest

from gpu import Tensor
from gpu.core.errors import GpuError

_WORKS, _REFUSED, _WRONG = 0, 3, 4
_PATIENCE = 60.0  # seconds


def child_of(device: str, x: Tensor) -> int:
    """What a forked child makes of an old tensor, and of a new one."""
    for values in (x, [1.0, 2.0]):
        try:
            made = values if isinstance(values, Tensor) else Tensor(values, device=device)
            if (made * 5 - 1).tolist() != [4.0, 9.0]:
                return _WRONG
        except GpuError as error:
            return _REFUSED if "fork" in str(error) or "lost" in str(error) else _WRONG
    return _WORKS


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_works_or_is_told(device: str) -> None:
    x = Tensor([1.0, 2.0], device=device)
    assert (x + 1).tolist() == [2.0, 3.0]
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = child_of(device, x)
        finally:
            os._exit(code)
    deadline = time.monotonic() + _PATIENCE
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail(f"the child hangs on {device}")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) in (_WORKS, _REFUSED)
    assert (x * 2).tolist() == [2.0, 4.0]
