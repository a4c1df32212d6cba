"""AMD's ladder on the model: its rungs, its faults, what ends a run, what a report tells."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu.core.errors import DeviceLost
from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.isa.rdna.chip import CHIPS
from gpu.sim.isa.rdna.decode import Decoder
from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.machine import machines
from gpu.transport.world import World
from tools.hw_acceptance import bundle, cli, scrub
from tools.hw_acceptance.amd import environment, faults, launching, opening, submitting
from tools.hw_acceptance.amd.simulation import simulate
from tools.hw_acceptance.amd.vectors import compare, forms
from tools.hw_acceptance.amd.vectors.evaluate import evaluate
from tools.hw_acceptance.child import Context, run_step
from tools.hw_acceptance.cli import main
from tools.hw_acceptance.ladders import LADDERS
from tools.hw_acceptance.model import RISKED, Outcome, Report, Result, read_report, write_report
from tools.hw_acceptance.scrub import Scrubber, without_serials
from tools.hw_acceptance.simulation import Simulation
from tools.hw_acceptance.steplog import StepLog, Told, Unavailable, read_step
from tools.hw_acceptance.stops import stop_reason
from tools.hw_acceptance.suites.supervise import NAMES
from tools.hw_acceptance.tracing import traced_world

AMD = LADDERS["amd"]
Run = Callable[..., Told]


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs a step in this process, on a model of its own; what it told."""

    def go(
        step: Callable[[Context], None],
        outcome: Outcome = Outcome.PASS,
        chip: str = "gfx1100",
        simulation: Simulation | None = None,
        options: dict[str, str] | None = None,
        force: dict[str, str] | None = None,
    ) -> Told:
        simulation = simulation or simulate(chip, tmp_path)
        machine = machines()[-1]
        log = StepLog(tmp_path)
        world, recorder = traced_world(simulation.world.os, simulation.world.waiter, tmp_path)
        context = Context(
            *(world, log, tmp_path, force or {}, options or {}),
            simulation=simulation,
            ladder="amd",
        )
        found = run_step(step, context)
        recorder.close()
        log.close()
        machine.close()
        told = read_step(tmp_path)
        assert found is outcome, told.reason
        return told

    yield go


def right(told: Told) -> bool:
    return bool(told.checks) and all(check["ok"] for check in told.checks)


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201", "gfx1153"])
@pytest.mark.parametrize(
    "step",
    [
        *(opening.kfd, opening.memory, submitting.sdma, submitting.pm4, submitting.events),
        *(launching.launch, launching.store, launching.kernels, launching.aql, launching.bar),
        launching.health,
    ],
    ids=lambda step: step.__name__,
)
def test_rungs(run: Run, step: Callable[[Context], None], chip: str) -> None:
    told = run(step, chip=chip)
    assert right(told)
    assert told.lost == ""


def test_queues_and_doctor(run: Run) -> None:
    assert run(opening.queues).facts["compute queue 0"] == "PM4, 1048576"
    told = run(opening.queues, options={"compute": "aql"}, force={"runtime": "told"})
    assert told.facts["compute queue 0"] == "AQL, 1048576"
    assert (
        "of AMD gfx 11.0.0 at 0000:03:00.0 are there" in run(environment.doctor).facts["looks"][0]
    )


@pytest.mark.parametrize(
    ("step", "fault", "reason"),
    [
        (submitting.events, "lost-interrupt", "compute: interrupts: "),
        (submitting.sdma, "stuck-fence", "DeviceHang"),
        (launching.launch, "hang@1", "DeviceHang"),
        (launching.launch, "reset@1", "DeviceLost"),
    ],
)
def test_what_a_card_does_wrong_is_a_red_rung(
    run: Run, step: Callable[[Context], None], fault: str, reason: str
) -> None:
    told = run(step, Outcome.FAIL, chip=f"gfx1100,fault={fault}")
    assert reason in told.reason
    assert bool(told.lost) == (reason == "DeviceLost")


def test_a_wrong_kernel_is_noticed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = launching.expected.shared
    monkeypatch.setattr(
        launching.expected, "shared", lambda words: (shared(words)[0], shared(words)[1] + 1)
    )
    told = run(launching.kernels, Outcome.FAIL)
    assert "LDS, added up: 12 of 12, the first at 0" in told.reason


@pytest.mark.parametrize("name", faults.FAULTS)
def test_faults(run: Run, name: str) -> None:
    told = run(faults.run_part, options={NAMES: name})
    assert told.facts[f"ended: {name}"]["outcome"] == "pass", told.facts


@pytest.mark.parametrize("name", ["a store to code", "three faults in a row", "an endless kernel"])
def test_faults_of_older_kernels(run: Run, name: str) -> None:
    """Below interface 1.19 a fault is the end of the device in its process, and is told so."""
    machine = KfdWorld(executor=LaneExecutor(), interface=17)
    simulation = Simulation("gfx1100", World(machine.os, machine.waiter))
    told = run(faults.run_part, options={NAMES: name}, simulation=simulation)
    assert told.facts[f"ended: {name}"]["outcome"] == "pass", told.facts
    assert ("a store to code, then" in told.facts) == (name == "a store to code")


def test_a_fault_that_does_not_come_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults.AmRig, "submit_at", lambda *_, **__: None)
    told = run(faults.run_part, options={NAMES: "a pointer to nowhere"})
    end = told.facts["ended: a pointer to nowhere"]
    assert end["outcome"] == "fail" and "a store to nowhere is no fault" in end["error"]


def test_a_card_that_lights_a_screen_is_not_hung(run: Run, tmp_path: Path) -> None:
    drm, place = tmp_path / "drm", simulate("gfx1100", tmp_path)
    machine = machines()[-1]
    for pci, name, state in (
        *(("0000:03:00.0", "card1-DP-1", "disabled"), ("0000:03:00.0", "card1-DP-2", "enabled")),
        ("0000:0a:00.0", "card0-eDP-1", "enabled"),
    ):
        connector = tmp_path / "devices" / pci / "drm" / name.partition("-")[0] / name
        connector.mkdir(parents=True)
        (connector / "enabled").write_text(f"{state}\n")
        drm.mkdir(exist_ok=True)
        (drm / name).symlink_to(connector)
    log = StepLog(tmp_path)
    context = Context(place.world, log, tmp_path, ladder="amd")
    with pytest.raises(Unavailable, match="lights card1-DP-2, which a reset takes away"):
        faults.check_dark(context, drm)
    faults.check_dark(replace(context, options={RISKED: "risked"}), drm)
    (tmp_path / "devices/0000:03:00.0/drm/card1/card1-DP-2/enabled").write_text("disabled\n")
    faults.check_dark(context, drm)
    log.close()
    machine.close()


@pytest.mark.parametrize(
    ("line", "stops"),
    [
        ("9.1 amdgpu 0000:03:00.0: amdgpu: GPU reset begin!", True),
        ("9.1 amdgpu 0000:03:00.0: amdgpu: GPU reset(2) succeeded!", True),
        ("9.1 [drm] VRAM is lost due to GPU reset!", False),  # the line before said whose
        ("9.1 amdgpu 0000:03:00.0: amdgpu: MES failed to remove hardware queue from MES", True),
        ("9.1 amdgpu: HIQ MQD's queue_doorbell_id0 is not 0, Queue preemption time out", False),
        ("9.1 amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24)", False),
        ("9.1 kfd kfd: amdgpu: The cp might be in an unrecoverable state", True),
        ("9.1 nvme nvme0: I/O timeout, reset controller", False),
    ],
)
def test_lines_of_the_kernel_that_stop_a_run(line: str, stops: bool) -> None:
    assert bool(stop_reason([line], {})) == stops


def test_a_lost_device_stops_a_run(run: Run) -> None:
    def lose(_: Context) -> None:
        raise DeviceLost("it was unplugged")

    told = run(lose, Outcome.FAIL)
    assert stop_reason([], {}, [], told.lost) == "the device is lost: it was unplugged"


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_plans_are_well_formed(ladder: object) -> None:
    names = [step.name for step in (*ladder.steps, *ladder.last)]
    assert len(set(names)) == len(names)
    bundle.check_groups([*(step.group for step in ladder.steps), "variants"])
    for place, step in enumerate((*ladder.steps, *ladder.last)):
        assert set(step.needs) <= set(names[:place]), f"{step.name} builds on what comes before"
        trials = [trial.name for trial in (*step.trials, *step.questions)]
        assert len(set(trials)) == len(trials)


# Vectors


@pytest.mark.parametrize("chip", [chip for chip in CHIPS if "vopd" in ENCODINGS[chip].by_name])
def test_forms_are_what_their_names_say(chip: str) -> None:
    """Each decodes as what it was made of, and names are unique."""
    decoder, seen = Decoder(chip), {}
    for form in forms.forms(chip):
        assert form.name not in seen
        found = decoder.decode(form.code)
        names = {found.name, found.dual.name if found.dual else ""}
        assert form.name.split(" ")[0] in names and found.size == len(form.code)
        seen[form.name] = form
    assert len(seen) > 1800


@pytest.mark.parametrize("chip", ["gfx1102", "gfx1152", "gfx1200"])
def test_forms_run_on_the_engine(chip: str) -> None:
    """A sample: what the engine refuses is only what it has no semantics for."""
    refused = 0
    for form in list(forms.forms(chip))[::40]:
        found = evaluate(chip, form)
        if isinstance(found, str):
            assert "has no semantics here" in found, (form.name, found)
            refused += 1
        else:
            # What was stored, and memory of lanes: the rest of the kernel worked.
            assert found[: forms.MEMORY // 4].any() and found[forms.MEMORY // 4 :].any()
    assert refused < 8


def test_chips_before_rdna3_have_no_forms() -> None:
    with pytest.raises(Unavailable, match="RDNA3 and later, not for gfx1030"):
        compare.check_known("gfx1030")


def test_a_form_computes_what_its_name_says() -> None:
    form = next(each for each in forms.forms("gfx1100") if each.name == "v_xor_b32 vop2")
    given, found = forms.inputs(form), evaluate("gfx1100", form)
    slots = given[: forms.SLOTS_GIVEN * forms.SLOT // 4].reshape(forms.SLOTS_GIVEN, forms.LANES, 4)
    wanted = slots[0, :, 0] ^ slots[2, :, 0]
    np.testing.assert_array_equal(found[: forms.SLOT // 4].reshape(forms.LANES, 4)[:, 0], wanted)


def test_vectors_on_the_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "SIMULATED_EVERY", 150)
    told = run(compare.instructions, chip="gfx1201")
    assert right(told) and told.facts["forms"] > 10


def test_a_card_that_computes_otherwise_is_noticed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(chip: str, form: forms.Form) -> forms.Words | str:
        found = evaluate(chip, form)
        return found if isinstance(found, str) else found ^ np.uint32(form.name.startswith("v_"))

    monkeypatch.setattr(compare, "SIMULATED_EVERY", 200)
    monkeypatch.setattr(compare, "evaluate", other)
    assert "differ: v_" in run(compare.instructions, Outcome.FAIL).reason


def test_nans_and_approximations_are_not_laid_down() -> None:
    nan, other = np.array([0x7FC0_0000, 5], np.uint32), np.array([0xFFC0_1234, 5], np.uint32)
    plain = forms.Form("v_add_f32", b"", kind="f32")
    assert compare.difference(plain, nan, nan) == ("", True)
    assert compare.difference(plain, nan, other)[1] is False
    assert compare.difference(plain, nan, nan + np.uint32([0, 1]))[1] is True
    assert compare.difference(forms.Form("v_rcp", b"", True), nan, nan + 1)[1] is False
    halves = forms.Form("v_add_f16", b"", kind="f16")
    mixed = np.array([0x7E00_0001, 5], np.uint32), np.array([0x7E01_0001, 5], np.uint32)
    assert compare.difference(halves, *mixed)[1] is False
    wrong = np.array([0x7E01_0002, 5], np.uint32)
    assert compare.difference(halves, mixed[0], wrong)[1] is True
    doubles = forms.Form("v_add_f64", b"", kind="f64")
    pair = np.array([1, 0x7FF8_0000], np.uint32), np.array([2, 0xFFF8_0000], np.uint32)
    assert compare.difference(doubles, *pair)[1] is False


# Reports


def test_words_of_a_machine_are_taken_out() -> None:
    take = Scrubber({"workhorse": "<host>", "ada": "<user>", "/srv/tree": "<tree>"})
    number = "4c4c4544-0042-4a10-8051-b4c04f4e3332"
    text = f'ada@workhorse: "/srv/tree/gpu/x.py", adamant, /home/eve/k, {number}'
    assert take(text) == '<user>@<host>: "<tree>/gpu/x.py", adamant, <home>/k, <uuid>'
    assert take("aa:bb:cc:dd:ee:0f 10.1.2.3 22.1.8 0000:03:00.0") == (
        "<mac> <address> 22.1.8 0000:03:00.0"
    )
    result = Result("ada", "default", "ada", Outcome.FAIL, "ada", facts={"ada": ["ada", 3]})
    found = take.result(result)
    assert (found.step, found.group, found.reason) == ("ada", "ada", "<user>")
    assert found.facts == {"<user>": ["<user>", 3]}


def test_serial_numbers_are_zeros_also_for_the_driver() -> None:
    told = without_serials("/sys/x/nodes/1/properties", b"simd_count 4\nunique_id 77\n")
    assert told == b"simd_count 4\nunique_id 0\n"
    assert without_serials("/sys/x/unique_id", b"00ab12\n") == b"000000\n"
    assert without_serials("/sys/x/vendor", b"0x1002\n") == b"0x1002\n"


def test_a_report_is_fit_for_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that are planted in this process, and in what children print, are nowhere in it."""
    home = tmp_path / "home/quentin"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "quentin")
    monkeypatch.setenv("LOGNAME", "quentin")
    (home / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(home / "tmp"))
    monkeypatch.setattr(cli.tempfile, "tempdir", None)
    monkeypatch.setattr(scrub.platform, "node", lambda: "planted-host.example.org")
    serial = simulate("gfx1100", tmp_path), machines()[-1].gpus[0].board.unique_id
    machines()[-1].close()
    out = home / "results"
    sim = "gfx1100,fault=hang@1"  # so that there are reports of a failure, with paths
    assert main(["run", "--sim", sim, "--out", str(out), "--only", "machine,1,2,7"]) == 1
    capsys.readouterr()
    texts = [gzip.decompress((out / "report.json.gz").read_bytes()).decode()]
    names = []
    for path in out.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            for member in archive:
                assert (member.uname, member.uid) == ("", 0)
                names.append(member.name)
                data = archive.extractfile(member)
                texts.append(data.read().decode("utf-8", "replace") if data else "")
    assert any(name.endswith("trace.jsonl") for name in names) and len(texts) > 20
    planted = ("quentin", "planted-host", str(scrub.ROOT), f"{serial[1]}", f"{serial[1]:016x}")
    for text in texts:
        for word in (*planted, f"{serial[1]}".encode().hex(), f"{serial[1]:x}".encode().hex()):
            assert word not in text, text[text.index(word) - 80 :][:160]
    report = read_report(out / "report.json.gz")
    assert report.vendor == "amd" and report.passed("2 memory") and not report.passed("7 launch")
    assert "<tmp>" in report.of("7 launch")[0].reason
    assert any("crash-" in name for name in names) and any("<tmp>" in text for text in texts[1:])


def test_a_report_of_another_card_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(simulated="gfx1201", vendor="amd")
    report.add(Result("1 kfd", "default", "ladder", Outcome.PASS))
    write_report(tmp_path / "report.json.gz", report)
    given = ["run", "--sim", "gfx1100", "--out", str(tmp_path / "out")]
    assert main([*given, "--resume", str(tmp_path / "report.json.gz")]) == 1
    assert "is a report of gfx1201" in capsys.readouterr().err


def test_an_unknown_chip_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--sim", "gfx900", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "there are models of" in told and "gfx1153" in told and "gh100" in told


def test_the_document_names_driver_and_compiler(tmp_path: Path) -> None:
    report = Report(vendor="amd", manifest={"gpu": "1", "llvmlite": "0.45"}, started="2026-11-22")
    facts = {"system": "Linux", "sandbox": "unknown", "driver": "amdgpu of Linux 6.12"}
    report.add(Result("environment", "default", "machine", Outcome.PASS, facts=facts))
    report.add(Result("1 kfd", "default", "ladder", Outcome.PASS, facts={"device": "gfx1100, AMD"}))
    write_report(tmp_path / "r.json.gz", report)
    assert main(["report", str(tmp_path / "r.json.gz"), "--docs", str(tmp_path)]) == 0
    text = (tmp_path / "2026-11-22-gfx1100-amd.md").read_text()
    assert "- driver: amdgpu of Linux 6.12" in text and "- package: 1, llvmlite 0.45" in text
    assert json.loads((tmp_path / "2026-11-22-gfx1100-amd.json").read_text())["vendor"] == "amd"
