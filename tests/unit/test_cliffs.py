"""The tool that looks for sizes which are much slower than those next to them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tools.bench import cliffs
from tools.bench.cliffs import DTYPES, FAMILIES, are_near, draw, main


def test_sizes_are_near_that_differ_in_one_extent_by_a_tenth() -> None:
    assert are_near((31, 7), (32, 7)) and are_near((110, 5), (121, 5))
    assert not are_near((31, 7), (31, 7))
    assert not are_near((31, 20), (32, 21))  # two extents
    assert not are_near((9, 7), (10, 7))  # more than a tenth


@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_are_drawn_in_groups_and_the_same_from_one_seed(name: str) -> None:
    family = FAMILIES[name]
    sizes = draw(family, 80, np.random.default_rng(3))
    assert sizes == draw(family, 80, np.random.default_rng(3))
    assert len(sizes) == len(set(sizes)) >= 30
    assert all(len(size) == len(family.extents) and min(size) >= 1 for size in sizes)
    with_others = [size for size in sizes if any(are_near(size, each) for each in sizes)]
    assert len(with_others) > len(sizes) / 2
    assert any(size[-1] % cliffs.TILE == 0 for size in with_others)


def test_a_slow_size_is_found_beside_the_best_near_it() -> None:
    seconds = {(n, 8): 2e-6 * n for n in range(60, 67)}
    seconds[63, 8] *= 3
    seconds[200, 8] = 1.0  # far from all others
    found = cliffs.cliffs(seconds, math.prod)
    assert len(found) == 7
    worst = found[0]
    assert worst.size == (63, 8) and worst.ratio == pytest.approx(3)
    assert all(cliff.ratio == pytest.approx(1) for cliff in found[1:])
    # Work that is rounded up makes what a matrix instruction computes in vain no cliff.
    up = {(n,): 1e-6 for n in (58, 60, 62, 64)}
    family = FAMILIES["attention"]
    rounded = cliffs.cliffs(up, lambda size: family.work(size, lambda n: -(-n // 16) * 16))
    assert [cliff.ratio for cliff in rounded] == [1] * 4


def test_a_size_that_was_disturbed_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[cliffs.Size] = []

    def time(family: cliffs.Family, size: cliffs.Size, dtype: object) -> float:
        calls.append(size)
        disturbed = size == (101, 5) and calls.count(size) < 3
        return math.prod(size) * (9.0 if disturbed else 1.0)

    monkeypatch.setattr(cliffs, "_time", time)
    sizes = [(100, 5), (101, 5), (102, 5)]
    found = cliffs.measure(FAMILIES["softmax"], sizes, DTYPES["f32"], math.prod)
    assert found == {size: math.prod(size) for size in sizes}
    assert calls.count((102, 5)) == 1


def test_every_family_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = tmp_path / "times.json"
    small = [name for name in FAMILIES if name != "attention"]
    main(
        [
            "--count=4",
            "--seed=5",
            "--dtypes",
            "f32",
            "int8",
            f"--json={where}",
            "--families",
            *small,
        ]
    )
    times = json.loads(where.read_text())
    wanted = {f"{n} {d}" for n in small for d in ("f32", "int8") if d in FAMILIES[n].dtypes}
    assert set(times) == wanted
    assert all(seconds > 0 for rows in times.values() for _, seconds in rows)
    lines = capsys.readouterr().out.splitlines()
    assert wanted <= {" ".join(line.split()[:2]) for line in lines}
