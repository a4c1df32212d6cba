"""Which line of the user's code is calling: what error texts end in."""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
_INSTALLED: Final = ("site-packages" + os.sep, "dist-packages" + os.sep)  # may lie inside _LIBRARY


class CallSite(NamedTuple):
    """A line of a source file, which need not exist: that of ``python -c`` is ``<string>``."""

    file: str
    line: int

    def __str__(self) -> str:
        """``train.py:41: y = x @ w``, or without the text where no file has it."""
        import linecache

        text = linecache.getline(self.file, self.line).strip()
        return f"{_shown(self.file)}:{self.line}" + (f": {text}" if text else "")


def user_call_site() -> CallSite | None:
    """The innermost line being executed that is neither this package's nor the standard library's.

    None where there is none, as in a thread that the package started.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return CallSite(file, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None


def frames_below_user() -> int:
    """The `stacklevel` by which a caller's warning is shown at the line of `user_call_site`.

    That of the outermost line where there is no such line.
    """
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level + 1


def is_users(file: str) -> bool:
    """Whether code of this file is neither this package's nor the standard library's."""
    return not file.startswith((_PACKAGE, "<frozen ")) and not _is_library(file)


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARY) and not file[len(_LIBRARY) :].startswith(_INSTALLED)


def _shown(file: str) -> str:
    """The path, from the working directory on if it is below that."""
    try:
        return file.removeprefix(os.getcwd() + os.sep)
    except FileNotFoundError:  # the working directory was removed
        return file
