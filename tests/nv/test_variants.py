"""The setting NV_VARIANTS: how it is read, and that DEV=NV heeds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu import Context
from gpu.backends.nv.device import NVDevice, open_device
from gpu.core.devspec import parse_device_spec
from gpu.core.errors import ConfigError
from gpu.drivers.nv.channel.probes import QUESTIONS, parse
from gpu.drivers.questions import variants_text
from simulated import own_machines


def test_every_variant_can_be_named() -> None:
    assert parse("") == {}
    for question in QUESTIONS:
        for variant in question.variants:
            assert parse(f" {question.name} = {variant} ") == {question.name: variant}
    last = {question.name: question.variants[-1] for question in QUESTIONS}
    assert parse(variants_text(last)) == last


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("copy chanel=none", "no question 'copy chanel'; did you mean copy channel?"),
        ("doorbell=BAR2", "doorbell has no variant 'BAR2'; did you mean BAR"),
        ("debugger=yes please", "no variant 'yes please'; known: attached, none"),
        ("doorbell", "'doorbell' is no question=variant"),
        ("doorbell=BAR0,", "'' is no question=variant"),
        ("doorbell=BAR0,doorbell=BAR1", "doorbell has two answers"),
    ],
)
def test_what_is_wrong_is_named(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert f"NV_VARIANTS={text}: " in str(error.value) and why in str(error.value)


def test_devices_are_opened_with_it(need: Callable[[str], None]) -> None:
    need("nvrtc")
    with own_machines(), Context(SIM="gh100", NV_VARIANTS="copy channel=none"):
        device = open_device("NV", parse_device_spec("NV"))
        assert isinstance(device, NVDevice)
        assert "copy" not in device.queues.port.queue_counts
        device.queues.close()
    wrong = Context(SIM="gh100", NV_VARIANTS="copy=none")
    with own_machines(), wrong, pytest.raises(ConfigError, match="copy"):
        open_device("NV", parse_device_spec("NV"))
