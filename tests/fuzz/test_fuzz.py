"""What reads bytes from outside refuses bad ones: the corpus, and some inputs that are new."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpu.core.errors import FormatError
from tools.fuzz import __main__ as command
from tools.fuzz import run
from tools.fuzz.mutate import mutated
from tools.fuzz.run import Ran, Stuck, corpus, fuzz, keep, try_one
from tools.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_corpus(target: Target) -> None:
    """Nothing of it is a finding, and what mutation begins with some reader reads whole."""
    ran, inputs = Ran(), corpus(target)
    for data in inputs:
        try_one(target, data, ran)
    assert ran.findings == [] and ran.count == len(inputs)
    assert ran.refused < ran.count


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_new_inputs(target: Target) -> None:
    ran = fuzz(target, corpus(target), 300, seed=20_261_123)
    assert ran.findings == [] and ran.count == 300 + len(corpus(target))


def test_ways_are_told_apart_without_their_numbers() -> None:
    def read(data: bytes) -> None:
        if data[0] % 2:
            raise FormatError(f"byte {data[0]:#x} of {len(data)} is odd")

    ran = fuzz(Target("x", (read,)), [b"\0\0", b"\1\1"], 50)
    assert set(ran.ways) <= {"read", "FormatError: byte # of # is odd"} | {
        way for way in ran.ways if "IndexError" in way
    }


def test_any_other_exception_is_a_finding_and_told_once() -> None:
    def read(data: bytes) -> None:
        if len(data) > 3:
            raise KeyError(data[:2])

    ran = fuzz(Target("x", (read, lambda _: None)), [b"abc", b"abcdef"], 200)
    assert ran.findings and all("KeyError" in how for _, how in ran.findings)
    assert len(ran.findings) == len({how.split(":")[0] for _, how in ran.findings})


def test_an_input_that_never_ends_is_a_finding() -> None:
    def read(data: bytes) -> None:
        while len(data) > 2:
            pass

    with run.bounded(0.1):
        ran = Ran()
        try_one(Target("x", (read,)), b"abc", ran)
    assert "Stuck" in ran.findings[0][1]
    assert issubclass(Stuck, Exception)


def test_mutations_are_many_and_the_same_for_a_seed() -> None:
    pool = [bytes(range(64)), b"a line 1\nanother 22\n"]
    for text in (False, True):
        first, second = (
            [mutated(rng, pool, text=text) for _ in range(500)]
            for rng in (random.Random(3), random.Random(3))
        )
        assert first == second and len(set(first)) > 300


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(data: bytes) -> None:
        if b"\xff" in data:
            raise ValueError("a byte of ones")

    target = Target("x", (read,))
    monkeypatch.setattr(command, "TARGETS", {"x": target})
    monkeypatch.setattr(command.resource, "setrlimit", lambda *_: None)
    for module, name in ((command, "corpus"), (command, "keep")):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, f=function: f(*a, tmp_path))
    monkeypatch.setattr(command, "CORPUS", tmp_path)
    keep(target, [bytes(32)], tmp_path)
    assert command.main(["x", "--count", "500"]) == 1
    told = capsys.readouterr().out
    assert "x: 501 inputs" in told and "1 findings" in told and "ValueError: a byte of ones" in told
    assert len(list((tmp_path / "x").iterdir())) == 2
    assert command.main(["x", "--count", "0"]) == 1, "it is in the corpus now, until it is mended"
