"""Running somebody's program in this process, as `python PROGRAM` would."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

from gpu.core.errors import InvalidValue
from gpu.core.files import read_bytes


def read_script(path: str) -> bytes:
    """The text of a program. Raises InvalidValue for a file that cannot be read."""
    try:
        return read_bytes(path)
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read: {error.strerror}") from error


def run_script(script: Sequence[str], text: bytes) -> None:
    """Runs a program, whose text was read, with its arguments; modules beside it can be imported.

    Raises what the program raises.
    """
    path = script[0]
    module = ModuleType("__main__")
    module.__file__ = path
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv, sys.modules["__main__"] = list(script), module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before
