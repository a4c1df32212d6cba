"""The order of the steps of a compiled graph that has collectives, and where these are waited for.

What a collective sends is computed first, and of several that which takes least: so backward gives
the last layer's gradients before those of others. Else steps stay in the order of the plan, but for
those that need what is under way: they wait until nothing else can be done. So the bytes of one
layer's gradients move while those of the next are computed. Small collectives of one kind go
together, in buckets: in the order in which what they send is ready, as in S. Li et al., "PyTorch
Distributed", 2020. What is gathered takes more memory than what was sent, so it is not fetched
early, but for a few buckets ahead of who reads it. Nor is more than a few buckets under way at
once, which would be memory as well. The order follows from the plan alone: it is that of all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from gpu.runtime.collectives import StartForm, WaitForm
from gpu.runtime.recipe import OTHER, About, Recipe

LARGEST_BUCKET: Final = 25 << 20  # bytes; torch's size
# Of one that costs more to be sent than to be begun, on the networks that there are.
SMALLEST_BUCKET: Final = 256 << 10
# What is sent last nothing hides: it is a small part of all, where that is enough for a bucket.
_LEAST_BUCKETS: Final = 16
# Buckets under way, of the largest kind, from which on the first is waited for before others are
# sent: what they are sent from is free then.
MOST_UNDER_WAY: Final = 2
# Buckets of what is gathered that are under way at once.
_GATHERED_AHEAD: Final = 2


_GATHER: Final = "all_gather"


class _Event(NamedTuple):
    """What comes next: a step; the start of some together; or the wait for them."""

    numbers: tuple[int, ...]
    is_wait: bool = False


def with_waits(recipe: Recipe, fills: Sequence[Sequence[int]]) -> Recipe:
    """The recipe with its steps in order, its collectives in buckets, and a wait for each of them.

    `fills` are the slots that each step fills. No slots share memory yet, but for those of leaves.
    """
    if not any(isinstance(other, StartForm) for other in recipe.others):
        return recipe
    made = _Made(recipe)
    changed = {*recipe.writes, *(slot for slot, _ in recipe.reuses)}
    changes_from = None
    for event in _Order(recipe, fills):
        if event.is_wait:
            made.wait(event.numbers)
            continue
        if changes_from is None and any(not changed.isdisjoint(fills[n]) for n in event.numbers):
            changes_from = len(made.steps)
        made.add(event.numbers)
    return recipe._replace(
        steps=tuple(made.steps),
        vals=tuple(made.vals) if recipe.vals else (),
        abouts=tuple(made.abouts),
        changes_from=len(made.steps) if changes_from is None else changes_from,
        others=tuple(made.others),
    )


class _Made:
    """The steps of a recipe in another order, as they are found."""

    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        self.steps: list[tuple[int, tuple[int, ...]]] = []
        self.vals: list[tuple[int, ...]] = []
        self.abouts: list[About] = []
        self.others = list(recipe.others)

    def add(self, numbers: Sequence[int]) -> None:
        """A step, or collectives that start together, in place of the first one's start."""
        (kernel, used), about = self._recipe.steps[numbers[0]], self._recipe.abouts[numbers[0]]
        if len(numbers) > 1:
            forms = [_start_of(self._recipe, number) for number in numbers]
            calls = tuple(call for form in forms for call in form.calls)
            self.others[OTHER - kernel] = StartForm(forms[0].device, calls)
            used = self._slots(numbers)
            nbytes = sum(self._recipe.abouts[number].nbytes for number in numbers)
            about = about._replace(label=f"{about.label} and {len(calls) - 1} more", nbytes=nbytes)
        vals = self._recipe.vals[numbers[0]] if self._recipe.vals else ()
        self._append((kernel, used), vals, about)

    def wait(self, numbers: Sequence[int]) -> None:
        """The wait for what started together."""
        start = OTHER - self._recipe.steps[numbers[0]][0]
        self._append((OTHER - len(self.others), self._slots(numbers)), (), About("wait", 0, 0))
        self.others.append(WaitForm(start))

    def _slots(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(slot for number in numbers for slot in self._recipe.steps[number][1])

    def _append(
        self, step: tuple[int, tuple[int, ...]], vals: tuple[int, ...], about: About
    ) -> None:
        self.steps.append(step)
        self.vals.append(vals)
        self.abouts.append(about)


def _start_of(recipe: Recipe, number: int) -> StartForm:
    form = recipe.others[OTHER - recipe.steps[number][0]]
    assert isinstance(form, StartForm)
    return form


class _Order:
    """Steps in an order in which each comes after those that it needs."""

    def __init__(self, recipe: Recipe, fills: Sequence[Sequence[int]]):
        leaves_of: dict[int, list[int]] = {}
        for slot, leaf in recipe.reuses:
            leaves_of.setdefault(slot, []).append(leaf)
        self._needs: list[set[int]] = []
        filled: dict[int, int] = {}
        read: dict[int, list[int]] = {}
        users: dict[int, set[int]] = {}  # of what each step computes
        for number, ((_, used), own) in enumerate(zip(recipe.steps, fills, strict=True)):
            changed = {memory for slot in own for memory in (slot, *leaves_of.get(slot, ()))}
            needs = {filled[slot] for slot in {*used, *changed} if slot in filled}
            for needed in needs:
                users.setdefault(needed, set()).add(number)
            needs.update(reader for slot in changed for reader in read.get(slot, ()))
            self._needs.append(needs)
            for slot in changed:
                filled[slot], read[slot] = number, []
            for slot in set(used) - changed:
                read.setdefault(slot, []).append(number)
        # Of each start which others may be in one bucket with it, and its bytes.
        self._kinds: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        for number, (kernel, _) in enumerate(recipe.steps):
            if kernel <= OTHER and isinstance(recipe.others[OTHER - kernel], StartForm):
                form = _start_of(recipe, number)
                self._kinds[number], self._bytes[number] = form.kind, form.nbytes
        self._gathers = {n for n in self._kinds if _start_of(recipe, n).calls[0].name == _GATHER}
        # What is computed for gathers alone waits with them.
        self._gathered = {n: self._kinds[n] for n in self._gathers}
        for number, readers in users.items():
            if readers <= self._gathers:
                self._gathered[number] = self._kinds[min(readers)]
        totals = Counter[Any]()
        for number, kind in self._kinds.items():
            totals[kind] += self._bytes[number]
        self._fulls = {
            kind: min(max(total // _LEAST_BUCKETS, SMALLEST_BUCKET), LARGEST_BUCKET)
            for kind, total in totals.items()
        }
        self._most = MOST_UNDER_WAY * max(self._fulls.values())

    def __iter__(self) -> Iterator[_Event]:
        """The steps, and the waits for those that are under way."""
        left = dict.fromkeys(self._sent_first())
        done: set[int] = set()
        under_way: dict[int, _Event] = {}  # of each start the wait for it
        buckets: dict[Any, list[int]] = {}  # of starts whose operands are there

        def send(kind: Any) -> _Event:
            event = _Event(tuple(buckets.pop(kind)))
            done.update(event.numbers)
            under_way.update(dict.fromkeys(event.numbers, event._replace(is_wait=True)))
            return event

        def wait(event: _Event) -> _Event:
            for number in event.numbers:
                del under_way[number]
            return event

        full = None  # the kind of a bucket that is sent next
        while left or buckets:
            able = self._able(left, done, self._are_ahead(under_way))
            number = next((n for n in able if self._needs[n].isdisjoint(under_way)), None)
            if number is None and full is None:
                full = next(iter(buckets), None)
            if full is not None:
                while self._nbytes(under_way) >= self._most:
                    yield wait(next(iter(under_way.values())))
                yield send(full)
                full = None
            elif number is None:
                yield wait(next(iter(under_way.values())))
            else:
                del left[number]
                if number not in self._kinds:
                    done.add(number)
                    yield _Event((number,))
                    continue
                kind = self._kinds[number]
                bucket = buckets.setdefault(kind, [])
                bucket.append(number)
                full = kind if self._nbytes(bucket) >= self._fulls[kind] else None
        yield from dict.fromkeys(under_way.values())

    def _sent_first(self) -> list[int]:
        """The steps in an order in which each start comes as early as it can, the nearest first."""
        before: list[int] = []  # of each step all that it needs, and itself, as bits
        for number, needs in enumerate(self._needs):
            mask = 1 << number
            for needed in needs:
                mask |= before[needed]
            before.append(mask)
        order: list[int] = []
        done = 0
        starts = self._kinds.keys() - self._gathers
        for start in sorted(starts, key=lambda n: (before[n].bit_count(), n)):
            order += _bits(before[start] & ~done)
            done |= before[start]
        return [*order, *_bits(~done & (1 << len(before)) - 1)]

    def _able(self, left: Iterable[int], done: set[int], without: set[Any]) -> Iterator[int]:
        """Steps whose needs have begun, but for gathers of some kinds, and what only they read."""
        able = (n for n in left if self._needs[n] <= done)
        return (n for n in able if self._gathered.get(n) not in without)

    def _are_ahead(self, under_way: Iterable[int]) -> set[Any]:
        """The kinds of gathers of which enough is under way."""
        found = Counter[Any]()
        for number in self._gathers.intersection(under_way):
            found[self._kinds[number]] += self._bytes[number]
        return {kind for kind, size in found.items() if size >= _GATHERED_AHEAD * self._fulls[kind]}

    def _nbytes(self, starts: Iterable[int]) -> int:
        return sum(self._bytes[number] for number in starts)


def _bits(mask: int) -> list[int]:
    """The places of the ones, in order."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found
