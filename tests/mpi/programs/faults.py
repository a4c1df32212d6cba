"""Rank 1 fails: ``faults.py HOW SECONDS``; others tell in a line of JSON what they got, and when.

The seconds are how long ranks wait, from when all have begun.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from gpu import Tensor, distributed
from gpu.core.errors import GpuFault

HOW = sys.argv[1]
group = distributed.init()
x = Tensor([1.0, 2.0])
total = group.all_reduce(x).tolist()
pid = int(group.broadcast(Tensor(os.getpid()), 1).item())
last = int(group.broadcast(Tensor(os.getpid()), group.size - 1).item())
group.barrier()
group._engine.timeout = float(sys.argv[2])

if group.rank == 1:
    if HOW == "raise":
        raise ValueError("the data has ended")
    if HOW == "fault":
        raise GpuFault("a kernel wrote to nobody's memory", 0x7F0000001000)
    if HOW in ("end", "unheard"):
        sys.exit()
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if HOW == "memory":  # of MPI's thread

        def full(*_: object) -> None:
            raise MemoryError("no memory is left")

        group._engine.wire.swap = full
    if HOW == "hang":
        time.sleep(6)

if HOW == "unheard" and group.rank == 0:
    os.kill(last, signal.SIGSTOP)
began = time.monotonic()
told = {"rank": group.rank, "error": None}
try:
    if HOW == "other" and group.rank == 1:
        group.recv(x, 0).numpy()
    elif HOW == "shape" and group.rank == 1:
        group.recv(x[:1], 0).numpy()
    elif HOW == "shape":
        group.send(x, 1)
        group.all_reduce(x).numpy()
    else:
        group.all_reduce(x).numpy()
except distributed.DistributedError as error:
    told |= {"error": type(error).__name__, "text": str(error)}
    told["seconds"] = time.monotonic() - began
    if isinstance(error, distributed.PeerLost):
        told |= {"lost": error.rank, "host": error.host == group.host}
        told |= {"step": error.step, "collective": error.collective}
    if isinstance(error, GpuFault):
        told["address"] = error.address
if HOW == "unheard" and group.rank == 0:
    time.sleep(0.5)  # until rank 1 is gone
    os.kill(last, signal.SIGCONT)
try:
    group.barrier()
    told["after"] = None
except distributed.DistributedError as error:
    told["after"] = type(error).__name__
print(json.dumps(told), flush=True)
if HOW == "stop":
    time.sleep(0.5)  # until the others have told
    os.kill(pid, signal.SIGKILL)
