"""`gpu bench`: workloads and references, refused answers, libraries that are missing, its file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.cli.bench import child, command, libraries, measure, workloads
from gpu.cli.bench.adapters import Array, GpuAdapter
from gpu.cli.bench.contest import ContestantFailed, Local
from gpu.cli.bench.peers import PEERS
from gpu.cli.bench.workloads import RATE, WORKLOADS
from gpu.cli.main import main
from gpu.core.errors import InvalidValue
from gpu.runtime.profile import PROFILE

SMALL = ("bench", "--scale", "small", "--repeats", "3")
FIGURES = {
    *("workload", "library", "problem", "median", "quartiles", "best", "samples", "first"),
    *("deviation", "flops_per_second", "bytes_per_second"),
}


class Liar(GpuAdapter):
    """Is off by a little in one element."""

    def get(self, value: Any) -> Array:
        values = super().get(value).copy()
        values.flat[-1] += 0.01 * np.abs(values).max()
        return values


def results(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> dict[str, Any]:
    assert main([*SMALL, "--json", str(path), *arguments]) == 0, capsys.readouterr()
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(WORKLOADS)


def test_small_workloads_end_to_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chosen = "gemm1000,sum,minilm,mlp,cnn,dispatch"
    report = results(capsys, tmp_path / "figures.json", "--workloads", chosen)
    assert set(report) == {
        *("schema", "version", "system", "threads", "scale", "libraries", "results"),
    }
    assert report["schema"] == 1 and report["scale"] == "small"
    assert [row["workload"] for row in report["results"]] == chosen.split(",")
    for row in report["results"]:
        assert set(row) == FIGURES and row["library"] == "gpu" and not row["problem"]
        low, high = row["quartiles"]
        assert 0 < row["best"] <= low <= row["median"] <= high
        assert row["samples"] == 3 and row["deviation"] < 1e-3
    out = capsys.readouterr().out
    assert all(name in out for name in chosen.split(","))


def test_isolated_processes_tell_their_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("--workloads", "sum,start", "--isolate")
    isolated, started = results(capsys, tmp_path / "figures.json", *options)["results"]
    assert set(isolated) == {*FIGURES, "peak_bytes", "imported_bytes"}
    assert 1 << 20 < isolated["imported_bytes"] <= isolated["peak_bytes"]
    assert set(started) == FIGURES and started["median"] > 0.01


@pytest.mark.parametrize(
    ("option", "name", "hint"),
    [
        ("--workloads", "gem1024", "did you mean gemm1024?"),
        ("--against", "jax,torc", "did you mean torch?"),
    ],
)
def test_unknown_names(
    option: str, name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", option, name]) == 1
    error = capsys.readouterr().err
    assert f"{option}={name}: there is no" in error and hint in error


def test_a_file_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "figures.json"):
        arguments = ["--json", str(path)]
        with pytest.raises(InvalidValue, match="--json="):
            command.run(command_line(arguments))


def command_line(arguments: Sequence[str]) -> Any:
    from gpu.cli.commands import make_parser

    return make_parser().parse_args(["bench", *arguments])


def test_a_wrong_answer_has_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libraries, "GpuAdapter", Liar)
    assert main([*SMALL, "--workloads", "softmax"]) == 1
    out = capsys.readouterr().out
    assert "wrong answer: it differs from numpy's by 0.01" in out and " us " not in out


def test_compare() -> None:
    right = np.array([1.0, -4.0], np.float32)
    assert measure.compare(right + np.float32(0.02), right, 0.01) == pytest.approx(0.005, rel=1e-3)
    for wrong in (right + np.float32(0.05), right * np.float32("nan"), right[:1]):
        with pytest.raises(measure.WrongAnswer):
            measure.compare(wrong, right, 0.01)


def test_a_missing_library_is_told_and_the_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--workloads", "sum", "--against", "jax", "--peer-python", "/no/such/python")
    assert main([*SMALL, *options]) == 0
    out = capsys.readouterr().out
    assert "jax       missing: /no/such/python cannot be run" in out and "sum  " in out


def test_a_library_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContestantFailed, match="KeyError: 'numpy'"):
        child.Remote("numpy", sys.executable, 1, "")


def test_torch_gives_the_same_answers(
    need: Callable[[str], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    need("torch")
    options = ("--against", "torch", "--workloads", "gemm256,mlp")
    report = results(capsys, tmp_path / "figures.json", *options)
    assert set(report["libraries"]) == {"gpu", "torch"}
    assert [row["problem"] for row in report["results"]] == [""] * 4


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_gradients_by_hand(name: str) -> None:
    """Compared with differences of the loss, along the gradient itself."""
    workload = WORKLOADS[name].small
    assert workload.training is not None
    x, y = (array.astype(np.float64, casting="safe") if array.ndim > 1 else array
            for array in workload.inputs())  # fmt: skip
    weights = [p.astype(np.float64) for p in workload.training.parameters()]
    _, slopes = workload.training.gradient(weights, x, y)
    for number, slope in enumerate(slopes):
        losses = []
        for sign in (1, -1):
            moved = list(weights)
            moved[number] = weights[number] + sign * 1e-6 * slope
            losses.append(workload.training.gradient(moved, x, y)[0])
        assert (losses[0] - losses[1]) / 2e-6 == pytest.approx((slope**2).sum(), rel=1e-3)


def test_training_lowers_the_loss() -> None:
    losses = WORKLOADS["mlp"].small.answer()
    assert len(losses) == workloads.CHECKED_STEPS and (np.diff(losses) < 0).all() and RATE > 0


MEMORY = """
from gpu.cli.bench.contest import process_memory
import numpy as np
before = process_memory()
kept = np.ones(1 << 25, np.uint8)
during = process_memory()
del kept
print(*before, *during, *process_memory())
"""


def test_memory_of_a_process() -> None:
    """In a process of its own: in this one there may be memory that was freed and is used again."""
    printed = subprocess.check_output([sys.executable, "-c", MEMORY], text=True)
    _, now, peak, during, last_peak, after = map(int, printed.split())
    size, slack = 1 << 25, 1 << 22
    assert size - slack < during - now < size + slack and size - slack < during - after
    assert peak >= during - slack and last_peak >= peak - slack


def test_every_peer_can_be_timed_from_its_start() -> None:
    from gpu.cli.bench.contest import STARTS

    assert set(STARTS) == {GpuAdapter.name, *PEERS}
    assert Local(GpuAdapter()).name == "gpu"


def test_kernels_have_time_roofline_and_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--workloads", "gemm1000,softmax", "--scale", "small"]) == 0
    out = capsys.readouterr().out
    assert "peaks reached here" in out and "softmax: " in out
    product, schedule = out[out.index("matmul_f32_19x19x19") :].splitlines()[:2]
    assert "roof" in product and "cycles" in product and "Tile(" in schedule
    assert not PROFILE.rows and not PROFILE.schedules


def test_a_script_is_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom gpu import Tensor\nprint(sys.argv[1:], (Tensor([3.25]) * 4).item())\n"
    )
    assert main(["bench", "kernels", str(script), "more"]) == 0
    out = capsys.readouterr().out
    assert "['more'] 13.0" in out and "for " + str(script) in out
    assert main(["bench", "kernels", str(tmp_path / "none.py")]) == 1
    assert main(["bench", "--workloads", "sum", "compile", str(script)]) == 1


def test_time_of_compiling_is_told_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compile", "--workloads", "softmax", "--scale", "small"]) == 0
    out = capsys.readouterr().out
    for name in ("plan", "build", "schedule", "lower", "render", "compile", "load", "all else"):
        assert f" {name}: " in out, out


def test_every_turn_begins_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(measure.time, "sleep", done.append)

    class Turn(Local):
        def measure(self, count: int) -> list[float]:
            done.append(self.name)
            return [1.0] * count

    ready = []
    for name in ("one", "other"):
        contestant = Turn(GpuAdapter())
        contestant.name = name
        ready.append((measure.Result("sum", name), contestant))
    measure._take_turns([*ready, *ready], 2)
    assert done == [measure.REST, "one", measure.REST, "other"] * 2
