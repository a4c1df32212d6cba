"""The link between the bridge and the card: power, PERST#, and the states of its training.

What register 0xB450 reads in which state is from src/include/registers.h of
tinygrad/asm2464pd-firmware c5e2090, as observed there (R). How long training takes is U.
"""

from __future__ import annotations

from typing import Final, Literal

from gpu.sim.clock import VirtualClock
from gpu.sim.usb.fabric import Fabric

DeadLink = Literal["stale", "wedge"]
QUIET, ACTIVE, POLLING = 0x00, 0x01, 0x10
_BLINK_NS: Final = 12_000_000  # Detect.Quiet lasts 12 ms (PCI Express Base 5.0, 4.2.6.1.1)


class Link:
    """The link.

    Attributes:
        up_state: what a trained link reads as.
        is_powered: whether the card has its rails.
        is_held: whether PERST# is held.
        fabric: what is behind it.
        train_ns: how long a training takes.
        dead: what a request meets on a link that is down: an error at once, or nothing ever.
    """

    def __init__(
        self,
        clock: VirtualClock,
        fabric: Fabric,
        train_ns: int,
        dead: DeadLink,
        up_state: int,
        has_card: bool,
    ):
        """Without a card no link is ever trained."""
        self._clock = clock
        self.up_state = up_state
        self._has_card = has_card
        self.fabric = fabric
        self.train_ns = train_ns
        self.dead: DeadLink = dead
        self.is_powered = False
        self.is_held = True
        self._began_ns: int | None = None

    @property
    def state(self) -> int:
        """What the register of the LTSSM reads."""
        return self.state_at(self._clock.now_ns)

    def state_at(self, time_ns: int) -> int:
        """What it will read at a time, if nothing is done until then."""
        if self._began_ns is None:
            return QUIET
        passed = time_ns - self._began_ns
        if not self._has_card:
            return ACTIVE if passed // _BLINK_NS % 2 else QUIET
        if passed >= self.train_ns:
            return self.up_state
        return POLLING if passed > self.train_ns // 4 else ACTIVE

    @property
    def is_up(self) -> bool:
        """Whether requests get through."""
        return self.state == self.up_state

    def power(self, on: bool) -> None:
        """Rails on or off; with them off PERST# is held."""
        self.is_powered = on
        self.reset(not on)

    def reset(self, held: bool) -> None:
        """PERST#: all behind the link is forgotten; once it is let go, training begins."""
        self.is_held = held
        self.fabric.reset()
        self.fabric.ready_ns += self.train_ns
        trains = self.is_powered and not held
        self._began_ns = self._clock.now_ns if trains else None

    def let_go(self) -> None:
        """PERST# is let go, where it was held."""
        if self.is_held:
            self.reset(False)

    def fail(self) -> None:
        """It goes down by itself, and stays so until the next reset."""
        self._began_ns = None
        self.fabric.cut()
