"""Steps around collectives: all there once, after what they need, apart where that is allowed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from gpu.compiler.ir.graph.body import Value
from gpu.compiler.ir.graph.hostcall import Across, HostCall
from gpu.core.dtype import dtypes
from gpu.runtime.collectives import StartForm, WaitForm
from gpu.runtime.memory import share_memory
from gpu.runtime.overlap import LARGEST_BUCKET, SMALLEST_BUCKET, with_waits
from gpu.runtime.recipe import OTHER, About, Recipe, Slot

LEAVES = 3
Steps = list[tuple[int, tuple[int, ...]]]


def start(nbytes: int = 16, monoid: str = "add", name: str = "all_reduce") -> StartForm:
    form = (Value((nbytes // 4,), dtypes.float32),)
    return StartForm("CPU", (HostCall(name, form, form, Across((2,), 0, monoid)),))


def recipe(steps: Steps, starts: list[StartForm], writes: tuple[int, ...] = ()) -> Recipe:
    slots = max(slot for _, used in steps for slot in used) + 1 - LEAVES
    return Recipe(
        *((), (Slot("CPU", 4, dtypes.float32),) * slots, tuple(steps), (LEAVES + slots - 1,), ()),
        *(writes, (), 0, (About("", 0, 0),) * len(steps), tuple(starts)),
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    """Run by a model in which a result is there after its wait alone, it computes the same."""
    rng = np.random.default_rng(seed)
    steps: Steps = []
    fills: list[list[int]] = []
    starts, writes, count = list[StartForm](), set[int](), LEAVES
    for _ in range(int(rng.integers(2, 14))):
        source = int(rng.integers(count))
        kind = rng.random()
        if kind < 0.35:
            steps.append((OTHER - len(starts), (source, count)))
            kinds = str(rng.choice(["add", "max"])), str(rng.choice(["all_reduce", "all_gather"]))
            starts.append(start(4 << int(rng.integers(24)), *kinds))
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
    sent = [form for _, form in _starts(made)]
    assert Counter(call for form in sent for call in form.calls) == Counter(
        call for form in starts for call in form.calls
    )
    assert all(len({call.across for call in form.calls}) == 1 for form in sent)
    assert len(waits) == len(sent) and len(made.abouts) == len(made.steps)
    assert len(made.steps) == len(steps) - len(starts) + 2 * len(sent)
    assert _run(list(made.steps), made) == _run(list(steps), made)
    changes = [n for n, (k, slots) in enumerate(made.steps) if k == 0 and slots[0] in writes]
    assert made.changes_from == (changes[0] if changes else len(made.steps))


def _starts(made: Recipe) -> list[tuple[int, StartForm]]:
    """The collectives that start together, and which step does it."""
    forms = [(n, made.others[OTHER - k]) for n, (k, _) in enumerate(made.steps) if k <= OTHER]
    return [(n, form) for n, form in forms if isinstance(form, StartForm)]


def _run(steps: Steps, made: Recipe) -> dict[int, str]:
    """What each slot holds at the end, as text; a result is poison between start and wait."""
    held = {slot: f"leaf{slot}" for slot in range(LEAVES)}
    under_way: dict[int, list[tuple[int, int]]] = {}
    has_waits = any(k <= OTHER and isinstance(made.others[OTHER - k], WaitForm) for k, _ in steps)
    for kernel, slots in steps:
        moving = [pair for pairs in under_way.values() for pair in pairs]
        pairs = list(zip(slots[::2], slots[1::2], strict=False))
        if kernel > OTHER:
            target, *read = slots
            assert {target, *read}.isdisjoint(target for _, target in moving)
            assert target not in {source for source, _ in moving}
            own = [held.get(target, "")] if target < LEAVES else []
            held[target] = f"f({', '.join([*own, *(held[slot] for slot in read)])})"
        elif isinstance(form := made.others[OTHER - kernel], WaitForm):
            assert under_way.pop(form.start) == pairs
            held.update({target: f"all({held[source]})" for source, target in pairs})
        elif has_waits:
            assert {source for source, _ in pairs}.isdisjoint(target for _, target in moving)
            under_way[OTHER - kernel] = pairs
        else:
            ((source, target),) = pairs
            held[target] = f"all({held[source]})"
    assert not under_way
    return held


@pytest.mark.parametrize("seed", range(30))
def test_shared_memory_gives_the_same_values(seed: int) -> None:
    """Sums over ranks are in the memory of what they are sums of, where nothing reads that."""
    rng = np.random.default_rng(seed)
    steps: Steps = []
    starts, count = list[StartForm](), LEAVES
    for _ in range(30):
        source, other = map(int, rng.integers(max(0, count - 6), count, 2))
        if rng.random() < 0.4:
            steps.append((OTHER - len(starts), (source, count)))
            starts.append(start(name=str(rng.choice(["all_reduce", "all_gather"]))))
        else:
            steps.append((0, (count, source, other)))
        count += 1
    plain = recipe(steps, starts)
    ordered = with_waits(plain, [[slot] for slot in range(LEAVES, count)])
    shared = share_memory(ordered, LEAVES)
    assert _in_memory(shared)[shared.outputs[0]] == _in_memory(ordered)[ordered.outputs[0]]
    assert len(shared.slots) < len(ordered.slots) / 2


def _in_memory(made: Recipe) -> dict[int, str]:
    """What memory has at the end, as text; that of a result is poison between start and wait."""
    held = {slot: f"leaf{slot}" for slot in range(LEAVES)}
    sent: dict[int, list[str]] = {}
    for kernel, slots in made.steps:
        pairs = list(zip(slots[::2], slots[1::2], strict=False))
        form = made.others[OTHER - kernel] if kernel <= OTHER else None
        if isinstance(form, StartForm):
            sent[OTHER - kernel] = [held[source] for source, _ in pairs]
            held.update({target: "moving" for _, target in pairs})
        elif isinstance(form, WaitForm):
            values = sent.pop(form.start)
            held.update({t: f"all({v})" for (_, t), v in zip(pairs, values, strict=True)})
        else:
            target, *read = slots
            assert all(held[slot] != "moving" for slot in read)
            held[target] = f"f({', '.join(held[slot] for slot in read)})"
    return held


def test_what_is_added_up_stays_in_its_memory() -> None:
    steps: Steps = [(0, (3, 0)), (OTHER, (3, 4)), (0, (5, 4))]
    made = share_memory(with_waits(recipe(steps, [start()]), [[3], [4], [5]]), LEAVES)
    ((source, target),) = {slots for kernel, slots in made.steps if kernel <= OTHER}
    assert source == target
    read: Steps = [*steps, (0, (6, 3, 5))]  # what is sent is needed later too
    made = share_memory(with_waits(recipe(read, [start()]), [[3], [4], [5], [6]]), LEAVES)
    ((source, target),) = {slots for kernel, slots in made.steps if kernel <= OTHER}
    assert source != target


def test_what_needs_nothing_of_it_goes_first() -> None:
    steps: Steps = [(0, (3, 0)), (OTHER, (3, 4)), (0, (5, 4)), (0, (6, 1)), (0, (7, 6))]
    made = with_waits(recipe(steps, [start(SMALLEST_BUCKET)]), [[3], [4], [5], [6], [7]])
    assert [slots[0] for _, slots in made.steps] == [3, 3, 6, 7, 3, 5]
    assert made.others[1] == WaitForm(0)


def _backward(sizes: list[int]) -> Recipe:
    """Gradients of layers, the last one first, and then a step that needs them all."""
    steps: Steps = []
    for number in range(len(sizes)):
        value = LEAVES + 2 * number
        steps += [(0, (value, 0)), (OTHER - number, (value, value + 1))]
    steps.append((0, (LEAVES + 2 * len(sizes), *range(LEAVES + 1, LEAVES + 2 * len(sizes), 2))))
    return with_waits(
        recipe(steps, [start(size) for size in sizes]), [[LEAVES + n] for n in range(len(steps))]
    )


@pytest.mark.parametrize("seed", range(6))
def test_gradients_go_in_buckets_while_others_are_computed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [4 * int(rng.integers(1, 1 << rng.integers(2, 22))) for _ in range(60)]
    made = _backward(sizes)
    starts, total = _starts(made), sum(sizes)
    full = min(max(total // 16, SMALLEST_BUCKET), LARGEST_BUCKET)
    # In the order of backward, each as soon as it is full.
    calls = [call for _, form in starts for call in form.calls]
    assert all(form.nbytes >= full for _, form in starts[:-1])
    assert [4 * call.inputs[0].shape[0] for call in calls] == sizes
    for _, form in starts[:-1]:
        assert form.nbytes - 4 * form.calls[-1].inputs[0].shape[0] < full
    # Something is computed behind all but the last.
    for (at, _), (then, _) in pairwise(starts):
        assert any(kernel == 0 for kernel, _ in made.steps[at:then])


def test_what_is_sent_is_computed_first() -> None:
    """As in a step that is planned from the first layer on: its gradient needs all the others."""
    chain: Steps = [(0, (3 + n, 2 + n)) for n in range(5)]  # slots 3 to 7, each of the one before
    sends: Steps = []
    for number, slot in enumerate((7, 5, 3)):
        sends.append((OTHER - number, (slot, 8 + number)))
    last: Steps = [(0, (11, 2)), (0, (12, 8, 9, 10, 11))]
    starts = [start(SMALLEST_BUCKET)] * 3
    steps = [*chain, *sends, *last]
    made = with_waits(
        recipe(steps, starts), [[used[0]] for _, used in chain] + [[8], [9], [10]] + [[11], [12]]
    )
    waits = {OTHER - n for n, other in enumerate(made.others) if isinstance(other, WaitForm)}
    began = [used[0] for kernel, used in made.steps if kernel not in waits]
    assert began[:8] == [3, 3, 4, 5, 5, 6, 7, 7]


def test_no_more_than_a_few_buckets_are_under_way() -> None:
    """What they are sent from is memory until they are waited for."""
    made = _backward([LARGEST_BUCKET // 3] * 60)
    under_way, most = set[int](), 0
    for kernel, _ in made.steps:
        form = made.others[OTHER - kernel] if kernel <= OTHER else None
        if isinstance(form, StartForm):
            under_way.add(OTHER - kernel)
        elif isinstance(form, WaitForm):
            under_way.remove(form.start)
        most = max(most, len(under_way))
    assert most == 2 and not under_way


def test_small_ones_are_one_message() -> None:
    ((_, form),) = _starts(_backward([64] * 30))
    assert len(form.calls) == 30


def test_what_is_gathered_comes_a_few_buckets_ahead() -> None:
    """Of a chain of layers, whose weights are copied, put together and read one after the other."""
    count = 40
    steps: Steps = []
    fills: list[list[int]] = []
    value, free = 1, LEAVES
    for number in range(count):
        copied, whole, result = range(free, free + 3)
        steps += [
            (0, (copied, 0)),
            (OTHER - number, (copied, whole)),
            (0, (result, value, whole)),
        ]
        fills += [[copied], [whole], [result]]
        value, free = result, free + 3
    made = with_waits(recipe(steps, [start(LARGEST_BUCKET, name="all_gather")] * count), fills)
    held, most = set[int](), 0
    for kernel, used in made.steps:
        if kernel == 0 and len(used) == 2:
            held.add(used[0])  # a copy, until its layer is computed
        elif kernel == 0:
            held.discard(used[2] - 1)
        most = max(most, len(held))
    assert most <= 3 and len(made.steps) == 4 * count


def test_what_is_gathered_for_nobody_here_is_gathered_too() -> None:
    """Results alone, more of them than are fetched ahead."""
    steps: Steps = [(OTHER - number, (0, LEAVES + number)) for number in range(9)]
    fills = [[LEAVES + number] for number in range(9)]
    starts = [start(LARGEST_BUCKET, name="all_gather")] * 9
    assert len(with_waits(recipe(steps, starts), fills).steps) == 18
