"""A device with work that is known to be right, for faults on purpose, whoever made the card."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from gpu.core.errors import GpuFault
from gpu.drivers.device import DriverDevice
from gpu.hcq.conformance.kit import WORDS, download, expect_equal, numbers, upload
from gpu.hcq.device import HCQDevice
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import Symbol
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.state import DUMP
from tools.hw_acceptance.steplog import StepFailed
from tools.hw_acceptance.suites.opens import Opens

NOWHERE: Final = 0x1000
"""An address where nothing is ever mapped."""
_ONE: Final = (1, 1, 1)


class Rig:
    """A device, and what it held before a fault. Vendors add what they can tell."""

    def __init__(self, context: Context, target: Opens, device: HCQDevice):
        assert isinstance(device, DriverDevice), "drivers know how to recover"
        self.context = context
        self.device: DriverDevice[Any] = device
        self._target = target
        device.channel("compute", 1)  # is open too, so that it is told of
        self.fill, self.add = self.load("fill"), self.load("add")
        self.a, self.b, self.out = (upload(device, numbers(seed)) for seed in range(3))
        self._graph = HCQGraph(
            device, [GraphLaunch(self.add, (self.out, self.a, self.b), (WORDS,))]
        )

    def load(self, name: str) -> HCQProgram:
        """One of the target's kernels."""
        return self._target.program(self.device, name)

    def fault(self, what: str, pattern: str = "") -> None:
        """Takes the fault of what was submitted, goes on, and works. Raises as steps do."""
        found = self.expect(what)
        self.context.log.fact(what, str(found))
        if not re.search(pattern, str(found)):
            raise StepFailed(f"{what}: {str(found)!r} does not have {pattern!r}")
        rung = self.device.recover()
        self.context.log.fact(f"{what}, then made anew", rung.value if rung else "nothing")
        self.works(what)

    def works(self, what: str) -> None:
        """Memory is as before, programs and graphs run, on both compute queues."""
        device = self.device
        expect_equal(download(device, self.a), numbers(0), f"memory after {what}")
        self._graph()
        wanted = numbers(0) + numbers(1)
        expect_equal(download(device, self.out), wanted, f"a graph after {what}")
        self.fill(self.out, vals=(7, WORDS))
        expect_equal(download(device, self.out), 0 * wanted + 7, f"a launch after {what}")
        args = self.add.arguments(self.out, self.a, self.b, vals=(WORDS,))
        queue = device.queue("compute", 1).exec(self.add, args, _ONE, _ONE)
        device.wait(queue.submit(device))
        expect_equal(download(device, self.out), wanted, f"the second queue after {what}")

    def submit_at(self, program: HCQProgram, address: int, *vals: int, queue: int = 0) -> None:
        """Launches a program whose only buffer is at an address of nobody's."""
        place = Symbol("out")
        args = program.arguments(place, vals=vals)
        made = self.device.queue("compute", queue).exec(program, args, _ONE, _ONE)
        made.bind(self.device).submit({place: address})

    def tell_state(self, name: str) -> None:
        """Writes down what is known of the device, after the check of a name failed."""
        text = "\n".join(self.describe())
        if text:
            self.context.log.dump(f"{name.replace(' ', '-')}-{DUMP}", text + "\n")

    def describe(self) -> Iterator[str]:
        """Lines for `tell_state`."""
        yield from ()

    def tell_fault(self, what: str) -> None:
        """Tells what more the driver knows of a fault that was just found."""

    def expect(self, what: str) -> GpuFault:
        """The fault of what was submitted. Raises StepFailed where there is none."""
        try:
            self.device.synchronize()
        except GpuFault as fault:
            self.tell_fault(what)
            return fault
        raise StepFailed(f"{what} is no fault")
