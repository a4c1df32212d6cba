"""Which copy engine copies what."""

from __future__ import annotations

import pytest

from gpu.drivers.nv.channel.ce_select import CopyEngine, choose_copy_engines
from gpu.hcq.allocator import CopyPlaces

GRCE, SHARED, READ, WRITE, NVLINK, PLAIN = 0x01, 0x02, 0x04, 0x08, 0x10, 0x60

# (number, capabilities, units), and the numbers for copies to the device, from it, within it.
SETS: dict[str, tuple[list[tuple[int, int, int | None]], tuple[int, int, int]]] = {
    "one": ([(0, PLAIN | GRCE, 9), (2, PLAIN, 1)], (2, 2, 2)),
    "two alike": ([(4, PLAIN, 2), (6, PLAIN, 2)], (4, 6, 4)),
    "one is wider": ([(4, PLAIN, 2), (6, PLAIN, 5)], (4, 6, 6)),
    "each is good at something": (
        [(3, PLAIN | WRITE, 1), (4, PLAIN | READ, 1), (5, PLAIN, 1)],
        (4, 3, 5),
    ),
    "NVLink is left to peers": ([(2, PLAIN | NVLINK, 4), (3, PLAIN, 2)], (3, 3, 2)),
    "a wide one for peers": ([(2, PLAIN | NVLINK, 2), (3, PLAIN, 2)], (3, 3, 3)),
    "shared units come last": ([(2, PLAIN | SHARED, 1), (3, PLAIN, 1), (5, PLAIN, 1)], (3, 5, 2)),
    "shared and untold": ([(2, PLAIN | SHARED, None), (3, PLAIN, None)], (3, 2, 3)),
    "no units": ([(2, PLAIN, 0), (3, PLAIN, 1)], (3, 3, 3)),
    "no way to the host": ([(2, 0x40, 8), (3, PLAIN, 1)], (3, 3, 3)),
}


def engine(number: int, caps: int, units: int | None) -> CopyEngine:
    return CopyEngine(9 + number, caps, units)


@pytest.mark.parametrize("name", SETS)
def test_choices(name: str) -> None:
    engines, wanted = SETS[name]
    choice = choose_copy_engines([engine(*each) for each in engines])
    assert choice is not None
    found = (choice.to_device, choice.from_device, choice.within)
    assert tuple(each.engine_type - 9 for each in found) == wanted
    assert tuple(choice.engines[place] for place in choice.places) == found


def test_none_is_left() -> None:
    assert choose_copy_engines([engine(0, PLAIN | GRCE, 2), engine(3, PLAIN, 0)]) is None


def test_a_choice_in_words() -> None:
    choice = choose_copy_engines([engine(4, PLAIN | READ, 2), engine(5, PLAIN | WRITE, None)])
    assert choice is not None and choice.places == CopyPlaces(0, 1, 0)
    assert str(choice) == "to the device 4, from it 5, within it 4"
    assert str(choice.from_device) == (
        "copy engine 5: unknown units, system memory, best at writing it, peers"
    )
