"""Wheels of this repository, and environments that hold nothing but wheels: for tests of what others will install.

No network is used: wheels are built with the setuptools and cffi that are here, and an environment gets links to the
third-party packages that are here. A wheel is kept in pytest's cache until a file of its project changes.
"""

from __future__ import annotations

import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
OURS = (
    "core",
    "cli",
    "arch-llama",
    "backend-cpu",
    "backend-numpy",
    "quant-float",
    "sources",
    "tokenizer-spm",
)
"""What a model of an outside format needs to run; each C package more costs seconds."""

_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
_LEFT_OUT = shutil.ignore_patterns(
    "build", "dist", "*.egg-info", "*.so", "*.o", "__pycache__", "_kernels.c", "_native.c", ".*_cache"
)


def project(name: str) -> Path:
    folder = ROOT / f"ramforge_{name}"
    return folder if folder.is_dir() else ROOT / "ramforge_plugins" / f"ramforge-{name}"


def build_wheel(source: Path, scratch: Path, **environ: str) -> Path:
    """A wheel of a project, built in a copy below ``scratch``; the project's folder stays as it is."""
    copy, wheels = scratch / "source" / source.name, scratch / "wheels"
    shutil.copytree(source, copy, ignore=_LEFT_OUT)
    wheels.mkdir(parents=True, exist_ok=True)
    code = "import sys, setuptools.build_meta as b; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(wheels)],
        cwd=copy,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return wheels / done.stdout.splitlines()[-1]


def cached_wheel(source: Path, cache: Path, scratch: Path) -> Path:
    """As `build_wheel`, or what was built of the very same files before."""
    files = sorted(f for f in source.rglob("*") if f.is_file())
    skipped = _LEFT_OUT("", {part for f in files for part in f.relative_to(source).parts})
    digest = hashlib.sha256(sys.version.encode())
    for file in files:
        relative = file.relative_to(source)
        if not skipped.intersection(relative.parts) and relative.parts[0] != "tests":
            digest.update(f"{relative}\0".encode() + file.read_bytes())
    kept = cache / digest.hexdigest()[:20]
    if not kept.is_dir():
        built = build_wheel(source, scratch / source.name)
        unfinished = Path(f"{kept}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        shutil.copy2(built, unfinished)
        for old in cache.glob(f"*/{built.name}"):
            if old.parent != unfinished:
                shutil.rmtree(old.parent)
        unfinished.rename(kept)
    return next(kept.glob("*.whl"))


def wheels_of(projects: list[Path], cache: Path, scratch: Path) -> list[Path]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda source: cached_wheel(source, cache, scratch), projects))


class Environment:
    """A virtual environment with links to third-party packages. What is of RAMforge must be installed into it."""

    def __init__(self, folder: Path, wheels: list[Path], *requirements: str) -> None:
        """requirements : what is needed beside the wheels and what these require, such as an extra of one of them."""
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        self.site = Path(self._run([self.python, "-c", _SITE]).stdout.strip())
        needed = [r for wheel in wheels for r in _requirements(wheel)]
        for name in _closure([*needed, *requirements]):
            for file in metadata.distribution(name).files or ():
                place = self.site / file.parts[0]
                if file.parts[0] != ".." and not place.exists():
                    place.symlink_to(metadata.distribution(name).locate_file(file.parts[0]))
        self.install(wheels)

    def install(self, wheels: list[Path]) -> None:
        """With pip, which checks that every requirement is met by what is there."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-index"]
        done = self._run([*command, "--no-compile", *wheels])
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: object, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess:
        """A program of the environment."""
        program, *rest = map(str, arguments)
        return self._run([self.folder / "bin" / program, *rest], cwd=cwd or self.folder, **environ)

    def _run(self, command, *, cwd=None, **environ):
        kept = {
            k: v
            for k, v in os.environ.items()
            if not re.match("RAMFORGE_|PYTHON|PYTEST_|VIRTUAL_ENV|PIP_", k)
        }
        return subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env={**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def _requirements(wheel: Path) -> list[str]:
    """What a wheel says; what an editable installation says may be older than its project."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = email.message_from_bytes(archive.read(name))
    return [r for r in text.get_all("Requires-Dist", []) if "extra ==" not in r]


def _closure(requirements: list[str]) -> list[str]:
    """Names of third-party distributions that these need, themselves included."""
    found: dict[str, None] = {}
    waiting = [Requirement(r) for r in requirements]
    while waiting:
        wanted = waiting.pop()
        needed = [Requirement(r) for r in metadata.requires(wanted.name) or ()]
        extras = {"", *wanted.extras}
        if wanted.name.startswith("ramforge") and not wanted.extras:
            continue
        waiting += [
            r
            for r in needed
            if r.name not in found
            and (r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras))
        ]
        if not wanted.name.startswith("ramforge"):
            found[wanted.name] = None
    return list(found)
