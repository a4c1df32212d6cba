"""What must be proved before a mistake counts as found."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from mutating import Apply, Mutations, Patcher, assert_finds

code = SimpleNamespace(answer=42)


def right() -> None:
    assert code.answer == 42


def wrong(patch: Patcher) -> None:
    patch.setattr(code, "answer", 43)


def test_a_mistake_is_found_and_undone() -> None:
    assert_finds("right", right, wrong)
    right()


def test_a_check_that_looks_at_nothing() -> None:
    with pytest.raises(pytest.fail.Exception, match="wrong: was not found by nothing"):
        assert_finds("nothing", lambda: None, wrong)


def test_a_check_that_fails_anyway() -> None:
    def failing() -> None:
        raise AssertionError("as ever")

    with pytest.raises(AssertionError, match="as ever"):
        assert_finds("failing", failing, wrong)


@pytest.mark.parametrize(
    "nothing", [lambda patch: None, lambda patch: patch.setattr(code, "answer", 42)]
)
def test_a_mistake_that_changes_nothing(nothing: object) -> None:
    with pytest.raises(pytest.fail.Exception, match="changed nothing"):
        assert_finds("right", right, nothing)  # type: ignore[arg-type]


def badly(patch: Patcher) -> None:
    patch.setattr(code, "answer", None)


def elsewhere(patch: Patcher) -> None:
    patch.setattr(code, "other", 1)


def deadly(patch: Patcher) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [(badly, "TypeError"), (elsewhere, "AttributeError"), (deadly, "ended with -9")],
)
def test_a_mistake_that_was_written_badly(mistake: Apply, told: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=told):
        assert_finds("sum", lambda: code.answer + 1, mistake)


def test_a_check_that_is_not_there() -> None:
    mutations = Mutations({"right": right})
    with pytest.raises(KeyError, match="no check 'left'"):
        mutations.found_by("left")
    mutations.found_by("right")(wrong)
    with pytest.raises(AssertionError, match="twice"):
        mutations.found_by("right")(wrong)
