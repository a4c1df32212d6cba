"""The system's libraries as a program finds them: addresses of C functions by name."""

from __future__ import annotations

from typing import Final

from gpu.core.errors import ConfigError, DeviceError
from gpu.sim.metal import (
    blits,
    commands,
    compute,
    device,
    foundation,
    indirect,
    programs,
    resources,
)
from gpu.sim.metal.base import CompileMsl
from gpu.sim.metal.chips import find_chip
from gpu.sim.metal.device import Device
from gpu.sim.metal.engine import INJECTED, Engine
from gpu.sim.metal.foundation import NSArray, NSException
from gpu.sim.metal.objc import NSObject, Runtime
from gpu.sim.metal.work import Scheduler
from gpu.sim.simulation import Simulation
from gpu.sim.worlds import parse_setting

_loaded: list[MetalLibrary] = []
CLASSES: Final = (
    *(
        *foundation.CLASSES,
        *device.CLASSES,
        *commands.CLASSES,
        *compute.CLASSES,
        *blits.CLASSES,
        *programs.CLASSES,
    ),
    *(*indirect.CLASSES, resources.Buffer),
)


class RuleBroken(DeviceError):
    """A program did what Metal or Objective-C forbids, or left something behind."""


class MetalLibrary:
    """One process's libobjc, Foundation and Metal.

    Attributes:
        simulation: chance, and what was noticed.
        runtime: its objects.
        devices: its GPUs.
    """

    def __init__(self, chip: str, seed: int = 0, *, compile: CompileMsl):
        """Opens it on GPUs of these chips, separated by commas.

        Args:
            chip: of `gpu/sim/metal/chips.py:CHIPS`, in any case; also ``fault=hang`` and other
                faults of `gpu/sim/metal/engine.py:INJECTED`, as `SIM` takes them.
            seed: decides the order of all that nothing orders.
            compile: makes LLVM's bitcode of MSL with options of clang's, or gives the compiler's
                words as text.

        Raises ConfigError for a chip or a fault that there is not, Unsupported on a machine that is
        no x86-64.
        """
        names, faults = parse_setting(chip)
        chips = [find_chip(name) for name in names]
        for fault in faults:
            if fault.name not in INJECTED:
                raise ConfigError(
                    f"SIM={chip}: Metal has no fault {fault.name!r}; there are"
                    f" {', '.join(INJECTED)}"
                )
        self.simulation = Simulation(seed, faults)
        self.runtime = runtime = Runtime(self.simulation.debug, chips[0].prefix, CLASSES)
        runtime.raising = lambda name, reason: NSException(runtime, name, reason)
        engine = Engine(self.simulation, compile)
        scheduler = Scheduler(self.simulation)
        self.devices = [
            Device(runtime, each, scheduler, engine, compile, self.simulation.rng) for each in chips
        ]
        for each in self.devices:
            runtime.retain(each)  # the system keeps them
        runtime.add_function("MTLCreateSystemDefaultDevice", "^", "", self._default)
        runtime.add_function("MTLCopyAllDevices", "^", "", self._all)
        runtime.add_function("getpagesize", "Q", "", lambda: chips[0].page)
        _loaded.append(self)  # whoever holds an address may call it until the process ends

    def address(self, name: str) -> int:
        """The address of a function. Raises KeyError for a name that it has not."""
        return self.runtime.functions[name]

    @property
    def violations(self) -> list[str]:
        """What the program did that it may not do: the name of a rule, and what was done."""
        return self.simulation.debug.violations

    @property
    def faults(self) -> list[str]:
        """What work has failed with."""
        return self.simulation.debug.faults

    def left(self) -> list[str]:
        """What was made and is still there."""
        alive: dict[str, int] = {}
        for each in self.runtime.objects():
            extra = each.references - (each in self.devices)
            if extra > 0:
                name = self.runtime.name_of(type(each))
                alive[name] = alive.get(name, 0) + 1
        found = [f"leak: {count} of {name}" for name, count in sorted(alive.items())]
        pools = self.runtime.open_pools
        return found + ([f"leak: {pools} autorelease pools"] if pools else [])

    def check(self, leaks: bool = True) -> None:
        """Raises RuleBroken for violations, and for what was left behind where `leaks` is set."""
        found = self.violations + (self.left() if leaks else [])
        if found:
            raise RuleBroken("; ".join(found))

    def _default(self) -> int:
        self.runtime.retain(self.devices[0])
        return self.devices[0].address

    def _all(self) -> int:
        made: NSObject = NSArray(self.runtime, self.devices)
        self.runtime.retain(made)
        return made.address


def load(chip: str, *, seed: int = 0, compile: CompileMsl) -> MetalLibrary:
    """A new `MetalLibrary`, as its constructor makes one."""
    return MetalLibrary(chip, seed, compile=compile)


def libraries() -> tuple[MetalLibrary, ...]:
    """All that this process has loaded, oldest first."""
    return tuple(_loaded)
