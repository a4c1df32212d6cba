"""Sharing memory among the intermediate values of a compiled graph."""

from __future__ import annotations

from gpu.core.dtype import dtypes
from gpu.runtime.collectives import StartForm
from gpu.runtime.recipe import OTHER, Recipe, Slot


def share_memory(recipe: Recipe, leaves: int) -> Recipe:
    """The same recipe with intermediate values that never live at once in the same memory.

    A value lives from the step that computes it to the last one that reads it. Outputs and images
    keep memory of their own. What is added up over ranks is so in the memory of its result, if
    nothing else reads it. `leaves` is how many slots come before the recipe's.

    The largest values get memory first, each the smallest that is free while it lives, as "greedy
    by size" of Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep Neural Net
    Inference", 2020: so no small value that lives long is where large ones could be in turn.
    """
    in_place = _in_place(recipe, leaves)
    outputs = set(recipe.outputs)
    lives: dict[int, tuple[int, int]] = {}  # the first and the last step that uses a value
    for number, (_, used) in enumerate(recipe.steps):
        for slot in used:
            value = in_place.get(slot, slot)
            lives[value] = lives.get(value, (number, number))[0], number
    place = {slot: slot for slot in range(leaves)}
    slots: list[Slot] = []
    shared: list[tuple[int, str, int]] = []
    for value in lives:
        if value < leaves:
            continue
        wanted = recipe.slots[value - leaves]
        if value in outputs or wanted.dtype.is_image:
            place[value] = leaves + len(slots)
            slots.append(wanted)
        else:
            shared.append((wanted.size * wanted.dtype.itemsize, wanted.device, value))
    free = _Free()
    for nbytes, device, value in sorted(shared, key=lambda each: -each[0]):
        first, last = lives[value]
        found = free.taken(device, ((1 << last - first + 1) - 1) << first, leaves + len(slots))
        if found == leaves + len(slots):
            slots.append(Slot(device, nbytes, dtypes.uint8))
        place[value] = found
    place |= {own: place[result] for own, result in in_place.items()}
    return recipe._replace(
        slots=tuple(slots),
        steps=tuple((kernel, tuple(place[slot] for slot in used)) for kernel, used in recipe.steps),
        outputs=tuple(place[slot] for slot in recipe.outputs),
        reuses=tuple((place[slot], leaf) for slot, leaf in recipe.reuses),
    )


class _Free:
    """Slots of intermediate values, and the steps in which each holds something."""

    def __init__(self) -> None:
        # For each device the steps as bits, and the slot; the largest first.
        self._busy: dict[str, list[tuple[int, int]]] = {}

    def taken(self, device: str, steps: int, new: int) -> int:
        """The smallest slot that is free in some steps, in which it is not any more; or `new`."""
        known = self._busy.setdefault(device, [])
        for place in reversed(range(len(known))):
            busy, slot = known[place]
            if not busy & steps:
                known[place] = busy | steps, slot
                return slot
        known.append((steps, new))
        return new


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
