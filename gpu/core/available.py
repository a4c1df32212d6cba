"""How much memory this machine can still give, so that what does not fit is refused in time.

Linux promises more than it has: a buffer that is too large is given, and the process is killed when
a kernel fills it. Where the system does not tell what is left, nothing is refused here.
"""

from __future__ import annotations

from typing import Final

from gpu.core.errors import OutOfMemory
from gpu.core.files import read_bytes

_WORTH_A_LOOK: Final = 64 << 20  # bytes: filling fewer takes less time than looking does
_MEMINFO: Final = "/proc/meminfo"
_GROUP: Final = "/sys/fs/cgroup/"


def check_memory(nbytes: int) -> None:
    """Raises OutOfMemory where `nbytes` more bytes do not fit into what is left."""
    if nbytes < _WORTH_A_LOOK:
        return
    left = available_memory()
    if left is not None and nbytes > left:
        raise OutOfMemory(
            f"cannot allocate {nbytes:,} bytes of host memory: {left:,} are left; "
            "free tensors or use smaller ones"
        )


def available_memory() -> int | None:
    """Bytes that can be taken without swapping out others, None where the system does not tell.

    The smaller of what is left of the machine (MemAvailable and SwapFree of proc_meminfo(5)) and of
    the limit of the process's control group, version 2.
    """
    machine = _table(_MEMINFO)
    if "MemAvailable" not in machine:
        return None
    left = (machine["MemAvailable"] + machine.get("SwapFree", 0)) << 10
    limit, used = _number(f"{_GROUP}memory.max"), _number(f"{_GROUP}memory.current")
    if limit is None or used is None:
        return left
    # Pages of files are given up before anything fails.
    files = _table(f"{_GROUP}memory.stat").get("inactive_file", 0)
    return max(0, min(left, limit - used + files))


def _table(path: str) -> dict[str, int]:
    """The numbers of a file of lines like ``name: 12 kB``; empty where it cannot be read."""
    lines = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _number(path: str) -> int | None:
    """The number a file holds; None for ``max`` and where it cannot be read."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: str) -> str:
    try:
        return read_bytes(path).decode()
    except OSError:  # not Linux, or not for us to see
        return ""
