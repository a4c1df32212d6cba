"""Steps around collectives: all there once, after what they need, apart where that is allowed."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir.graph.body import Value
from gpu.compiler.ir.graph.hostcall import Across, HostCall
from gpu.core.dtype import dtypes
from gpu.runtime.collectives import StartForm, WaitForm
from gpu.runtime.overlap import with_waits
from gpu.runtime.recipe import OTHER, About, Recipe, Slot

LEAVES = 3
FORM = (Value((4,), dtypes.float32),)
CALL = StartForm("CPU", HostCall("all_reduce", FORM, FORM, Across((2,), 0, "add")))
Steps = list[tuple[int, tuple[int, ...]]]


def recipe(steps: Steps, starts: int, writes: tuple[int, ...] = ()) -> Recipe:
    slots = max(slot for _, used in steps for slot in used) + 1 - LEAVES
    return Recipe(
        *((), (Slot("CPU", 4, dtypes.float32),) * slots, tuple(steps), (LEAVES + slots - 1,), ()),
        *(writes, (), 0, (About("", 0, 0),) * len(steps), (CALL,) * starts),
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    """Run by a model in which a result is there after its wait alone, it computes the same."""
    rng = np.random.default_rng(seed)
    steps: Steps = []
    fills: list[list[int]] = []
    starts, writes, count = 0, set[int](), LEAVES
    for _ in range(int(rng.integers(2, 14))):
        source = int(rng.integers(count))
        kind = rng.random()
        if kind < 0.35:
            steps.append((OTHER - starts, (source, count)))
            starts += 1
        elif kind < 0.5:  # in place: reads the leaf and another value
            leaf = int(rng.integers(LEAVES))
            writes.add(leaf)
            steps.append((0, (leaf, source)))
            fills.append([leaf])
            continue
        else:
            steps.append((0, (count, source, int(rng.integers(count)))))
        fills.append([count])
        count += 1
    if not starts:
        return
    made = with_waits(recipe(steps, starts, tuple(sorted(writes))), fills)
    waits = [n for n, other in enumerate(made.others) if isinstance(other, WaitForm)]
    used = [kernel for kernel, _ in made.steps]
    assert sorted(used) == sorted([*(kernel for kernel, _ in steps), *(OTHER - n for n in waits)])
    assert len(waits) == starts and len(made.abouts) == len(made.steps)
    assert _run(list(made.steps), made) == _run(list(steps), made)
    changes = [n for n, (k, slots) in enumerate(made.steps) if k == 0 and slots[0] in writes]
    assert made.changes_from == (changes[0] if changes else len(made.steps))


def _run(steps: Steps, made: Recipe) -> dict[int, str]:
    """What each slot holds at the end, as text; a result is poison between start and wait."""
    held = {slot: f"leaf{slot}" for slot in range(LEAVES)}
    under_way: dict[int, tuple[int, int]] = {}
    has_waits = any(k <= OTHER and isinstance(made.others[OTHER - k], WaitForm) for k, _ in steps)
    for kernel, slots in steps:
        for slot in slots:
            assert kernel <= OTHER or slot not in {target for _, target in under_way.values()}
        if kernel > OTHER:
            target, *read = slots
            assert target not in {source for source, _ in under_way.values()}
            own = [held.get(target, "")] if target < LEAVES else []
            held[target] = f"f({', '.join([*own, *(held[slot] for slot in read)])})"
        elif isinstance(form := made.others[OTHER - kernel], StartForm):
            source, target = slots
            assert source not in {t for _, t in under_way.values()}
            if has_waits:
                under_way[OTHER - kernel] = (source, target)
            else:
                held[target] = f"all({held[source]})"
        else:
            assert isinstance(form, WaitForm)
            source, target = under_way.pop(form.start)
            held[target] = f"all({held[source]})"
    assert not under_way
    return held


def test_what_needs_nothing_of_it_goes_first() -> None:
    steps: Steps = [(0, (3, 0)), (OTHER, (3, 4)), (0, (5, 4)), (0, (6, 1)), (0, (7, 6))]
    made = with_waits(recipe(steps, 1), [[3], [4], [5], [6], [7]])
    assert [slots[0] for _, slots in made.steps] == [3, 3, 6, 7, 3, 5]
    assert made.others[1] == WaitForm(0)
