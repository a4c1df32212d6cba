"""Headers out of Debian packages, with a private apt configuration: nothing of the system changes.

The packages are downloaded and unpacked, never installed. Each is known by its SHA-256, so that it
does not matter where it comes from: a folder, the archive of its release or, where that has moved
on, Debian's snapshots of the archive.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from .recipe import AutogenError, Package, UnreachableError

_KEYS: Final = "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Mirror:
    """Where packages of Debian are.

    `archive` and `security` are addresses as apt takes them; ``{day}`` in them becomes the day of
    a package's snapshot. `trust` is what apt is told of how to believe what they serve.
    """

    name: str
    archive: str
    security: str
    trust: str = _KEYS

    def sources(self, package: Package) -> str:
        """The file that tells apt of this mirror, for one package."""
        suites = {
            self.archive: f"{package.suite} {package.suite}-updates",
            self.security: f"{package.suite}-security",
        }
        day = f"{package.snapshot}T235959Z"
        kind = "deb-src" if package.source else "deb"
        return "\n".join(
            f"Types: {kind}\nURIs: {address.replace('{day}', day)}\nSuites: {names}\n"
            f"Components: {package.component}\n{self.trust}\n"
            for address, names in suites.items()
        )


MIRRORS: Final = (
    Mirror(
        "the archive",
        "http://deb.debian.org/debian",
        "http://deb.debian.org/debian-security",
    ),
    Mirror(
        "Debian's snapshots",
        "http://snapshot.debian.org/archive/debian/{day}",
        "http://snapshot.debian.org/archive/debian-security/{day}",
        # How long a snapshot says that it holds is over.
        f"{_KEYS}\nCheck-Valid-Until: no",
    ),
)


class Archive:
    """Packages of Debian, kept in a folder once they are downloaded."""

    def __init__(self, folder: Path, mirrors: Sequence[Mirror] = MIRRORS) -> None:
        self.folder = folder.resolve()
        self.mirrors = mirrors
        self._updated: dict[str, tuple[dict[str, str], str]] = {}

    def fetch(self, package: Package) -> Path:
        """The path of a package's file, whose SHA-256 is the recorded one.

        Raises:
            UnreachableError: none of the mirrors has that version, or can be reached.
            AutogenError: apt is missing, or what is there under that name is another file.
        """
        if have := self._find(package):
            return _checked(have, package)
        said = []
        for mirror in self.mirrors:
            why = self._download(mirror, package)
            if have := self._find(package):
                return _checked(have, package)
            said.append(f"{mirror.name}: {why}")
        raise UnreachableError(f"{package.name} {package.version}: {'; '.join(said)}")

    def _find(self, package: Package) -> Path | None:
        version = package.version.replace(":", "%3a")
        name = package.source or f"{package.name}_{version}_*.deb"
        return next(iter(sorted(self.folder.glob(name))), None)

    def _download(self, mirror: Mirror, package: Package) -> str:
        """Tries to put the package into the folder; why it did not, where it did not."""
        environment, trouble = self._update(mirror.sources(package))
        wanted = f"{package.name}={package.version}"
        get = ["apt-get", "download", wanted]
        known = _run(["apt-cache", "show", wanted], environment).stdout.strip()
        if package.source:
            get = ["apt-get", "source", "--download-only", "--only-source", "-q", wanted]
            shown = _run(["apt-cache", "showsrc", package.name], environment).stdout
            known = f"Version: {package.version}\n" in shown
        if not known:
            return trouble or f"has no such version for {package.suite}"
        return _run(get, environment, self.folder).stderr.strip()

    def _update(self, sources: str) -> tuple[dict[str, str], str]:
        """The environment of an apt with lists of its own, and what went wrong filling them."""
        if sources not in self._updated:
            state = self.folder / "apt" / hashlib.sha256(sources.encode()).hexdigest()[:16]
            for name in ("lists/partial", "cache/archives/partial"):
                (state / name).mkdir(parents=True, exist_ok=True)
            (state / "debian.sources").write_text(sources)
            (state / "apt.conf").write_text(
                f'Dir::State::lists "{state}/lists";\n'
                f'Dir::Cache "{state}/cache";\n'
                f'Dir::Etc::sourcelist "{state}/debian.sources";\n'
                'Dir::Etc::sourceparts "-";\n'
                'Acquire::Languages "none";\n'
                'APT::Sandbox::User "";\n'
            )
            environment = {**os.environ, "APT_CONFIG": str(state / "apt.conf")}
            updated = _run(["apt-get", "update", "--error-on=any"], environment)
            first = updated.stderr.strip().partition("\n")[0]
            self._updated[sources] = environment, first if updated.returncode else ""
        return self._updated[sources]


def _checked(path: Path, package: Package) -> Path:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise AutogenError(
            f"{path}: its SHA-256 is {digest}, that of {package.name} {package.version} is recorded"
            f" as {package.sha256}: do not use the file; remove it to fetch it again"
        )
    return path


def extract(deb: Path, package: Package, wanted: Sequence[str], folder: Path) -> None:
    """Puts the wanted files (below the package's root) into a folder, under the same names.

    Of a path that ends in a slash comes everything below it.

    Raises:
        AutogenError: the package lacks one of them.
    """
    if package.source:
        with tarfile.open(deb) as archive:
            found = _unpack(archive, package.root, wanted, folder)
    else:
        found = _extract_deb(deb, package, wanted, folder)
    missing = sorted(set(wanted) - found)
    if missing:
        raise AutogenError(f"{package.name} {package.version} lacks {', '.join(missing)}")


def _extract_deb(deb: Path, package: Package, wanted: Sequence[str], folder: Path) -> set[str]:
    with subprocess.Popen(["dpkg", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as dpkg:
        assert dpkg.stdout is not None
        with tarfile.open(fileobj=dpkg.stdout, mode="r|") as outer:
            if package.inner:
                with tarfile.open(fileobj=_member(outer, package), mode="r|xz") as inner:
                    found = _unpack(inner, package.root, wanted, folder)
            else:
                found = _unpack(outer, package.root, wanted, folder)
        dpkg.kill()
    return found


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
