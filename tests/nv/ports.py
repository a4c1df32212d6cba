"""The driver's ports to RM and UVM on a simulated H200, up to a group with a context share."""

from __future__ import annotations

import os
from collections.abc import Callable

from gpu.autogen.nv import alloc
from gpu.drivers.nv.nvk.branch import BRANCHES
from gpu.drivers.nv.nvk.kernel import CardPort, KernelPort
from gpu.drivers.nv.nvk.uvm import Uvm
from gpu.drivers.nv.rm.object import RmClient, RmObject
from gpu.drivers.nv.rm.status import CallLog
from gpu.sim.nv.world import NvSimWorld

PAGE, MIB = 4096, 1 << 20
BASE = 0x3_0000_0000
CHANNEL = 0xC86F


class Opened:
    """All of it, and short ways to make more."""

    def __init__(self) -> None:
        self.sim = NvSimWorld(seed=9, chip="gh100")
        self.os = self.sim.os
        self.ctl = self.os.open("/dev/nvidiactl", os.O_RDWR)
        self.log = CallLog()
        self.client = RmClient(KernelPort(self.os, self.ctl), self.log)
        self.device = self.client.alloc(
            0x80, alloc.NV0080_ALLOC_PARAMETERS(hClientShare=self.client.handle), name="device"
        )
        self.subdevice = self.device.alloc(
            0x2080, alloc.NV2080_ALLOC_PARAMETERS(), name="subdevice"
        )
        self.card = CardPort(self.os, self.ctl, 0, self.log)
        self.uvm = self.another_uvm()
        self.uvm.initialize()
        self.uuid = self.sim.gpus[0].uuid
        self.uvm.register_gpu(self.uuid)
        flags = 1 << 3 | 1 << 6
        self.vaspace = self.device.alloc(
            0x90F1, alloc.NV_VASPACE_ALLOCATION_PARAMETERS(flags=flags), name="VA space"
        )
        self.uvm.register_vaspace(self.uuid, self.vaspace)
        self.group = self.make_group(1)
        share = alloc.NV_CTXSHARE_ALLOCATION_PARAMETERS(hVASpace=self.vaspace.handle, flags=1)
        self.share = self.group.alloc(0x9067, share, name="share")

    def another_uvm(self) -> Uvm:
        fd = self.os.open("/dev/nvidia-uvm", os.O_RDWR)
        return Uvm(self.os, fd, self.ctl, self.client, self.log)

    def make_group(self, engine: int) -> RmObject:
        params = alloc.NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS(engineType=engine)
        return self.device.alloc(0xA06C, params, name="group")

    def memory(self, number: int = 0x40, **fields: int) -> RmObject:
        location = 0 if number == 0x40 else 1 << 25
        good = {"owner": self.client.handle, "attr": location, "size": MIB}
        params = alloc.NV_MEMORY_ALLOCATION_PARAMS(**{**good, **fields})
        return self.device.alloc(number, params, name="memory")

    def make_channel(
        self, parent: RmObject | None = None, userd: int = 0, offset: int = 0, **fields: int
    ) -> RmObject:
        good = {"gpFifoOffset": BASE, "gpFifoEntries": 64, "hContextShare": self.share.handle}
        params = alloc.NV_CHANNEL_ALLOC_PARAMS(**{**good, **fields})
        params.hUserdMemory[0], params.userdOffset[0] = userd or self.memory().handle, offset
        return (parent or self.group).alloc(CHANNEL, params, name="channel")

    def unknown(self, number: int = 0x40) -> RmObject:
        return self.client.adopt(number, 0x77, name="unknown")

    def map_at(self, memory: RmObject, base: int = BASE, size: int = MIB) -> None:
        self.uvm.map_memory(BRANCHES[580], self.uuid, memory, base, size)

    def ranged(self, size: int = MIB) -> None:
        self.uvm.create_range(BASE, size)

    def mapped(self) -> RmObject:
        self.ranged()
        memory = self.memory()
        self.map_at(memory)
        return memory

    def twice(self, call: Callable[[], object]) -> None:
        call()
        call()

    def close(self) -> None:
        self.sim.close()
