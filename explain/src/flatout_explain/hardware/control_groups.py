"""The control groups of a process, which limit what it may use; of both versions, and nested."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from flatout_explain.files.kernel import kernel_text


def group_folders(controller: str, pid: int = 0, root: str = "/") -> Iterator[str]:
    """Yield the folders of a process's groups, from its own up to the topmost that is mounted here.

    A group can use no more than any group above it, so that the smallest of their limits counts.

    Args:
        controller: ``cpu`` or ``memory``; version 1 has a hierarchy of groups for each of these.
        pid: the process; 0 is this one. A process that has ended counts as this one.
        root: where /proc and /sys are.
    """
    texts = (kernel_text(f"{root}/proc/{process}/cgroup") for process in (pid, "self"))
    text = next(filter(None, texts), "")
    for controllers, group in re.findall(r"^\d+:([^:\n]*):(.*)$", text, re.MULTILINE):
        if controllers and controller not in controllers.split(","):  # version 2 names none
            continue
        if ".." in group.split("/"):  # above what this process may see
            continue
        mounts = list(_mounts(root, controller if controllers else ""))
        # A container may mount other groups as well, whose limits are not its own.
        around = [(top, point) for top, point in mounts if f"{group}/".startswith(f"{top}/")]
        for top, point in around or mounts[:1]:
            names = group.removeprefix(top).split("/") if around else []
            for count in range(len(names), -1, -1):
                yield os.path.join(f"{root}{point}", *names[:count])


def _mounts(root: str, controller: str) -> Iterator[tuple[str, str]]:
    """Yield the topmost group ("" is the root) and the folder of each mount of a hierarchy.

    Args:
        controller: one of version 1, or "" for version 2.
    """
    for line in kernel_text(f"{root}/proc/self/mountinfo").split("\n"):
        place, _, kind = line.partition(" - ")
        fields, described = place.split(), kind.split()
        if len(fields) < 5 or len(described) < 3:
            continue
        version_1 = described[0] == "cgroup" and controller in described[2].split(",")
        if version_1 if controller else described[0] == "cgroup2":
            top, point = (re.sub(r"\\(\d{3})", _character, text) for text in fields[3:5])
            yield top.rstrip("/"), point


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))
