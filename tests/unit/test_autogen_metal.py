"""What is read of metal-cpp's headers, on a few lines like theirs."""

from __future__ import annotations

from typing import Any

import pytest

from tools.autogen import metal
from tools.autogen.recipe import AutogenError

HEADER = """
_MTL_PRIVATE_DEF_SEL(newThing_length_done_,
    "newThing:length:done:");
_MTL_PRIVATE_DEF_SEL(size, "size");
_MTL_ENUM(NS::Integer, Kind) {
    KindOne = 1,
    KindOther = 20,
    KindThirdOther = 1 << 5,
};
_MTL_INLINE MTL::Thing* MTL::Maker::newThing(const void* pointer, NS::UInteger length, MTL::Kind kind)
{
    return Object::sendMessage<MTL::Thing*>(this, _MTL_PRIVATE_SEL(newThing_length_done_), pointer, length, kind);
}
_MTL_INLINE %s MTL::Maker::size() const
{
    return Object::sendMessage<%s>(this, _MTL_PRIVATE_SEL(size));
}
"""  # noqa: E501


@pytest.fixture(autouse=True)
def _wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"MTL::Maker": ("newThing:length:done:", "size")}
    monkeypatch.setattr(metal, "SELECTORS", wanted)
    monkeypatch.setattr(metal, "ENUMS", {"Kind": ".*Other"})


def _module(result: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(metal.module({"a.hpp": HEADER % (result, result)}), names)
    return names


def test_types_and_numbers_are_those_of_the_headers() -> None:
    names = _module("MTL::Size")
    assert names["METHODS"] == {
        "newThing:length:done:": ("void *", ("void *", "NSUInteger", "NSInteger")),
        "size": ("MTLSize", ()),
    }
    assert names["MTLKindOther"] == 20 and names["MTLKindThirdOther"] == 1 << 5
    assert "MTLKindOne" not in names


def test_a_type_that_is_not_understood_is_refused() -> None:
    with pytest.raises(AutogenError, match="a type that is not understood: MTL::Strange"):
        _module("MTL::Strange")


def test_a_method_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal, "SELECTORS", {"MTL::Maker": ("missing:",)})
    with pytest.raises(AutogenError, match="missing:"):
        _module("bool")
