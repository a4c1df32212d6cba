"""`gpu demo`: its data, its picture, what it learns, and how it fails."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device
from gpu.cli import demo_picture, demo_simulated, png
from gpu.cli.demo import DEFAULT_STEPS
from gpu.cli.demo_training import BATCH, Training, batches
from gpu.cli.main import main
from gpu.core.errors import DTypeError, FormatError, InvalidValue, ShapeError
from gpu.data import DIGITS_FILE, load_digits, split_digits
from gpu.sim.amd.kfd.world import KfdWorld
from simulated import SIMULATED

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def decode(file: bytes) -> Pixels:
    """The pixels of a PNG whose lines are not filtered; checks every chunk."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(file):
        (length,) = struct.unpack_from(">I", file, place)
        kind, body = file[place + 4 : place + 8], file[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", file, place + 8 + length) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        place += length + 12
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colours, *others = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, others) == (8, [0, 0, 0])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any(), "filters"
    return lines[:, 1:].reshape({0: (height, width), 2: (height, width, 3)}[colours])


def test_digits() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 8, 8) and images.dtype == labels.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 16)
    # As the description of the source counts them.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    training, testing = split_digits()
    assert (testing % 3 == 0).all() and len(testing) == 599
    assert sorted([*training, *testing]) == list(range(1797))


def test_source_and_licence_lie_beside_the_digits() -> None:
    text = DIGITS_FILE.with_name("README.md").read_text()
    for words in ("E. Alpaydin and C. Kaynak", "UCI Machine Learning Repository", "CC BY 4.0"):
        assert words in text


def test_other_data_is_refused(tmp_path: Path) -> None:
    content = bytearray(zlib.decompress(DIGITS_FILE.read_bytes()))
    content[1000] ^= 1
    for name, data in (("changed", zlib.compress(content)), ("garbage", b"not zlib")):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(FormatError, match=name):
            load_digits(path)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 4, 3)])
def test_png_round_trip(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert (decode(png.encode(pixels)) == pixels).all()


def test_png_refuses_what_is_no_image() -> None:
    with pytest.raises(DTypeError, match="float64"):
        png.encode(np.zeros((2, 2)))  # type: ignore[arg-type]
    for shape in ((4,), (0, 4), (2, 2, 4)):
        with pytest.raises(ShapeError, match="got"):
            png.encode(np.zeros(shape, np.uint8))


def test_wrong_answers_come_first_and_are_marked() -> None:
    labels = np.array([3, 1, 4, 1, 5], np.uint8)
    predicted = np.array([3, 7, 4, 1, 6])
    assert demo_picture.choose(predicted, labels, 4).tolist() == [1, 4, 0, 2]
    images = np.zeros((2, 8, 8), np.uint8)
    images[:, 0, 0] = 16
    sheet = demo_picture.draw(images, predicted[:2], labels[:2])
    right, wrong = sheet[:, : sheet.shape[1] // 2], sheet[:, sheet.shape[1] // 2 :]
    colours = [{tuple(p) for p in half.reshape(-1, 3).tolist()} for half in (right, wrong)]
    green, red, grey = demo_picture._RIGHT, demo_picture._WRONG, demo_picture._FAINT
    assert demo_picture._INK in colours[0] & colours[1]
    assert green in colours[0] and not {red, grey} & colours[0]
    assert {red, grey} <= colours[1] and green not in colours[1]


def test_pictures_of_a_few_and_of_none() -> None:
    labels = np.zeros(13, np.uint8)
    images = np.zeros((13, 8, 8), np.uint8)
    one, all_ = (demo_picture.draw(images[:n], labels[:n].astype(int), labels[:n]) for n in (1, 13))
    assert one.shape[0] < all_.shape[0] and one.shape[1] < all_.shape[1]
    with pytest.raises(InvalidValue, match="none"):
        demo_picture.draw(images[:0], np.zeros(0, int), labels[:0])


def test_glyphs_differ() -> None:
    glyphs = [demo_picture._glyph(c) for c in "0123456789≠"]
    assert len({glyph.tobytes() for glyph in glyphs}) == 11
    # The left bit is the left point: a 7 begins with a bar and ends left of the middle.
    assert glyphs[7][0].all() and glyphs[7][-1].tolist() == [False, True, False, False, False]


def test_batches_of_an_epoch_are_distinct() -> None:
    source = batches(200, seed=1)
    first, second = ([next(source) for _ in range(3)] for _ in range(2))
    for epoch in (first, second):
        assert all(len(batch) == BATCH for batch in epoch)
        assert len(set(np.concatenate(epoch).tolist())) == 3 * BATCH
    assert np.concatenate(first).tolist() != np.concatenate(second).tolist()
    assert next(batches(200, seed=1)).tolist() == first[0].tolist()


def test_the_learning_rate_falls_to_zero() -> None:
    training = Training(seed=0, steps=4)
    rates: list[float] = []
    training.run(lambda report: rates.append(training.optimizer.lr.item()))
    assert np.allclose(rates, [0.0075, 0.005, 0.0025, 0], atol=1e-7)


@pytest.fixture
def simulated_gpu(need: Callable[[str], None]) -> None:
    """The one that other tests use too is open: the demo would open `AMD` on a smaller machine."""
    need("llvmlite")
    with Context(SIM=SIMULATED["AMD"], DEV="AMD"):
        Device["AMD"].synchronize()


@pytest.mark.slow
@pytest.mark.usefixtures("simulated_gpu")
def test_it_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "picture.png"
    assert main(["demo", "--seed", "0", "--output", str(path)]) == 0
    out = capsys.readouterr().out
    lines = {line[:10].strip(): line[10:] for line in out.splitlines() if line[:1] != " "}
    titles = ["device", "training", "accuracy", "time", "kernels", "picture", "simulated"]
    assert list(lines) == titles
    assert float(lines["accuracy"].split("%")[0]) >= 97
    assert lines["device"].startswith("CPU")
    assert str(path) in lines["picture"]
    assert lines["simulated"].startswith("599 of 599 answers are the same on a simulated gfx1100")
    assert re.search(
        r"^ +[1-9]\d* ioctls, [1-9]\d* doorbells, [1-9]\d* packets, ", out, re.MULTILINE
    )
    assert re.search(r", [1-9]\d* kernels, [1-9][\d,]{6,} instructions\n$", out)
    assert decode(path.read_bytes()).ndim == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_learn_as_well(seed: int) -> None:
    """Which the simulated GPU, that takes most of a demo's time, has nothing to do with."""
    training = Training(seed, DEFAULT_STEPS)
    training.run(lambda report: None)
    assert (training.test() == training.testing.labels).mean() >= 0.97


@pytest.mark.usefixtures("simulated_gpu")
def test_machines_of_others_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends while the demo simulates has done nothing for it."""
    training = Training(seed=0, steps=1)
    other = KfdWorld()
    other.counts.ioctls = 10**9
    predict = demo_simulated._predict

    def closing(*arguments: Any) -> Any:
        other.close()
        return predict(*arguments)

    monkeypatch.setattr(demo_simulated, "_predict", closing)
    done = demo_simulated.run_simulated(training).counts
    assert 0 < done.ioctls < 10**6
    assert 0 < done.kernels < 12  # those of the answers: no network is drawn anew


def _start(*arguments: str) -> subprocess.Popen[str]:
    home = str(Path(png.__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "gpu", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
    )


def test_ctrl_c_stops_it(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    process = _start("--steps", "100000", "--output", str(path))
    assert process.stdout is not None
    for line in process.stdout:
        if "first step" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_on_another_device(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("clang")
    path = tmp_path / "picture.png"
    process = _start("--device", "CPU:CLANG", "--steps", "2", "--output", str(path))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("device    CPU (C,") and path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "CPUU"], "CPUU"),
        (["--output", "/"], "is a folder"),
        (["--output", "/no/such/folder/a.png"], "there is no folder /no/such/folder"),
    ],
)
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "1", *arguments]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_a_picture_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was not told before the work is an error after it."""
    path = tmp_path / ("x" * 300)
    assert main(["demo", "--steps", "1", "--output", str(path)]) == 1
    assert "cannot be written, File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_steps_are_positive(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--steps", steps])
    assert caught.value.code == 2
    assert "whole number" in capsys.readouterr().err
