"""Layouts of structures out of debugging information, by gdb."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..recipe import AutogenError

Places = list[tuple[str, int, int]]  # path of a member, offset and size in bytes

_SCRIPT: Final = """
import gdb, json

def places(kind, at, path):
    kind = kind.strip_typedefs()
    if kind.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        return
    for field in kind.fields():
        start = at + field.bitpos // 8
        name = path + (field.name or "")
        if field.name:
            yield name, start, field.type.sizeof
            if field.type.strip_typedefs().code == gdb.TYPE_CODE_ARRAY:
                yield name + "[0]", start, field.type.strip_typedefs().target().sizeof
        yield from places(field.type, start, name + "." if field.name else path)

def look(name):
    for spelled in (name, "struct " + name):
        try:
            return gdb.lookup_type(spelled)
        except gdb.error:
            pass
    return None

found = {}
for name in json.load(open(NAMES)):
    kind = look(name)
    if kind is not None:
        found[name] = [kind.sizeof, list(places(kind, 0, ""))]
print("FOUND" + json.dumps(found))
"""


def layouts(binary: Path, names: Iterable[str]) -> dict[str, tuple[int, Places]]:
    """Size and members, those of inner structures too, of the types that a binary knows.

    Raises:
        AutogenError: gdb is missing or fails.
    """
    with tempfile.TemporaryDirectory(prefix="autogen-") as scratch:
        asked, script = Path(scratch, "names.json"), Path(scratch, "places.py")
        asked.write_text(json.dumps(sorted(names)))
        script.write_text(f"NAMES = {str(asked)!r}\n{_SCRIPT}")
        command = ["gdb", "-nx", "-batch", "-x", str(script), str(binary)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise AutogenError("gdb is not installed: it reads debugging information") from error
    _, found, text = done.stdout.partition("FOUND")
    if not found:
        raise AutogenError(f"gdb on {binary.name}: {done.stderr.strip()[-500:]}")
    return {
        name: (size, [(path, at, width) for path, at, width in members])
        for name, (size, members) in json.loads(text).items()
    }
