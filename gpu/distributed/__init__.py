"""One program in several processes, on one machine or many: over MPI, and no library of a vendor.

    mpiexec -n 2 python train.py        # or srun

    >>> from gpu import Tensor, distributed
    >>> group = distributed.init()
    >>> group.rank, group.size
    (0, 1)

MPI starts the processes and moves the bytes. docs/howto/clusters.md tells users more.
"""

from __future__ import annotations

from gpu.core.errors import CollectiveMismatch, DistributedError, PeerFault, PeerLost
from gpu.distributed.call import Traffic
from gpu.distributed.checkpoint import Saving, checkpoints, load, save
from gpu.distributed.group import Group
from gpu.distributed.recovery import run
from gpu.distributed.replicas import check_replicas
from gpu.distributed.start import init

__all__ = [
    "CollectiveMismatch",
    "DistributedError",
    "Group",
    "PeerFault",
    "PeerLost",
    "Saving",
    "Traffic",
    "check_replicas",
    "checkpoints",
    "init",
    "load",
    "run",
    "save",
]
