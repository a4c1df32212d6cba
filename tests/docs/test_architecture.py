"""What the documents show is what the compiler makes now, and what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.documents import DOCUMENTS, EVERY_DOCUMENT, ROOT, Reference, problem, references, tool

ARCHITECTURE = ROOT / "docs/architecture.md"
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)
BLOCKS = [
    pytest.param(match, id=f"{path.stem}-{match['name']}")
    for path in DOCUMENTS
    for match in tool().BLOCK.finditer(path.read_text())
]
# How far a measured number may be from what the document says, as a part of it.
MEASURED_WITHIN = 0.25


@pytest.mark.parametrize("block", BLOCKS)
def test_block_is_what_is_made_now(block: re.Match[str]) -> None:
    if block["kind"] == "dump":
        advice = "if the change is meant, run: python tools/refresh_docs.py"
        assert block["text"] == tool().DUMPS[block["name"]](), advice
        return
    shown, now = (re.findall(r"\d+", t) for t in (block["text"], tool().MEASURED[block["name"]]()))
    assert len(shown) == len(now)
    for said, is_now in zip(map(int, shown), map(int, now), strict=True):
        assert abs(said - is_now) <= MEASURED_WITHIN * said, "run: python tools/refresh_docs.py"


def test_every_dump_is_shown_once() -> None:
    shown = sorted(
        match["name"] for path in DOCUMENTS for match in tool().BLOCK.finditer(path.read_text())
    )
    assert shown == sorted([*tool().DUMPS, *tool().MEASURED])


def test_every_marker_has_its_block() -> None:
    for path in DOCUMENTS:
        text = path.read_text()
        markers = re.findall(r"<!-- (?:dump|measured): ", text)
        assert len(markers) == len(tool().BLOCK.findall(text)), path.name


@pytest.mark.parametrize("path", EVERY_DOCUMENT, ids=lambda path: path.stem)
def test_references_are_right(path: Path) -> None:
    found = references(path.read_text())
    assert [text for reference in found if (text := problem(reference))] == []


def test_there_are_references() -> None:
    assert len(references(ARCHITECTURE.read_text())) > 20


@pytest.mark.parametrize("code", PYTHON_BLOCKS, ids=["explain", "by-hand"])
def test_snippet_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, str(ARCHITECTURE), "exec"), {"__name__": "snippet"})
    printed = capsys.readouterr().out
    assert "--- linear\nprogram k0(" in printed or printed.startswith("[0.0104166")


def test_a_reader_is_told_of_every_step() -> None:
    """Each stage that `explain` gives has a heading and a dump."""
    text = ARCHITECTURE.read_text()
    for name in tool().stages():
        assert f"\n### {name.capitalize()}\n" in text
        assert f"<!-- dump: {name} -->" in text


def test_wrong_references_are_found() -> None:
    good = (
        "`gpu/runtime/execute.py:realize` `gpu/runtime/device.py:Compiled.synchronize` `gpu/core/`"
    )
    assert [problem(r) for r in references(good)] == ["", "", ""]
    assert problem(Reference("gpu/nowhere.py", "")) == "gpu/nowhere.py does not exist"
    assert problem(Reference("gpu/__init__.py", "x")) == "gpu/__init__.py has no x"


def test_excerpts_count_what_they_leave_out() -> None:
    text = "".join(f"{n}\n" for n in range(10))
    assert tool().excerpt(text, (0, 2), (-1, 10)) == "0\n1\n... 7 lines ...\n9\n"
    assert tool().excerpt(text, (0, 10)) == text
    assert tool().excerpt("x" * 200, (0, 1)).endswith(" ...\n")


def test_refreshing_changes_marked_blocks_only() -> None:
    text = "a\n<!-- dump: plan -->\n```text\nold\n```\nb ```text\nkept\n```\n"
    made = tool().DUMPS["plan"]()
    wanted = text.replace("old\n", made)
    assert tool().refreshed(text) == wanted
    assert tool().refreshed(wanted) == wanted
