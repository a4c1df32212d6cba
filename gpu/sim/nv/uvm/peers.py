"""UVM_ENABLE_PEER_ACCESS and UVM_DISABLE_PEER_ACCESS.

From uvm_api_enable_peer_access and uvm_api_disable_peer_access of kernel-open/nvidia-uvm/
uvm_va_space.c, and uvm_gpu_retain_pcie_peer_access of uvm_gpu.c, open-gpu-kernel-modules 580.142.
Peers are of one VA space, that is of one file; all files share what is set up between two GPUs.
"""

from __future__ import annotations

from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.uvm.space import UvmSpace


def enable_peers(file: UvmSpace, args: Record) -> None:
    """Lets each of two registered GPUs have mappings of the other's video memory."""
    first, second = _two(file, args)
    pair, pairs = frozenset((first, second)), file.world.rm.peers
    pairs.retain(first, second)
    if pair in file.peers:
        pairs.release(first, second)
        raise RmError(Status.INVALID_DEVICE, f"{first} and {second} are peers already")
    file.peers.add(pair)


def disable_peers(file: UvmSpace, args: Record) -> None:
    """Ends it; mappings of the other's video memory go, and translations with them."""
    pair = frozenset(_two(file, args))
    check(pair in file.peers, Status.INVALID_DEVICE, "the two GPUs are no peers")
    file.drop_peers(pair)


def _two(file: UvmSpace, args: Record) -> tuple[NvGpu, NvGpu]:
    first, second = file.gpu(args.raw("uuidA")), file.gpu(args.raw("uuidB"))
    check(first is not second, Status.INVALID_DEVICE, f"{first} and itself")
    return first, second
