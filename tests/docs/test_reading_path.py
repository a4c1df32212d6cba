"""What docs/architecture.md names to follow a launch to the doorbell is short enough to be read."""

from __future__ import annotations

import re
from typing import Final

import pytest

from docs.documents import ROOT

MOST: Final = 5_000  # lines, of what both vendors share and one of them
TEXT: Final = (ROOT / "docs/architecture.md").read_text()
PATHS: Final = {
    match["name"]: re.findall(r"`(gpu/[\w/]+\.py)`", match["text"])
    for match in re.finditer(
        r"<!-- reading path: (?P<name>\w+) -->\n(?P<text>.*?)(?=<!-- reading path)", TEXT, re.DOTALL
    )
}


def lines_of(paths: list[str]) -> int:
    """Lines of files, each of which must be there."""
    return sum(len((ROOT / path).read_text().splitlines()) for path in paths)


@pytest.mark.parametrize("vendor", ["AMD", "NVIDIA"])
def test_a_path_to_the_doorbell_can_be_read(vendor: str) -> None:
    path = PATHS["common"] + PATHS[vendor]
    assert len(path) == len(set(path)) > 20
    # What stores to the doorbell, and who asks for it: a path without them leads nowhere.
    assert "gpu/hcq/hostring.py" in path and any(each.endswith("/port.py") for each in path)
    assert lines_of(path) <= MOST
