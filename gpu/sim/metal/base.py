"""What the objects of a GPU need to know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from gpu.sim.metal.chips import Chip
from gpu.sim.metal.foundation import NSString
from gpu.sim.metal.methods import method
from gpu.sim.metal.objc import NSObject, Runtime
from gpu.sim.metal.work import Scheduler

CompileMsl = Callable[[str, Sequence[str]], bytes | str]
"""Makes LLVM's bitcode of a source with options of clang's, or gives the compiler's words."""


class Gpu(NSObject):
    """A GPU.

    Attributes:
        chip: which one.
        scheduler: its work, and that of others.
        compile_msl: makes code of sources.
        rng: all that is left to chance.
        allocated: bytes of buffers.
    """

    def __init__(
        self,
        runtime: Runtime,
        chip: Chip,
        scheduler: Scheduler,
        compile_msl: CompileMsl,
        rng: Random,
    ):
        super().__init__(runtime)
        self.chip = chip
        self.scheduler = scheduler
        self.compile_msl = compile_msl
        self.rng = rng
        self.allocated = 0

    @classmethod
    def objc_name(cls, prefix: str) -> str:
        """A name of the GPU's driver: Metal has protocols alone."""
        return prefix + cls.__name__


class Owned(NSObject):
    """An object of a GPU, which holds another as long as it is there: what it was made by."""

    def __init__(self, device: Gpu, maker: NSObject):
        super().__init__(device.runtime)
        self.device = device
        self.label = ""
        self._maker = maker
        device.runtime.retain(maker)

    @classmethod
    def objc_name(cls, prefix: str) -> str:
        """A name of the GPU's driver: Metal has protocols alone."""
        return prefix + cls.__name__

    def ending(self) -> None:
        """It lets go what it was made by."""
        self.runtime.release(self._maker)

    @method("device", "@")
    def of_device(self) -> Gpu:
        """The device that it is of."""
        return self.device

    @method("label", "@")
    def get_label(self) -> NSString | None:
        """The name, nil where it has none."""
        return NSString(self.runtime, self.label) if self.label else None

    @method("setLabel:", "v", "NSString?")
    def set_label(self, text: NSString | None) -> None:
        """Gives it a name."""
        self.label = text.text if text else ""
