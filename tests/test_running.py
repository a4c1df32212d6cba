"""How tests are chosen, marked and run: `--quick`, the mark `timing`, the store, seeds."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import nested
from busy import busy
from selection import EVERY, SAMPLE, sample, thin_out
from store import evict

TESTS = Path(__file__).parent
# Programs that tests start are no tests: each has a process of its own.
FILES = sorted(path for path in TESTS.rglob("*.py") if path.parent.name != "programs")


class Named:
    """Of a test, what `sample` looks at."""

    def __init__(self, nodeid: str, slow: bool = False):
        self.nodeid, self.slow = nodeid, slow

    def get_closest_marker(self, name: str) -> object:
        assert name == "slow"
        return True if self.slow else None


def names(*items: Named) -> list[str]:
    return [item.nodeid for item in sample(items)]  # type: ignore[arg-type]


def test_every_file_with_fast_tests_is_in_a_quick_run() -> None:
    many = [Named(f"a.py::test[{n}]", slow=n % 2 == 0) for n in range(10 * EVERY)]
    few = [Named(f"b.py::test_{n}", slow=n > 0) for n in range(3)]
    slow = [Named(f"c.py::test_{n}", slow=True) for n in range(3)]
    chosen = names(*many, *few, *slow)
    assert [name[:4] for name in chosen] == ["a.py"] * 5 + ["b.py"]
    assert "b.py::test_0" in chosen
    assert not {item.nodeid for item in many if item.slow} & {*chosen}
    assert sorted(names(*slow, *reversed(many), *few)) == sorted(chosen)
    others = [Named(item.nodeid.replace("test", "other"), item.slow) for item in many]
    assert [n.replace("other", "test") for n in names(*others)] != chosen[:5]


def test_of_sampled_devices_a_fixed_part_of_each_function_runs() -> None:
    class Config:
        def __init__(self) -> None:
            self.deselected: list[object] = []
            self.hook = self

        def pytest_deselected(self, items: list[object]) -> None:
            self.deselected += items

    def run(names: Sequence[str]) -> list[str]:
        items, config = [Named(name) for name in names], Config()
        thin_out(config, items, lambda item: 100 if "CPU" in item.nodeid else SAMPLE)  # type: ignore[arg-type]
        assert len(items) + len(config.deselected) == len(names)
        return [item.nodeid for item in items]

    names = [
        f"a.py::test_{function}[{device}-{n}]"
        for function, count in (("many", 1000), ("two", 2), ("one", 1))
        for n in range(count)
        for device in ("CPU", "CL", "NV")
    ]
    kept = run(names)
    assert [n for n in kept if "CPU" in n] == [n for n in names if "CPU" in n]
    sampled = [name for name in kept if "CPU" not in name]
    functions = Counter(name.partition("[")[0] for name in sampled)
    many = 2000 * SAMPLE // 100
    assert functions == {"a.py::test_many": many, "a.py::test_two": 1, "a.py::test_one": 1}
    assert 0.4 * many < sum("CL" in name for name in sampled) < 0.6 * many
    assert set(run(names[::-1])) == set(kept)
    # Of a part that `--part` takes, it is the same share.
    parts = [name for name in sampled if zlib.crc32(name.encode()) % 10_000 < 1000]
    assert len(parts) < len(sampled) / 4


MARKED = """
import signal, os
from threading import Thread as T
from bounded import bounded
from pathlib import Path

def kills():
    os.kill(1, 0)

def calls_it():
    return kills()

def fixture(calls_it):
    return 1

def threads():
    T().start()

def its_own():
    from time import sleep
    sleep(1)

class Waits:
    def method(self):
        signal.pause()

def limited():
    with bounded(1):
        pass

def harmless():
    os.getpid(), Path()
"""


def test_the_mark_is_given_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "test_waits.py"
    path.write_text("import time\n\ndef test_a():\n    time.sleep(0)\n\ndef test_b():\n    pass\n")
    assert "1 passed, 1 deselected" in (said := run_file(path, "-m", "timing")), said


def test_what_gets_the_mark_timing(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(MARKED)
    named = {"kills", "calls_it", "fixture", "threads", "its_own", "Waits", "limited"}
    assert {name for name in busy(path) if name not in ("signal", "T", "bounded", "sleep")} == named


def test_this_suite_has_such_tests() -> None:
    assert "test_ctrl_c_stops_it" in busy(TESTS / "unit" / "test_demo.py")
    assert "test_digits" not in busy(TESTS / "unit" / "test_demo.py")


def filled(folder: Path) -> dict[str, Path]:
    """Three objects and two programs of PoCL, each used a day after the one before."""
    paths = {name: folder / "llvm" / name for name in ("a", "b", "c")}
    paths |= {name: folder / "pocl" / "kcache" / "AB" / name for name in ("p", "q")}
    for age, (name, path) in enumerate(paths.items()):
        files = [path] if name < "d" else [path / "last_accessed", path / "kernel" / "k.so"]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes(100 // len(files)))
            os.utime(file, (then := time.time() - 86400 * (9 - age), then))
    return paths


@pytest.mark.parametrize(
    ("limit", "left"), [(500, "abcpq"), (499, "bcpq"), (300, "cpq"), (200, "pq"), (150, "q")]
)
def test_what_was_used_longest_ago_is_evicted(tmp_path: Path, limit: int, left: str) -> None:
    paths = filled(tmp_path)
    evict(tmp_path, limit)
    assert [name for name, path in paths.items() if path.exists()] == list(left)


def test_what_may_be_in_use_stays(tmp_path: Path) -> None:
    paths = filled(tmp_path)
    os.utime(paths["a"])
    os.utime(paths["p"] / "kernel" / "k.so")
    evict(tmp_path, 0)
    assert [name for name, path in paths.items() if path.exists()] == ["a", "p"]


ONE = """
from gpu import Tensor
from gpu.runtime.prepared import Counters

def test_one():
    assert (Tensor([1.0, 2.0]) * 3.25 - 1.5).tolist() == [1.75, 5.0]
    assert Counters.compiled == 1
"""


def pytest_says(*arguments: object) -> str:
    command = [sys.executable, "-m", "pytest", "-c", str(TESTS.parent / "pyproject.toml")]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *map(str, arguments)],
        cwd=TESTS.parent,
        env=nested.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout + done.stderr


def run_file(path: Path, *arguments: object) -> str:
    """What pytest says of a file that has this folder's conftest, but is not in it."""
    own = [f"--rootdir={path.parent}", f"--confcutdir={TESTS}", "-p", "conftest"]
    return pytest_says(path, *own, *arguments)


def run_one(tmp_path: Path, *arguments: object) -> str:
    path = tmp_path / "test_one.py"
    path.write_text(ONE)
    return run_file(path, "--device=CPU", *arguments)


@pytest.mark.slow
def test_the_store_keeps_objects_and_no_plans(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert "1 passed" in (said := run_one(tmp_path, f"--store={store}")), said
    kept = {path.name for path in store.iterdir() if path.is_file() or any(path.iterdir())}
    assert kept == {"llvm", "llvm.claims"}
    assert not (store / "llvm.claims").stat().st_size, "it has locks, and no bytes"
    assert store.stat().st_mode & 0o777 == 0o700
    before = sorted(store.rglob("*"))
    assert f"store: {store}" in (said := run_one(tmp_path, f"--store={store}")), said
    assert "1 passed" in said and sorted(store.rglob("*")) == before
    assert "store: none" in (said := run_one(tmp_path, "--store=")) and "1 passed" in said


def test_a_store_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "nobody else can write" in run_one(tmp_path, f"--store={tmp_path / 'open'}", "-v")


GENERATORS = {"default_rng", "RandomState", "Random", "seed"}


def shared_generators(source: str) -> Iterator[int]:
    """Lines where a module makes a generator that all its tests would share."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            consumed = isinstance(node, ast.Assign) and node.value is not call
            if name in GENERATORS and not consumed:
                yield node.lineno


def test_no_tests_share_a_generator() -> None:
    """Else their values depend on which ran before."""
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in FILES
        for line in shared_generators(path.read_text(encoding="utf-8"))
    }
    assert not found, f"one generator for each test, in a fixture or in the test: {found}"


def test_shared_generators_are_seen() -> None:
    assert [*shared_generators("import numpy as np\nRNG = np.random.default_rng(3)")] == [2]
    assert [*shared_generators("np.random.seed(3)")] == [1]
    assert not [*shared_generators("def f():\n    return default_rng(3)")]
    assert not [*shared_generators("X = np.random.default_rng(3).normal(size=4)")]


FAILING = """
from hypothesis import given
from hypothesis import strategies as st

@given(st.integers(0, 1000))
def test_small(n):
    assert n < 700
"""


@pytest.mark.slow
def test_hypothesis_tells_how_to_have_a_failure_again(tmp_path: Path) -> None:
    path = tmp_path / "test_failing.py"
    path.write_text(FAILING)
    said = run_file(path, "-n", "1", "--store=")
    assert "1 failed" in said and "n=700" in said and "@reproduce_failure(" in said, said


@pytest.mark.slow
def test_the_example_of_the_document(tmp_path: Path) -> None:
    text = (TESTS.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    path = tmp_path / "test_example.py"
    path.write_text(text.split("```python\n")[1].split("```")[0])
    assert "4 passed" in (said := run_file(path, "--device=CPU,PYTHON")), said
