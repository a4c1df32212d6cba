"""What all encoders have in common (MTLCommandEncoder; Apple, "Metal")."""

from __future__ import annotations

from abc import abstractmethod

from gpu.sim.metal.base import Owned
from gpu.sim.metal.foundation import NSString
from gpu.sim.metal.methods import Misuse, method
from gpu.sim.metal.objc import NSObject
from gpu.sim.metal.resources import Resource
from gpu.sim.metal.work import INVALID_RESOURCE, GpuFault, Line


class Recorder(Owned):
    """What passes are part of: a command buffer."""

    @abstractmethod
    def use(self, thing: NSObject) -> None:
        """It uses an object until it ends."""

    @property
    @abstractmethod
    def is_pending(self) -> bool:
        """Whether it was committed and has not ended."""

    @abstractmethod
    def encoder_ended(self, encoder: Encoder) -> None:
        """The encoder that was open is done."""


class Encoder(Owned):
    """Commands of one pass of a command buffer, and then the step that runs them.

    Attributes:
        buffer: the command buffer.
    """

    def __init__(self, buffer: Recorder):
        super().__init__(buffer.device, buffer)
        self.buffer = buffer
        self._is_open = True
        self._groups = 0
        self._resources: dict[int, Resource] = {}

    def ending(self) -> None:
        """It lets its command buffer go, where it must have been ended before."""
        if self._is_open:
            self.runtime.debug.violation(f"encoder-not-ended: {self.told} ends with the pass open")
        super().ending()

    def check_open(self) -> None:
        """Raises Misuse where no more commands can be added."""
        if not self._is_open:
            raise Misuse("encoder-ended", f"{self.told} has ended")

    def use(self, resource: Resource) -> None:
        """A command uses a resource. Raises Misuse for one of another device."""
        if resource.device is not self.device:
            raise Misuse("other-device", f"{resource.told} is of another device")
        if resource.address not in self._resources:
            self._resources[resource.address] = resource
            self.buffer.use(resource)

    def is_ready(self) -> bool:
        """It waits for nothing."""
        return True

    def why(self) -> str:
        """What it waits for: nothing."""
        return f"it is {self.told}"

    @abstractmethod
    def run(self, line: Line) -> None:
        """Does its commands. Raises GpuFault."""

    def begin(self, line: Line) -> None:
        """Before its commands run. Raises GpuFault where a resource has ended."""
        for address, resource in self._resources.items():
            if not resource.references:
                self.runtime.debug.violation(
                    f"resource-ended: {type(resource).__name__} at {address:#x} was released before"
                    f" queue {line.number} had used it"
                )
                raise GpuFault(INVALID_RESOURCE, f"a resource at {address:#x} was released")

    @method("endEncoding")
    def end_encoding(self) -> None:
        """No more commands come."""
        self.check_open()
        if self._groups:
            raise Misuse("debug-groups", f"{self._groups} groups of {self.told} were not popped")
        self._is_open = False
        self.buffer.encoder_ended(self)

    @method("pushDebugGroup:", "v", "NSString")
    def push_group(self, _: NSString) -> None:
        """Commands that belong together begin."""
        self.check_open()
        self._groups += 1

    @method("popDebugGroup")
    def pop_group(self) -> None:
        """Commands that belong together end."""
        self.check_open()
        if not self._groups:
            raise Misuse("debug-groups", f"{self.told} has no group to pop")
        self._groups -= 1
