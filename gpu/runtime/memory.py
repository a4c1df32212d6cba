"""Sharing memory among the intermediate values of a compiled graph."""

from __future__ import annotations

from bisect import bisect_left, insort

from gpu.core.dtype import dtypes
from gpu.runtime.recipe import Recipe, Slot


def share_memory(recipe: Recipe, leaves: int) -> Recipe:
    """The same recipe with intermediate values that never live at once in the same memory.

    A value lives from the step that computes it to the last one that reads it. Outputs and images
    keep memory of their own. `leaves` is how many slots come before the recipe's.
    """
    last_step = {slot: i for i, (_, used) in enumerate(recipe.steps) for slot in used}
    outputs = set(recipe.outputs)
    memory = _Memory(leaves)

    def is_image(slot: int) -> bool:
        return recipe.slots[slot - leaves].dtype.is_image

    place: dict[int, int] = {slot: slot for slot in range(leaves)}
    steps: list[tuple[int, tuple[int, ...]]] = []
    for number, (kernel, used) in enumerate(recipe.steps):
        for slot in used:
            if slot not in place:
                wanted = recipe.slots[slot - leaves]
                own = slot in outputs or is_image(slot)
                place[slot] = memory.new(wanted) if own else memory.borrow(wanted)
        steps.append((kernel, tuple(place[slot] for slot in used)))
        for slot in set(used):
            shared = slot >= leaves and slot not in outputs
            if shared and last_step[slot] == number and not is_image(slot):
                memory.give_back(place[slot])
    return recipe._replace(
        slots=tuple(memory.slots),
        steps=tuple(steps),
        outputs=tuple(place[slot] for slot in recipe.outputs),
        reuses=tuple((place[slot], leaf) for slot, leaf in recipe.reuses),
    )


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
