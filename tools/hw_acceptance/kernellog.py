"""The kernel's log, read as it grows. Sandboxes have none, and users may not read it."""

from __future__ import annotations

import os
from typing import Final

KMSG: Final = "/dev/kmsg"
_RECORD: Final = 8192  # bytes of the longest record (Documentation/ABI/testing/dev-kmsg)


class KernelLog:
    """The lines that come after it was opened.

    Attributes:
        absent: why there are none to read; empty where there are.
    """

    def __init__(self, path: str = KMSG):
        self.absent = ""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
            self.new_lines()
        except OSError as error:
            self.absent = f"{path}: {error.strerror}"
            self.close()

    def new_lines(self) -> list[str]:
        """What was logged since the last call: seconds since boot, and the text."""
        lines: list[str] = []
        while self._fd >= 0:
            try:
                record = os.read(self._fd, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten before they were read
                lines.append("(lines were lost)")
                continue
            if not record:
                break
            lines.append(format_record(record))
        return lines

    def close(self) -> None:
        """Ends reading; again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def format_record(record: bytes) -> str:
    """A record ``6,1234,5678901,-;text`` as ``5.678901 text``; continuation lines are dropped."""
    line = record.decode("utf-8", "replace").partition("\n")[0]
    head, separator, text = line.partition(";")
    parts = head.split(",")
    if not separator or len(parts) < 3 or not parts[2].isdigit():
        return line
    return f"{int(parts[2]) / 1e6:.6f} {text}"
