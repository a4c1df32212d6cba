"""Running graphs: shared memory, replay, both caches, failures that leave nothing behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor
from gpu.compiler.render.llvm.cpu import LLVMRenderer
from gpu.compiler.targets.cpu import host_target
from gpu.core.dtype import dtypes
from gpu.core.errors import OutOfMemory, ShapeError
from gpu.runtime.allocator import LRUAllocator
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.runtime.execute import is_computed, prepare
from gpu.runtime.explain import explain
from gpu.runtime.memory import share_memory
from gpu.runtime.prepared import Counters
from gpu.runtime.recipe import Launch, Recipe, Run, Slot, Transfer


def random_recipe(rng: np.random.Generator) -> tuple[Recipe, int]:
    """Steps that each fill a new slot from slots that are filled already."""
    leaves, count = int(rng.integers(1, 4)), int(rng.integers(1, 30))
    slots = tuple(Slot("CPU", int(rng.integers(1, 6)) * 16, dtypes.float32) for _ in range(count))
    steps = []
    for number in range(count):
        readable = leaves + number
        reads = rng.choice(readable, size=min(readable, int(rng.integers(1, 4))), replace=False)
        steps.append((0, (leaves + number, *map(int, reads))))
    outputs = tuple(int(s) + leaves for s in rng.choice(count, size=min(2, count), replace=False))
    return Recipe((), slots, tuple(steps), outputs), leaves


def run(recipe: Recipe, leaves: int) -> list[int]:
    """Each slot's value is a number made of the step and the values it reads."""
    memory: dict[int, int] = {slot: 1000 + slot for slot in range(leaves)}
    for number, (_, (target, *reads)) in enumerate(recipe.steps):
        memory[target] = hash((number, *(memory[r] for r in reads)))
    return [memory[slot] for slot in recipe.outputs]


@pytest.mark.parametrize("seed", range(60))
def test_shared_memory_gives_the_same_values(seed: int) -> None:
    recipe, leaves = random_recipe(np.random.default_rng(seed))
    shared = share_memory(recipe, leaves)
    assert run(shared, leaves) == run(recipe, leaves)
    for (_, before), (_, after) in zip(recipe.steps, shared.steps, strict=True):
        for old, new in zip(before, after, strict=True):
            if old >= leaves:
                wanted, given = recipe.slots[old - leaves], shared.slots[new - leaves]
                have = given.size * given.dtype.itemsize
                assert have >= wanted.size * wanted.dtype.itemsize


def test_a_chain_needs_memory_for_two() -> None:
    slots = (Slot("CPU", 100, dtypes.float32),) * 20
    steps = tuple((0, (1 + i, i)) for i in range(20))
    shared = share_memory(Recipe((), slots, steps, (20,)), 1)
    assert len(shared.slots) == 3  # two that take turns, and the output


def test_many_launches_replay_as_one_call() -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    expected = np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(5):
        x = (x + 1).flip(0).contiguous()  # another element than is computed: no fusing
        expected = (expected + 1)[::-1]
    before = Counters.launches
    np.testing.assert_array_equal(x.numpy(), expected)
    assert Counters.launches == before + 5


def test_launches_between_copies_replay_as_one_call_each() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)

    def chain(y: Tensor) -> Tensor:
        for _ in range(4):
            y = (y + 1).flip(0).contiguous()
        return y

    def there_and_back(x: Tensor) -> Tensor:
        return chain((chain(x).to("PYTHON") * 2).to("CPU"))

    runs = prepare([there_and_back(Tensor(x, device="CPU").realize())._node]).schedule.filling.runs
    assert [type(run) for run in runs] == [Run, Transfer, Launch, Transfer, Run]
    replayed = gpu.jit(there_and_back)
    for factor in range(1, 4):
        found = replayed(Tensor(x * factor, device="CPU"))
        np.testing.assert_array_equal(found.numpy(), 2 * (x * factor + 4) + 4)


def test_outputs_over_the_same_elements_are_one_launch() -> None:
    rng = np.random.default_rng(0)
    p, g, m = (Tensor(rng.standard_normal((4, 5)).astype(np.float32)) for _ in range(3))
    moment = m * 0.9 + g * 0.1
    new = p - moment / (moment.abs().sqrt() + 1)
    before = Counters.launches
    moment.realize(new)
    assert Counters.launches == before + 1
    expected = m.numpy() * 0.9 + g.numpy() * 0.1
    np.testing.assert_allclose(moment.numpy(), expected, rtol=1e-6)
    step = expected / (np.sqrt(np.abs(expected)) + 1)
    np.testing.assert_allclose(new.numpy(), p.numpy() - step, rtol=1e-5)


@pytest.mark.parametrize("name", ["CPU", "PYTHON"])
def test_softmax_and_layernorm_are_one_launch_each(name: str) -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((24, 48)), device=name, dtype="float32")
    x.realize()
    for function in (x.softmax, x.layernorm):
        before = Counters.launches
        function().realize()
        assert Counters.launches == before + 1


def test_equal_graphs_are_compiled_once() -> None:
    def compute(seed: int) -> np.ndarray:
        x = np.random.default_rng(seed).standard_normal((7, 13)).astype(np.float32)
        result: np.ndarray = (Tensor(x).exp2() * 3 + 1).numpy()
        return result

    compute(0)
    before = Counters.compiled
    compute(1)
    assert Counters.compiled == before


def test_what_is_computed_already_is_read_not_computed_again() -> None:
    x = Tensor(np.arange(5, dtype=np.float32))
    a = x.exp2()
    b = a + 1
    a.realize()
    del x
    gc.collect()
    (stage,) = [
        s for s in explain([b._node], is_computed, Device["CPU"].renderer) if s.name == "kernel"
    ]
    assert "exp2" not in stage.text
    np.testing.assert_array_equal(b.numpy(), 2.0 ** np.arange(5) + 1)


def test_buffers_go_back_to_the_allocator() -> None:
    allocator = Device["CPU"].allocator
    assert isinstance(allocator, LRUAllocator)
    gc.collect()
    before = allocator.live
    x = Tensor(np.ones((1000,), np.float32))
    y = (x + 1).realize()
    assert allocator.live == before + 8000
    del x, y
    gc.collect()
    assert allocator.live == before


def test_lru_allocator_frees_nothing_until_it_must() -> None:
    class Small(LRUAllocator[int]):
        room, made, freed = 2, 0, 0

        def _alloc(self, nbytes: int) -> int:
            if self.made - self.freed == self.room:
                raise OutOfMemory("full")
            self.made += 1
            return self.made

        def _free(self, memory: int, nbytes: int) -> None:
            self.freed += 1

        def copy_in(self, memory: int, data: memoryview) -> None: ...

        def copy_out(self, data: memoryview, memory: int) -> None: ...

    small = Small()
    first = small.alloc(8)
    small.free(first, 8)
    assert small.alloc(8) == first and small.freed == 0
    small.free(first, 8)
    small.alloc(16)
    small.alloc(32)  # only fits once the one of 8 bytes is given up
    assert small.freed == 1
    with pytest.raises(OutOfMemory):
        small.alloc(64)


WARM = """
    import sys
    import numpy as np
    from gpu import Tensor
    from gpu.runtime.prepared import Counters
    x = Tensor(np.arange(64, dtype=np.float32).reshape(8, 8))
    print((x @ x).softmax(-1).sum().item(), Counters.compiled)
    print("llvmlite" in sys.modules, "gpu.runtime.compile" in sys.modules)
"""


def python(code: str, cache: Path, **environment: str) -> list[str]:
    folders = {"CACHE_DIR": str(cache), "OBJECT_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **folders, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_warm_process_compiles_nothing_and_imports_no_compiler(tmp_path: Path) -> None:
    cold = python(WARM, tmp_path)
    assert cold[0].endswith(" 1")
    warm = python(WARM, tmp_path)
    assert warm[0] == cold[0].removesuffix(" 1") + " 0"
    assert warm[1] == "False False"


def test_a_damaged_cache_is_a_miss(tmp_path: Path) -> None:
    cold = python(WARM, tmp_path)
    rng = np.random.default_rng(0)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size:  # what keys are claimed with is empty
            data = bytearray(path.read_bytes())
            data[int(rng.integers(len(data)))] ^= 0xFF
            path.write_bytes(data[: int(rng.integers(1, len(data) + 1))])
    assert python(WARM, tmp_path)[0] == cold[0]


def test_no_optimisation_gives_the_same_result(tmp_path: Path) -> None:
    plain = python(WARM, tmp_path, NOOPT="1")[0].split()[0]
    fast = python(WARM, tmp_path)[0].split()[0]
    assert float(plain) == pytest.approx(float(fast), rel=1e-5)


@pytest.mark.parametrize(("make", "size"), [(lambda f: f, 70), (gpu.jit, 80)])
def test_a_setting_that_changes_within_a_process_compiles_anew(make: Any, size: int) -> None:
    def step(x: Tensor) -> Tensor:
        return (x * 3 + 17).sum(1).realize()

    run, x = make(step), Tensor(np.ones((64, size), np.float32)).realize()
    counts = []
    for noopt in (0, 1, 0, 1):
        with gpu.Context(NOOPT=noopt):
            for _ in range(2):
                np.testing.assert_array_equal(run(x).numpy(), np.full(64, 20 * size, np.float32))
        counts.append(Counters.compiled)
    assert counts[1] > counts[0] and counts[1:] == [counts[1]] * 3


def test_a_chain_of_5000_operations_runs() -> None:
    """Ten times as many, with their gradient: tests/tensor/test_hostile.py."""
    x = start = Tensor(np.ones(3, np.float32))
    for _ in range(5_000):
        x = x + 1.0
    assert x.numpy().tolist() == [5_001.0] * 3
    assert start.numpy().tolist() == [1.0] * 3


@pytest.mark.parametrize("size", [1 << 60, 1 << 62])
def test_what_does_not_fit_says_how_much_it_was(size: int) -> None:
    wanted = f"{4 * size:,} bytes of host memory"
    for device in ("CPU", "PYTHON"):
        with pytest.raises(OutOfMemory, match=wanted):
            Tensor.zeros(size, device=device).contiguous().realize()
    if size < 1 << 62:  # numpy has no such shapes
        with pytest.raises(OutOfMemory, match=wanted):
            Tensor.zeros(size).numpy()


def test_reductions_of_constants_need_no_kernel() -> None:
    before = Counters.launches
    assert Tensor.zeros(10**15).sum().item() == 0
    assert Tensor.full((2**40,), 0.5).sum().item() == 2.0**39
    assert Tensor.full((3, 2**20), 2, dtype="int32").prod().item() == 0  # wrapped, as multiplied
    assert Tensor.full((4, 5), 3, dtype="int32").prod(1).tolist() == [243] * 4
    assert Tensor.full((7,), -1.5).max().item() == -1.5
    assert np.isinf(Tensor.full((10**6,), 2.0).prod().item())
    assert Counters.launches <= before + 1  # tolist of several constants is a kernel


def test_more_elements_than_can_be_counted_are_refused() -> None:
    for make in (lambda: Tensor.zeros(2**63), lambda: Tensor([1.0]).expand(2**63)):
        with pytest.raises(ShapeError, match=r"more than 2\*\*63 - 1"):
            make()


def test_a_long_sum_is_shared_out() -> None:
    x = Tensor(np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32))
    kernels = [
        stage.text
        for stage in explain([x.sum()._node], is_computed, LLVMRenderer(host_target(None, 2)))
        if stage.name == "scheduled kernel"
    ]
    assert len(kernels) == 2 and "worker" in kernels[0] and "worker" not in kernels[1]
    assert x.sum().item() == pytest.approx(float(x.numpy().astype(np.float64).sum()), abs=1e-2)


def test_a_buffer_that_was_not_even_begun_has_nothing_to_give_back() -> None:
    """As where Ctrl-C comes before the first line of its making: an error would be printed."""
    begun = Buffer.__new__(Buffer)
    begun.__del__()
