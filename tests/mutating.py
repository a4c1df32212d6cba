"""Mistakes that are put in on purpose, and the proof that a check finds them.

That a check fails under a mistake says something only if it passes without, if the mistake was
there, and if nothing is left of the mistakes before it: `assert_finds` sees to all three.
"""

from __future__ import annotations

import faulthandler
import os
import traceback
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import pytest

from gpu.core.errors import GpuError

FOUND = (GpuError, AssertionError, OSError, pytest.fail.Exception)
"""How a check says that it found something; a mistake that ends otherwise was written badly."""

C = TypeVar("C")


class Patcher:
    """Sets attributes, and notes which are other than they were."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self._patch = patch
        self.changed: list[str] = []

    def setattr(self, target: object, name: str, value: object) -> None:
        """As `pytest.MonkeyPatch.setattr`; the attribute must be there."""
        before = getattr(target, name)
        self._patch.setattr(target, name, value)
        if before is not value and before != value:
            self.changed.append(f"{target!r}.{name}")


Apply = Callable[[Patcher], None]


class Mutation(NamedTuple):
    """A mistake, the name of the check that has to find it, and what else that needs."""

    apply: Apply
    found_by: str
    option: Any = None


class Mutations(dict[str, Mutation]):
    """Mistakes by name, among checks by name."""

    def __init__(self, checks: Mapping[str, C]):
        super().__init__()
        self.checks = checks

    def found_by(self, check: str, option: Any = None) -> Callable[[Apply], Apply]:
        """Notes a mistake that this check has to find. Raises KeyError where there is none."""
        if check not in self.checks:
            raise KeyError(f"there is no check {check!r}; those are {sorted(self.checks)}")

        def note(apply: Apply) -> Apply:
            name = apply.__name__
            assert name not in self, f"{name} is there twice"
            self[name] = Mutation(apply, check, option)
            return apply

        return note


_passed: set[Hashable] = set()


def assert_finds(key: Hashable, check: Callable[[], object], apply: Apply) -> None:
    """Fails unless `check` passes as things are and does not with what `apply` changes.

    It passes once in a process for each `key`, which names it. The mistake is made in a child
    process, with which all that it leaves behind ends.
    """
    if key not in _passed:
        check()
        _passed.add(key)
    if trouble := _in_child(lambda: _trouble(key, check, apply)):
        pytest.fail(f"{apply.__name__}: {trouble}")


def _trouble(key: Hashable, check: Callable[[], object], apply: Apply) -> str:
    """Why a mistake does not count as found; empty where it does."""
    with pytest.MonkeyPatch.context() as patch:
        patcher = Patcher(patch)
        apply(patcher)
        if not patcher.changed:
            return "changed nothing"
        try:
            check()
        except FOUND:
            return ""
    return f"was not found by {key}"


def _in_child(act: Callable[[], str]) -> str:
    """What a function gives in a fork of this process, or how that ended instead."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        faulthandler.disable()  # a mistake may end in a signal: the status says so
        try:
            told = act()
        except BaseException:  # whatever it is, the parent tells it
            told = traceback.format_exc()
        try:
            with open(writing, "w", encoding="utf-8") as pipe:
                pipe.write(f"{told}\n")
        finally:
            os._exit(0)  # nothing that pytest does at an end is this process's
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return told.strip() if told else f"the process ended with {status}"
