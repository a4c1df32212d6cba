"""docs/README.md leads to every document, and links between documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.documents import ROOT

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
    + [path for path in ROOT.glob("gpu/**/*.md") if "autogen" not in path.parts]
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(path: Path) -> set[str]:
    """What headings of a document may be linked as, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), f"{path.relative_to(ROOT)} links to {target}"
        assert not anchor or anchor in anchors(found), f"{target} has no heading #{anchor}"


def test_the_index_names_every_document() -> None:
    index = ROOT / "docs/README.md"
    named = {(index.parent / target).resolve() for target, _ in LINK.findall(index.read_text())}
    left = {path for path in ROOT.glob("docs/**/*.md") if path != index} - named
    assert not left
