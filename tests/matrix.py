"""How tests that run on every device fared."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class Matrix(NamedTuple):
    """How tests that run on every device fared: per device its target, ids seen and ids skipped."""

    devices: list[str]
    targets: dict[str, str]
    seen: Counter[str]
    skipped: dict[str, list[tuple[str, str]]]

    @property
    def here(self) -> list[str]:
        """The devices that this machine has: those on which something ran."""
        return [d for d in self.devices if len(self.skipped[d]) < self.seen[d]]

    @property
    def share(self) -> float:
        """What part of the ids was skipped, on the devices that are here."""
        total = sum(self.seen[d] for d in self.here)
        return sum(len(self.skipped[d]) for d in self.here) / max(total, 1)

    def lines(self, device: str) -> list[str]:
        """What is reported of a device."""
        if not self.seen[device]:
            return [f"{device}: no ids were selected"]
        skipped = self.skipped[device]
        counts = f"{device}: {self.seen[device]} ids, {len(skipped)} skipped"
        if target := self.targets.get(device):
            counts += f", compiled for {target}"
        if device not in self.here:
            return [f"{counts}: this machine lacks it"]
        return [counts, *(f"  {nodeid}: {reason}" for nodeid, reason in skipped)]
