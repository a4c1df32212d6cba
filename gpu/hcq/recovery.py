"""Going on with other queues in the place of those that a fault or a hang has ended."""

from __future__ import annotations

from collections.abc import Callable

from gpu.hcq.device import HCQDevice


def restart(device: HCQDevice, renew: Callable[[], None]) -> None:
    """Has a device use the queues that its port has once ``renew`` is called.

    What was submitted and not done counts as done. Raises what ``renew`` raises. No other thread
    may use the device meanwhile.
    """
    with device.lock:
        device.forget_error()
        renew()
        for kind, ports in device.port.queues.items():
            for channel, port in zip(device.queues[kind], ports, strict=True):
                channel.restart(port)
