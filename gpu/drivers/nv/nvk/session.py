"""What comes before a GPU: the control file, the client, UVM, and addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpu.core.errors import DeviceError, InvalidIndex
from gpu.core.wait import Waiter
from gpu.drivers.bringup import Step, Trail
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.nvk.addresses import AddressSpace
from gpu.drivers.nv.nvk.branch import Branch, branch_of
from gpu.drivers.nv.nvk.kernel import Card, KernelPort, driver_version, open_node
from gpu.drivers.nv.nvk.uvm import Uvm
from gpu.drivers.nv.nvk.uvmfile import UvmFile, join, leave
from gpu.drivers.nv.rm.object import RmClient
from gpu.drivers.nv.rm.status import CallLog
from gpu.transport import nvidia as nodes
from gpu.transport.missing import no_nvidia_gpu
from gpu.transport.os import Os
from gpu.transport.world import World

SESSION_STEPS: Final = (
    Step("control file", "open the control node; a client lives as long as it"),
    Step("uvm files", "open UVM's node twice, unless other GPUs of the process have"),
    Step("client", "allocate the root of the object tree"),
    Step("version", "learn the driver's version and choose the structs of its branch"),
    Step("uvm initialize", "bind UVM to this process"),
    Step("uvm memory", "keep this process's memory known to UVM"),
    Step("addresses", "reserve addresses that host and GPU share"),
    Step("cards", "list the GPUs, and which of them have a node here"),
)


@dataclass(frozen=True, slots=True, eq=False)
class NvSession:
    """An opened kernel driver, for one GPU; closed after it. Other GPUs may share its UVM file.

    Attributes:
        cards: those that this process can reach. In a container the driver lists all GPUs of the
            machine, and only some have their node there.
        listed: how many GPUs the driver lists.
    """

    os: Os
    waiter: Waiter
    log: CallLog
    kernel: KernelPort
    client: RmClient
    version: str
    branch: Branch
    uvm: Uvm
    uvm_file: UvmFile
    addresses: AddressSpace
    cards: tuple[Card, ...]
    listed: int
    _undo: Undo

    def card(self, index: int) -> Card:
        """A GPU by its place among `cards`. Raises DeviceError, InvalidIndex."""
        if not self.cards:
            raise DeviceError(str(no_nvidia_gpu(self.listed)))
        if not 0 <= index < len(self.cards):
            names = ", ".join(
                f"DEV=NV:{at} is at {c.pci_address}" for at, c in enumerate(self.cards)
            )
            reached = f"this process can reach {len(self.cards)}: {names}"
            raise InvalidIndex(f"NVIDIA GPU {index}: {reached}")
        return self.cards[index]

    def attend(self) -> None:
        """Nothing is to be done: the kernel driver serves what RM tells."""

    def heard(self) -> Sequence[str]:
        """Nothing: it is in the kernel's log."""
        return ()

    def evidence(self) -> Mapping[str, bytes]:
        """Nothing: the kernel driver keeps firmware's logs to itself."""
        return {}

    def close(self) -> None:
        """Gives everything back; again does nothing."""
        self._undo.close()


def open_session(world: World, trail: Trail, index: int = 0) -> NvSession:
    """Opens the kernel driver, by `SESSION_STEPS`; on an error nothing stays open.

    ``index`` is the place in `NvSession.cards` of the GPU that it is for.

    Raises AccessDenied, DeviceError where there is no driver, Unsupported for an unknown driver
    branch, TransportError, and as `CallLog.check` does.
    """
    os = world.os
    with Undo() as undo:
        with trail.step("control file"):
            control_fd = open_node(os, nodes.CONTROL)
            undo.add(os.close, control_fd)
        with trail.step("uvm files"):
            file = join(os, index)
            undo.add(leave, file, index)
        with trail.step("client"):
            kernel = KernelPort(os, control_fd)
            client = RmClient(kernel, trail.log)
            undo.add(client.free)
        with trail.step("version"):
            version = driver_version(os, client)
            branch = branch_of(version)
        with trail.step("uvm initialize"):
            uvm = Uvm(os, file.fd, control_fd, client, trail.log)
            file.once("initialize", uvm.initialize)
        with trail.step("uvm memory"):
            file.once("keep memory", lambda: uvm.keep_memory(file.second_fd))
        with trail.step("addresses"):
            addresses = AddressSpace(os)
            undo.add(addresses.close)
        with trail.step("cards"):
            listed = kernel.cards()
            cards = tuple(each for each in listed if os.exists(nodes.card(each.minor)))
        return NvSession(
            os=os,
            waiter=world.waiter,
            log=trail.log,
            kernel=kernel,
            client=client,
            version=version,
            branch=branch,
            uvm=uvm,
            uvm_file=file,
            addresses=addresses,
            cards=cards,
            listed=len(listed),
            _undo=undo.take(),
        )
