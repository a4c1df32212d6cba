"""Headers out of Debian packages, with a private apt configuration: nothing of the system changes.

The packages are downloaded and unpacked, never installed.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Final

from .recipe import AutogenError, Package, VersionGoneError

SUITES: Final = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


class Archive:
    """Packages of Debian 12, kept in a folder once they are downloaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._environment: dict[str, str] | None = None

    def fetch(self, package: Package) -> Path:
        """The path of a package's .deb file.

        Raises:
            VersionGoneError: the archive no longer has that version.
            AutogenError: apt is missing or cannot reach the archive.
        """
        have = self._find(package)
        if have:
            return have[0]
        environment = self._configure()
        known = _run(["apt-cache", "show", f"{package.name}={package.version}"], environment)
        if not known.stdout.strip():
            raise VersionGoneError(
                f"{package.name} {package.version} is no longer in the archive of Debian 12"
            )
        command = ["apt-get", "download", f"{package.name}={package.version}"]
        loaded = _run(command, environment, self.folder)
        have = self._find(package)
        if loaded.returncode or not have:
            raise AutogenError(f"{' '.join(command)}: {loaded.stderr.strip()}")
        return have[0]

    def _find(self, package: Package) -> list[Path]:
        version = package.version.replace(":", "%3a")
        return sorted(self.folder.glob(f"{package.name}_{version}_*.deb"))

    def _configure(self) -> dict[str, str]:
        """The environment of an apt with lists and caches of its own, brought up to date."""
        if self._environment is None:
            state = self.folder / "apt"
            for name in ("lists/partial", "cache/archives/partial"):
                (state / name).mkdir(parents=True, exist_ok=True)
            (state / "debian.sources").write_text(SUITES)
            (state / "apt.conf").write_text(
                f'Dir::State::lists "{state}/lists";\n'
                f'Dir::Cache "{state}/cache";\n'
                f'Dir::Etc::sourcelist "{state}/debian.sources";\n'
                'Dir::Etc::sourceparts "-";\n'
                'APT::Sandbox::User "";\n'
            )
            environment = {**os.environ, "APT_CONFIG": str(state / "apt.conf")}
            updated = _run(["apt-get", "update", "--error-on=any"], environment)
            if updated.returncode:
                raise AutogenError(f"apt-get update: {updated.stderr.strip()}")
            self._environment = environment
        return self._environment


def extract(deb: Path, package: Package, wanted: Sequence[str], folder: Path) -> None:
    """Puts the wanted files (below the package's root) into a folder, under the same names.

    Of a path that ends in a slash comes everything below it.

    Raises:
        AutogenError: the package lacks one of them.
    """
    with subprocess.Popen(["dpkg", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as dpkg:
        assert dpkg.stdout is not None
        with tarfile.open(fileobj=dpkg.stdout, mode="r|") as outer:
            if package.inner:
                with tarfile.open(fileobj=_member(outer, package), mode="r|xz") as inner:
                    found = _unpack(inner, package.root, wanted, folder)
            else:
                found = _unpack(outer, package.root, wanted, folder)
        dpkg.kill()
    missing = sorted(set(wanted) - found)
    if missing:
        raise AutogenError(f"{package.name} {package.version} lacks {', '.join(missing)}")


def _member(outer: tarfile.TarFile, package: Package) -> IO[bytes]:
    for member in outer:
        if member.name.removeprefix("./") == package.inner:
            content = outer.extractfile(member)
            assert content is not None
            return content
    raise AutogenError(f"{package.name} {package.version} lacks {package.inner}")


def _unpack(archive: tarfile.TarFile, root: str, wanted: Iterable[str], folder: Path) -> set[str]:
    """Which of the wanted paths were there."""
    files = {name for name in wanted if not name.endswith("/")}
    folders = tuple(name for name in wanted if name.endswith("/"))
    found: set[str] = set()
    for member in archive:
        name = member.name.removeprefix("./")
        if not member.isreg() or not name.startswith(f"{root}/"):
            continue
        path = name.removeprefix(f"{root}/")
        within = [one for one in folders if path.startswith(one)]
        if path not in files and not within:
            continue
        content = archive.extractfile(member)
        assert content is not None
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.read())
        found.update(within)
        found.update({path} & files)
        if not folders and found == files:
            break
    return found


def _run(
    command: Sequence[str], environment: dict[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise AutogenError(f"{command[0]} is not there: Debian's tools are needed") from error
