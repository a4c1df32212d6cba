"""What the objects of a GPU need to know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from gpu.sim.metal.chips import Chip
from gpu.sim.metal.foundation import Labelled
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


class Owned(Labelled):
    """An object of a GPU, which holds another as long as it is there: what it was made by."""

    def __init__(self, device: Gpu, maker: NSObject):
        super().__init__(device.runtime)
        self.device = device
        self._maker = maker
        device.runtime.retain(maker)

    def ending(self) -> None:
        """It lets go what it was made by."""
        self.runtime.release(self._maker)

    @method("device", "@")
    def of_device(self) -> Gpu:
        """The device that it is of."""
        return self.device
