"""The table of ATen's overloads: how much of torch's core it has, each row beside torch.

CI runs a sixth of the rows, once each; `--whole` all of them on four draws.
"""

from __future__ import annotations

import copy
import zlib

import pytest

from torch_compile.drawn import SAMPLES, Draw
from torch_compile.single import CORE, RANDOM, SIZES, expected, run, same

# isort: split
from gpu.torch import ROWS

DRAWS = 4
# What no sample can ask for by itself: its values are undefined, or it is another one's `out` form.
UNSAMPLED = {"atan2.out", "empty.memory_format", "empty_strided"}
# Graphs without a row for these: one value on the host, shapes that depend on values, memory.
IN_TORCH = {"_local_scalar_dense", "nonzero", "resize_"}


def _name(row: object) -> str:
    return str(row).removeprefix("aten.").removesuffix(".default")


def test_nine_tenths_of_core_aten_have_a_row() -> None:
    rows = {_name(row) for row in ROWS}
    assert len(CORE & rows) / len(CORE) >= 0.9
    assert CORE - rows == IN_TORCH | RANDOM | SIZES


def test_every_row_of_core_aten_is_compared_with_torch() -> None:
    rows = {_name(row) for row in ROWS}
    assert CORE & rows == (set(SAMPLES) | UNSAMPLED) & CORE


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_row(name: str, request: pytest.FixtureRequest) -> None:
    whole = request.config.getoption("--whole")
    if not whole and zlib.crc32(name.encode()) % 6:
        pytest.skip("one of six rows runs; --whole runs all")
    for number in range(DRAWS if whole else 1):
        args, kwargs = SAMPLES[name](Draw(f"{name} {number}"))
        want = expected(name, copy.deepcopy(args), copy.deepcopy(kwargs))
        got = run(name, args, kwargs)
        if name == "_embedding_bag":  # the others are for its gradient, and differ by memory format
            want, got = want[:1], got[:1]
        differences = [same(*pair) for pair in zip(got, want, strict=False)]
        assert not any(differences), (number, differences)
