from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core.devspec import DEVICES, DeviceSpec, device_name, parse_device_name, parse_device_spec
from gpu.core.errors import ConfigError, InvalidValue

FRAGMENTS = ["CPU", "AMD", ":", "+", "1", "LLVM", "x"]
ARCHES = ["gfx1201", "sm_90a", "x86_64,znver2,avx2,-avx512f", "gfx942:sramecc+:xnack-", "armv8.2-a"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("CPU:CLANG", DeviceSpec("CPU", renderer="CLANG")),
        ("PCI+AMD", DeviceSpec("AMD", "PCI")),
        ("USB+AMD:LLVM", DeviceSpec("AMD", "USB", renderer="LLVM")),
        ("NV:PTX", DeviceSpec("NV", renderer="PTX")),
        ("AMD::gfx1201", DeviceSpec("AMD", arch="gfx1201")),
        ("CPU:1", DeviceSpec("CPU", index=1)),
        ("CPU:0", DeviceSpec("CPU")),
        ("AMD:1:LLVM:gfx1100", DeviceSpec("AMD", None, 1, "LLVM", "gfx1100")),
        ("AMD:1::gfx1100", DeviceSpec("AMD", None, 1, None, "gfx1100")),
        (
            "CPU:LLVM:x86_64,znver2,avx2,-avx512f",
            DeviceSpec("CPU", renderer="LLVM", arch="x86_64,znver2,avx2,-avx512f"),
        ),
        ("  nvk+nv:7:nak ", DeviceSpec("NV", "NVK", 7, "NAK")),
        ("python", DeviceSpec("PYTHON")),
    ],
)
def test_examples(text: str, want: DeviceSpec) -> None:
    assert parse_device_spec(text) == want


@st.composite
def specs(draw: st.DrawFn) -> DeviceSpec:
    device = draw(st.sampled_from(sorted(DEVICES)))
    kind = DEVICES[device]
    return DeviceSpec(
        device,
        draw(st.sampled_from([None, *kind.interfaces])),
        draw(st.integers(0, 9999)),
        draw(st.sampled_from([None, *kind.renderers])),
        draw(st.sampled_from([None, *ARCHES])),
    )


@given(specs())
def test_str_round_trips(spec: DeviceSpec) -> None:
    assert parse_device_spec(str(spec)) == spec
    assert parse_device_spec(str(spec).replace(spec.device, spec.device.lower())) == spec
    assert parse_device_name(spec.name) == (spec.device, spec.index)


@given(st.text(max_size=20) | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_any_text_parses_or_is_a_config_error(text: str) -> None:
    for parse in (parse_device_spec, parse_device_name):
        try:
            result = parse(text)
        except ConfigError:
            continue
        assert str(result)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CUP", "did you mean CPU"),
        ("NULL", "there is no device 'NULL'"),
        ("CPU:HIP", "not a renderer of CPU, which has LLVM, CLANG"),
        ("AMD:gfx1100", "not a renderer of AMD"),
        ("KGSL+AMD", "which has KFD, PCI, USB"),
        ("PCI+CPU", "no interfaces"),
        ("PYTHON:LLVM", "no renderers"),
        ("CPU:", "empty field"),
        ("CPU:LLVM:", "not an architecture"),
        ("CPU:LLVM:1", "not an architecture"),
        ("CPU:99999", "more than 4 digits"),
        ("", "there is no device"),
    ],
)
def test_errors(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_device_spec(text)


@pytest.mark.parametrize("bad", ["CUP", "CPU:", "CPU:x", "CPU:-1", "CPU:1:2", "CPU:LLVM", ""])
def test_bad_device_arguments(bad: str) -> None:
    with pytest.raises(InvalidValue):
        parse_device_name(bad)


def test_canonical_names() -> None:
    assert parse_device_name("cpu:0") == ("CPU", 0)
    assert parse_device_name("Amd:12") == ("AMD", 12)
    assert (device_name("CPU"), device_name("CPU", 1)) == ("CPU", "CPU:1")
