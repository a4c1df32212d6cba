"""Mistakes that were put into the driver of cards on PCI are found by its tests."""

from __future__ import annotations

import pytest

from am.pci_mutations import MUTATIONS
from bounded import bounded
from mutating import assert_finds

LIMIT = 10.0  # seconds of the processor: a test that hangs has found its mistake


@pytest.mark.sampled(50)
@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found(name: str) -> None:
    apply, found_by, arguments = MUTATIONS[name]

    def run() -> None:
        with bounded(LIMIT):
            MUTATIONS.checks[found_by](*arguments)

    assert_finds((found_by, arguments), run, apply)
