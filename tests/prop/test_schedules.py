"""Random schedules: whatever the tests of legality accept keeps what a kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from gpu import Device
from gpu.backends.python.device import BLOCKS
from gpu.compiler.fusion.build import BuiltKernel
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.rewrite import without_custom_grads
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.matrix import names_for
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import Opt
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.gpu.choose import team_bytes, threads_of
from gpu.compiler.targets import Target
from gpu.core.config import Context
from gpu.core.dtype import dtypes
from gpu.core.errors import CompileError
from gpu.runtime import pipeline
from gpu.runtime.execute import realize, storage
from prop import test_kinds, test_passes, test_structures
from prop.graphs import computed, lacks_a_dtype, on
from prop.judge import check, expect
from prop.programs import random_graph
from prop.schedules import PRIMITIVES, Drawn, Tally, describe, draw_schedule
from prop.test_passes import run_plan
from prop.test_structures import Case

Array = np.ndarray[Any, Any]
Program = tuple[list[Node], dict[Hashable, Array]]

# Random transformations of a kernel, at most; programs; and the part of all that must be legal.
LENGTH = 10
SEEDS = 20
SHARE = 0.3
# Dtypes of products that machines have instructions for.
NARROW = (dtypes.float16, dtypes.bfloat16, dtypes.bfloat16, dtypes.int8, dtypes.uint8, dtypes.int16)


def product(case: Case) -> Node:
    """A product of narrow matrices, as matrix instructions and sums of words take them."""
    dtypes_of = [NARROW[int(n)] for n in case.rng.integers(len(NARROW), size=2)]
    if dtypes_of[0].is_float != dtypes_of[1].is_float:
        dtypes_of[1] = dtypes_of[0]
    m, k, n = (int(case.rng.choice([16, 32, case.size(40)])) for _ in range(3))
    a = G.expand(G.reshape(case.array((m, k), dtypes_of[0]), (m, k, 1)), (m, k, n))
    b = G.expand(G.reshape(case.array((k, n), dtypes_of[1]), (1, k, n)), (m, k, n))
    sums = dtypes.float32 if dtypes_of[0].is_float else dtypes.int32
    a, b = G.cast(a, sums), G.cast(b, sums)
    return G.reduce("add", G.alu("mul", a, b), (1,))


STRUCTURED: list[Callable[[Case], Node]] = [
    *test_structures.PROGRAMS.values(),
    *test_kinds.PROGRAMS.values(),
    *[product] * 4,
    *[test_kinds.scan] * 2,
    *[test_structures.transposition] * 2,
]


def draw_program(rng: np.random.Generator) -> Program:
    """A random graph, or one of those that transformations exist for."""
    if rng.random() < 0.4:
        roots, inputs = random_graph(rng, depth=int(rng.integers(3, 20)), max_size=400)
        roots = without_custom_grads(roots, lambda node: node.kind == "buffer")
        return computed(roots), inputs
    case = Case(rng)
    make = STRUCTURED[int(rng.integers(len(STRUCTURED)))]
    return computed([make(case)]), case.inputs


WIDE = Target("wide", test_passes.WORKERS.native, "worker", 2, 64, 32)
AMX = replace(WIDE, name="amx", matrices=names_for(None))
MACHINES: dict[str, tuple[Target, frozenset[str]]] = {
    "cpu": (WIDE, frozenset({"worker", "vector", "unroll", "serial"})),
    "amx": (AMX, frozenset({"worker", "vector", "unroll", "serial"})),
    "gpu": (BLOCKS, frozenset({"grid", "thread", "unroll", "serial"})),
}


# Runs a kernel on arrays; false where a machine has no such loops, which a typed error says.
RunDrawn = Callable[[K.Kernel, Target, list[Array]], bool]


def as_kernel(kernel: K.Kernel, target: Target, arrays: list[Array]) -> bool:
    names = [buf.name for buf in kernel.params]
    interpret_kernel(kernel, dict(zip(names, arrays, strict=True)))
    return True


def as_linear(kernel: K.Kernel, target: Target, arrays: list[Array]) -> bool:
    try:
        program = linearize(kernel, target)
    except CompileError:
        return False
    interpret_linear(program, arrays)
    return True


def run_seed(seed: int, machine: str, tally: Tally, run_drawn: RunDrawn = as_kernel) -> None:
    """One random program, each of its kernels under a random schedule."""
    rng = np.random.default_rng([seed, sorted(MACHINES).index(machine)])
    target, kinds = MACHINES[machine]
    roots, inputs = draw_program(rng)
    made: list[Drawn] = []

    def run(built: BuiltKernel, arrays: list[Array]) -> None:
        if not all(buf.shape[0] for buf in built.kernel.params):
            return  # which never does anything
        chosen = schedule(built.kernel, target)[1]
        drawn = draw_schedule(rng, built.kernel, LENGTH, chosen, kinds)
        made.append(drawn)
        tally.add(drawn)
        is_run = run_drawn(drawn.kernel, target, arrays)
        tally.lowered += is_run
        if not is_run:
            as_kernel(built.kernel, target, arrays)

    if not roots:
        return
    try:
        check(run_plan(roots, inputs, run), expect(roots, inputs, rng), roots)
    except Exception as error:
        told = "\n  then".join(describe(each.opts) for each in made)
        error.add_note(f"seed {seed} on {machine}, schedules:{told}")
        raise


def test_all_transformations_are_drawn() -> None:
    drawn = {name.replace("_", "") for name in PRIMITIVES} - {"together"}
    assert drawn == {each.__name__.lower() for each in get_args(Opt)}


def test_a_seed_draws_one_schedule() -> None:
    made = []
    for _ in range(2):
        made.append(Tally())
        run_seed(5, "gpu", made[-1])
    assert made[0].drawn == made[1].drawn and made[0].drawn


@pytest.mark.parametrize("machine", MACHINES)
def test_random_schedules_keep_the_meaning(machine: str) -> None:
    tally = Tally()
    for seed in range(SEEDS):
        run_seed(seed, machine, tally)
    assert tally.share >= SHARE, f"{tally.accepted} of {tally.drawn} are legal"


@pytest.mark.parametrize("machine", MACHINES)
def test_random_schedules_lower(machine: str) -> None:
    tally = Tally()
    for seed in range(SEEDS, 2 * SEEDS):
        run_seed(seed, machine, tally, as_linear)
    assert tally.lowered >= tally.schedules * SHARE


@pytest.mark.sampled(0)
@pytest.mark.parametrize("block", range(1, 18))
@pytest.mark.parametrize("machine", MACHINES)
def test_two_thousand_random_schedules(machine: str, block: int) -> None:
    tally = Tally()
    for seed in range(2 * block * SEEDS, (2 * block + 1) * SEEDS):
        for run_drawn in (as_kernel, as_linear):
            run_seed(seed, machine, tally, run_drawn)
    assert tally.share >= SHARE


def kinds_of(target: Target) -> set[str]:
    """The kinds of loops that a machine has."""
    threads = {"thread"} if target.threads else set()
    lanes = {"vector"} if target.vector_bytes else set()
    return {target.parallel, "unroll", "serial", *threads, *lanes}


def is_too_large(kernel: K.Kernel, target: Target) -> bool:
    """Whether a block takes more than the machine has."""
    if not target.threads:
        return False
    return threads_of(kernel) > target.threads or team_bytes(kernel, target) > target.shared_bytes


def test_random_schedules_on_a_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, random_ones, made = np.random.default_rng(0), 0, list[Drawn]()

    def drawn_schedule(
        kernel: K.Kernel, target: Target, optimize: bool = True
    ) -> tuple[K.Kernel, list[Opt]]:
        nonlocal random_ones
        chosen = schedule(kernel, target, optimize)
        drawn = draw_schedule(rng, kernel, LENGTH, chosen[1], kinds_of(target))
        try:
            linearize(drawn.kernel, target)
        except CompileError:
            return chosen
        if is_too_large(drawn.kernel, target):
            return chosen
        random_ones += 1
        made.append(drawn)
        return drawn.kernel, drawn.opts

    monkeypatch.setattr(pipeline, "schedule", drawn_schedule)
    flushes = Device[device].renderer.target.native.flushes
    count = 12 if device in ("CPU", "PYTHON") else 3
    for seed in range(count):
        rng = np.random.default_rng([seed, 7])
        roots, inputs = draw_program(rng)
        if not roots or lacks_a_dtype(device, roots):
            continue
        made.clear()
        with Context(CACHE=0):
            done = realize(on(device, roots, inputs))
        got = [storage(node).copy_out().reshape(node.shape) for node in done]
        told = "\n  then".join(describe(each.opts) for each in made)
        try:
            check(got, expect(roots, inputs, rng, device != "WEBGPU", flushes), roots)
        except AssertionError as error:
            error.add_note(f"seed {seed} on {device}, schedules:{told}")
            raise
    assert random_ones >= count // 3
