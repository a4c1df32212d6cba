"""Collects the instruction forms of the simulator's tests, with inputs and what the engine gives.

The tests of `tests/sim/ptx` run each form on 128 lanes and compare it with a definition. Here they
run with a `check` that notes down what it was given: `python -m tools.hw_acceptance.vectors.record
FILE` writes all of it to a file, in a process of its own since pytest is the library's guest.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tools.hw_acceptance.vectors.pack import Group, Words

ROOT: Final = Path(__file__).resolve().parents[3]
_TESTS: Final = "tests/sim/ptx"
_FILES: Final = ("test_integers.py", "test_bits.py", "test_floats.py", "test_conversions.py")


class Recorder:
    """A plugin of pytest that stands between the tests and what they run forms by."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def pytest_configure(self) -> None:
        """Before any test is imported."""
        from sim.ptx import ops  # type: ignore[import-not-found]

        original, inner = ops.check, ops.BareModule

        def check(forms: Sequence[Any], make: Any = None, same: Any = None) -> None:
            recorded: list[tuple[Words, Words]] = []
            texts: list[str] = []
            ops.BareModule = _recording(inner, texts, recorded)
            try:
                original(forms, make, same)
            finally:
                ops.BareModule = inner
            sources = np.stack([given for given, _ in recorded])
            results = np.stack([out for _, out in recorded])
            names = tuple(form.text for form in forms)
            bits = tuple(form.result for form in forms)
            kernels = tuple(f"k{number}" for number in range(len(names)))
            exact = same is None
            self.groups.append(Group(texts[0], kernels, names, bits, exact, sources, results))

        ops.check = check


def _recording(
    inner: Callable[[str], Any], texts: list[str], recorded: list[tuple[Words, Words]]
) -> Callable[[str], Any]:
    """A module of PTX that notes down its text, and what each of its kernels was given and gave."""

    class Recording:
        """A module in the place of `inner`'s, which does the same and is listened to."""

        def __init__(self, text: str):
            texts.append(text)
            self._module = inner(text)

        def run(self, kernel: str, *arguments: Any) -> bool:
            *_, given, out = arguments
            before = given.copy()
            done: bool = self._module.run(kernel, *arguments)
            recorded.append((before, out.copy()))
            return done

    return Recording


def main(path: str) -> int:
    """Runs the tests and writes what they did; pytest's exit status."""
    sys.path.insert(0, str(ROOT / "tests"))
    recorder = Recorder()
    files = [str(ROOT / _TESTS / name) for name in _FILES]
    status = pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[recorder])
    Path(path).write_bytes(pickle.dumps(recorder.groups))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
