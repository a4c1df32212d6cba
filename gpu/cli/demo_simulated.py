"""The end of `gpu demo`: the trained network again, on a simulated GPU.

Compiler, driver, command queues and machine code are those of a real one; only what lies below the
operating system is a model. See docs/simulator.md.
"""

from __future__ import annotations

import gc
import time
from copy import deepcopy
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.cli.demo_training import Digits, Network, Training
from gpu.core.config import Context, config
from gpu.core.errors import Unsupported
from gpu.nn.state import get_state_dict
from gpu.runtime.device import Device
from gpu.sim.counts import Counts
from gpu.sim.isa.native import host_level
from gpu.sim.machine import machines

_CHIP: Final = "gfx1100"
_DEVICE: Final = "AMD"


class Simulated(NamedTuple):
    """What came of it.

    Attributes:
        chip: the GPU.
        predicted: what the network takes each digit for.
        counts: what the machine did for it, opening it included where that was the first time.
        seconds: how long it took.
    """

    chip: str
    predicted: npt.NDArray[np.int64]
    counts: Counts
    seconds: float


def run_simulated(training: Training) -> Simulated:
    """Has the digits of `training.testing` recognised by a simulated GPU.

    One of AMD's, or of NVIDIA's where the demo itself ran on one. Raises Unsupported where kernels
    for it cannot be compiled or run here, or where AMD is real.
    """
    on_nv = bool(config.SIM) and Device.DEFAULT.partition(":")[0] == "NV"
    chip, name = (config.SIM, Device.DEFAULT) if on_nv else (_CHIP, _DEVICE)
    if not machines() and any(device.device == _DEVICE for device in Device.opened()):
        raise Unsupported(f"{_DEVICE} is a real GPU in this process: there is none beside it")
    host_level()  # before the work, what would end it
    network = deepcopy(training.network)  # of which none is drawn anew on the other device
    before = {machine: machine.counts + Counts() for machine in machines()}
    start = time.perf_counter()
    gc.freeze()  # while a device's modules are imported, nobody looks through what training left
    try:
        with Context(SIM=chip, DEV=name):
            predicted = _predict(network, training.testing)
    finally:
        gc.unfreeze()
    seconds = time.perf_counter() - start
    # One that something else closes meanwhile takes its counts along, those from before too.
    done = (machine.counts - before.get(machine, Counts()) for machine in machines())
    return Simulated(chip, predicted, sum(done, Counts()), seconds)


def _predict(network: Network, digits: Digits) -> npt.NDArray[np.int64]:
    """What a network takes each digit for, on the default device, to which it is moved."""
    for value in get_state_dict(network).values():
        value.requires_grad = False
        value.to_(Device.DEFAULT)
    images, _ = digits.tensors()
    return network(images).argmax(1).numpy().astype(np.int64)
