"""UVM_ENABLE_PEER_ACCESS and UVM_DISABLE_PEER_ACCESS.

From uvm_api_enable_peer_access and uvm_api_disable_peer_access of kernel-open/nvidia-uvm/
uvm_va_space.c, and uvm_gpu_retain_pcie_peer_access of uvm_gpu.c, open-gpu-kernel-modules 580.142.
Peers are of one VA space, that is of one file; all files share what is set up between two GPUs.
"""

from __future__ import annotations

from gpu.sim.nv.chip.hardware import Hardware
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.uvm.space import UvmSpace


def enable_peers(uvm: UvmSpace, args: Record) -> None:
    """Lets each of two registered GPUs have mappings of the other's video memory."""
    first, second = _two(uvm, args)
    pair, pairs = frozenset((first, second)), uvm.rm.peers
    pairs.retain(first, second)
    if pair in uvm.peers:
        pairs.release(first, second)
        raise RmError(Status.INVALID_DEVICE, f"{first} and {second} are peers already")
    uvm.peers.add(pair)


def disable_peers(uvm: UvmSpace, args: Record) -> None:
    """Ends it; mappings of the other's video memory go, and translations with them."""
    pair = frozenset(_two(uvm, args))
    check(pair in uvm.peers, Status.INVALID_DEVICE, "the two GPUs are no peers")
    uvm.drop_peers(pair)


def _two(uvm: UvmSpace, args: Record) -> tuple[Hardware, Hardware]:
    first, second = uvm.gpu(args.raw("uuidA")), uvm.gpu(args.raw("uuidB"))
    check(first is not second, Status.INVALID_DEVICE, f"{first} and itself")
    return first, second
