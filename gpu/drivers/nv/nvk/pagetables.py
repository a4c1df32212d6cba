"""A GPU's page tables, as UVM keeps them: ranges of addresses, and the memory that is in them."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.core.errors import OutOfMemory, RmError, Unsupported
from gpu.drivers.nv.nvk.branch import Branch
from gpu.drivers.nv.nvk.peercalls import CAN_READ, CAN_WRITE, GET_P2P_CAPS_V2
from gpu.drivers.nv.nvk.uvm import Uvm
from gpu.drivers.nv.nvk.uvmfile import UvmFile
from gpu.drivers.nv.rm.object import RmClient, RmObject

_ADVICE = "copy through system memory"


@dataclass(frozen=True, slots=True, eq=False)
class PageTables:
    """One GPU's. Methods raise as those of `Uvm`.

    Attributes:
        client: whose objects are mapped.
        uvm: calls of that client.
        file: the file of UVM, which other GPUs may share.
        branch: of the driver.
        uuid: the GPU's name for UVM.
        gpu_id: its name for RM's client.
    """

    client: RmClient
    uvm: Uvm
    file: UvmFile
    branch: Branch
    uuid: bytes
    gpu_id: int

    def reserve(self, base: int, length: int) -> None:
        """Reserves addresses, for `map`."""
        self.file.add_range(self.uvm, self.uuid, base, length)

    def give_back(self, base: int, length: int) -> None:
        """Ends what `reserve` began, with what is mapped there, by peers too."""
        self.file.remove_range(self.uvm, self.branch, self.uuid, base, length)

    def map(self, memory: RmObject, base: int, length: int) -> None:
        """Puts memory of the client into a range."""
        self.uvm.map_memory(self.branch, self.uuid, memory, base, length)

    def unmap(self, base: int, length: int) -> None:
        """Takes memory out of a range again, which stays reserved."""
        self.uvm.unmap_memory(self.uuid, base, length)

    def map_peer(self, owner: PageTables, memory: RmObject, base: int, length: int) -> None:
        """Puts memory of another GPU into its range, for reads and writes; `connect` first."""
        # The call names a file and a client, which must be those that have the object.
        owner.uvm.map_memory(self.branch, self.uuid, memory, base, length, atomics=False)

    def connect(self, owner: PageTables) -> None:
        """Sees to it that this GPU may map memory of another. Raises Unsupported, with why."""
        if owner.file is not self.file:
            raise Unsupported(
                "the GPUs were opened through different systems, or one of them twice: open each"
                f" once, through one World, or {_ADVICE}"
            )
        params = self.branch.p2p_caps(gpuCount=2)
        params.gpuIds[:2] = self.gpu_id, owner.gpu_id
        caps = self.client.control(GET_P2P_CAPS_V2, params).p2pCaps
        missing = [
            what for bit, what in ((CAN_READ, "reads"), (CAN_WRITE, "writes")) if not caps & bit
        ]
        if missing:
            raise Unsupported(
                f"the GPUs are no peers: the driver allows no {' and '.join(missing)}"
                f" (capabilities {caps:#x}): {_ADVICE}"
            )
        try:
            self.file.enable_peers(self.uvm, self.uuid, owner.uuid)
        except (RmError, OutOfMemory) as error:
            raise Unsupported(
                f"the GPUs do not become peers: {error.message}: {_ADVICE}"
            ) from error

    def disconnect(self) -> None:
        """Ends what `connect` began, of others with this GPU too; before it is unregistered."""
        self.file.end_peers(self.uvm, self.uuid)
