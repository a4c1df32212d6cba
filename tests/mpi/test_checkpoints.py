"""Checkpoints: of ranks that mpiexec starts, once for many checks, and of one process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpu import Tensor, distributed
from gpu.core.errors import (
    DistributedError,
    DTypeError,
    FormatError,
    InvalidType,
    InvalidValue,
)
from gpu.distributed import index
from gpu.distributed.pieces import begin_of
from gpu.nn.optim import SGD
from gpu.tensor.nn.schedules import StepLR
from mpi.launch import PROGRAMS, mpiexec, told_by_ranks
from mpi.states import STATE, filled, same, shapes

CHECKS = re.findall(r"^def (check_\w+)", (PROGRAMS / "saving.py").read_text(), re.MULTILINE)


def _run(ranks: int, folder: Path) -> None:
    distributed.save(folder / "alone", filled(np.random.default_rng(STATE), 4), 41).wait()
    done = mpiexec(ranks, "saving.py", "11", str(folder))
    told = [each["told"] for each in told_by_ranks(done.stdout)]
    wrong = [f"{name}: {text}" for each in told for name, text in each.items() if text]
    assert not wrong, "\n".join(wrong)
    assert done.returncode == 0 and len(told) == ranks, done.stdout + done.stderr
    assert all([*each] == CHECKS for each in told)
    state = shapes(4)
    assert distributed.load(folder / "ranks", state) == 42
    expected = filled(np.random.default_rng(STATE), 4)
    same(state, {name: tensor.numpy() for name, tensor in expected.items()})


def test_two_ranks(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("mpi")
    _run(2, tmp_path)


@pytest.mark.slow
@pytest.mark.sampled(0)
def test_four_ranks(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("mpi")
    _run(4, tmp_path)


def test_a_killed_save_leaves_the_last_one(tmp_path: Path) -> None:
    program = str(PROGRAMS / "killed.py")
    done = subprocess.run(
        [sys.executable, program, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    assert int(done.stdout) >= 15


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    class Schedule:
        def state_dict(self) -> dict[str, object]:
            return {"rate": object()}

        def load_state_dict(self, state: object) -> None:
            raise AssertionError(state)

    one = Tensor([1.0])
    with pytest.raises(InvalidType, match=r"state of one of schedule.*object"):
        distributed.save(tmp_path, {"x": one, "schedule": Schedule()})
    with pytest.raises(DTypeError, match="x is complex128"):
        distributed.save(tmp_path, {"x": Tensor([1j]).cast("complex128")})
    with pytest.raises(InvalidType, match="holds no tensors"):
        distributed.save(tmp_path, {"x": 3})
    with pytest.raises(InvalidValue, match="step"):
        distributed.save(tmp_path, {"x": one}, -1)
    with pytest.raises(DistributedError, match="File exists"):
        (tmp_path / "file").touch()
        distributed.save(tmp_path / "file", {"x": one})
    with pytest.raises(InvalidValue, match="holds no checkpoint"):
        distributed.load(tmp_path, {"x": one})
    assert distributed.checkpoints(tmp_path / "none") == ()


def test_an_error_of_a_save_comes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"x": Tensor([1.0])}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("gpu.distributed.checkpoint.write_file", full)
        distributed.save(tmp_path, state, 1)
        with pytest.raises(DistributedError, match=r"rank 0.*No space left"):
            distributed.save(tmp_path, state, 2)
    distributed.save(tmp_path, state, 3).wait()
    assert distributed.load(tmp_path, state) == 3 and len([*tmp_path.iterdir()]) == 1


def test_what_has_a_state_is_saved_too(tmp_path: Path) -> None:
    weight = Tensor([1.0, 2.0])
    optimizer = SGD([weight], lr=0.5)
    schedule = StepLR(optimizer, 1)
    schedule.step()
    state = {"optimizer": optimizer, "schedule": schedule, "tied": weight}
    distributed.save(tmp_path, state, 1).wait()
    schedule.step()
    assert distributed.load(tmp_path, state) == 1
    assert schedule.last_epoch == 1 and abs(optimizer.lr.item() - 0.05) < 1e-6
    with pytest.raises(InvalidValue, match=r"has the states of \['schedule'\].*none"):
        distributed.load(tmp_path, {"optimizer": optimizer, "tied": weight})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2), ("step", -1), ("step", True), ("id", 3), ("parts", [1 << 70]),
        ("parts", {}), ("seed", "x"), ("given", {"CPU": None}), ("objects", {"x": 1}),
        ("tensors", {"x": ["float32"]}), ("tensors", {"x": ["pickle", [2]]}),
        ("tensors", {"x": ["float32", [-2]]}), ("tensors", {"x": ["float32", [4]]}),
        ("tensors", {"x": ["float64", [2]]}), ("tensors", {"y": ["float32", [2]]}),
        ("tensors", {"x": ["float32", [1 << 62]]}), ("id", "another"), ("parts", [1]),
    ],
)  # fmt: skip
def test_a_damaged_index_is_refused(field: str, value: object, tmp_path: Path) -> None:
    state = {"x": Tensor([1.0, 2.0])}
    distributed.save(tmp_path, state).wait()
    path = distributed.checkpoints(tmp_path)[0] / index.INDEX
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {field: value}))
    with pytest.raises(FormatError):
        distributed.load(tmp_path, state)
    path.write_text(path.read_text()[:-9])
    with pytest.raises(FormatError, match="no JSON"):
        distributed.load(tmp_path, state)
    path.unlink()
    with pytest.raises(InvalidValue, match=f"has no {index.INDEX}"):
        distributed.load(tmp_path, state)


@pytest.mark.parametrize("key", ["x", "x@a", "x@1,", "x@-1", "x@1,,2", "x@٣"])
def test_names_of_pieces(key: str) -> None:
    assert begin_of("a@b@3,0") == ("a@b", (3, 0)) and begin_of("s@") == ("s", ())
    with pytest.raises(FormatError, match="no piece"):
        begin_of(key)
