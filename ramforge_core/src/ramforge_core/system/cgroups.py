"""Where this process stands among Linux control groups, v1 and v2. On other systems there are simply none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's cgroup for ``controller`` and of its parents, innermost first.

    In a container the path in ``/proc/self/cgroup`` may be one of the host's, of which only the mount's root is
    seen: so a folder may be missing, and the mount's root always comes last.
    """
    mount = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            tops = [mount / "unified", mount]
        elif controller in controllers.split(","):
            tops = [mount / controllers, mount / controller]
        else:
            continue
        top = next((t for t in tops if t.is_dir()), mount)
        folder = top / path.lstrip("/")
        yield from (f for f in (folder, *folder.parents) if f == top or top in f.parents)


def read(path: Path) -> str:
    """The stripped text of a file, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    """The whole number in a file, None if there is none (``max``, or no such file)."""
    try:
        return int(read(path))
    except ValueError:
        return None


def read_table(path: Path) -> dict[str, int]:
    """A file of lines ``name value`` or ``name: value kB`` as numbers, kB made bytes; other lines are passed over."""
    table = {}
    for line in read(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdecimal():
            scale = 1024 if words[2:] == ["kB"] else 1
            table[words[0].rstrip(":")] = int(words[1]) * scale
    return table
