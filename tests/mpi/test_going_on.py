"""Programs that go on when a rank is lost, or ask to be started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from gpu import Mesh, Tensor, distributed
from gpu.core.errors import InvalidValue
from gpu.runtime import collectives
from mpi.launch import mpiexec, told_by_ranks
from mpi.test_faults import ULFM

STEPS = 14


def _run(
    folder: Path, ranks: int, how: str, step: int = 0, who: int = 0, timeout: int = 60
) -> CompletedProcess[str]:
    arguments = (str(folder), how, str(step), str(who))
    return mpiexec(ranks, "going_on.py", *arguments, options=ULFM, MPI_TIMEOUT=str(timeout))


def _losses(done: CompletedProcess[str], size: int) -> dict[int, float]:
    told: list[Any] = told_by_ranks(done.stdout)
    assert [each["rank"] for each in told] == [*range(size)], done.stdout + done.stderr
    assert all(each["size"] == size for each in told)
    assert all(each["losses"] == told[0]["losses"] for each in told)
    return dict(told[0]["losses"])


@pytest.mark.parametrize(
    ("ranks", "how", "step", "who"),
    [
        (2, "kill", 9, 1),
        *(
            pytest.param(*case, marks=(pytest.mark.slow, pytest.mark.sampled(0)))
            for case in [
                (3, "kill", 9, 0),
                (3, "raise", 5, 1),
                (2, "raise", 0, 0),
                (4, "kill", 3, 2),
            ]
        ),
    ],
)
def test_others_go_on(
    ranks: int, how: str, step: int, who: int, tmp_path: Path, need: Callable[[str], None]
) -> None:
    """With fewer ranks, in the same steps: every loss is that of a run in which nobody was lost."""
    need("mpi")
    found = _losses(_run(tmp_path / "lost", ranks, how, step, who), ranks - 1)
    alone = _losses(_run(tmp_path / "alone", 1, "none"), 1)
    assert [*found] == [*alone] == [*range(STEPS)]
    np.testing.assert_allclose([*found.values()], [*alone.values()], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.sampled(0)
@pytest.mark.parametrize("how", ["hang", "stop", "other"])
def test_all_are_to_be_started_again(how: str, tmp_path: Path, need: Callable[[str], None]) -> None:
    """Started again, with another number of ranks too, they go on from the last checkpoint."""
    need("mpi")
    done = _run(tmp_path, 2, how, 10, 1, timeout=5)
    assert done.returncode == 75, done.stdout + done.stderr
    assert "exit code 75" in done.stderr
    found = _losses(_run(tmp_path, 1, "none"), 1)
    alone = _losses(_run(tmp_path / "alone", 1, "none"), 1)
    assert min(found) in (4, 8) and max(found) == STEPS - 1
    np.testing.assert_allclose([*found.values()], [alone[n] for n in found], rtol=1e-9)


def test_run_alone(tmp_path: Path) -> None:
    state = {"count": Tensor([0])}
    seen = list[int]()

    def step(number: int) -> None:
        if number == 5 and len(seen) < 9:
            seen.append(-1)
            raise ValueError("at step 5")
        seen.append(number)
        state["count"].assign(state["count"] + 1).realize()

    with pytest.raises(ValueError, match="at step 5"):
        distributed.run(step, state, folder=tmp_path, steps=7, every=2, check=1)
    state["count"] = Tensor([0])
    seen += [-2] * 9
    distributed.run(step, state, folder=tmp_path, steps=7, every=2)
    assert seen == [0, 1, 2, 3, 4, -1, *[-2] * 9, 4, 5, 6] and state["count"].item() == 7
    distributed.run(step, state, folder=tmp_path, steps=7)
    assert len(seen) == 18
    for wrong in ({"steps": -1}, {"every": 0}, {"check": -1}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            distributed.run(step, state, **{"folder": tmp_path, "steps": 7, **wrong})


class Ranks:
    """A world of several ranks, of which no messages go."""

    def __init__(self, size: int):
        self.rank, self.size = 0, size


def test_meshes_become_smaller_along_data_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives._world, "transport", Ranks(8))
    mesh, other = Mesh((4, 2), ("data", "model")), Mesh((8,), ("model",))
    monkeypatch.setattr(collectives._world, "transport", Ranks(6))
    mesh._fit()
    assert mesh.shape == (3, 2) and [axis.size for axis in mesh._axes] == [3, 2]
    with pytest.raises(InvalidValue, match="another size of its axis 'data'"):
        other._fit()
    monkeypatch.setattr(collectives._world, "transport", Ranks(5))
    with pytest.raises(InvalidValue, match=r"\(3, 2\).* does not fit 5 ranks"):
        mesh._fit()
    monkeypatch.setattr(collectives._world, "transport", Ranks(2))
    mesh._fit()
    assert mesh.shape == (1, 2)
