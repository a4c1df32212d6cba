"""A report as a document that is committed: docs/hardware/<date>-<device>.md, and its JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpu.core.files import atomic_file
from tools.hw_acceptance.bench.comparison import compare
from tools.hw_acceptance.model import Outcome, Report, Result

_LONG: Final = 400  # characters of a fact


def write_document(report: Report, folder: Path) -> list[Path]:
    """Writes the document and the report's JSON beside it; returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{report.started[:10] or 'undated'}-{_device_slug(report)}"
    written = []
    for suffix, text in ((".md", to_markdown(report)), (".json", report.to_json())):
        path = folder / (stem + suffix)
        with atomic_file(path) as file:
            file.write(text.encode())
        written.append(path)
    return written


def to_markdown(report: Report) -> str:
    """The document: machine, table of steps, variants, and the facts of each step."""
    lines = [f"# {device_name(report)}, {report.started[:10]}", ""]
    lines += [*_machine(report), ""]
    if report.simulated:
        lines += [f"A model of {report.simulated} played the GPU: this says nothing about one.", ""]
    if report.stopped:
        lines += [f"The run was stopped: {report.stopped}.", ""]
    lines += ["| step | outcome | seconds | why |", "|---|---|---|---|"]
    lines += [_row(each) for each in report.results]
    lines += [*_compared(report), "", *_settled(report)]
    for result in report.results:
        lines += _details(result)
    return "\n".join(lines) + "\n"


def device_name(report: Report) -> str:
    """What the vendor calls the device, or what our driver does."""
    for name in ("device", "generation"):
        for result in report.results:
            if name in result.facts:
                return str(result.facts[name])
    return "unknown device"


def _device_slug(report: Report) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device_name(report).lower()).strip("-")


def _machine(report: Report) -> Iterator[str]:
    for result in report.of("environment"):
        for name in ("system", "sandbox"):
            yield f"- {name}: {result.facts.get(name)}"
        files = result.facts.get("files", {})
        version = str(files.get("/proc/driver/nvidia/version", result.facts.get("driver", "")))
        yield f"- driver: {version.partition(chr(10))[0]}"
    compiler = "llvmlite" if report.vendor == "amd" else "nvrtc"
    yield f"- package: {report.manifest.get('gpu')}, {compiler} {report.manifest.get(compiler)}"


def _row(result: Result) -> str:
    name = result.step if result.trial == "default" else f"{result.step}, {result.trial}"
    reason = _cut(" ".join(result.reason.split())).replace("|", "\\|")
    return f"| {name} | {result.outcome} | {result.seconds:.1f} | {reason} |"


def _compared(report: Report) -> Iterator[str]:
    found = compare(report)
    if found:
        yield "\n## Beside the vendor's\n"
        yield "| | ours, us | vendor's, us | speed | wanted | |\n|---|---|---|---|---|---|"
    for row in found:
        sides = [f"{1e6 * each:.2f}" if each is not None else "" for each in (row.ours, row.theirs)]
        speed = f"{row.speed:.2f}" if row.speed is not None else ""
        yield f"| {' | '.join((row.name, *sides, speed, str(row.wanted), row.verdict))} |"


def _settled(report: Report) -> Iterator[str]:
    for name, variant in {**report.force, **report.options}.items():
        yield f"- {name}: {variant} served"


def _details(result: Result) -> Iterator[str]:
    if result.outcome is Outcome.NOT_RUN or not (result.facts or result.checks):
        return
    yield f"\n## {result.step}" + ("" if result.trial == "default" else f", {result.trial}")
    yield ""
    for name, value in result.facts.items():
        yield f"- {name}: {_cut(_shown(value))}"
    for check in result.checks:
        mark = "right" if check["ok"] else "WRONG"
        yield f"- {check['name']}: {mark}" + (f" ({check['details']})" if check["details"] else "")
    if result.statuses:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(result.statuses.items()))
        yield f"- statuses: {counts}"
    for line in result.kernel_log:
        yield f"- kernel: `{line}`"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"`{value}`"


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else text[:_LONG] + "..."
