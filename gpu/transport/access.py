"""Why a device file may not be opened, and what to do about it."""

from __future__ import annotations

import grp
import os
import stat

_READ, _WRITE = 4, 2  # of the three permission bits of owner, group and others


def access_hint(path: str, flags: int) -> str:
    """What lets this user open `path` with the flags of `os.open`, in words and commands.

    It is only asked for once that was denied; the file itself is not touched.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "it is gone; look whether the device is still there"
    except PermissionError:
        return "a folder above it may not be searched; ask the administrator for access to it"
    member = status.st_gid in (*os.getgroups(), os.getegid())
    return hint_for(status, flags, _group_name(status.st_gid), member)


def hint_for(status: os.stat_result, flags: int, group: str, member: bool) -> str:
    """The hint for a file that is there, its group's name, and whether this process is in it."""
    wanted = _wanted(flags)
    mode = stat.S_IMODE(status.st_mode)
    if (mode >> 3) & wanted == wanted and group != "root":
        if not member:
            return f"run `sudo usermod -aG {group} $USER` and log in again"
        return (
            f"you are in its group {group}, so something else forbids it: a container's list of"
            " devices (`--device`), SELinux or AppArmor"
        )
    if mode & wanted == wanted:
        return (
            "its permissions allow it, so something else forbids it: a container's list of devices"
            " (`--device`), SELinux or AppArmor"
        )
    return (
        f"only its owner may ({stat.filemode(status.st_mode)}, group {group}); give it to a group"
        ' with a udev rule such as GROUP="render", MODE="0660"'
    )


def _wanted(flags: int) -> int:
    mode = flags & os.O_ACCMODE
    return (_READ if mode != os.O_WRONLY else 0) | (_WRITE if mode != os.O_RDONLY else 0)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
