"""One RM_ALLOC, as constructors of objects are given it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu.sim.nv.rm.classes import VASPACE
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.objects import Client, Device, Resource, VaSpace, expect
from gpu.sim.nv.rm.state import RmState
from gpu.sim.nv.rm.status import Status


@dataclass(frozen=True, slots=True)
class Request:
    """One RM_ALLOC after the checks that all classes share."""

    rm: RmState
    client: Client
    parent: Resource
    handle: int
    number: int
    params: Record | None

    @property
    def base(self) -> tuple[Any, ...]:
        """What every object is made of, after its kind."""
        return self.number, self.client, self.handle, self.parent

    @property
    def required(self) -> Record:
        """Parameters of a class that needs them."""
        assert self.params is not None
        return self.params

    def default_vaspace(self) -> VaSpace:
        """The VA space of those that name none: the device's own, which UVM cannot own."""
        device = next(each for each in self.parent.ancestors() if isinstance(each, Device))
        if device.default_vaspace is None:
            base = (VASPACE, self.client, 0, device)
            device.default_vaspace = VaSpace("vaspace", *base, external=False, faulting=False)
        return device.default_vaspace

    def find(self, handle: int, kind: type[Any]) -> Any:
        """clientGetResourceRefByType: OBJECT_NOT_FOUND, or INVALID_CLASS for another kind."""
        return expect(self.client.find(handle), kind, Status.INVALID_CLASS)
