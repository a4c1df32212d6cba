"""`python -m tools.autogen`: lists, makes or checks the modules of autogen/.

Exit status: 0 if all that was asked for was done and is as it should be, 1 if a module differs or
could not be made, 2 for a wrong command line, 3 if nothing differs but a package that some modules
are made from was to be had nowhere, so that these were not looked at.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from .debian import Archive, extract
from .make import module
from .recipe import AutogenError, Package, Recipe, UnreachableError
from .recipes import RECIPES

OUTPUT: Final = Path(__file__).resolve().parents[2] / "autogen"
DIFFERS, NOT_CHECKED = 1, 3


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    known = {recipe.module: recipe for recipe in RECIPES}
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"no recipe {', '.join(unknown)}; known: {', '.join(known)}")
    chosen = [known[name] for name in options.names or known]
    if options.list:
        for recipe in chosen:
            package = recipe.package
            print(f"{recipe.module:24} {package.name} {package.version}  {recipe.about}")
        return 0
    with tempfile.TemporaryDirectory(prefix="autogen-") as scratch:
        archive = Archive(options.debs or Path(scratch))
        return _run(chosen, archive, _compare if options.check else _write)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.autogen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules; all if none is named")
    parser.add_argument("--list", action="store_true", help="say what there is, and from where")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--debs", type=Path, help="an existing folder for downloaded packages")
    return parser


def _run(recipes: Iterable[Recipe], archive: Archive, finish: Callable[[Recipe, str], bool]) -> int:
    failed = skipped = False
    for package, group in _by_package(recipes):
        with tempfile.TemporaryDirectory(prefix="autogen-") as name:
            folder = Path(name)
            try:
                deb = archive.fetch(package)
            except UnreachableError as error:
                skipped = True
                print(f"NOT CHECKED {' '.join(recipe.module for recipe in group)}: {error}")
                continue
            wanted = sorted({path for recipe in group for path in recipe.wanted()})
            extract(deb, package, wanted, folder)
            for recipe in group:
                failed |= not finish(recipe, module(recipe, folder))
    return DIFFERS if failed else NOT_CHECKED if skipped else 0


def _by_package(recipes: Iterable[Recipe]) -> Iterator[tuple[Package, list[Recipe]]]:
    groups: dict[Package, list[Recipe]] = {}
    for recipe in recipes:
        groups.setdefault(recipe.package, []).append(recipe)
    yield from groups.items()


def _write(recipe: Recipe, text: str) -> bool:
    path = OUTPUT / f"{recipe.module}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    print(f"wrote {path.relative_to(OUTPUT.parent)}: {text.count(chr(10))} lines")
    return True


def _compare(recipe: Recipe, text: str) -> bool:
    path = OUTPUT / f"{recipe.module}.py"
    same = path.exists() and path.read_text() == text
    print(f"{'same' if same else 'DIFFERS'} {path.relative_to(OUTPUT.parent)}")
    return same


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AutogenError as error:
        sys.exit(f"tools.autogen: {error}")
