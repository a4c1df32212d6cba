"""One GPU with its runlists: channels, and the doorbell page that processes map."""

from __future__ import annotations

import threading
from typing import Final

from gpu.sim.linecaches import Mode
from gpu.sim.nv.chip.channel import Channel, Group
from gpu.sim.nv.chip.errors import FELL_OFF_THE_BUS, GSP_RPC_TIMEOUT, HardwareError
from gpu.sim.nv.chip.hardware import Hardware
from gpu.sim.physical import Pool

USERMODE_SIZE: Final = 64 << 10
_CHANNEL_IDS: Final = 2048  # of a runlist, NV_RUNLIST_CHANNEL_CONFIG
_CLEAN: Final = bytes(USERMODE_SIZE)
DOORBELL: Final = 0x90  # NVC361_NOTIFY_CHANNEL_PENDING
TIME_LOW: Final = 0x80  # NVC361_TIME_0, _1
UNRUNG: Final = 0xFFFF_FFFF


class NvGpu(Hardware):
    """A GPU of a world.

    Attributes:
        groups: channel groups of all processes.
        usermode: the page that processes map: the doorbell at 0x90, the clock at 0x80.
    """

    def __post_init__(self, coherence: Mode) -> None:
        super().__post_init__(coherence)
        self.usermode = Pool("usermode registers", USERMODE_SIZE)
        self.groups: list[Group] = []
        self._next_channel: dict[int, int] = {}
        self._order = threading.Lock()
        self.usermode.write_word(DOORBELL, 4, UNRUNG)
        self.show_clock()

    @property
    def channels(self) -> list[Channel]:
        """All channels of all processes."""
        return [channel for group in self.groups for channel in group.channels]

    def new_channel_id(self, runlist: int) -> int | None:
        """A free channel id of a runlist, not from 0, so that a wrong token is noticed."""
        used = {c.number_on_runlist for c in self.channels if c.group.runlist == runlist}
        if len(used) == _CHANNEL_IDS:
            return None
        at = self._next_channel.get(runlist, 8 + self.rng.randrange(64))
        while at in used:
            at = (at + 1) % _CHANNEL_IDS
        self._next_channel[runlist] = (at + 1) % _CHANNEL_IDS
        return at

    def remove(self, channel: Channel) -> None:
        """Takes a channel off. What was rung for it before came in time, though nobody looked."""
        self.take_ring()
        channel.group.channels.remove(channel)

    def sample(self) -> None:
        """Looks at what processes wrote without a call: the doorbell."""
        self.take_ring()
        self._check_usermode()
        self.show_clock()
        for channel in self.channels:
            channel.sample()

    def take_ring(self) -> None:
        """Has the channel look that was rung for, if any."""
        token = self._take_token()
        if token is not None:
            self._ring(token)

    def forget_ring(self) -> None:
        """A reset: nobody looks at what was rung for any more."""
        self._take_token()

    def _take_token(self) -> int | None:
        """What was written to the doorbell, which is free for the next one from then on.

        Processes write it whenever they like, so a ring may come between the look and the clearing.
        It is not lost: it came after its GP_PUT, and whoever was given a token looks at GP_PUT of
        all channels, after the clearing. A lock's atomic operation keeps the two in this order
        on x86; elsewhere it is the time that Python takes between them.
        """
        token = self.usermode.read_word(DOORBELL, 4)
        if token == UNRUNG:
            return None
        self.usermode.write_word(DOORBELL, 4, UNRUNG)
        with self._order:
            self.counts.doorbells += 1
        return token

    def _check_usermode(self) -> None:
        """Notices what was written beside the doorbell, and clears that only."""
        written = bytearray(self.usermode.load(0, USERMODE_SIZE))
        written[TIME_LOW : TIME_LOW + 8] = bytes(8)
        written[DOORBELL : DOORBELL + 4] = bytes(4)
        if written == _CLEAN:
            return
        at = next(i for i, byte in enumerate(written) if byte)
        self.debug.violation(
            f"the usermode page was written at {at:#x}; the doorbell is at {DOORBELL:#x}"
        )
        self.usermode.store(0, _CLEAN[:DOORBELL])
        self.usermode.store(DOORBELL + 4, _CLEAN[DOORBELL + 4 :])

    def _ring(self, token: int) -> None:
        """A ring came. A later one hides an earlier one, so all that moved count as rung."""
        target = [channel for channel in self.channels if channel.token == token]
        if not target:
            self.debug.violation(f"the doorbell was rung with {token:#x}, no channel's token")
        for channel in self.channels:
            channel.ring(hidden=channel.token != token)

    def show_clock(self) -> None:
        """Puts the clock where processes see it."""
        self.usermode.write_word(TIME_LOW, 8, self.clock.now_ns)

    def runnable(self) -> list[Channel]:
        """Channels that could do something now."""
        if not self.plugged:
            return []
        return [channel for channel in self.channels if channel.runnable()]

    def unplug(self) -> None:
        """It is gone from its bus: osHandleGpuLost tears down all channels."""
        self._tear_down(HardwareError(FELL_OFF_THE_BUS, "the GPU has fallen off the bus"))
        self.plugged = False

    def lose_firmware(self) -> None:
        """Calls that its firmware answers are refused from now on (kernel_gsp.c)."""
        self._tear_down(HardwareError(GSP_RPC_TIMEOUT, "the firmware does not answer"))
        self.needs_reset = True

    def _tear_down(self, error: HardwareError) -> None:
        """The end of all channels (kgspRcAndNotifyAllChannels)."""
        for group in self.groups:
            if group.channels and not group.dead:
                group.channels[0].fail(error)

    def close(self) -> None:
        """Gives its memory back."""
        self.vram.close()
        self.usermode.close()
