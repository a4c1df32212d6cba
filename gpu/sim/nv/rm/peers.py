"""Which GPUs of a machine reach each other's memory, and what is set up between them.

The model's GPUs have no NVLink and no C2C: what is left is PCIe, by the mailbox protocol, which is
what the driver takes unless its registry says otherwise (NV_REG_STR_RM_PCIEP2P_TYPE_DEFAULT). Two
GPUs must be of one chip (areGpusP2PCompatible); then firmware decides for boards and chipset, which
here is an argument of the world. From src/nvidia/src/kernel/platform/p2p/p2p_caps.c and
gpu/bus/p2p_api.c of open-gpu-kernel-modules 580.142.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import Final

from gpu.sim.nv.chip.hardware import Hardware
from gpu.sim.nv.rm.status import Status, check

NO_PEER: Final = 0xFFFF_FFFF  # NV0000_CTRL_SYSTEM_GET_P2P_CAPS_INVALID_PEER


class Support(IntEnum):
    """NV0000_P2P_CAPS_STATUS_*, ctrl/ctrl0000/ctrl0000system.h."""

    OK = 0
    CHIPSET_NOT_SUPPORTED = 1
    NOT_SUPPORTED = 5


@dataclass
class _Pair:
    """What is set up between two GPUs: how many want it, and what each calls the other."""

    users: int
    ids: dict[Hardware, int]


class PeerPairs:
    """The pairs of a machine, of all its processes together.

    Args:
        pcie: whether boards and chipset support access over PCIe.
    """

    def __init__(self, pcie: bool):
        self._pcie = pcie
        self._pairs: dict[frozenset[Hardware], _Pair] = {}

    def support(self, gpus: Sequence[Hardware]) -> Support:
        """Whether all of some GPUs read and write each other, one GPU itself over the bus."""
        if any(gpu.chip is not gpus[0].chip for gpu in gpus):
            return Support.NOT_SUPPORTED
        return Support.OK if self._pcie else Support.CHIPSET_NOT_SUPPORTED

    def retain(self, first: Hardware, second: Hardware) -> None:
        """One user more of a pair. Raises RmError(NOT_SUPPORTED), as RM does for NV50_P2P."""
        support = self.support((first, second))
        supported = support is Support.OK
        check(supported, Status.NOT_SUPPORTED, f"{first} and {second}: {support.name}")
        key = frozenset((first, second))
        if key in self._pairs:
            self._pairs[key].users += 1
            return
        ids = {first: self._free_id(first), second: self._free_id(second)}
        self._pairs[key] = _Pair(1, ids)

    def release(self, first: Hardware, second: Hardware) -> None:
        """One user less of a pair."""
        key = frozenset((first, second))
        self._pairs[key].users -= 1
        if not self._pairs[key].users:
            del self._pairs[key]

    def peer_id(self, gpu: Hardware, peer: Hardware) -> int:
        """What a GPU calls another in its page tables; `NO_PEER` where nothing is set up."""
        pair = self._pairs.get(frozenset((gpu, peer)))
        return pair.ids[gpu] if pair else NO_PEER

    def _free_id(self, gpu: Hardware) -> int:
        used = {pair.ids[gpu] for key, pair in self._pairs.items() if gpu in key}
        return next(number for number in count() if number not in used)
