"""`gpu profile PROGRAM` runs a program as Python would, and tells its kernels."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from gpu.cli.kernels import Peaks
from gpu.cli.main import main
from gpu.core.config import config, process_settings
from gpu.runtime.profile import PROFILE
from trace_events import checked

PROGRAM = """
import sys
import numpy as np
from gpu import Tensor
import beside

x = Tensor(np.ones((40, 30), np.float32))
y = (x * 3).softmax(1).realize()
for _ in range(3):
    z = (x @ x.T).realize()
print(sys.argv[1:], beside.NUMBER, __name__)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("NUMBER = 41\n")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_kernels_are_told_by_line(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--top", "1", program, "--top", "x"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("['--top', 'x'] 41 __main__\n")
    assert "runs of" in out and "GFLOP/s in products of matrices" in out
    assert f"for {program}:" in out and "GB/s" in out and "roof " in out
    assert "more" in out.splitlines()[-1]
    assert not PROFILE.rows and not PROFILE.schedules and not config.GPU_PROFILE


def test_json_is_all_there_is_on_the_output(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--json", program]) == 0
    read = capsys.readouterr()
    told = json.loads(read.out)
    assert "41 __main__" in read.err
    kernels = {each["kernel"]: each for each in told["kernels"]}
    product = kernels["matmul_f32_40x40x30"]
    assert product["runs"] == 3 and product["operations"] == 3 * 2 * 40 * 40 * 30
    assert product["line"].endswith("(x @ x.T).realize()")
    assert product["bytes"] == 3 * 4 * (40 * 30 + 40 * 40)
    assert product["gflop_per_s"] == pytest.approx(product["operations"] / product["seconds"] / 1e9)
    assert sum(each["share"] for each in told["kernels"]) == pytest.approx(1)
    peak = told["peaks"][product["device"]]
    least = max(
        2 * 40 * 40 * 30 / peak["gflop_per_s"] / 1e9,
        product["bytes"] / 3 / peak["gb_per_s"] / 1e9,
    )
    assert product["roofline"] == pytest.approx(least / product["fastest_seconds"])


@pytest.fixture
def known_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares measuring them."""
    monkeypatch.setattr("gpu.cli.kernels.measured_peaks", lambda device: Peaks(1e11, 1e10))


@pytest.mark.usefixtures("known_peaks")
def test_a_timeline_besides(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    assert main(["profile", "--trace", str(path), program]) == 0
    trace = checked(path)
    assert len([e for e in trace.of("kernel") if e["name"] == "matmul_f32_40x40x30"]) == 3
    assert "Python: program.py" in trace.processes.values()
    assert "matmul_f32_40x40x30" in capsys.readouterr().out


@pytest.mark.usefixtures("known_peaks")
def test_exit_codes_are_the_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ends.py"
    compute = "from gpu import Tensor\n(Tensor([1.0, 2.0]) + 1).realize()\n"
    for last, code, told in (
        ("import sys; sys.exit(7)", 7, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('why')", 1, "why"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("raise KeyboardInterrupt", 130, ""),
    ):
        path.write_text(compute + last)
        assert main(["profile", str(path)]) == code
        read = capsys.readouterr()
        assert "add_f32_2" in read.out and told in read.err


@pytest.mark.parametrize("trace", ["none/trace.json", "folder.json", "trace.txt"])
def test_a_timeline_that_cannot_be_is_refused_before(
    trace: str, program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.json").mkdir()
    assert main(["profile", "--trace", str(tmp_path / trace), program]) == 1
    read = capsys.readouterr()
    assert not read.out and read.err.startswith("gpu: --trace=")
    assert main(["profile", str(tmp_path / "none.py")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_settings_of_a_process_hold_in_threads_and_go() -> None:
    before, found = config.GPU_PROFILE, []
    with process_settings(GPU_PROFILE=1):
        thread = threading.Thread(target=lambda: found.append(config.GPU_PROFILE))
        thread.start()
        thread.join()
    assert found == ["1"] and before == config.GPU_PROFILE


def test_counters_are_refused_where_there_are_none(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--counters", "SQ_WAVES", program]) == 1
    assert "Unsupported: GPU_COUNTERS=SQ_WAVES on CPU" in capsys.readouterr().err
    assert main(["profile", "--counters", "SQ WAVES", program]) == 1
    assert "names of events separated by commas" in capsys.readouterr().err
