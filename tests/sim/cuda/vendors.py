"""The libcuda that tests of outcomes run on: the model, or one that is a file.

A file's is chosen by ``--libcuda`` of `tools.hw_acceptance.suites.outcomes`. Nothing is known of it
but its functions, so that a test skips where it asks for what a model alone can tell.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import pytest

from gpu.sim.cuda.library import Library, load
from gpu.sim.cuda.sharedfile import SONAME, load_file

MODEL: Final = "sim:"
"""How a `--libcuda` begins that is a file of the model; a chip follows."""


class _Functions(dict[str, int]):
    """Addresses of the functions that a file exports."""

    def __init__(self, file: ctypes.CDLL):
        super().__init__()
        self._file = file

    def __missing__(self, name: str) -> int:
        address = ctypes.cast(getattr(self._file, name), ctypes.c_void_p).value
        assert address is not None
        return self.setdefault(name, address)


class FileLibrary:
    """A libcuda that is a file: nobody tells what was done wrong there, or left behind."""

    violations: tuple[str, ...] = ()

    def __init__(self, path: str):
        self.functions: dict[str, int] = _Functions(ctypes.CDLL(path))

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"a libcuda that is a file does not tell its {name}")

    def left(self) -> list[str]:
        return []

    def check(self, leaks: bool = True) -> None:
        pass


@contextmanager
def opened(which: str | None, seed: int = 0) -> Iterator[Library | FileLibrary]:
    """The model if `which` is None, else what it names: a path, or `MODEL` and a chip."""
    if which is not None and not which.startswith(MODEL):
        yield FileLibrary(which)
        return
    model = load("gh100" if which is None else which.removeprefix(MODEL), seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        if which is None:
            yield model
        else:
            load_file(model.functions, f"{folder}/{SONAME}")
            yield FileLibrary(f"{folder}/{SONAME}")
    model.close()


def chosen(config: pytest.Config) -> str | None:
    """What `--libcuda` says; None where there is no such option."""
    found: Any = config.getoption("--libcuda", default=None)
    return None if found is None else str(found)
