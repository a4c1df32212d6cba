"""Where `tools/autogen` has packages from: archives in folders of the test, read by a real apt."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tools.autogen import __main__ as command
from tools.autogen.debian import MIRRORS, Archive, Mirror, extract
from tools.autogen.recipe import AutogenError, Constants, Package, UnreachableError

SUITES = ("bookworm", "bookworm-updates", "bookworm-security")


def _deb(folder: Path, version: str, text: str) -> Path:
    """A package `headers` with one header."""
    tree = folder / f"tree-{version}"
    header = tree / "usr/include/a.h"
    header.parent.mkdir(parents=True)
    header.write_text(text)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        f"Package: headers\nVersion: {version}\nArchitecture: all\nMaintainer: Nobody <n@b.org>\n"
        "Description: headers\n"
    )
    deb = folder / f"headers_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--build", "-Znone", tree, deb], check=True, capture_output=True)
    return deb


def _serve(root: Path, debs: list[Path]) -> None:
    """An archive as apt reads it, in a folder; all its suites have the same packages."""
    index = ""
    for deb in debs:
        data = deb.read_bytes()
        pool = root / "pool" / deb.name
        pool.parent.mkdir(parents=True, exist_ok=True)
        pool.write_bytes(data)
        shown = ["dpkg-deb", "--field", deb]
        index += subprocess.run(shown, check=True, capture_output=True, text=True).stdout
        index += f"Filename: pool/{deb.name}\nSize: {len(data)}\n"
        index += f"SHA256: {hashlib.sha256(data).hexdigest()}\n\n"
    for suite in SUITES:
        packages = root / "dists" / suite / "main/binary-all/Packages"
        packages.parent.mkdir(parents=True, exist_ok=True)
        packages.write_text(index)
        digest = hashlib.sha256(index.encode()).hexdigest()
        (root / "dists" / suite / "Release").write_text(
            f"Codename: {suite}\nSuite: {suite}\nArchitectures: all\nComponents: main\n"
            f"Date: Sat, 21 Nov 2026 00:00:00 UTC\nNo-Support-for-Architecture-all: Packages\n"
            f"SHA256:\n {digest} {len(index)} main/binary-all/Packages\n"
        )


def _mirror(name: str, root: Path, day: str = "") -> Mirror:
    address = f"copy:{root}{day}"
    return Mirror(name, address, address, "Trusted: yes\nArchitectures: all")


def _package(deb: Path, version: str) -> Package:
    digest = hashlib.sha256(deb.read_bytes()).hexdigest()
    return Package("headers", version, digest, "usr/include", snapshot="20200229")


@pytest.fixture
def served(tmp_path: Path, need: Callable[[str], None]) -> tuple[Package, Package, Archive]:
    """A package that the release has moved on from, one that it has, and an archive of them."""
    need("apt")
    old, new = _deb(tmp_path, "1.0-1", "#define A 1\n"), _deb(tmp_path, "1.0-2", "#define A 2\n")
    _serve(tmp_path / "release", [new])
    _serve(tmp_path / "snapshots/20200229T235959Z", [old])
    debs = tmp_path / "debs"
    debs.mkdir()
    mirrors = (
        _mirror("the release", tmp_path / "release"),
        _mirror("snapshots", tmp_path / "snapshots", "/{day}"),
    )
    return _package(old, "1.0-1"), _package(new, "1.0-2"), Archive(debs, mirrors)


def test_what_the_release_has_comes_from_there(
    served: tuple[Package, Package, Archive], tmp_path: Path
) -> None:
    _, package, archive = served
    extract(archive.fetch(package), package, ["a.h"], tmp_path)
    assert (tmp_path / "a.h").read_text() == "#define A 2\n"
    assert len(archive._updated) == 1, "the snapshots were asked, too"


def test_what_the_release_has_no_more_comes_from_the_snapshot_of_its_day(
    served: tuple[Package, Package, Archive], tmp_path: Path
) -> None:
    package, _, archive = served
    extract(archive.fetch(package), package, ["a.h"], tmp_path)
    assert (tmp_path / "a.h").read_text() == "#define A 1\n"


def test_what_was_downloaded_is_not_asked_for_again(
    served: tuple[Package, Package, Archive],
) -> None:
    package, _, archive = served
    deb = archive.fetch(package)
    assert Archive(deb.parent, mirrors=()).fetch(package) == deb


def test_another_file_under_that_name_is_refused(
    served: tuple[Package, Package, Archive],
) -> None:
    package, _, archive = served
    other = replace(package, sha256="0" * 64)
    with pytest.raises(AutogenError, match=rf"SHA-256 is {package.sha256}, .* as {'0' * 64}"):
        archive.fetch(other)
    deb = archive.fetch(package)
    deb.write_bytes(deb.read_bytes()[:-1])
    with pytest.raises(AutogenError, match="do not use the file"):
        archive.fetch(package)


def test_a_source_package_is_the_archive_of_its_sources(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("apt")
    source = tmp_path / "tree/thing-1.0/src/a.xml"
    source.parent.mkdir(parents=True)
    source.write_text("<a/>\n")
    root = tmp_path / "release"
    archive, dsc = root / "pool/thing_1.0.orig.tar.xz", root / "pool/thing_1.0-1.dsc"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:xz") as packed:  # a machine has apt without having xz
        packed.add(tmp_path / "tree/thing-1.0", "thing-1.0")
    dsc.write_text("Format: 3.0 (quilt)\nSource: thing\nVersion: 1.0-1\n")
    sums = "".join(
        f" {hashlib.sha256(file.read_bytes()).hexdigest()} {file.stat().st_size} {file.name}\n"
        for file in (dsc, archive)
    )
    index = (
        "Package: thing\nBinary: thing\nVersion: 1.0-1\nDirectory: pool\nFormat: 3.0 (quilt)\n"
        f"Checksums-Sha256:\n{sums}\n"
    )
    for suite in SUITES:
        sources = root / "dists" / suite / "main/source/Sources"
        sources.parent.mkdir(parents=True)
        sources.write_text(index)
        digest = hashlib.sha256(index.encode()).hexdigest()
        (root / "dists" / suite / "Release").write_text(
            f"Codename: {suite}\nSuite: {suite}\nArchitectures: all\nComponents: main\n"
            f"Date: Sat, 21 Nov 2026 00:00:00 UTC\n"
            f"SHA256:\n {digest} {len(index)} main/source/Sources\n"
        )
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    package = Package("thing", "1.0-1", digest, "thing-1.0/src", source=archive.name)
    debs = tmp_path / "debs"
    debs.mkdir()
    mirror = Mirror("the release", f"copy:{root}", f"copy:{root}", "Trusted: yes")
    fetched = Archive(debs, (mirror,)).fetch(package)
    extract(fetched, package, ["a.xml"], tmp_path)
    assert (tmp_path / "a.xml").read_text() == "<a/>\n"
    with pytest.raises(AutogenError, match=r"thing 1.0-1 lacks b\.xml"):
        extract(fetched, package, ["b.xml"], tmp_path)
    gone = replace(package, version="0.9-1", source="thing_0.9.orig.tar.xz")
    with pytest.raises(UnreachableError, match="has no such version for bookworm"):
        Archive(debs, (mirror,)).fetch(gone)


def test_where_it_was_looked_for_is_told(served: tuple[Package, Package, Archive]) -> None:
    package, _, archive = served
    gone = Package("headers", "0.9-1", package.sha256, package.root, snapshot="20190101")
    with pytest.raises(UnreachableError) as error:
        archive.fetch(gone)
    said = str(error.value)
    assert "headers 0.9-1: the release: has no such version for bookworm; snapshots: E: " in said


def test_every_package_is_pinned() -> None:
    from tools.autogen.nvidia.package import PACKAGES
    from tools.autogen.recipes import RECIPES

    for package in {*(one.package for one in RECIPES), *PACKAGES.values()}:
        assert len(package.sha256) == 64 and int(package.sha256, 16)
        assert len(package.snapshot) == 8 and package.snapshot.isdigit()
        release, snapshots = (mirror.sources(package) for mirror in MIRRORS)
        assert f"Suites: {package.suite}-security\nComponents: {package.component}\n" in release
        assert f"/archive/debian/{package.snapshot}T235959Z\n" in snapshots
        assert "Signed-By: " in release and "Signed-By: " in snapshots


def _check(archive: Archive, package: Package, monkeypatch: pytest.MonkeyPatch, root: Path) -> int:
    recipe = Constants(module="a", about="A.", package=package, headers=("a.h",), names=("A",))
    monkeypatch.setattr(command, "RECIPES", (recipe,))
    monkeypatch.setattr(command, "OUTPUT", root / "autogen")
    monkeypatch.setattr(command, "Archive", lambda folder: archive)
    return command.main(["--check"])


def test_the_exit_status_tells_what_differs_from_what_was_not_checked(
    served: tuple[Package, Package, Archive],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new, archive = served
    gone = Package("headers", "0.9-1", new.sha256, new.root)
    assert _check(archive, new, monkeypatch, tmp_path) == 1
    assert capsys.readouterr().out == "DIFFERS autogen/a.py\n"
    (tmp_path / "autogen").mkdir()
    assert command.main([]) == 0
    assert capsys.readouterr().out.startswith("wrote autogen/a.py: ")
    assert _check(archive, new, monkeypatch, tmp_path) == 0
    assert _check(archive, gone, monkeypatch, tmp_path) == 3
    assert capsys.readouterr().out.splitlines()[-1].startswith("NOT CHECKED a: headers 0.9-1: ")
    assert _check(archive, old, monkeypatch, tmp_path) == 1
    with pytest.raises(SystemExit) as error:
        command.main(["--check", "b"])
    assert error.value.code == 2
