"""Sharing memory among the intermediate values of a compiled graph."""

from __future__ import annotations

from bisect import bisect_left, insort

from gpu.core.dtype import dtypes
from gpu.runtime.collectives import StartForm
from gpu.runtime.recipe import OTHER, Recipe, Slot


def share_memory(recipe: Recipe, leaves: int) -> Recipe:
    """The same recipe with intermediate values that never live at once in the same memory.

    A value lives from the step that computes it to the last one that reads it. Outputs and images
    keep memory of their own. What is added up over ranks is so in the memory of its result, if
    nothing else reads it. `leaves` is how many slots come before the recipe's.
    """
    last_step = {slot: i for i, (_, used) in enumerate(recipe.steps) for slot in used}
    outputs = set(recipe.outputs)
    memory = _Memory(leaves)

    def is_image(slot: int) -> bool:
        return recipe.slots[slot - leaves].dtype.is_image

    in_place = _in_place(recipe, leaves)
    place: dict[int, int] = {slot: slot for slot in range(leaves)}
    steps: list[tuple[int, tuple[int, ...]]] = []
    for number, (kernel, used) in enumerate(recipe.steps):
        for slot in used:
            if slot not in place and (result := in_place.get(slot)) is not None:
                own = result in outputs
                wanted = recipe.slots[result - leaves]
                place[slot] = place[result] = memory.new(wanted) if own else memory.borrow(wanted)
            elif slot not in place:
                wanted = recipe.slots[slot - leaves]
                own = slot in outputs or is_image(slot)
                place[slot] = memory.new(wanted) if own else memory.borrow(wanted)
        steps.append((kernel, tuple(place[slot] for slot in used)))
        for slot in set(used):
            shared = slot >= leaves and slot not in outputs and slot not in in_place
            if shared and last_step[slot] == number and not is_image(slot):
                memory.give_back(place[slot])
    return recipe._replace(
        slots=tuple(memory.slots),
        steps=tuple(steps),
        outputs=tuple(place[slot] for slot in recipe.outputs),
        reuses=tuple((place[slot], leaf) for slot, leaf in recipe.reuses),
    )


def _in_place(recipe: Recipe, leaves: int) -> dict[int, int]:
    """For values that are added up over ranks, and then read by nothing, the slot of the sum."""
    reused = {slot for slot, _ in recipe.reuses}
    kept = {*range(leaves), *recipe.outputs, *reused}
    uses: dict[int, list[int]] = {}
    for step, (_, used) in enumerate(recipe.steps):
        for slot in used:
            uses.setdefault(slot, []).append(step)
    found: dict[int, int] = {}
    for step, (kernel, used) in enumerate(recipe.steps):
        form = recipe.others[OTHER - kernel] if kernel <= OTHER else None
        if not isinstance(form, StartForm) or form.calls[0].name != "all_reduce":
            continue
        for own, result in zip(used[::2], used[1::2], strict=True):
            # Its last uses are the start, once, and the wait.
            *_, before, start, _ = (-1, *uses[own])
            is_free = own not in kept and result >= leaves and result not in reused
            if is_free and before < start == step:
                found[own] = result
    return found


class _Memory:
    """Slots made so far, and which of them hold nothing now."""

    def __init__(self, leaves: int):
        self.leaves = leaves
        self.slots: list[Slot] = []
        # For each device, by size.
        self.free: dict[str, list[tuple[int, int]]] = {}

    def new(self, wanted: Slot) -> int:
        """A slot of its own."""
        self.slots.append(wanted)
        return self.leaves + len(self.slots) - 1

    def borrow(self, wanted: Slot) -> int:
        """The smallest free slot that fits, or a new one. Sizes are in bytes."""
        needed = wanted.size * wanted.dtype.itemsize
        free = self.free.setdefault(wanted.device, [])
        place = bisect_left(free, (needed, 0))
        if place == len(free):
            return self.new(Slot(wanted.device, needed, dtypes.uint8))
        return free.pop(place)[1]

    def give_back(self, number: int) -> None:
        """What is in the slot is not needed any more."""
        slot = self.slots[number - self.leaves]
        insort(self.free[slot.device], (slot.size, number))
