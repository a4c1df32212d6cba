"""The search of schedules: candidates, their measuring, the file of what was found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gpu import Tensor
from gpu.backends.python.device import BLOCKS
from gpu.cli.main import main
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.opt.opts import Bind, Opt, Split
from gpu.compiler.opt.policy.alternatives import alternatives, cost_of, made, neighbours
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target
from gpu.compiler.targets.cpu import host_target
from gpu.core.config import Context, reread_environment
from gpu.core.errors import FormatError, GpuError, Unsupported
from gpu.runtime.tune import search as searching
from gpu.runtime.tune import worker
from gpu.runtime.tune.measure import Subject, WrongResult, work_of
from gpu.runtime.tune.record import Entry, add, decode, encode, key_of, merged, read
from gpu.runtime.tune.sample import differs, make_sample

PRODUCT = parse_kernel("""kernel k(p0: f32[3000] global, p1: f32[2400] global, p2: f32[2000] global)
  loop i0 serial 60
    loop i1 serial 50
      alloc t0: f32[] private
      block
        t0[] = 0.0:f32
        loop r0 serial 40
          t0[] add= mul(p1[40*i0 + r0], p2[i1 + 50*r0])
      p0[50*i0 + i1] = t0[]
""")
CPU = Target("wide", host_target(workers=2).native, "worker", 2, 64, 32)
ENTRY = Entry("matmul", (Split("i0", 4), Bind("i0i", "unroll")), 2.0, 3.0, "s")


@pytest.mark.parametrize("target", [CPU, BLOCKS])
def test_candidates_are_legal_and_ranked(target: Target) -> None:
    default = tuple(schedule(PRODUCT, target)[1])
    found = list(alternatives(PRODUCT, target))
    costs = [a.cost for a in found if a.cost is not None]
    assert costs == sorted(costs)
    legal = {tuple(made(PRODUCT, a.opts, target)[1]) for a in found}
    assert default in legal and len(legal) > 1
    if target is CPU:
        assert cost_of(PRODUCT, default, target) == costs[0]
    assert {opt for near in neighbours(default) for opt in near} - set(default)


@pytest.mark.parametrize("target", [CPU, BLOCKS])
def test_schedules_are_plain_data(target: Target) -> None:
    for alternative in alternatives(PRODUCT, target):
        again = decode(json.loads(json.dumps(encode(alternative.opts))))
        assert again == alternative.opts


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", '{"format": "other"}', '{"format": "gpu-schedules-1"}', "\x00\xff" * 9]
    + [
        json.dumps({"format": "gpu-schedules-1", "entries": {"k": row}})
        for row in (
            3,
            {"label": "x", "opts": None, "cost": -1, "default": 1, "unit": "s"},
            {"label": "x", "opts": [{"eval": {}}], "cost": 1, "default": 1, "unit": "s"},
            {"label": "x", "opts": [{"Split": {"axis": "i"}}], "cost": 1, "default": 1, "unit": ""},
        )
    ],
)
def test_damaged_and_foreign_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=str(path)):
        read(path)
    with Context(TUNED=path, BEAM=2), pytest.raises(FormatError, match=str(path)):
        (Tensor([1.0, 2.0]) * 3.5 + 1.25).realize()


def test_files_are_added_to_and_merged(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuned.json"
    assert read(path) == {}
    add(path, {"a": ENTRY})
    better, worse = ENTRY._replace(cost=1.0), ENTRY._replace(cost=2.9)
    add(path, {"a": worse, "b": ENTRY._replace(opts=None)})
    assert read(path)["a"] == ENTRY and read(path)["b"].opts is None
    assert merged([read(path), {"a": better}])["a"] == better


def test_processes_add_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    code = (
        "import sys; from pathlib import Path\n"
        "from gpu.runtime.tune.record import Entry, add\n"
        "for n in range(20):\n"
        "    add(Path(sys.argv[1]), {sys.argv[2] + str(n): Entry('x', None, 1.0, 1.0, 's')})\n"
        "print('done', flush=True)\n"
        "while sys.argv[2] == 'killed':\n"
        "    add(Path(sys.argv[1]), {'k': Entry('x', None, 1, 1, 's')})\n"
    )
    names = ("one", "other", "killed")
    children = [
        subprocess.Popen([sys.executable, "-c", code, path, name], stdout=subprocess.PIPE)
        for name in names
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == b"done\n"
        child.kill()
        child.wait()
        child.stdout.close()
    assert {name + str(n) for name in names for n in range(20)} <= read(path).keys()


def test_keys_tell_kernels_and_targets_apart() -> None:
    other = PRODUCT._replace(body=K.Block(()))
    keys = {key_of(PRODUCT, CPU), key_of(PRODUCT, BLOCKS), key_of(other, CPU)}
    assert len(keys) == 3


def test_a_wrong_result_is_seen() -> None:
    sample = make_sample(PRODUCT)
    right = sample.arrays["p1"].reshape(60, 40) @ sample.arrays["p2"].reshape(40, 50)
    dtype = PRODUCT.params[0].dtype
    assert differs(sample, "p0", right, dtype) == ""
    where, _ = sample.expected["p0"]
    assert where.size and 2999 in where
    right.reshape(-1)[where[-1]] *= 1.01
    assert "by the interpreter" in differs(sample, "p0", right, dtype)


def test_what_takes_too_long_to_interpret_is_not_searched() -> None:
    huge = parse_kernel("""kernel kernel(p0: f32[1] global, p1: f32[400000] global)
  alloc t0: f32[] private
  t0[] = 0.0:f32
  loop r0 serial 400000
    t0[] add= p1[r0]
  p0[0] = t0[]
""")
    with pytest.raises(Unsupported, match="400"):
        make_sample(huge)


class Counted:
    """Costs by the length of a schedule; some fail."""

    unit = "work"

    def __init__(self) -> None:
        self.asked: list[tuple[Opt, ...]] = []

    def cost(self, opts: Sequence[Opt]) -> float:
        self.asked.append(tuple(opts))
        if len(self.asked) % 3 == 0:
            raise GpuError("a candidate that fails")
        return 100.0 - len(self.asked)


def test_the_best_that_works_is_taken() -> None:
    subject = Counted()
    entry = searching.search(PRODUCT, CPU, subject, "product", 12)
    assert len(set(subject.asked)) == len(subject.asked) > 6
    assert entry.opts in subject.asked[1:] and entry.default == 99.0 and entry.cost < 99.0


def test_a_budget_ends_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Counted()
    monkeypatch.setattr(searching.BUDGET, "spent", 1e9)
    assert searching.search(PRODUCT, CPU, subject, "product", 12).opts is None
    assert len(subject.asked) == 1


def test_a_candidate_that_hangs_or_crashes_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = worker.Remote(PRODUCT, "CPU")
    default = schedule(PRODUCT, CPU)[1]
    try:
        assert remote.cost(default) > 0
        with pytest.raises(worker.CandidateFailed, match="there is no loop"):
            remote.cost([Split("there is none", 2)])
        with monkeypatch.context() as patch, pytest.raises(worker.CandidateFailed, match="took"):
            patch.setattr(worker, "LIMIT", 0.0)
            remote.cost(default)
        assert remote.cost(default) > 0
        assert remote._process is not None
        remote._process.kill()
        with pytest.raises(worker.CandidateFailed, match="code -9"):
            remote.cost(default)
        assert remote.cost(default) > 0
    finally:
        remote.close()


def test_wrong_code_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu.runtime.tune import measure

    subject = Subject(PRODUCT, "PYTHON")
    default = schedule(PRODUCT, subject.device.renderer.target)[1]
    assert subject.cost(default) > 0
    wrong = K.Kernel("k", PRODUCT.params, K.Block(()))
    lower = measure.lower_kernel
    monkeypatch.setattr(measure, "lower_kernel", lambda k, t, o: lower(wrong, t, []))
    with pytest.raises(WrongResult):
        subject.cost(default)


def test_beam_finds_keeps_and_uses_schedules(device: str, tmp_path: Path) -> None:
    x, y = (np.random.default_rng(n).normal(size=(30, 40)).astype(np.float32) for n in (0, 1))
    path = tmp_path / "tuned.json"

    def run() -> None:
        got = (Tensor(x).realize() @ Tensor(y.T.copy()).realize() - 0.375).relu().numpy()
        np.testing.assert_allclose(got, np.maximum(x @ y.T - 0.375, 0), 1e-4, 1e-4)

    with Context(TUNED=path, BEAM=4, CACHE=0):
        run()
    found = read(path)
    assert found and all(entry.cost <= entry.default for entry in found.values())
    with Context(TUNED=path, BEAM=1, CACHE=0):
        run()
    assert read(path) == found


def test_the_command_shows_exports_and_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used, out = tmp_path / "used.json", tmp_path / "out.json"
    add(used, {"a": ENTRY})
    monkeypatch.setenv("TUNED", str(used))
    reread_environment()
    try:
        assert main(["tune", "export", str(out)]) == 0 and read(out) == {"a": ENTRY}
        add(out, {"b": ENTRY})
        assert main(["tune", "merge", str(out)]) == 0 and read(used).keys() == {"a", "b"}
        assert main(["tune", "show"]) == 0
        assert "matmul" in capsys.readouterr().out
        assert main(["tune", "show", str(tmp_path / "none")]) == 1
    finally:
        monkeypatch.undo()
        reread_environment()


def test_without_beam_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; from gpu import Tensor\n"
        "(Tensor([1.0]) + 1).realize()\n"
        "assert not [m for m in sys.modules if m.startswith('gpu.runtime.tune')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_work_counts_warps_and_sectors() -> None:
    from gpu.runtime.pipeline import lower_kernel

    def work(opts: list[Opt] | None) -> float:
        return work_of(lower_kernel(PRODUCT, BLOCKS, opts).program, BLOCKS)

    assert work(None) < work([Bind("i0", "grid")]) < work([])
