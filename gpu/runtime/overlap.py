"""The order of the steps of a compiled graph that has collectives, and where these are waited for.

Steps stay in the order of the plan, but for those that need what is under way: they wait until
nothing else can be done, or much is under way. So the bytes of one layer's gradients move while
those of the next are computed. The order follows from the plan alone: it is that of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpu.runtime.collectives import StartForm, WaitForm
from gpu.runtime.recipe import OTHER, About, OtherForm, Recipe

# Bytes under way from which on results are waited for first: two buckets of torch's size, 25 MiB.
MOST_UNDER_WAY: Final = 2 * 25 << 20


def with_waits(recipe: Recipe, fills: Sequence[Sequence[int]]) -> Recipe:
    """The recipe with its steps in order, and a wait for each collective.

    `fills` are the slots that each step fills. No slots share memory yet, but for those of leaves.
    """
    if not any(isinstance(other, StartForm) for other in recipe.others):
        return recipe
    order = list(_Order(recipe, fills))
    others, waits = list(recipe.others), dict[int, int]()
    numbers: list[int] = []  # of the recipe's own steps; of a wait that of its start, from -1 down
    for number, is_wait in order:
        numbers.append(~number if is_wait else number)
        if is_wait:
            waits[number] = OTHER - len(others)
            others.append(WaitForm(OTHER - recipe.steps[number][0]))
    steps = tuple(recipe.steps[n] if n >= 0 else (waits[~n], recipe.steps[~n][1]) for n in numbers)
    changed = {*recipe.writes, *(slot for slot, _ in recipe.reuses)}
    changing = (i for i, n in enumerate(numbers) if n >= 0 and not changed.isdisjoint(fills[n]))
    return recipe._replace(
        steps=steps,
        vals=tuple(recipe.vals[n] if n >= 0 else () for n in numbers) if recipe.vals else (),
        abouts=tuple(recipe.abouts[n] if n >= 0 else About("wait", 0, 0) for n in numbers),
        changes_from=next(changing, len(steps)),
        others=tuple(others),
    )


class _Order:
    """Steps in an order in which each comes after those that it needs."""

    def __init__(self, recipe: Recipe, fills: Sequence[Sequence[int]]):
        leaves_of: dict[int, list[int]] = {}
        for slot, leaf in recipe.reuses:
            leaves_of.setdefault(slot, []).append(leaf)
        self._needs: list[set[int]] = []
        filled: dict[int, int] = {}
        read: dict[int, list[int]] = {}
        for number, ((_, used), own) in enumerate(zip(recipe.steps, fills, strict=True)):
            changed = {memory for slot in own for memory in (slot, *leaves_of.get(slot, ()))}
            needs = {filled[slot] for slot in {*used, *changed} if slot in filled}
            needs.update(reader for slot in changed for reader in read.get(slot, ()))
            self._needs.append(needs)
            for slot in changed:
                filled[slot], read[slot] = number, []
            for slot in set(used) - changed:
                read.setdefault(slot, []).append(number)
        self._bytes = {
            number: _nbytes(recipe.others[OTHER - kernel])
            for number, (kernel, _) in enumerate(recipe.steps)
            if kernel <= OTHER and isinstance(recipe.others[OTHER - kernel], StartForm)
        }

    def __iter__(self) -> Iterator[tuple[int, bool]]:
        """The number of each step, and whether it is the wait for it that comes."""
        left = dict.fromkeys(range(len(self._needs)))
        done: set[int] = set()
        under_way: list[int] = []
        while left:
            ready = (n for n in left if self._needs[n] <= done)
            free = None
            if sum(self._bytes[n] for n in under_way) < MOST_UNDER_WAY:
                free = next((n for n in ready if self._needs[n].isdisjoint(under_way)), None)
            number = next(n for n in left if self._needs[n] <= done) if free is None else free
            for needed in sorted(self._needs[number].intersection(under_way)):
                under_way.remove(needed)
                yield needed, True
            yield number, False
            del left[number]
            done.add(number)
            if number in self._bytes:
                under_way.append(number)
        yield from ((number, True) for number in under_way)


def _nbytes(form: OtherForm) -> int:
    assert isinstance(form, StartForm)
    return sum(dtype.itemsize * _size(shape) for shape, dtype in form.call.outputs)


def _size(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
