"""Instruction vectors: from the simulator's forms to a comparison on a GPU, here a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu.compiler.toolchain.nvlibs import find_library
from gpu.compiler.toolchain.nvptx import assemble
from gpu.core.errors import FormatError
from sim.ptx import ops
from tools.hw_acceptance.child import Context, run_step
from tools.hw_acceptance.kernels import ARCHITECTURES
from tools.hw_acceptance.model import Outcome
from tools.hw_acceptance.simulation import PtxSimulation
from tools.hw_acceptance.steplog import StepLog, Told, read_step
from tools.hw_acceptance.vectors import compare, pack
from tools.hw_acceptance.vectors.pack import VECTORS, Group
from tools.hw_acceptance.vectors.record import Recorder

FORMS = [
    ops.Form("add.u32 {d}, {a}, {b};", 32, (32, 32), lambda a, b: a + b),
    ops.Form("cvt.sat.u64.u8 {d}, {a};", 64, (16,), lambda a: a & 255),  # NVIDIA's has no such form
    ops.Form("xor.b64 {d}, {a}, {b};", 64, (64, 64), lambda a, b: a ^ b),
]


@pytest.fixture(scope="module")
def groups(need: Callable[[str], None]) -> list[Group]:
    need("llvmlite")
    recorder, original = Recorder(), ops.check
    recorder.pytest_configure()
    try:
        ops.check(FORMS)
        ops.check(FORMS[:1], same=lambda got, want: got == want & 0xFFFF_FFFF)
    finally:
        ops.check = original
    return recorder.groups


@pytest.fixture(scope="module")
def folder(
    groups: list[Group], need: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    need("nvjitlink")
    place, library = tmp_path_factory.mktemp("folder"), find_library("nvJitLink")
    pack.write(place / VECTORS, groups, ARCHITECTURES, lambda *given: assemble(library, *given))
    return place


def take(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, Told]:
    from gpu.sim.nv.chip.lanes import PtxExecutor
    from gpu.sim.nv.world import NvSimWorld
    from gpu.transport.world import World

    monkeypatch.setattr(compare, "SIMULATED_EVERY", 1)
    executor = PtxExecutor()
    machine = NvSimWorld(chip="gh100", executor=executor)
    world = World(machine.os, machine.waiter)
    log = StepLog(tmp_path)
    context = Context(world, log, folder, simulation=PtxSimulation("gh100", world, executor))
    outcome = run_step(compare.instructions, context)
    log.close()
    machine.close()
    return outcome, read_step(tmp_path)


def test_forms_are_recorded_with_what_the_engine_gives(groups: list[Group]) -> None:
    assert [each.exact for each in groups] == [True, False]
    assert groups[0].forms == tuple(form.text for form in FORMS)
    a, b = groups[0].sources[0, :2]
    assert (groups[0].results[0] == (a + b) % (1 << 32)).all()


def test_what_the_assembler_refuses_is_left_out(folder: Path, groups: list[Group]) -> None:
    (first, code), (second, _) = pack.read(folder / VECTORS, 90)
    assert first.kernels == ("k0", "k2") and first.refused == (FORMS[1].text,)
    assert (first.results == groups[0].results[[0, 2]]).all() and second.refused == ()
    assert b"k2" in code and b"k1" not in code
    with pytest.raises(FormatError, match="no code for sm_86"):
        list(pack.read(folder / VECTORS, 86))


def test_a_gpu_that_agrees_passes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, told = take(folder, tmp_path, monkeypatch)
    assert outcome is Outcome.PASS and told.facts["forms"] == 3
    assert told.facts["forms that NVIDIA's assembler refuses"] == [FORMS[1].text]


def test_a_gpu_that_does_not_agree_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another result for one lane of each group, of which the second is not laid down."""

    def others(path: Path, sm: int) -> list[tuple[Group, bytes]]:
        changed = []
        for group, code in real(path, sm):
            results = group.results.copy()
            results[0, 5] ^= np.uint64(1)
            changed.append((replace(group, results=results), code))
        return changed

    real = pack.read
    monkeypatch.setattr(pack, "read", others)
    outcome, told = take(folder, tmp_path, monkeypatch)
    assert outcome is Outcome.FAIL and "1 differ: add.u32" in told.reason
    assert len(told.facts["results that may differ, and do"]) == 1


def test_any_nan_is_right_where_results_are_not_laid_down() -> None:
    words = np.zeros((1, pack.SLOTS, pack.LANES), np.uint64)
    results = np.full((1, pack.LANES), 0x7FC0_0001, np.uint64)
    group = Group("", ("k0",), ("f",), (32,), False, words, results)
    found = np.full(pack.LANES, 0x7FFF_FFFF, np.uint64)
    assert compare._difference(group, 0, found) == ""
    assert compare._difference(replace(group, exact=True), 0, found).startswith("f of 0x0")
    infinite = np.full(pack.LANES, 0x7F80_0000, np.uint64)
    assert compare._difference(group, 0, infinite)
